"""A PTX text as editable lines: what each statement reads and writes, its block, and its CUDA line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from refsim.ptx import Program
from refsim.ptx.text.parser import parse
from refsim.ptx.text.syntax import Location, Register, Statement

Key = TypeVar("Key")
Changes = dict[int, str]
"""New texts of lines, by the indices of the lines."""
_STATEMENT = re.compile(
    r"(?P<before>\s*\{?\s*(?:@!?%[\w$]+\s+)?)(?P<opcode>[a-z][\w.:]*)\s+(?P<operands>[^;]*);(?P<behind>\s*\}?)\s*$"
)
REGISTER = re.compile(r"%[A-Za-z_$][\w$]*")
_MAKERS = frozenset({"add", "sub", "mul", "mad", "shl", "shr", "and", "cvt", "neg", "mov", "min", "max"})
_ENDS_A_BLOCK = frozenset({"bra", "ret", "exit", "call", "trap", "brx"})


@dataclass(frozen=True)
class ListedLine:
    """One statement on a line of its own; `at` is its index among the lines, `block` its straight run of code.

    `place` is the kernel's own line, `calls` that line with the calls inside it.
    """

    at: int
    before: str
    opcode: str
    operands: tuple[str, ...]
    behind: str
    block: int
    place: str
    calls: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Return the opcode's parts: ("add", "rn", "f32")."""
        return tuple(self.opcode.split("."))

    @property
    def name(self) -> str:
        return self.words[0]

    @property
    def written(self) -> frozenset[str]:
        """Return the registers that it writes; none for a store or a branch."""
        if self.name in ("st", "red", "bra", "bar", "barrier") or not self.operands:
            return frozenset()
        return frozenset(REGISTER.findall(self.operands[0]))

    @property
    def read(self) -> frozenset[str]:
        """Return the registers that it reads, its guard among them."""
        operands = self.operands[1:] if self.written else self.operands
        return frozenset(name for operand in (self.before, *operands) for name in REGISTER.findall(operand))

    def reading(self, *statements: str) -> str:
        """Return the text of the line with other statements in place of its own, under the same guard.

        A brace whose partner is on another line stays.
        """
        guard = self.before.replace("{", "").strip()
        is_whole = ("{" in self.before) == ("}" in self.behind)
        opening, closing = ("", "") if is_whole else ("{ " * ("{" in self.before), " }" * ("}" in self.behind))
        code = " ".join(
            f"{guard} {statement};" if not statement.startswith(".reg") else f"{statement};" for statement in statements
        )
        return opening + (f"{{ {code} }}" if len(statements) > 1 else code) + closing

    def renamed(self, opcode: str, *operands: str) -> str:
        """Return the text of the line with another opcode and, if given, other operands."""
        return self.reading(f"{opcode} {', '.join(operands or self.operands)}")

    def worded(self, word: str, other: str = "") -> str:
        """Return the opcode with its first part `word` replaced, or removed."""
        at = self.words.index(word)
        return ".".join((*self.words[:at], *([other] if other else []), *self.words[at + 1 :]))


@dataclass(frozen=True)
class PtxListing:
    """The lines of `text` that are statements of `entries`, in order."""

    text: str
    program: Program
    entries: Collection[str]

    @cached_property
    def lines(self) -> tuple[ListedLine, ...]:
        """Return the statements of the entries."""
        places = self._places
        return tuple(line for line in self._statements() if line.at in places)

    @cached_property
    def has_descriptors(self) -> bool:
        """Return whether some product reads shared memory by a `wgmma` descriptor."""
        return any(line.opcode.startswith("wgmma.mma_async") for line in self.lines)

    @cached_property
    def _places(self) -> Mapping[int, tuple[str, str]]:
        """Return the CUDA line of each PTX line, the outermost one, which is not a header's; and with the calls in it."""
        found = {}
        for entry in self.entries:
            for statement in self.program.module.functions[entry].statements:
                *_, outermost = statement.location.places() if statement.location else [None]
                own = outermost.own if outermost else f"PTX line {statement.line}"
                found[statement.line - 1] = own, str(statement.location)
        return found

    def _statements(self) -> Iterator[ListedLine]:
        """Yield every statement of the text with its block."""
        block, depth, places = 0, 0, self._places
        for at, text in enumerate(self.text.split("\n")):
            before, depth = depth, depth + text.count("{") - text.count("}")
            if text.strip().endswith(":") or (before != depth and 0 in (before, depth)):
                block += 1  # braces inside a function, as in inline asm, do not end a block
            match = _STATEMENT.match(text)
            if match is None:
                continue
            yield ListedLine(
                at,
                match["before"],
                match["opcode"],
                split(match["operands"]),
                match["behind"],
                block,
                *places.get(at, ("", "")),
            )
            if match["opcode"].split(".")[0] in _ENDS_A_BLOCK:
                block += 1

    def definition(self, register: str, use: ListedLine) -> ListedLine | None:
        """Return the line of the block that defines `register` for `use`, if its operands are still unchanged.

        No line between may write what it read, so that its operation can be moved to `use`.
        """
        after: set[str] = set()
        for line in reversed(self._blocks.get(use.block, ())):
            if line.at >= use.at:
                continue
            if register in line.written:
                read = {name for operand in line.operands[1:] for name in REGISTER.findall(operand)}
                return line if read.isdisjoint(after) and "@" not in line.before else None
            after |= line.written
        return None

    def constant(self, operand: str) -> str:
        """Return the literal in a register that only one `mov` writes; else the operand itself."""
        writers = self._writers.get(operand, ())
        if len(writers) == 1 and writers[0].name == "mov" and not REGISTER.findall(writers[0].operands[1]):
            return writers[0].operands[1]
        return operand

    def is_parameter(self, register: str, depth: int = 6) -> bool:
        """Return whether a register holds a kernel parameter, or a value made of parameters and constants."""
        writers = self._writers.get(register, ())
        if len(writers) != 1 or depth == 0:
            return False
        if writers[0].words[:2] == ("ld", "param"):
            return True
        read = [name for operand in writers[0].operands[1:] for name in REGISTER.findall(operand)]
        return (
            writers[0].name in _MAKERS
            and bool(read)
            and all(self.constant(name) != name or self.is_parameter(name, depth - 1) for name in read)
        )

    def uses(self, register: str) -> tuple[ListedLine, ...]:
        """Return every line that reads a register."""
        return self._readers.get(register, ())

    @cached_property
    def _blocks(self) -> Mapping[int, tuple[ListedLine, ...]]:
        return _grouped((line.block, line) for line in self.lines)

    @cached_property
    def _writers(self) -> Mapping[str, tuple[ListedLine, ...]]:
        return _grouped((register, line) for line in self.lines for register in line.written)

    @cached_property
    def _readers(self) -> Mapping[str, tuple[ListedLine, ...]]:
        return _grouped((register, line) for line in self.lines for register in line.read)

    def edited(self, changes: Changes) -> str:
        """Return the text with some lines replaced."""
        lines = self.text.split("\n")
        for at, text in changes.items():
            lines[at] = text
        return "\n".join(lines)

    def repaired(self, changes: Changes) -> Program:
        """Return the program with some lines replaced; only they are read again, where their registers have one name."""
        idle = self._idle.difference(changes)
        sparse = "\n".join("" if at in idle else text for at, text in enumerate(self.edited(changes).split("\n")))
        functions, read = dict(self.program.module.functions), parse(sparse).functions
        for entry in self.entries:
            had, made = functions[entry], read[entry]
            names, bits = list(had.register_names), list(had.register_bits)
            if any(max(names.count(each), made.register_names.count(each)) > 1 for each in made.register_names):
                functions[entry] = parse(self.edited(changes)).functions[entry]
                continue
            for name, width in zip(made.register_names, made.register_bits, strict=True):
                if name not in names:
                    names, bits = [*names, name], [*bits, width]
            numbers = dict(enumerate(map(names.index, made.register_names)))
            new: dict[int, list[Statement]] = {}
            for each in made.statements:
                new.setdefault(each.line - 1, []).append(_renumbered(each, numbers))
            statements: list[Statement] = []
            places = []
            for old in had.statements:
                places.append(len(statements))
                made_of: list[Statement] = new.pop(old.line - 1, []) if old.line - 1 in changes else [old]
                statements += [replace(one, location=old.location) for one in made_of]
            labels = {name: [*places, len(statements)][at] for name, at in had.labels.items()}
            given = replace(had, statements=statements, labels=labels, register_names=names, register_bits=bits)
            functions[entry] = given
        module = replace(self.program.module, functions=functions)
        return Program(module, self.program.target, self.program.sha256, self.program.text)

    @cached_property
    def _idle(self) -> frozenset[int]:
        """Return the lines that hold a statement, or bytes for debuggers, and nothing that others need."""
        lines = self.text.split("\n")
        alone = (each.at for each in self.lines if not _NEEDED.search(lines[each.at]))
        return frozenset((*alone, *(at for at, text in enumerate(lines) if text.startswith((".b8 ", "//")))))


_NEEDED = re.compile(r"[{]\s*(?!%)\S|[}]\s*$|\.reg\b|^\s*[{}]|\bcall\b")
"""Braces of a block, declarations and calls."""


def _renumbered(part: Any, numbers: Mapping[int, int]) -> Any:
    """Return a statement, or a part of one, with other numbers of registers."""
    if isinstance(part, Register):
        return Register(numbers[part.index])
    if isinstance(part, tuple):
        return tuple(_renumbered(each, numbers) for each in part)
    if isinstance(part, Location) or not is_dataclass(part):
        return part
    return replace(part, **{each.name: _renumbered(getattr(part, each.name), numbers) for each in fields(part)})  # type: ignore[type-var]


def _grouped(lines: Iterable[tuple[Key, ListedLine]]) -> dict[Key, tuple[ListedLine, ...]]:
    found: dict[Key, list[ListedLine]] = {}
    for key, line in lines:
        found.setdefault(key, []).append(line)
    return {key: tuple(group) for key, group in found.items()}


def split(operands: str) -> tuple[str, ...]:
    """Return operands at the commas outside braces and brackets: "%f1, {%r1, %r2}, [%rd1+4]" has three."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(operands):
        depth += {"{": 1, "[": 1, "(": 1, "}": -1, "]": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(operands[start:at].strip())
            start = at + 1
    return (*parts, last) if (last := operands[start:].strip()) else tuple(parts)
