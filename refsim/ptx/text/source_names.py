"""Names that a file keeps for debuggers: source files, functions in .debug_str, and C++ names of mangled names."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from refsim.ptx.text.lexer import Token

_OPERATORS = {
    "pl": "+",
    "mi": "-",
    "ml": "*",
    "dv": "/",
    "rm": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "cl": "()",
    "ix": "[]",
    "aS": "=",
    "pL": "+=",
    "mI": "-=",
    "mL": "*=",
    "dV": "/=",
    "ls": "<<",
    "rs": ">>",
    "pp": "++",
    "mm": "--",
    "ng": "-",
    "ps": "+",
    "de": "*",
    "ad": "&",
    "an": "&",
    "or": "|",
    "eo": "^",
    "nt": "!",
    "aa": "&&",
    "oo": "||",
    "pt": "->",
    "lS": "<<=",
    "rS": ">>=",
    "aN": "&=",
    "oR": "|=",
    "eO": "^=",
    "rM": "%=",
}
MAX_NAME_DEPTH = 8
_LENGTH = re.compile(r"\d{1,6}")
_LEAF = re.compile(r"L[a-z]n?\d+E|[ST]\w?_")  # a literal argument, an earlier part or parameter


@dataclass
class SourceNames:
    """Source files by number, and the strings of .debug_str by label."""

    files: dict[int, str] = field(default_factory=dict)
    strings: bytearray = field(default_factory=bytearray)
    labels: dict[str, int] = field(default_factory=dict)

    def file(self, number: int) -> str:
        """Return the name of a source file by its number."""
        return self.files.get(number, f"file {number}")

    def function(self, label: str, offset: int = 0) -> str:
        """Return the C++ name of the function whose name is at a label of .debug_str, or ""."""
        if label and label not in self.labels:
            return ""
        start = self.labels.get(label, 0) + offset
        end = self.strings.find(b"\0", start)
        return demangled(self.strings[start : end if end >= 0 else None].decode("utf-8", "replace"))


def source_names(tokens: list[Token]) -> SourceNames:
    """Return the names of a file; the directives that give them may follow the `.loc` that use them."""
    names = SourceNames()
    marks = [at for at, token in enumerate(tokens) if token.kind == "directive" and token.text in (".file", ".section")]
    for at in marks:
        following = tokens[at + 1 : at + 3]
        if len(following) < 2:
            continue
        first, second = following
        if tokens[at].text == ".file" and first.text.isdigit() and second.kind == "string":
            names.files[int(first.text[:9])] = second.text.strip('"').rsplit("/", 1)[-1]
        elif first.text == ".debug_str" and second.text == "{":
            _read_strings(tokens, at + 3, names)
    return names


def _read_strings(tokens: list[Token], at: int, names: SourceNames) -> None:
    """Read labels and `.b8` bytes up to the closing brace."""
    while at < len(tokens) - 1 and tokens[at].text != "}":
        token = tokens[at]
        if token.kind == "word" and tokens[at + 1].text == ":":
            names.labels[token.text] = len(names.strings)
        elif token.kind == "integer" and token.text.isdigit() and len(token.text) < 4:
            names.strings.append(int(token.text) & 0xFF)
        at += 1


@lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """Return the C++ name without types: `_Z9block_sumPf` is block_sum. `_ZN4tile4Ring4pushEi` is tile::Ring::push.
    Anonymous and internal namespaces are left out. A name that is not understood is returned as it is."""
    if not name.startswith("_Z"):
        return name
    found = MangledName(name[2:]).name()
    return found or name


class MangledName:
    """A position in an Itanium-mangled name; `arguments` is I...E of the last part of a nested name, or ""."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self.arguments = ""

    def name(self) -> str:
        """Return the name of a function: nested, local to another function, or plain; "" for any other."""
        if self.depth > MAX_NAME_DEPTH:
            return ""
        if self.accept("Z"):
            self.depth += 1
            outer = self.name()
            _, _, local = self.text[self.at :].partition("E")
            part = MangledName(local, self.depth).name()
            return f"{outer}::{part}" if outer and part else outer
        if self.accept("N"):
            while self.text[self.at : self.at + 1] in tuple("rVKRO"):
                self.at += 1
            return self.nested()
        self.accept("L")
        if self.accept("St"):
            part = self.part("")
            return f"std::{part}" if part else ""
        return self.part("")

    def nested(self) -> str:
        """Return the parts of a nested name, joined by `::`."""
        parts: list[str] = []
        while self.at < len(self.text) and not self.accept("E"):
            if self.accept("St"):
                parts.append("std")
            elif self.text[self.at] == "S":
                self.at = self.text.find("_", self.at) + 1 or len(self.text)
            elif self.text[self.at] == "I":
                start = self.at
                self.skip_arguments()
                self.arguments = self.text[start : self.at]
            else:
                part = self.part(parts[-1] if parts else "")
                if not part:
                    break
                self.arguments = ""
                parts.append(part)
        return "::".join(part for part in parts if not part.startswith(("_INTERNAL_", "_GLOBAL__N_")))

    def part(self, parent: str) -> str:
        """Return one component: a length and a name, a constructor or destructor, an operator, a lambda."""
        self.accept("L")
        if length := _LENGTH.match(self.text, self.at):
            start = length.end()
            self.at = start + int(length.group())
            return self.text[start : self.at]
        pair = self.text[self.at : self.at + 2]
        if parent and pair in ("C1", "C2", "C3", "D0", "D1", "D2"):
            self.at += 2
            return ("~" if pair[0] == "D" else "") + parent
        if pair in ("Ul", "Ut"):
            self.at = self.text.find("_", self.text.find("E", self.at)) + 1 or len(self.text)
            return "lambda"
        if pair in _OPERATORS:
            self.at += 2
            return f"operator{_OPERATORS[pair]}"
        return ""

    def skip_arguments(self) -> None:
        """Skip template arguments from I to its E, over names whose letters are no marks."""
        depth = 0
        while self.at < len(self.text):
            if leaf := _LEAF.match(self.text, self.at):
                self.at = leaf.end()
            elif length := _LENGTH.match(self.text, self.at):
                self.at = length.end() + int(length.group())
            else:
                depth += self.text[self.at] in ("I", "N", "X", "J")
                depth -= self.text[self.at] == "E"
                self.at += 1
                if not depth:
                    return

    def accept(self, mark: str) -> bool:
        """Step over a mark if it stands here; return whether it does."""
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False
