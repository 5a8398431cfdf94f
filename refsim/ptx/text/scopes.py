"""The meaning of names inside a function: registers, variables and labels of the braces around a statement."""

from dataclasses import dataclass, field

from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Function

_PARTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}
MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class RegisterType:
    """The width of a register in bits, and the number of registers: four for `.reg .v4 .f32 v`."""

    bits: int
    count: int = 1


_NONE = 0, RegisterType(0)


@dataclass
class Scope:
    """The names that one pair of braces declares."""

    registers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: dict[str, tuple[int, RegisterType]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class Scopes:
    """The scopes around a statement of a function, the innermost last."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.inside: list[Scope] = []

    def declare(self, name: str, kind: RegisterType, line: int) -> tuple[int, ...]:
        """Declare a register in the innermost scope and return its numbers."""
        scope = self.inside[-1]
        if name in scope.registers:
            raise malformed(f"register {name!r} is declared twice in one scope", line)
        scope.registers[name] = found = self.new_register(name, kind)
        return found

    def new_register(self, name: str, kind: RegisterType) -> tuple[int, ...]:
        """Add a register to the function's table and return its number, or several for a vector."""
        function, first = self.function, len(self.function.register_bits)
        function.register_bits += [kind.bits] * kind.count
        function.register_names += [name] if kind.count == 1 else [f"{name}.{part}" for part in "xyzw"[: kind.count]]
        return tuple(range(first, first + kind.count))

    def registers(self, name: str) -> tuple[int, ...] | None:
        """Return the numbers of a register's name, several for a vector, or None. A register of a range gets its number
        when it is first named."""
        for scope in reversed(self.inside):
            if (known := scope.registers.get(name)) is not None:
                return known
            if scope.ranges:
                stem = name.rstrip("0123456789")
                digits = name[len(stem) :]
                count, kind = scope.ranges.get(stem, _NONE)
                if digits and len(digits) <= MAX_DIGITS and int(digits) < count:
                    scope.registers[name] = found = self.new_register(name, kind)
                    return found
        return None

    def part(self, name: str) -> tuple[int, str] | None:
        """Return an element of a vector `v.x`, or a register and its part `%r.b0`, as number and part; else None."""
        stem, dot, selector = name.rpartition(".")
        found = self.registers(stem) if dot else None
        if found is None:
            return None
        if len(found) == 1:
            return found[0], selector
        return (found[_PARTS[selector]], "") if _PARTS.get(selector, 4) < len(found) else None

    def label(self, name: str) -> str | None:
        """Return the unique name of a label that is visible here, or None."""
        return next((scope.labels[name] for scope in reversed(self.inside) if name in scope.labels), None)

    def variable(self, name: str) -> str:
        """Return the unique name of a variable; a name that the function does not declare is the module's."""
        return next((scope.names[name] for scope in reversed(self.inside) if name in scope.names), name)


def labels_ahead(tokens: list[Token], start: int) -> dict[int, dict[str, str]]:
    """Return the labels of each scope of the function whose brace stands at `start`, by the place of the scope's brace.
    They are made unique, since sibling scopes may use equal names."""
    found: dict[int, dict[str, str]] = {}
    inside: list[int] = []
    for at in range(start, len(tokens)):
        text = tokens[at].text
        if text == "{":
            inside.append(at)
            found[at] = {}
        elif text == "}" and inside:
            inside.pop()
        elif text == ":" and inside and tokens[at - 1].kind == "word":
            name = tokens[at - 1].text
            found[inside[-1]][name] = f"{name}@{inside[-1]}"
        if not inside:
            break
    return found
