"""The contents of a PTX file: modules, functions, variables, statements, operands; nothing is executed here."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the CUDA source, from a `.loc` directive; inside an inlined function also its name and the call's
    place. As text: `mine.cu:27 in block_sum, called at mine.cu:65`, for calls within calls one `called at` each."""

    file: str
    line: int
    function: str = ""
    caller: "Location | None" = None

    def places(self) -> "Iterator[Location]":
        """Yield this place, and the calls around it from the inside out."""
        at: Location | None = self
        while at is not None:
            yield at
            at = at.caller

    @property
    def spot(self) -> str:
        """Return file and line, or the file alone if a compiler reports line 0 (code without a line)."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def own(self) -> str:
        """Return the place without the calls around it."""
        return self.spot + (f" in {self.function}" if self.function else "")

    def __str__(self) -> str:
        return ", called at ".join(at.own for at in self.places())

    def brief(self) -> str:
        """Return the place without the calls inside a library: `atomic.h:57 in load, called through 5 more at k.cu:8`.

        Places in the file of the outermost place stay, and so do up to two places before them.
        """
        *inner, last = self.places()
        skipped = next((number for number, at in enumerate(inner) if at.file == last.file), len(inner)) - 1
        if skipped < 2:
            return str(self)
        rest = ", called at ".join(at.own for at in (*inner[skipped + 1 :], last))
        return f"{self.own}, called through {skipped} more at {rest}"


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register, by its number in the function's table."""

    index: int


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: an integer, or a float with its kind ("int", "f32", "f64") so that it takes the operand's type."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or a function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target, by its name made unique across scopes."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """A memory operand [base + offset]; the base is a register, a symbol, or 0 for an absolute address. `coordinates`
    are what follows inside the brackets of a tensor: `[a, {x, y}]` has one group of two."""

    base: "Register | Symbol | Immediate"
    offset: int
    coordinates: tuple["Vector", ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b, c, d}; None stands for the sink `_`."""

    elements: tuple["Operand | None", ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """!p: the negated predicate."""

    register: Register


@dataclass(frozen=True, slots=True)
class Dual:
    """d|p: two results of one instruction; None stands for the sink `_`."""

    first: "Operand | None"
    second: "Operand | None"


@dataclass(frozen=True, slots=True)
class RegisterPart:
    """%r.b0: a byte or half of a register that a video instruction selects; a minus in front belongs to the selector."""

    register: Register
    selector: str


Operand = Dual | Register | Immediate | Special | Symbol | Label | Address | Vector | Negated | RegisterPart
_SELECTORS, _LONGEST, _SELECTED = " bh-01234567", 5, 4


def with_selectors(operands: "tuple[Operand | None, ...]") -> "tuple[Operand | None, ...]":
    """Return the operands of a video instruction as whole registers, and their selectors as a last constant: four bits a
    character, five characters an operand."""
    if not any(isinstance(operand, RegisterPart) for operand in operands):
        return operands
    codes = 0
    for at, operand in enumerate(operands):
        text = operand.selector if isinstance(operand, RegisterPart) else ""
        codes |= sum(_SELECTORS.index(letter) << 4 * (_LONGEST * at + place) for place, letter in enumerate(text))
    whole = [operand.register if isinstance(operand, RegisterPart) else operand for operand in operands]
    return (*whole, *[Immediate(0)] * (_SELECTED - len(whole)), Immediate(codes))


def selectors_of(codes: int) -> tuple[str, ...]:
    """Return the selectors of the operands d, a, b and c of a video instruction, "" for a whole register."""
    digits = [_SELECTORS[codes >> 4 * place & 15] for place in range(_LONGEST * _SELECTED)]
    return tuple("".join(digits[at : at + _LONGEST]).strip() for at in range(0, len(digits), _LONGEST))


@dataclass(frozen=True, slots=True)
class Guard:
    """@p or @!p in front of an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction: its opcode, operands in order (None for the sink `_`), guard, and its place in the text."""

    opcode: str
    operands: tuple[Operand | None, ...]
    guard: Guard | None
    line: int
    location: Location | None


NO_STATEMENT = Statement("", (), None, 0, None)
"""What lanes run before their first statement."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Initial bytes that are an address: `width` bytes at `offset` hold (address of `symbol` + addend) >> shift."""

    offset: int
    width: int
    symbol: Symbol
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its state space, size and alignment in bytes, and its initial value if it has one.

    `initial` holds bytes up to the last one that is given (zeros follow); `references` are addresses within them.
    `element` is the size in bytes of one array element, `type` the declared type: f32, pointer, b8[12].
    """

    name: str
    space: str
    size: int
    align: int
    initial: bytes | None = None
    is_external: bool = False
    references: tuple[Reference, ...] = ()
    element: int = 1
    type: str = ""


@dataclass(frozen=True, slots=True)
class Prototype:
    """The parameters and results of a function, by which an indirect call tells which functions it may reach. `targets`
    are the functions that a `.calltargets` names; empty for a `.callprototype`."""

    parameters: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class SharedBody:
    """Statements that several calls share: `came_from` holds the number of the call that runs them, among `calls`."""

    statements: frozenset[int]
    came_from: Register
    calls: tuple["Statement", ...]


@dataclass
class Function:
    """An entry or a device function: parameters, the registers' widths, statements in order, labels by position."""

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    line: int
    register_bits: list[int] = field(default_factory=list)
    register_names: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)
    register_parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_defined: bool = False
    shared: tuple[SharedBody, ...] = ()

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """Return the opcodes of its statements, which must be complete."""
        return frozenset(statement.opcode for statement in self.statements)

    @cached_property
    def named(self) -> frozenset[str]:
        """Return the variables that its statements name, and its own; its statements must be complete."""
        named = {name for statement in self.statements for name in _names(*statement.operands)}
        return frozenset(named.union(variable.name for variable in self.variables))

    def body_of(self, statement: Statement) -> SharedBody | None:
        """Return the shared body that contains a statement (by identity), or None."""
        return next((body for body in self.shared if id(statement) in body.statements), None)


@dataclass
class Module:
    """A PTX file: version, target, address size, module variables and functions by name; `aliases` are other names."""

    version: str
    target: str
    address_bits: int
    variables: dict[str, Variable]
    functions: dict[str, Function]
    aliases: dict[str, str] = field(default_factory=dict)


def _names(*operands: Operand | None) -> list[str]:
    """Return the variables that operands name."""
    found = []
    for operand in operands:
        match operand:
            case Symbol(name):
                found.append(name)
            case Address(base):
                found += _names(base)
            case Vector(elements):
                found += _names(*elements)
            case Dual(first, second):
                found += _names(first, second)
    return found


def location_of(statement: Statement) -> str:
    """Return the place in the CUDA source to follow a place in the PTX: ` (kernel.cu:17)`, or nothing."""
    return f" ({statement.location.brief()})" if statement.location else ""


def place(statement: Statement) -> str:
    """Return the place of a statement: `add.f32 at PTX line 42 (kernel.cu:17)`."""
    return f"{statement.opcode} at PTX line {statement.line}{location_of(statement)}"
