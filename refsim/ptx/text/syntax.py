"""What a PTX file says: modules, functions, variables, statements, operands; nothing is executed here."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the CUDA source, from a `.loc` directive."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


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
    """A memory operand [base + offset]; the base is a register, a symbol, or 0 for an absolute address."""

    base: "Register | Symbol | Immediate"
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b, c, d}; None stands for the sink `_`."""

    elements: tuple["Operand | None", ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """!p: a predicate read upside down."""

    register: Register


@dataclass(frozen=True, slots=True)
class Dual:
    """d|p: two results of one instruction; None stands for the sink `_`."""

    first: "Operand | None"
    second: "Operand | None"


Operand = Dual | Register | Immediate | Special | Symbol | Label | Address | Vector | Negated


@dataclass(frozen=True, slots=True)
class Guard:
    """@p or @!p in front of an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction: its opcode, operands in order (None for the sink `_`), guard, and where it stands."""

    opcode: str
    operands: tuple[Operand | None, ...]
    guard: Guard | None
    line: int
    location: Location | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its state space, size and alignment in bytes, and initial bytes if the file gives them."""

    name: str
    space: str
    size: int
    align: int
    initial: bytes | None = None
    is_external: bool = False


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
    variables: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_defined: bool = False


@dataclass
class Module:
    """A PTX file: version, target, address size, module variables and functions by name."""

    version: str
    target: str
    address_bits: int
    variables: dict[str, Variable]
    functions: dict[str, Function]
