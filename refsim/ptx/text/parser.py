"""Tokens to a Module: a recursive descent with the scopes of PTX (registers, variables and labels nest in braces)."""

from dataclasses import dataclass, field

from refsim.ptx.text.declarations import MAX_DEPTH, SPACES, Declarations, type_bits
from refsim.ptx.text.lexer import Token, malformed, tokenize
from refsim.ptx.text.syntax import (
    Address,
    Dual,
    Function,
    Guard,
    Immediate,
    Label,
    Location,
    Module,
    Negated,
    Operand,
    Register,
    Special,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_SPECIAL_FAMILIES = (
    "tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "lanemask", "clock",
    "globaltimer", "dynamic_smem_size", "total_smem_size", "aggr_smem_size", "cluster", "nclusterid", "is_explicit",
    "current_graph_exec", "envreg", "pm", "reserved_smem",
)  # fmt: skip


@dataclass
class Scope:
    """The names that one pair of braces declares."""

    registers: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Module:
    """The module that a PTX text describes; RefsimError `malformed-ptx` (exit 3) names line and token otherwise."""
    return _Parser(tokenize(text)).module()


class _Parser(Declarations):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.files = _file_names(tokens)
        self.out = Module("", "", 64, {}, {})
        self.function: Function | None = None
        self.scopes: list[Scope] = []
        self.labels_of: dict[int, dict[str, str]] = {}
        self.location: Location | None = None

    # ---- module level
    def module(self) -> Module:
        while self.token.kind != "end":
            token = self.token
            if token.text == ".version":
                self.take()
                self.out.version = self.take().text
            elif token.text == ".target":
                self.take()
                self.out.target = self.word()
                while self.accept(","):
                    self.word()
            elif token.text == ".address_size":
                self.take()
                self.out.address_bits = self.integer()
            elif token.text == ".file":
                self.file_directive()
            elif token.text == ".section":
                self.skip_braces()
            elif token.text in (".pragma", ".alias"):
                self.skip_statement()
            elif token.text == ";":
                self.take()
            else:
                self.definition()
        if not self.out.version:
            raise malformed("there is no .version directive: this is not a PTX file", 1)
        return self.out

    def file_directive(self) -> None:
        self.take()
        self.integer()
        name = self.take()
        if name.kind != "string":
            raise malformed(f"expected a file name, found {name.text!r}", name.line)
        while self.accept(","):
            self.integer()

    def definition(self) -> None:
        external = False
        while linkage := self.accept(*_LINKAGE):
            external |= linkage == ".extern"
        if self.accept(".entry"):
            self.function_definition(is_entry=True)
        elif self.accept(".func"):
            self.function_definition(is_entry=False)
        elif self.token.text in SPACES:
            for variable in self.variables(external):
                self.out.variables[variable.name] = variable
        else:
            raise malformed(f"expected a directive, found {self.token.text!r}", self.token.line)

    # ---- functions
    def function_definition(self, *, is_entry: bool) -> None:
        returns = self.parameter_list() if self.token.text == "(" else ()
        line, name = self.token.line, self.word()
        parameters = self.parameter_list() if self.token.text == "(" else ()
        function = Function(name, is_entry, parameters, returns, line)
        while self.token.kind == "directive":
            directive = self.take().text[1:]
            numbers = []
            while self.token.kind in ("integer", "float") or self.token.text == ",":
                if not self.accept(","):
                    numbers.append(self.integer())
            function.directives[directive] = tuple(numbers)
        known = self.out.functions.setdefault(name, function)
        if self.accept(";"):
            return
        if known.is_defined:
            raise malformed(f"function {name!r} has a second body", line)
        function.is_defined = True
        self.out.functions[name] = function
        self.function, self.location = function, None
        self.labels_of = self.labels_ahead()
        self.block(line)
        self.function = None

    def parameter_list(self) -> tuple[Variable, ...]:
        self.expect("(")
        found: list[Variable] = []
        while not self.accept(")"):
            if self.token.text == ".reg":
                raise malformed("register parameters are not supported: compile with the .param ABI", self.token.line)
            found += self.variables(single=True)
            self.accept(",")
        return tuple(found)

    def block(self, line: int) -> None:
        start = self.at
        self.expect("{")
        if len(self.scopes) >= MAX_DEPTH:
            raise malformed(f"braces are nested deeper than {MAX_DEPTH}", line)
        scope = Scope(labels=self.labels_of.get(start, {}))
        self.scopes.append(scope)
        while not self.accept("}"):
            self.statement(scope)
        self.scopes.pop()

    def labels_ahead(self) -> dict[int, dict[str, str]]:
        """The labels of each scope of the function that starts here, by the place of its brace; made unique, since the
        same name may stand in sibling scopes."""
        found: dict[int, dict[str, str]] = {}
        inside: list[int] = []
        for at in range(self.at, len(self.tokens)):
            token = self.tokens[at]
            if token.text == "{":
                inside.append(at)
                found[at] = {}
            elif token.text == "}" and inside:
                inside.pop()
            elif inside and token.kind == "word" and self.tokens[at + 1].text == ":":
                found[inside[-1]][token.text] = f"{token.text}@{inside[-1]}"
            if not inside:
                break
        return found

    def statement(self, scope: Scope) -> None:
        assert self.function is not None
        token = self.token
        if token.text == "{":
            self.block(token.line)
        elif token.kind == "directive":
            self.directive(scope)
        elif token.kind == "word" and self.tokens[self.at + 1].text == ":":
            self.at += 2
            if self.token.text in (".branchtargets", ".calltargets", ".callprototype"):
                self.label_table(token.text)
            else:
                label = self.label(token.text)
                if label in self.function.labels:
                    raise malformed(f"label {token.text!r} stands twice in one scope", token.line)
                self.function.labels[label] = len(self.function.statements)
        elif not self.accept(";"):
            self.instruction()

    def label_table(self, name: str) -> None:
        assert self.function is not None
        if self.take().text == ".branchtargets":
            targets = [self.label(self.word())]
            while self.accept(","):
                targets.append(self.label(self.word()))
            self.expect(";")
            self.function.branch_tables[self.label(name)] = tuple(targets)
        else:
            self.skip_statement()

    def directive(self, scope: Scope) -> None:
        assert self.function is not None
        token = self.token
        if token.text == ".reg":
            self.registers(scope)
        elif token.text in SPACES:
            for variable in self.variables():
                unique = f"{variable.name}@{self.function.name}@{len(self.function.variables)}"
                scope.names[variable.name] = unique
                self.function.variables.append(
                    Variable(unique, variable.space, variable.size, variable.align, variable.initial)
                )
        elif token.text == ".loc":
            self.take()
            number, line, _column = self.integer(), self.integer(), self.integer()
            self.location = Location(self.files.get(number, f"file {number}"), line)
            if self.accept(","):
                self.inlined_location()
        elif token.text in (".pragma", ".noreturn"):
            self.skip_statement()
        else:
            raise malformed(f"directive {token.text!r} is not known inside a function", token.line)

    def inlined_location(self) -> None:
        """`.loc ..., function_name $L, inlined_at file line column`: the place of the call is what a user wrote."""
        line = self.token.line
        while self.token.line == line and self.token.kind != "end":
            if self.take().text == "inlined_at":
                number, source_line, _column = self.integer(), self.integer(), self.integer()
                self.location = Location(self.files.get(number, f"file {number}"), source_line)

    def registers(self, scope: Scope) -> None:
        self.take()
        bits = type_bits(self.take())
        while True:
            name = self.word()
            if self.accept("<"):
                scope.ranges[name] = (self.integer(), bits)
                self.expect(">")
            else:
                scope.registers[name] = self.new_register(name, bits)
            if not self.accept(","):
                break
        self.expect(";")

    def new_register(self, name: str, bits: int) -> int:
        assert self.function is not None
        self.function.register_bits.append(bits)
        self.function.register_names.append(name)
        return len(self.function.register_bits) - 1

    def find_register(self, name: str) -> int | None:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        for scope in reversed(self.scopes):
            if name in scope.registers:
                return scope.registers[name]
            if digits and len(digits) < 12 and stem in scope.ranges and int(digits) < scope.ranges[stem][0]:
                scope.registers[name] = self.new_register(name, scope.ranges[stem][1])
                return scope.registers[name]
        return None

    def label(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope.labels:
                return scope.labels[name]
        raise malformed(f"label {name!r} is not declared in this scope", self.token.line)

    # ---- instructions
    def instruction(self) -> None:
        assert self.function is not None
        line, guard = self.token.line, None
        if self.accept("@"):
            negated = self.accept("!") is not None
            name = self.word()
            index = self.find_register(name)
            if index is None:
                raise malformed(f"predicate {name!r} is not declared", line)
            guard = Guard(Register(index), negated)
        opcode = self.word()
        operands: list[Operand | None] = []
        if opcode.split(".")[0] == "call":
            operands = self.call_operands()
        elif self.token.text != ";":
            operands.append(self.operand())
            if self.accept("|"):
                operands.append(Dual(operands.pop(), self.operand()))
            while self.accept(","):
                operands.append(self.operand())
        self.expect(";")
        self.function.statements.append(Statement(opcode, tuple(operands), guard, line, self.location))

    def call_operands(self) -> list[Operand | None]:
        """`call (results), function, (arguments)`: results and arguments become two vectors around the name."""
        results = self.call_list() if self.token.text == "(" else Vector(())
        self.accept(",")
        callee = self.operand()
        arguments = Vector(())
        while self.accept(","):
            if self.token.text == "(":
                arguments = self.call_list()
            else:
                self.word()
        return [results, callee, arguments]

    def call_list(self) -> Vector:
        self.expect("(")
        found: list[Operand | None] = []
        while not self.accept(")"):
            found.append(self.operand())
            self.accept(",")
        return Vector(tuple(found))

    def operand(self, *, inner: bool = False) -> Operand | None:
        """One operand; an `inner` one stands in an address, in a vector or behind '!', where no other of these may."""
        token = self.token
        if inner and token.text in ("[", "{", "!"):
            raise malformed(f"{token.text!r} cannot stand inside an operand", token.line)
        if self.accept("["):
            return self.address()
        if self.accept("{"):
            elements = []
            while not self.accept("}"):
                elements.append(self.operand(inner=True))
                self.accept(",")
            if not elements:
                raise malformed("a vector without elements", token.line)
            return Vector(tuple(elements))
        if self.accept("!"):
            register = self.operand(inner=True)
            if not isinstance(register, Register):
                raise malformed("'!' stands in front of something that is no predicate", token.line)
            return Negated(register)
        if token.kind == "word":
            return self.name()
        return self.number()

    def address(self) -> Address:
        base = self.operand(inner=True)
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        elif isinstance(base, Register | Immediate):
            offset = 0
        else:
            raise malformed("an address must start with a register, a name or a number", self.token.line)
        while sign := self.accept("+", "-"):
            offset += self.integer() * (1 if sign == "+" else -1)
        self.check_offset(offset)
        coordinates = []
        while self.accept(","):
            group = self.operand(inner=self.token.text != "{")
            coordinates.append(group if isinstance(group, Vector) else Vector((group,)))
        self.expect("]")
        return Address(base, offset, tuple(coordinates))

    def name(self) -> Operand | None:
        token = self.take()
        if token.text == "_":
            return None
        index = self.find_register(token.text)
        if index is not None:
            return Register(index)
        if token.text.startswith("%"):
            if not token.text[1:].startswith(_SPECIAL_FAMILIES):
                raise malformed(f"register {token.text!r} is not declared", token.line)
            return Special(token.text)
        if token.text == "WARP_SZ":
            return Immediate(32)
        for scope in reversed(self.scopes):
            if token.text in scope.labels:
                return Label(scope.labels[token.text])
            if token.text in scope.names:
                return self.symbol(scope.names[token.text])
        return self.symbol(token.text)

    def symbol(self, name: str) -> Symbol:
        offset = 0
        while self.token.text in ("+", "-") and self.tokens[self.at + 1].kind == "integer":
            sign = 1 if self.take().text == "+" else -1
            offset += sign * self.integer()
        self.check_offset(offset)
        return Symbol(name, offset)

    def check_offset(self, offset: int) -> None:
        if not -(1 << 32) < offset < 1 << 32:
            raise malformed(f"offset {offset} is beyond 32 bits", self.token.line)


def _file_names(tokens: list[Token]) -> dict[int, str]:
    """Source files by their number; `.file` directives may stand behind the `.loc` that use them."""
    names = {}
    for at, token in enumerate(tokens[:-2]):
        if token.text == ".file" and tokens[at + 1].text.isdigit() and tokens[at + 2].kind == "string":
            names[int(tokens[at + 1].text[:9])] = tokens[at + 2].text.strip('"').rsplit("/", 1)[-1]
    return names
