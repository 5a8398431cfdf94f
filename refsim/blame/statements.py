"""Split a PTX text into the parts that can be left out: functions, statements, marks of source lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

_TOKEN = re.compile(
    r'(?P<skipped>//[^\n]*|/\*.*?\*/|"[^"\n]*")|(?P<mark>\.(?:loc|file)\b[^\n]*\n)|'
    r"(?P<head>\.(?:version|target|address_size)\b[^\n]*\n)|(?P<label>[\w$%]+[ \t]*:(?!:))|"
    r"(?P<open>\{)|(?P<close>\})|(?P<end>;)|(?P<word>[.\w$%]+)|(?P<other>\s+|.)",
    re.DOTALL,
)
_WRITES = re.compile(r"(?:@!?[%\w$]+ )?(?P<opcode>[a-z][\w.:]*) (?P<to>%[\w$]+), ?(?P<of>.*)")
_REGISTERS = re.compile(r"\.reg \.(\w+) ([^;]+);")
_ZEROS = {kind + bits: f"mov.b{bits} {{}}, 0;" for kind in "bfsu" for bits in ("16", "32", "64")}
"""The instruction that sets a register of each type to zero."""
_FUNCTION = re.compile(r"\.(entry|func)\b")


@dataclass(frozen=True)
class TextPart:
    """A stretch of the text: `function` numbers the function that contains it, 0 outside any.

    `is_statement` marks a part that ends in a semicolon within a function, `is_mark` a .loc.
    """

    text: str
    function: int = 0
    is_statement: bool = False
    is_mark: bool = False


def parts_of(text: str) -> tuple[TextPart, ...]:
    """Return the text as parts in order: joined, they are the text again.

    `ld.param.u64 %rd1, [p];` within a function can be left out; a brace, a label or a header cannot.
    """
    cut = _Cut()
    for token in _TOKEN.finditer(text):
        cut.take(str(token.lastgroup), token.group())
    cut.close()
    return tuple(cut.parts)


@dataclass
class _Cut:
    """The state of the split: the pending text, the depth of blocks, and the depth of braces within an operand."""

    parts: list[TextPart] = field(default_factory=list)
    pending: str = ""
    depth: int = 0
    within: int = 0
    function: int = 0

    def take(self, kind: str, text: str) -> None:
        """Add a token and end a part where the token ends one."""
        begins = kind in ("mark", "head", "label", "open") and not _says(self.pending)
        if kind in ("mark", "head", "label") and begins and not self.within:
            self.pending += text
            self.close(is_mark=kind == "mark" and self.depth > 0)
            return
        self.pending += text
        if kind == "open":
            self._opened(begins)
        elif kind == "close":
            self._closed()
        elif kind == "end" and not self.within:
            self.close(is_statement=self.depth > 0)

    def _opened(self, begins: bool) -> None:
        """Count an opening brace: of a block, of a function, or of an operand where neither begins."""
        header = not self.depth and _FUNCTION.search(self.pending) is not None
        if self.within or not (begins or header):
            self.within += 1
            return
        if header:
            self.function += 1
        self.depth += 1
        self.close()

    def _closed(self) -> None:
        """Count a closing brace."""
        if self.within:
            self.within -= 1
            return
        self.close()
        self.depth = max(0, self.depth - 1)

    def close(self, *, is_statement: bool = False, is_mark: bool = False) -> None:
        """End the pending part; the header of a function belongs to that function."""
        if self.pending:
            number = self.function if self.depth else 0
            self.parts.append(TextPart(self.pending, number, is_statement, is_mark))
        self.pending = ""


@dataclass(frozen=True)
class Pieces:
    """A text in parts; `edits` maps the number of a part to its text in an edited copy, where they differ."""

    parts: tuple[TextPart, ...]
    edits: dict[int, str] = field(default_factory=dict)

    @property
    def all(self) -> "Candidate":
        """Return the candidate with every part."""
        return Candidate(self, tuple(range(len(self.parts))))

    @cached_property
    def statements(self) -> tuple[int, ...]:
        """Return the numbers of the parts that are statements."""
        return tuple(number for number, part in enumerate(self.parts) if part.is_statement)

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """Return the numbers of the parts that mark source lines."""
        return tuple(number for number, part in enumerate(self.parts) if part.is_mark)

    @cached_property
    def functions(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of each function's parts."""
        found: dict[int, list[int]] = {}
        for number, part in enumerate(self.parts):
            if part.function:
                found.setdefault(part.function, []).append(number)
        return tuple(tuple(numbers) for numbers in found.values())

    @cached_property
    def outside(self) -> tuple[int, ...]:
        """Return the numbers of variables and declarations outside functions."""
        return tuple(
            number for number, part in enumerate(self.parts) if not part.function and part.text.rstrip().endswith(";")
        )


@dataclass(frozen=True)
class Candidate:
    """Some parts of a text: `kept` are their numbers, `instead` pairs a number with the text that replaces the part."""

    pieces: Pieces
    kept: tuple[int, ...]
    instead: tuple[tuple[int, str], ...] = ()

    @cached_property
    def text(self) -> str:
        """Return the PTX of the kept parts."""
        parts, instead = self.pieces.parts, dict(self.instead)
        return "".join(instead.get(number, parts[number].text) for number in self.kept)

    @cached_property
    def edited(self) -> str:
        """Return the PTX of the kept parts in the edited copy."""
        parts, instead = self.pieces.parts, self.pieces.edits | dict(self.instead)
        return "".join(instead.get(number, parts[number].text) for number in self.kept)

    @property
    def instructions(self) -> int:
        """Return how many kept statements are not declarations."""
        of = (self.pieces.parts[number] for number in self.kept)
        return sum(part.is_statement and not _says(part.text).startswith(".") for part in of)

    def without(self, numbers: Sequence[int]) -> "Candidate":
        """Return the candidate without some more parts."""
        left_out = frozenset(numbers)
        return Candidate(self.pieces, tuple(number for number in self.kept if number not in left_out), self.instead)

    @property
    def zeros(self) -> "Iterator[Candidate]":
        """Yield candidates that replace one statement by a zero in its register, the last statement first.

        `mad.lo.s32 %r4, %r1, %r2, %r3;` becomes `mov.b32 %r4, 0;`. A statement that the edited copy changes stays.
        """
        said = [(number, _says(self.pieces.parts[number].text)) for number in self.kept]
        types = {
            name.partition("<")[0]: row[1]
            for _, text in said
            for row in _REGISTERS.finditer(text)
            for name in row[2].replace(" ", "").split(",")
        }
        known = {*self.pieces.edits, *dict(self.instead)}
        for number, text in reversed(said):
            found = _WRITES.match(text) if self.pieces.parts[number].is_statement and number not in known else None
            kind = types.get(found["to"], types.get(found["to"].rstrip("0123456789"), "")) if found else ""
            if (
                found
                and kind in _ZEROS
                and not found["opcode"].startswith(("st.", "red."))
                and not found["of"][0].isdigit()
            ):
                zero = f"\n    {_ZEROS[kind].format(found['to'])}"
                yield Candidate(self.pieces, self.kept, (*self.instead, (number, zero)))


def pieces_of(text: str, edited: str | None = None) -> Pieces:
    """Return a text in parts with the changes of an edited copy, each at the part where it begins.

    A copy with `sub.s32` for one `add.s32` has one edit. Added text belongs to the part before it.
    """
    parts = parts_of(text)
    if edited is None:
        return Pieces(parts)
    mine, theirs = [_says(part.text) for part in parts], parts_of(edited)
    edits: dict[int, str] = {}
    matched = SequenceMatcher(None, mine, [_says(part.text) for part in theirs], autojunk=False)
    for tag, first, end, other, other_end in matched.get_opcodes():
        said = "".join(part.text for part in theirs[other:other_end])
        if tag == "insert":
            at = max(first - 1, 0)
            edits[at] = edits.get(at, parts[at].text) + said
        elif tag != "equal":
            edits |= dict.fromkeys(range(first, end), "")
            edits[first] = said
    return Pieces(parts, edits)


def _says(text: str) -> str:
    """Return a part without comments, with each run of white space as one blank."""
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).split())
