"""Entries by the names that people write: `scale` for `_Z5scalePfi`, `k<4>` for `_Z1kILi4EEvPf`, or mangled.

The template arguments in an Itanium-mangled name are those that a kernel was instantiated with, in C++.
"""

import re
from collections.abc import Collection
from functools import lru_cache

from refsim.errors import RefsimError, unknown
from refsim.ptx.text.source_names import MAX_NAME_DEPTH, MangledName, demangled

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
