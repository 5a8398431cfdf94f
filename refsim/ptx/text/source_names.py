"""Names that a file keeps for debuggers: source files, functions in .debug_str, and C++ names of mangled names.

Entries by the names that people write: `scale` for `_Z5scalePfi`, `k<4>` for `_Z1kILi4EEvPf`, or mangled.

The template arguments in an Itanium-mangled name are those that a kernel was instantiated with, in C++.

The C++ types of a kernel's parameters, from the CUDA source or from a mangled name, and the elements they mean."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from refsim.errors import RefsimError, unknown
from refsim.ptx.text.lexer import Token
from refsim.ptx.text.words import pairs_in

_OPERATORS = pairs_in("""
    pl:+ mi:- ml:* dv:/ rm:% eq:== ne:!= lt:< gt:> le:<= ge:>= cl:() ix:[] aS:= pL:+= mI:-= mL:*= dV:/= ls:<< rs:>>
    pp:++ mm:-- ng:- ps:+ de:* ad:& an:& or:| eo:^ nt:! aa:&& oo:|| pt:-> lS:<<= rS:>>= aN:&= oR:|= eO:^= rM:%=
""")
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


NAMES_MARK = "// refsim entry: "
BUILTIN_TYPES = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
    "Dh": "half",
    "Dn": "nullptr_t",
}
_BOOLEANS = {"b0": "false", "b1": "true"}
_AROUND = {"P": "{}*", "R": "{}&", "O": "{}&&", "K": "{} const", "V": "{} volatile"}


"""The mark before `k<4> = _Z1kILi4EEvPf` at the end of a PTX text, for a requested instance k<4>."""
_SAME = {
    "unsigned": "unsigned int",
    "uint8_t": "unsigned char",
    "uint16_t": "unsigned short",
    "uint32_t": "unsigned int",
    "uint64_t": "unsigned long long",
    "int8_t": "signed char",
    "int16_t": "short",
    "int32_t": "int",
    "int64_t": "long long",
    "size_t": "unsigned long",
    "half": "__half",
    "half2": "__half2",
    "nv_bfloat16": "__nv_bfloat16",
    "nv_bfloat162": "__nv_bfloat162",
    "true": "1",
    "false": "0",
}
_CONST = re.compile(r"^const ([\w: ]+)")
_LITERAL = re.compile(r"(-?\d+)(?:[uU]?[lL]{0,2})")


def entry_named(name: str, entries: Collection[str], text: str = "", where: str = "") -> str:
    """Return the entry of a module that a name means. `text` is the PTX, in whose comments compilers write the entry of
    a requested name. Raises RefsimError `unknown-entry` with the nearest names, `ambiguous-name` with all that fit."""
    if not isinstance(name, str):
        raise unknown("entry", name, list(entries), where=where)
    if name in entries:
        return name
    wanted = _squeezed(name)
    for spelt, entry in _said(text):
        if _squeezed(spelt) == wanted and entry in entries:
            return entry
    base, arguments = _split(wanted)
    fitting = [entry for entry in entries if entry.startswith("_Z") and _fits(entry, base, arguments)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        what = f"{name!r} is {len(fitting)} entries: {', '.join(f'{spelled(entry)} ({entry})' for entry in fitting)}"
        rule = "a name without template arguments or types must be of one entry"
        raise RefsimError("ambiguous-name", what, where, rule, "write the template arguments, or the mangled name")
    missing = unknown(
        "entry", name, [*entries, *(spelled(entry) for entry in entries if entry.startswith("_Z"))], where=where
    )
    if arguments is not None or template_arguments(name):
        plain = spelled(name)
        asked = f"{plain}, or Kernel(entries=({plain!r},))" if plain != name else f"Kernel(entries=({name!r},))"
        instance = f"an instance of a template exists where it is asked for: {asked}"
        missing.help = "; ".join(filter(None, (instance, missing.help)))
    elif not entries:
        missing.help = f"no entry is in it; a template becomes one by its arguments: {name}<4>, as C++ writes them"
    raise missing


def spelled(entry: str) -> str:
    """Return an entry as it is written in C++: `_Z1kILi4EEvPf` is k<4>, `scale` itself."""
    arguments = template_arguments(entry)
    return demangled(entry) + (f"<{', '.join(arguments)}>" if arguments else "")


def _said(text: str) -> list[tuple[str, str]]:
    """Return the names that compilers noted in the text, with their entries."""
    if NAMES_MARK not in text:
        return []
    lines = (line.removeprefix(NAMES_MARK) for line in text.splitlines() if line.startswith(NAMES_MARK))
    return [(name, entry) for name, _, entry in (line.rpartition(" = ") for line in lines)]


def _fits(entry: str, base: str, arguments: tuple[str, ...] | None) -> bool:
    """Return whether an entry has this name and begins with these template arguments (None: any)."""
    full = demangled(entry)
    if base not in (full, full.rpartition("::")[2]):
        return False
    if arguments is None:
        return True
    held = [_same(argument) for argument in template_arguments(entry)]
    given = [_same(argument) for argument in arguments]
    return held[: len(given)] == given  # later ones may be default arguments


def _same(argument: str) -> str:
    """Return one spelling for all spellings of a template argument."""
    squeezed = _CONST.sub(r"\1 const", _squeezed(argument).removeprefix("::"))
    literal = _LITERAL.fullmatch(squeezed)
    return literal[1] if literal else _SAME.get(squeezed, squeezed)


@lru_cache(maxsize=1024)
def _split(name: str) -> tuple[str, tuple[str, ...] | None]:
    """Return name and template arguments: `f<A<1,2>,3>` is f and (A<1,2>, 3); parameter types are left out."""
    name = name.removeprefix("&").removeprefix("::")
    start = name.find("<")
    if start < 0:
        return name.partition("(")[0], None
    parts, depth, at = [""], 0, start + 1
    while at < len(name) and not (name[at] == ">" and depth == 0):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(name[at], 0)
        if name[at] == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += name[at]
        at += 1
    return name[:start], tuple(part for part in parts if part)


def _squeezed(name: str) -> str:
    """Return a name without spaces, except between two words."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(name.split()))


@lru_cache(maxsize=4096)
def template_arguments(name: str) -> tuple[str, ...]:
    """Return the template arguments: `_Z1kILi4EfEvPf` has ("4", "float"). An argument that is not understood reads "?".
    A name without arguments has none."""
    if not name.startswith("_Z"):
        return ()
    whole = MangledName(name[2:])
    whole.name()
    if whole.text[whole.at : whole.at + 1] == "I":
        start = whole.at
        whole.skip_arguments()
        return tuple(MangledArguments(whole.text[start : whole.at]).many())
    return tuple(MangledArguments(whole.arguments).many()) if whole.arguments else ()


class MangledArguments:
    """A position in I...E."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def many(self, depth: int = 0) -> list[str]:
        """Return the arguments up to the closing E, packs included."""
        found: list[str] = []
        self.at += 1  # I or J
        while self.at < len(self.text) and self.text[self.at] != "E":
            before = self.at
            found += self.many(depth + 1) if self.text[self.at] == "J" and depth < MAX_NAME_DEPTH else [self.one(depth)]
            if self.at == before:
                return [*found[:-1], "?"]
        self.at += 1
        return found

    def one(self, depth: int) -> str:
        """Return one argument, "?" if it is not understood."""
        if depth > MAX_NAME_DEPTH:
            return "?"
        letter = self.text[self.at : self.at + 1]
        if letter == "L":
            return self.literal()
        if letter in _AROUND:
            self.at += 1
            return _AROUND[letter].format(self.one(depth + 1))
        for length in (2, 1):
            code = self.text[self.at : self.at + length]
            if code in BUILTIN_TYPES:
                self.at += length
                return BUILTIN_TYPES[code]
        return self.named(depth)

    def literal(self) -> str:
        """Return a value: `Li4E` is 4, `Lin3E` -3, `Lb1E` true; `LN4ModeE2E` and `L4Mode2E` are 2 (an enum's
        number)."""
        self.at += 1
        start = self.at
        self.one(MAX_NAME_DEPTH)
        end = self.text.find("E", self.at)
        if end < 0:
            return "?"
        kind, value = self.text[start : self.at], self.text[self.at : end]
        self.at = end + 1
        return _BOOLEANS.get(kind + value, value.replace("n", "-", 1) if value.lstrip("n").isdigit() else "?")

    def named(self, depth: int) -> str:
        """Return a class, perhaps in a namespace, perhaps with template arguments."""
        name = MangledName(self.text[self.at :])
        spelt = name.name()
        if not spelt or name.at == 0:
            return "?"
        own = name.arguments
        self.at += name.at
        if self.text[self.at : self.at + 1] == "I":
            inner = MangledArguments(self.text[self.at :])
            arguments = inner.many(depth + 1)
            self.at += inner.at
            return f"{spelt}<{','.join(arguments)}>"
        return f"{spelt}<{','.join(MangledArguments(own).many(depth + 1))}>" if own else spelt


UNKNOWN = "?"
_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "std", "cuda"}
_CODES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=(\w+)",
        """bool=b1 float=f4 double=f8 half=f2 __half=f2 float16=f2 __nv_bfloat16=g2 nv_bfloat16=g2 size_t=u8 uintptr_t=u8
        ptrdiff_t=i8 cuComplex=vf4 cuFloatComplex=vf4 cuDoubleComplex=vf8 __nv_fp8_e4m3=q1 __nv_fp8_e5m2=q1""",
    )
)
"""Kind and bytes of an element: b bool, f float, g bfloat16, i and u integers, q FP8; v is a vector of them."""
_INTEGER = re.compile(r"(u(?=[a-z])|unsigned|signed)?(char|short|(?:long)+)?(?:int)?(?:(8|16|32|64)_t)?")
_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINES = r"#\s*define\s+{0}\b|\btypedef\b[^;]*\b{0}\s*;|\b(?:using|struct|class|enum|typename)\s+{0}\b"


def code_of(type: str) -> str:
    """Return an element's code by its C++ type: code_of("unsigned long") is "u8", of an unknown type ""."""
    if type.endswith("*") or type in _CODES:
        return _CODES.get(type, "u8")
    if type and (found := _INTEGER.fullmatch(type.replace(" ", ""))):
        sizes = {"char": 1, "short": 2, None: int(found[3] or 32) // 8}
        return f"{(found[1] or 'i')[0].replace('s', 'i')}{sizes.get(found[2], 8)}"
    element = code_of(type[:-1]) if type.endswith(("1", "2", "3", "4")) else ""
    return f"v{element}" if element else ""


C_NAMES = {np.dtype(code_of(name)).name: name for name in BUILTIN_TYPES.values() if code_of(name) and name != "half"}
"""The C++ name of each NumPy type: int64 is long long."""


def differs(element: np.dtype[Any], type: str) -> bool:
    """Return whether an array of such elements cannot be what a pointer to a C++ type points to.

    Sizes differ, or one is a float and the other a signed integer of that size. Bytes, unknown types and structs fit
    everything. Unsigned integers hold bits of anything of their size, 16-bit integers those of any 16-bit float, wide
    unsigned integers pairs of 16-bit elements, unsigned arrays words of FP8, vectors anything except wider floats. A
    complex number is two floats.
    """
    code, kind, size = code_of(type), str(element.kind), element.itemsize
    if kind == "c" or element.name == "bfloat16":
        kind, size = ("f", size // 2) if kind == "c" else ("g", size)
    if not code or kind not in "biufg" or (kind in "iu" and size == 1):
        return False
    wanted, width = code[-2], int(code[-1])
    if code[0] == "v":
        return kind == wanted == "f" and size > width
    if size != width:
        return not (width == 1 and (wanted in "iu" or kind + wanted == "uq")) and not (wanted == "u" and size == 2)
    return kind != wanted and "u" not in (kind, wanted) and not (size == 2 and "i" in (kind, wanted))


@lru_cache(maxsize=4096)
def declared_types(entry: str, source: str = "") -> tuple[str, ...]:
    """Return the types of an entry's parameters: "int*", "float", "?"; () where neither the name nor the source tells."""
    if entry.startswith("_Z"):
        try:
            return _MangledParameters(entry[2:]).all()
        except (ValueError, IndexError):
            entry = demangled(entry).rpartition("::")[2]
    text = _NO_CODE.sub(" ", source)
    heads = re.findall(rf"__global__\b[^;{{}}]*?\b{re.escape(entry)}\s*\(((?:[^()]|\([^()]*\))*)\)", text)
    found = {tuple(declared_type(each, text) for each in re.split(r",(?![^(<]*[)>])", head)) for head in heads}
    return found.pop() if len(found) == 1 else ()


def declared_type(declared: str, source: str = "") -> str:
    """Return the type of a parameter as it is declared: "const int* __restrict__ x" is "int*"."""
    declared = declared.partition("=")[0]
    if re.search(r"[(&#]|\.\.\.", declared):
        return UNKNOWN
    words = [word for word in re.findall(r"\w+|[*\[]", declared) if word not in _QUALIFIERS]
    names = words[: min((words.index(mark) for mark in "*[" if mark in words), default=None)]
    if "*" not in words and len(names) > 1 and not code_of(names[-1]):
        names = names[:-1]
    type = " ".join(names)
    is_own = any(re.search(_DEFINES.format(name), source) for name in names)
    is_known = (type == "void" or code_of(type)) and not is_own
    return (type if is_known else UNKNOWN) + "*" * (words.count("*") + words.count("["))


class _MangledParameters(MangledArguments):
    """The name and the parameters of a mangled function; ValueError and IndexError for what is not understood."""

    known: list[str]
    values: list[str]

    def all(self) -> tuple[str, ...]:
        """Return the types of the parameters, without const and volatile."""
        self.known, self.values, is_nested = [], [], self.text.startswith("N")
        self.at = int(is_nested)
        while (is_nested or not self.known) and (digits := re.compile(r"L?(\d+)").match(self.text, self.at)):
            self.at = digits.end() + int(digits[1])
            self.known.append(self.text[digits.end() : self.at])
        if is_template := self.text[self.at] == "I":
            self.values = self.many()
        else:
            self.known.pop()
        self.at += is_nested  # the name's E
        found = []
        while self.at < len(self.text):
            found.append(re.sub(" const| volatile", "", self.one(0)))
        return tuple(UNKNOWN if "&" in each else each for each in found[is_template:] if each != "void")

    def one(self, depth: int) -> str:
        """Return one type, by its number if it came before or is an argument of the template."""
        self.at += self.text.startswith("VK", self.at)
        start, letter = self.at, self.text[self.at]
        if place := re.compile(r"[ST]([0-9A-Z]*)_").match(self.text, start):
            self.at = place.end()
            found = (self.known if letter == "S" else self.values)[int(place[1], 36) + 1 if place[1] else 0]
        else:
            found = super().one(depth)
        if self.at == start or letter == "N" or "<" in found:
            raise ValueError(self.text)
        if letter == "T" or (letter not in "LS" and found not in BUILTIN_TYPES.values()):
            self.known.append(found)
        return found
