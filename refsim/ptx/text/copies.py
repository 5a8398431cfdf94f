"""A function's statements as part of another function.

Registers are renumbered, labels and local variables renamed, parameters bound to the caller's values, and places in the
CUDA source get the call.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from refsim.ptx.text.source_names import demangled
from refsim.ptx.text.syntax import (
    Address,
    Dual,
    Function,
    Guard,
    Immediate,
    Label,
    Location,
    Negated,
    Operand,
    Register,
    RegisterPart,
    Statement,
    Symbol,
    Variable,
    Vector,
)


@dataclass
class FunctionCopy:
    """One copy of a function. `symbols` holds the new names of its own variables and parameters: a symbol, or a
    register that holds an address. `shift` is the number of its first register."""

    function: Function
    shift: int
    suffix: str
    call: Statement | None = None
    symbols: dict[str, Symbol | Register] = field(default_factory=dict)
    active: tuple[str, ...] = ()
    _locations: dict[int, tuple[Location, Location]] = field(default_factory=dict)

    def register(self, register: Register) -> Register:
        """Return the renumbered register."""
        return Register(register.index + self.shift)

    def label(self, name: str) -> str:
        """Return the renamed label."""
        return name + self.suffix

    def operand(self, operand: Operand | None) -> Operand | None:
        """Return an operand as it reads in the caller."""
        match operand:
            case Register():
                return self.register(operand)
            case Negated(register):
                return Negated(self.register(register))
            case RegisterPart(register, selector):
                return RegisterPart(self.register(register), selector)
            case Label(name):
                return Label(self.label(name))
            case Symbol(name, offset):
                return self.symbol(name, offset)
            case Address():
                return self.address(operand)
            case Vector(elements):
                return Vector(tuple(map(self.operand, elements)))
            case Dual(first, second):
                return Dual(self.operand(first), self.operand(second))
        return operand

    def symbol(self, name: str, offset: int) -> Symbol | Register:
        """Return a renamed symbol, or the register that holds its address. Compilers take the address of a parameter in
        a register only with offset 0."""
        actual = self.symbols.get(name)
        if actual is None:
            return Symbol(name, offset)
        return Symbol(actual.name, actual.offset + offset) if isinstance(actual, Symbol) else actual

    def address(self, address: Address) -> Address:
        """Return an address as it reads in the caller."""
        base, offset = address.base, address.offset
        if isinstance(base, Symbol):
            moved: Register | Symbol | Immediate = self.symbol(base.name, 0)
            if isinstance(moved, Symbol):
                moved, offset = Symbol(moved.name), offset + moved.offset
        else:
            moved = self.register(base) if isinstance(base, Register) else base
        groups = (Vector(tuple(map(self.operand, group.elements))) for group in address.coordinates)
        return Address(moved, offset, tuple(groups))

    def guard(self, guard: Guard | None) -> Guard | None:
        """Return a guard with its register renumbered."""
        return guard and Guard(self.register(guard.register), guard.negated)

    def location(self, location: Location | None) -> Location | None:
        """Return a place of the function with its call: `mine.cu:27 in slow, called at mine.cu:65`."""
        if location is None:
            return None
        known = self._locations.get(id(location))
        if known is None:
            caller = self.call.location if self.call else None
            called: Location | None = None
            for place in reversed(list(location.places())):
                called = (
                    replace(place, function=place.function or demangled(self.function.name), caller=caller)
                    if called is None
                    else replace(place, caller=called)
                )
            assert called is not None
            known = self._locations[id(location)] = (location, called)
        return known[1]

    def statement(self, statement: Statement) -> Statement:
        """Return a statement as it reads in the caller."""
        if not self.suffix:
            return statement
        return replace(
            statement,
            operands=tuple(map(self.operand, statement.operands)),
            guard=self.guard(statement.guard),
            location=self.location(statement.location),
        )

    def variables(self) -> Iterator[Variable]:
        """Yield the variables of the copy: local ones of its own, and the function's shared ones."""
        for variable in self.function.variables:
            if variable.space in ("local", "param"):
                name = variable.name + self.suffix
                self.symbols[variable.name] = Symbol(name)
                yield replace(variable, name=name, space="local")
            else:
                yield variable
