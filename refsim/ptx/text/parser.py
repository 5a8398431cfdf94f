"""From tokens to a Module: a recursive descent with the scopes of PTX (braces nest registers, variables and labels)."""

import re
from dataclasses import replace

from refsim.ptx.text.declarations import MAX_DEPTH, SPACES, type_bits, unsigned_integer
from refsim.ptx.text.lexer import Token, malformed, tokenize
from refsim.ptx.text.operands import OperandCursor, RegisterType, Scope, Scopes, labels_ahead
from refsim.ptx.text.source_names import source_names
from refsim.ptx.text.syntax import Function, Guard, Location, Module, Prototype, Register, Statement, Variable
from refsim.targets import assembled

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_Spot = tuple[int, int, int]  # file, line and column
MAX_INLINED = 64  # calls within calls that a `.loc` may name


def parse(text: str) -> Module:
    """Return the module of a PTX text; raise RefsimError `malformed-ptx` (exit 3) with line and token."""
    return _Parser(tokenize(text)).module()


def signatures(text: str) -> Module:
    """Return what the host needs of a PTX text: variables, entries with parameters and directives, without bodies."""
    return _Parser(tokenize(text), bodies=False).module()


class _Parser(OperandCursor):
    def __init__(self, tokens: list[Token], *, bodies: bool = True) -> None:
        super().__init__(tokens)
        self.bodies = bodies
        self.names = source_names(tokens)
        self.out = Module("", "", 64, {}, {})
        self.scopes = Scopes(Function("", False, (), (), 0))
        self.labels_of: dict[int, dict[str, str]] = {}
        self.locations: dict[_Spot, Location] = {}
        self.spelled: dict[str, tuple[_Spot, str, _Spot | None]] = {}

    # ---- module level
    def module(self) -> Module:
        """Read the whole text and return its module."""
        while self.token.kind != "end":
            token = self.token
            if token.text == ".version":
                self.out.version = self.version()
            elif token.text == ".target":
                self.take()
                self.out.target = assembled(self.word())
                while self.accept(","):
                    self.word()
            elif token.text == ".address_size":
                self.take()
                self.out.address_bits = self.integer_constant()
            elif token.text == ".file":
                self.file_directive()
            elif token.text == ".section":
                self.section()
            elif token.text == ".pragma":
                self.skip_statement()
            elif token.text == ".alias":
                self.alias()
            elif token.text == ";":
                self.take()
            else:
                self.definition()
        if not self.out.version:
            raise malformed("there is no .version directive: this is not a PTX file", 1)
        return self.out

    def version(self) -> str:
        """Read a `.version` directive and return its number."""
        line, token = self.take().line, self.take()
        if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", token.text):
            found = repr(token.text) if token.text else "the end"
            raise malformed(f"expected a version such as 8.4 after .version, found {found}", line)
        return token.text

    def file_directive(self) -> None:
        """Read a `.file` directive."""
        self.take()
        self.integer_constant()
        name = self.take()
        if name.kind != "string":
            raise malformed(f"expected a file name, found {name.text!r}", name.line)
        while self.accept(","):
            self.integer_constant()

    def section(self) -> None:
        """Skip a section for debuggers; `source_names` has read its names already."""
        self.take()
        self.take()
        self.skip_group("{", "}")

    def alias(self) -> None:
        """Read an `.alias` directive."""
        self.take()
        name = self.word()
        self.expect(",")
        self.out.aliases[name] = self.word()
        self.expect(";")

    def attributes(self) -> None:
        """Skip `.attribute` lists."""
        while self.accept(".attribute"):
            self.skip_group("(", ")")

    def definition(self) -> None:
        """Read a function or module variables, with the linkage in front."""
        external = False
        self.attributes()
        while linkage := self.accept(*_LINKAGE):
            external |= linkage == ".extern"
            self.attributes()
        if self.accept(".entry"):
            self.function_definition(is_entry=True)
        elif self.accept(".func"):
            self.function_definition(is_entry=False)
        elif self.token.text in SPACES:
            for variable in self.variables(external):
                self.elements[variable.name] = variable.element
                known = self.out.variables.get(variable.name)
                if known is None or known.is_external or not variable.is_external:
                    self.out.variables[variable.name] = variable
        else:
            raise malformed(f"expected a directive such as .entry, found {self.token.text!r}", self.token.line)

    # ---- functions
    def function_definition(self, *, is_entry: bool) -> None:
        """Read a function or its declaration; a second body is `malformed-ptx`."""
        self.attributes()
        function = Function("", is_entry, (), (), self.token.line)
        self.scopes, scope = Scopes(function), Scope()
        self.scopes.inside.append(scope)
        function.returns = self.parameter_list()
        function.line, function.name = self.token.line, self.word()
        function.parameters = self.parameter_list()
        self.function_directives(function)
        known = self.out.functions.setdefault(function.name, function)
        if self.accept(";"):
            self.scopes.inside.pop()
            return
        if known.is_defined:
            raise malformed(f"function {function.name!r} has a second body", function.line)
        function.is_defined = True
        self.out.functions[function.name] = function
        self.location = None
        if self.bodies:
            self.labels_of = labels_ahead(self.tokens, self.at)
            self.block(function.line)
        else:
            self.skip_group("{", "}")
        self.scopes.inside.pop()

    def function_directives(self, function: Function) -> None:
        """Read directives such as `.maxntid 256, 1, 1` with their numbers; drop a pragma."""
        while self.token.kind == "directive":
            if self.token.text == ".pragma":
                self.skip_statement()
                continue
            directive, numbers = self.take().text[1:], []
            while self.token.kind == "integer":
                numbers.append(self.integer_constant())
                self.accept(",")
            function.directives[directive] = tuple(numbers)

    def parameter_list(self) -> tuple[Variable, ...]:
        """Return parameters between parentheses, if any; a parameter of space "reg" is a register of the function."""
        if not self.accept("("):
            return ()
        found: list[Variable] = []
        while not self.accept(")"):
            if self.token.text == ".reg":
                self.take()
                kind = self.register_type()
                found.append(self.register_parameter(self.word(), kind))
            elif self.token.text in SPACES:
                found += self.variables(single=True)
            else:
                raise malformed(f"expected a parameter, found {self.token.text!r}", self.token.line)
            if self.token.text != ")":
                self.expect(",")
        return tuple(found)

    def register_parameter(self, name: str, kind: RegisterType) -> Variable:
        """Return a parameter that is a register, and declare the register."""
        registers = self.scopes.declare(name, kind, self.token.line) if name != "_" else ()
        if registers:
            self.scopes.function.register_parameters[name] = registers
        size = kind.count * max(1, kind.bits // 8)
        return Variable(name, "reg", size, size, element=size)

    def block(self, line: int) -> None:
        """Read the statements of a pair of braces, with a scope of their own."""
        start = self.at
        self.expect("{")
        if len(self.scopes.inside) >= MAX_DEPTH:
            raise malformed(f"braces are nested deeper than {MAX_DEPTH}", line)
        scope = Scope(labels=self.labels_of.get(start, {}))
        self.scopes.inside.append(scope)
        while not self.accept("}"):
            self.statement(scope)
        self.scopes.inside.pop()

    def statement(self, scope: Scope) -> None:
        """Read a block, a directive, a label, a `.loc` or an instruction."""
        token = self.token
        if token.text == "{":
            self.block(token.line)
        elif token.kind == "location":
            self.at += 1
            self.location = self.spelled_location(token.text)
        elif token.kind == "directive":
            self.directive(scope)
        elif token.kind == "word" and self.tokens[self.at + 1].text == ":":
            self.at += 2
            self.label_definition(token)
        elif not self.accept(";"):
            self.instruction()

    def label_definition(self, token: Token) -> None:
        """Read a label, or the name of a branch table, a prototype, or a list of functions to call."""
        function, label = self.scopes.function, self.label(token)
        match self.token.text:
            case ".branchtargets":
                self.take()
                targets = [self.label(self.take())]
                while self.accept(","):
                    targets.append(self.label(self.take()))
                function.branch_tables[label] = tuple(targets)
                self.expect(";")
            case ".callprototype":
                self.take()
                function.prototypes[label] = self.prototype()
            case ".calltargets":
                self.take()
                names = [self.word()]
                while self.accept(","):
                    names.append(self.word())
                function.prototypes[label] = Prototype((), (), tuple(names))
                self.expect(";")
            case _:
                if label in function.labels:
                    raise malformed(f"label {token.text!r} stands twice in one scope", token.line)
                function.labels[label] = len(function.statements)

    def prototype(self) -> Prototype:
        """Read a prototype such as `(.param .b32 _) _ (.param .b64 _) .noreturn;`."""
        self.scopes.inside.append(Scope())
        returns = self.parameter_list()
        self.word()
        parameters = self.parameter_list()
        self.scopes.inside.pop()
        self.skip_statement()
        return Prototype(parameters, returns)

    def label(self, token: Token) -> str:
        """Return the unique name of a label; raise `malformed-ptx` if it is not declared here."""
        found = self.scopes.label(token.text)
        if found is None:
            raise malformed(f"label {token.text!r} is not declared in this scope", token.line)
        return found

    def directive(self, scope: Scope) -> None:
        """Read a directive inside a function."""
        token, function = self.token, self.scopes.function
        if token.text == ".reg":
            self.registers(scope)
        elif token.text in SPACES or token.text == ".attribute":
            self.attributes()
            for variable in self.variables():
                unique = f"{variable.name}@{function.name}@{len(function.variables)}"
                scope.names[variable.name] = unique
                self.elements[unique] = variable.element
                function.variables.append(replace(variable, name=unique))
        elif token.text == ".loc":
            self.take()
            self.location = self.source_location()
        elif token.text in (".pragma", ".noreturn"):
            self.skip_statement()
        else:
            raise malformed(f"directive {token.text!r} is not known inside a function", token.line)

    def source_location(self) -> Location:
        """Return the place and the calls of `.loc file line column, function_name name, inlined_at file line column`.
        The place of the call may be in an inlined function itself, as an earlier `.loc` tells. Line 0 is no line of the
        inlined function: such code has the place of the call."""
        key = self.integer_constant(), self.integer_constant(), self.integer_constant()
        function, called = "", None
        while self.accept(","):
            word = self.word()
            if word == "function_name":
                label = self.word() if self.token.kind == "word" else ""
                function = self.names.function(label, self.integer_constant() if not label else self.offset_behind())
            elif word == "inlined_at":
                called = self.integer_constant(), self.integer_constant(), self.integer_constant()
            else:
                raise malformed(f"{word!r} is not known in .loc", self.token.line)
        return self.located(key, function, called)

    def spelled_location(self, text: str) -> Location:
        """Return the place of a `.loc` that is one token."""
        if (known := self.spelled.get(text)) is None:
            words = text.replace(",", " ").split()
            numbers = [int(word) for word in (*words[1:4], *words[7:])]
            label, _, offset = words[5].partition("+") if words[4:] else ("", "", "")
            function = self.names.function(label, int(offset or 0)) if label else ""
            called = (numbers[3], numbers[4], numbers[5]) if words[4:] else None
            self.spelled[text] = known = (numbers[0], numbers[1], numbers[2]), function, called
        return self.located(*known)

    def located(self, key: _Spot, function: str, called: _Spot | None) -> Location:
        """Return the place of these numbers with its calls, and keep it for functions that are inlined there."""
        caller = None
        if called is not None:
            caller = self.locations.get(called) or Location(self.names.file(called[0]), called[1])
            if sum(1 for _ in caller.places()) > MAX_INLINED:
                caller = replace(caller, caller=None)
        found = Location(self.names.file(key[0]), key[1], function, caller)
        self.locations[key] = found = found if key[1] or caller is None else caller
        return found

    def registers(self, scope: Scope) -> None:
        """Read a declaration of registers such as `.reg .v4 .f32 a, b<9>;`."""
        self.take()
        kind = self.register_type()
        while True:
            line, name = self.token.line, self.word()
            if self.accept("<"):
                scope.ranges[name] = (self.integer_token(), kind)
                self.expect(">")
            else:
                self.scopes.declare(name, kind, line)
            if not self.accept(","):
                break
        self.expect(";")

    def integer_token(self) -> int:
        """Return a plain integer: an expression would read the mark after it as a comparison."""
        line, sign = self.token.line, -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "integer" or len(token.text) > 20:
            raise malformed(f"expected an integer, found {token.text[:80]!r}", line)
        return sign * unsigned_integer(token)

    def register_type(self) -> RegisterType:
        """Return number and width of `.v4 .f32`; an alignment means nothing for a register."""
        count = 1
        while self.token.text in (".v2", ".v4", ".align"):
            directive = self.take()
            if directive.text == ".align":
                self.alignment(directive)
            else:
                count = int(directive.text[2])
        return RegisterType(type_bits(self.take()), count)

    # ---- instructions
    def instruction(self) -> None:
        """Read one instruction with its guard, and append its statement."""
        line, guard = self.token.line, None
        if self.accept("@"):
            negated = self.accept("!") is not None
            name = self.word()
            found = self.scopes.registers(name)
            if found is None:
                raise malformed(f"predicate {name!r} is not declared", line)
            guard = Guard(Register(found[0]), negated)
        self.opcode = opcode = self.word()
        operands = self.call_operands() if opcode.partition(".")[0] == "call" else self.operands()
        self.expect(";")
        self.scopes.function.statements.append(Statement(opcode, tuple(operands), guard, line, self.location))
