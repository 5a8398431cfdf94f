"""Operands of instructions: registers and their parts, constants, names, addresses, vectors.

Two spellings that ptxas takes are written out as statements in front: `%r1+4` as a value is an addition, and
`name[%r1]` is the address of an element.

The meaning of names inside a function: registers, variables and labels of the braces around a statement."""

from dataclasses import dataclass, field
from functools import lru_cache

from refsim.ptx.text.declarations import Declarations
from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import (
    Address,
    Dual,
    Function,
    Immediate,
    Label,
    Location,
    Negated,
    Operand,
    Register,
    RegisterPart,
    Special,
    Statement,
    Symbol,
    Vector,
)
from refsim.ptx.text.words import words_in

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


_SPECIAL_FAMILIES = words_in("""
    tid ntid ctaid nctaid laneid warpid nwarpid smid nsmid gridid lanemask clock globaltimer dynamic_smem_size
    total_smem_size aggr_smem_size cluster nclusterid is_explicit current_graph_exec envreg pm reserved_smem
""")


_register = lru_cache(maxsize=1 << 16)(Register)  # named again and again: a third of the time that Register() takes


class OperandCursor(Declarations):
    """A cursor that reads the operands of one function's instructions."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.scopes: Scopes
        self.location: Location | None = None
        self.opcode = ""
        self.elements: dict[str, int] = {}

    def operands(self) -> list[Operand | None]:
        """Return all operands of an instruction; `d|p` is one operand with two results."""
        if self.token.text == ";":
            return []
        found = [self.operand()]
        if self.accept("|"):
            found.append(Dual(found.pop(), self.operand()))
        while self.accept(","):
            found.append(self.operand())
        return found

    def operand(self, *, inner: bool = False) -> Operand | None:
        """Return one operand; an `inner` one stands in an address, in a vector or after '!', and is none of these."""
        token = self.token
        if inner and token.text in ("[", "{"):
            raise malformed(f"{token.text!r} cannot stand inside an operand", token.line)
        if token.kind == "word" and token.text != "WARP_SZ":
            return self.named(inner=inner)
        if self.accept("["):
            return self.address()
        if self.accept("{"):
            return self.vector()
        if token.text == "!" and self.tokens[self.at + 1].kind == "word" and self.tokens[self.at + 1].text != "WARP_SZ":
            self.take()
            register = self.operand(inner=True)
            if not isinstance(register, Register):
                raise malformed("'!' stands in front of something that is not a predicate", token.line)
            return Negated(register)
        if token.text == "-" and self.opcode.startswith("vmad.") and self.tokens[self.at + 1].kind == "word":
            self.take()
            found = self.operand(inner=True)
            if isinstance(found, Register | RegisterPart):
                part = found if isinstance(found, RegisterPart) else RegisterPart(found, "")
                return RegisterPart(part.register, f"-{part.selector}")
            raise malformed("'-' stands in front of something that is not a register", token.line)
        return self.constant()

    def vector(self) -> Vector:
        """Return the elements between braces; the opening brace is taken already."""
        elements: list[Operand | None] = []
        while not self.accept("}"):
            elements.append(self.operand(inner=True))
            if self.token.text != "}":
                self.expect(",")
        if not elements:
            raise malformed("a vector without elements", self.token.line)
        return Vector(tuple(elements))

    def address(self) -> Address:
        """Return a base, an offset and tensor coordinates between brackets; the opening bracket is taken already."""
        line, base = self.token.line, self.base()
        if isinstance(base, Immediate):
            base, offset = Immediate(0), base.value
            self.check_offset(offset, line)
        else:
            offset = self.offset_behind()
        groups = []
        while self.accept(","):
            group = self.vector() if self.accept("{") else self.operand(inner=True)
            groups.append(group if isinstance(group, Vector) else Vector((group,)))
        self.expect("]")
        return Address(base, offset, tuple(groups))

    def base(self) -> Register | Symbol | Immediate:
        """Return the base of an address."""
        token = self.token
        if token.kind == "word" and token.text != "WARP_SZ":
            found = self.known(self.take())
        elif self.starts_constant() and token.text != "!":
            found = self.constant()
        else:
            found = None
        if not isinstance(found, Register | Symbol | Immediate):
            raise malformed("an address must start with a register, a name or a number", token.line)
        return found

    def named(self, *, inner: bool) -> Operand | None:
        """Return an operand that begins with a name, perhaps followed by `+4`, `[1]` or `[%r1+1]`."""
        token = self.take()
        found = self.known(token)
        behind = self.token.text
        if behind not in ("+", "-", "["):
            return found
        if isinstance(found, Symbol):
            if behind == "[":
                return self.element(found)
            return Symbol(found.name, found.offset + self.offset_behind())
        if isinstance(found, Register) and behind == "+" and not inner:
            return self.sum(found)
        raise malformed(f"{behind!r} cannot follow {token.text!r}", token.line)

    def known(self, token: Token) -> Operand | None:
        """Return the meaning of a name: a register, special register, label, variable or function; None for `_`."""
        name, scopes = token.text, self.scopes
        if name == "_":
            return None
        if (registers := scopes.registers(name)) is not None:
            return _register(registers[0]) if len(registers) == 1 else Vector(tuple(map(_register, registers)))
        if "." in name and (part := scopes.part(name)) is not None:
            return RegisterPart(Register(part[0]), part[1]) if part[1] else Register(part[0])
        if name[0] == "%" and name[1:].startswith(_SPECIAL_FAMILIES):
            return Special(name)
        if (label := scopes.label(name)) is not None:
            return Label(label)
        if name[0] == "%":
            raise malformed(f"register {name!r} is not declared", token.line)
        return Symbol(scopes.variable(name))

    def sum(self, register: Register) -> Register:
        """Return `%r1+4` as a value: emit an addition in front, in the register's own width."""
        self.expect("+")
        return self.added(register, self.integer_constant())

    def added(self, register: Register, offset: int) -> Register:
        """Return a new register, and emit the addition of an offset to a register into it."""
        bits = max(16, self.scopes.function.register_bits[register.index])
        if bits == 128:
            raise malformed("nothing is added to a register of 128 bits", self.token.line)
        (target,) = self.scopes.new_register("%sum", RegisterType(bits))
        self.statement_in_front(f"add.u{bits}", (Register(target), register, Immediate(offset)))
        return Register(target)

    def element(self, symbol: Symbol) -> Operand:
        """Return the element of `name[3]` or `name[%r1+1]`: mov takes its address, other opcodes access it."""
        self.expect("[")
        is_value = self.opcode.startswith("mov.")
        size = self.elements.get(symbol.name, 1)
        token = self.token
        if token.kind != "word" or token.text == "WARP_SZ":
            offset = symbol.offset + size * self.integer_constant()
            self.check_offset(offset, token.line)
            self.expect("]")
            return Symbol(symbol.name, offset) if is_value else Address(Symbol(symbol.name), offset)
        index, offset = self.known(self.take()), self.offset_behind()
        self.expect("]")
        if not isinstance(index, Register) or self.scopes.function.register_bits[index.index] != 32:
            raise malformed(f"{token.text!r} cannot index an array", token.line)
        index = self.added(index, offset) if offset else index
        (base,), (target,) = (self.scopes.new_register("%element", RegisterType(64)) for _ in range(2))
        self.statement_in_front("mov.u64", (Register(base), symbol))
        self.statement_in_front("mad.wide.u32", (Register(target), index, Immediate(size), Register(base)))
        return Register(target) if is_value else Address(Register(target), 0)

    def statement_in_front(self, opcode: str, operands: tuple[Operand, ...]) -> None:
        """Append a statement that is a part of the one being read."""
        self.scopes.function.statements.append(Statement(opcode, operands, None, self.token.line, self.location))

    def check_offset(self, offset: int, line: int) -> None:
        """Raise `malformed-ptx` for an offset beyond 32 bits."""
        if not -(1 << 32) < offset < 1 << 32:
            raise malformed(f"offset {offset} is beyond 32 bits", line)

    def variable_named(self, name: str) -> str:
        """Return the unique name of a variable in the scopes around this place."""
        return self.scopes.variable(name) if self.scopes.inside else name

    # ---- calls
    def call_operands(self) -> list[Operand | None]:
        """Return results, function, arguments and prototype of `call (results), function, (arguments), prototype`."""
        results = self.call_list() if self.token.text == "(" else Vector(())
        self.accept(",")
        callee, arguments = self.operand(), Vector(())
        prototype: list[Operand | None] = []
        while self.accept(","):
            if self.token.text == "(":
                arguments = self.call_list()
            else:
                prototype.append(self.operand())
        return [results, callee, arguments, *prototype[:1]]

    def call_list(self) -> Vector:
        """Return the operands between parentheses."""
        self.expect("(")
        found: list[Operand | None] = []
        while not self.accept(")"):
            found.append(self.operand())
            if self.token.text != ")":
                self.expect(",")
        return Vector(tuple(found))
