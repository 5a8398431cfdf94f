"""The template arguments in an Itanium-mangled name, in C++: the arguments that a kernel was instantiated with."""

from functools import lru_cache

from refsim.ptx.text.source_names import MAX_NAME_DEPTH, MangledName

_TYPES = {
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
        return tuple(_Arguments(whole.text[start : whole.at]).many())
    return tuple(_Arguments(whole.arguments).many()) if whole.arguments else ()


class _Arguments:
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
            if code in _TYPES:
                self.at += length
                return _TYPES[code]
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
            inner = _Arguments(self.text[self.at :])
            arguments = inner.many(depth + 1)
            self.at += inner.at
            return f"{spelt}<{','.join(arguments)}>"
        return f"{spelt}<{','.join(_Arguments(own).many(depth + 1))}>" if own else spelt
