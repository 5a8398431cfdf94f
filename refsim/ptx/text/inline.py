"""Calls of device functions, resolved before an entry is lowered: one equivalent function without calls.

A call becomes a copy of the callee's body while the whole stays small. Beyond that, or deep within calls, the body is
put once after the entry and shared: a call notes where it goes on and branches there, and a return is a branch table.
The .param variables of a call sequence become local memory of each lane, and formal parameters are other names for
them: PTX passes by value, and a callee only reads its parameters and only writes its results.

A call through a register compares it with the address of every function it may reach: the functions of a
`.calltargets`, or all functions whose address the module takes and whose parameters fit the prototype.

In a copy (`FunctionCopy`) registers are renumbered, labels and local variables renamed, parameters bound to the
caller's values, and places in the CUDA source get the call. Functions of the CUDA runtime have no body in any module:
`runtime_call` puts a statement in place of their calls.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from refsim.errors import RefsimError
from refsim.ptx.text.call_graph import CALL_RULE, addressed, check_calls, fits, has_body, is_call, unsupported
from refsim.ptx.text.source_names import demangled
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
    RegisterPart,
    SharedBody,
    Statement,
    Symbol,
    Variable,
    Vector,
    place,
)

MAX_INLINED = 20_000  # statements, up to which calls become copies
MAX_COPY_DEPTH = 16  # copies within copies
MAX_STATEMENTS = 400_000

Work = Iterator["Work"]
# The bits of their arguments, and of the result if there is one.
RUNTIME: dict[str, tuple[tuple[int, ...], int]] = {
    "vprintf": ((64, 64), 32),
    "__assertfail": ((64, 64, 32, 64, 64), 0),
    "malloc": ((64,), 64),
    "free": ((64,), 0),
    "__cuda_syscall_aligned_malloc": ((64, 64), 64),
}
HEAP_CALLS = frozenset({"call.malloc", "call.free", "call.__cuda_syscall_aligned_malloc"})


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


def inline(module: Module, function: Function) -> Function:
    """Return an equivalent function without calls, or the given object if it has no calls. Raises RefsimError:
    `unsupported-feature` (recursion, a function without a body in the module, or operands that do not fit its
    parameters), `too-large` (too many statements in all)."""
    calls = any(is_call(statement) for statement in function.statements)
    if not calls and not any(variable.space == "param" for variable in function.variables):
        return function
    return _Linker(module, function).link()


@dataclass
class _Shared:
    """A body that stands once: its start, the register that tells a return where to go, and the places to return to."""

    copy: FunctionCopy
    start: str
    came_from: Register
    is_running: Register
    places: list[str] = field(default_factory=list)
    calls: list[Statement] = field(default_factory=list)
    statements: frozenset[int] = frozenset()


class _Linker:
    """A builder of one function from the statements of an entry and of all functions that it calls."""

    def __init__(self, module: Module, entry: Function) -> None:
        self.module, self.entry = module, entry
        self.out = replace(
            entry, statements=[], labels={}, branch_tables={}, variables=[], register_bits=[], register_names=[]
        )
        self.shared: dict[str, _Shared] = {}
        self.waiting: deque[_Shared] = deque()
        self.copies = 0
        self.known_variables: set[str] = set()
        self.is_indirect = check_calls(module, entry)
        self.reachable = addressed(module) if self.is_indirect else []

    def link(self) -> Function:
        """Return the linked function: the entry first, then the shared bodies."""
        copy = self.begin(FunctionCopy(self.entry, 0, "", active=(self.entry.name,)))
        _run(self.body(copy, None))
        while self.waiting:
            shared = self.waiting.popleft()
            self.out.statements.append(Statement("exit", (), None, shared.copy.function.line, None))
            self.out.labels[shared.start] = len(self.out.statements)
            first = len(self.out.statements)
            _run(self.body(shared.copy, shared))
            shared.statements = frozenset(map(id, self.out.statements[first:]))
        for shared in self.shared.values():
            self.out.branch_tables[f"table{shared.copy.suffix}"] = tuple(shared.places)
        self.out.shared = tuple(
            SharedBody(each.statements, each.came_from, tuple(each.calls)) for each in self.shared.values()
        )
        if self.is_indirect and self.shared:
            self.set_idle()
        return self.out

    def set_idle(self) -> None:
        """Mark every shared body as not running, in front of all other statements."""
        first = [
            Statement("mov.pred", (shared.is_running, Immediate(0)), None, self.entry.line, None)
            for shared in self.shared.values()
        ]
        self.out.statements[:0] = first
        for name in self.out.labels:
            self.out.labels[name] += len(first)

    # ---- bodies
    def begin(self, copy: FunctionCopy) -> FunctionCopy:
        """Give a copy its registers and variables."""
        out, function = self.out, copy.function
        copy.shift = len(out.register_bits)
        out.register_bits += function.register_bits
        out.register_names += [name + copy.suffix for name in function.register_names]
        for variable in copy.variables():
            self.declare(variable)
        out.branch_tables |= {
            copy.label(name): tuple(map(copy.label, labels)) for name, labels in function.branch_tables.items()
        }
        return copy

    def declare(self, variable: Variable) -> None:
        """Add a variable to the function once."""
        if variable.name not in self.known_variables:
            self.known_variables.add(variable.name)
            self.out.variables.append(variable)

    def register(self, name: str, bits: int) -> Register:
        """Return a register of the linked function itself."""
        self.out.register_bits.append(bits)
        self.out.register_names.append(name)
        return Register(len(self.out.register_bits) - 1)

    def body(self, copy: FunctionCopy, shared: _Shared | None) -> Work:
        """Emit the statements of a copy; yield the work that emits its calls."""
        function, out = copy.function, self.out
        end = f"end{copy.suffix}"
        labels: dict[int, list[str]] = {}
        for label, at in function.labels.items():
            labels.setdefault(at, []).append(copy.label(label))
        for at, statement in enumerate(function.statements):
            out.labels.update(dict.fromkeys(labels.get(at, ()), len(out.statements)))
            if is_call(statement):
                yield self.call(copy, statement)
            elif copy.call is not None and statement.opcode in ("ret", "ret.uni"):
                moved = copy.statement(statement)
                out.statements.append(replace(moved, opcode="bra", operands=(Label(end),)))
            else:
                out.statements.append(copy.statement(_local(statement, copy)))
        out.labels.update(dict.fromkeys(labels.get(len(function.statements), ()), len(out.statements)))
        if copy.call is not None:
            out.labels[end] = len(out.statements)
        if shared is not None:
            table = Label(f"table{copy.suffix}")
            out.statements.append(Statement("brx.idx", (shared.came_from, table), None, function.line, None))

    # ---- calls
    def call(self, copy: FunctionCopy, statement: Statement) -> Work:
        """Emit one call, guarded by a branch around it: to the named function, or to one of those it may reach."""
        out, moved = self.out, copy.statement(statement)
        if len(out.statements) > MAX_STATEMENTS:
            what = f"{self.entry.name} has more than {MAX_STATEMENTS} statements with all that it calls"
            raise RefsimError("too-large", what, where=place(moved), rule=CALL_RULE)
        here = self.number()
        behind = f"behind@{here}"
        if moved.guard:
            around = Guard(moved.guard.register, not moved.guard.negated)
            self.emit(moved, "bra", Label(behind), guard=around)
        callee = statement.operands[1] if len(statement.operands) > 1 else None
        if isinstance(callee, Symbol):
            yield self.direct(copy, statement, moved, callee.name)
        elif isinstance(callee, Register):
            targets = self.targets(copy, statement)
            address = self.register("%callee", 64)
            is_it = self.register("%is_callee", 1)
            register = copy.register(callee)
            for place_in_list, target in enumerate(targets):
                self.emit(moved, "mov.u64", address, Symbol(target))
                self.emit(moved, "setp.eq.u64", is_it, register, address)
                self.emit(moved, "bra", Label(f"{behind}.{place_in_list}"), guard=Guard(is_it, False))
            self.emit(moved, "call", register)
            for place_in_list, target in enumerate(targets):
                out.labels[f"{behind}.{place_in_list}"] = len(out.statements)
                yield self.direct(copy, statement, moved, target)
                self.emit(moved, "bra", Label(behind))
        else:
            raise unsupported("the function called is neither a name nor a register", statement)
        out.labels[behind] = len(out.statements)

    def targets(self, copy: FunctionCopy, statement: Statement) -> list[str]:
        """Return the functions that an indirect call may reach."""
        label = statement.operands[3] if len(statement.operands) > 3 else None
        prototype = copy.function.prototypes.get(label.name) if isinstance(label, Label) else None
        if prototype is None:
            raise unsupported("a call through a register names no prototype", statement)
        if prototype.targets:
            return [name for name in map(self.named, prototype.targets) if has_body(self.module, name)]
        return [name for name in self.reachable if fits(self.module.functions[name], prototype)]

    def named(self, name: str) -> str:
        """Return the own name of a function that may be named by an alias."""
        return self.module.aliases.get(name, name)

    def direct(self, copy: FunctionCopy, statement: Statement, moved: Statement, name: str) -> Work:
        """Emit a call of a known function, as a copy of it or as a branch to its shared body."""
        name, out = self.named(name), self.out
        if not has_body(self.module, name):
            if name not in RUNTIME:
                raise unsupported(f"{name} has no body in this module", statement)
            out.statements += runtime_call(out, replace(moved, guard=None), name, CALL_RULE)
            return
        callee = self.module.functions[name]
        results, arguments = _vector(statement.operands[0]), _vector(statement.operands[2])
        pairs = _paired(callee, results, arguments, statement)
        is_copied = (
            name not in self.shared
            and name not in copy.active
            and len(copy.active) <= MAX_COPY_DEPTH
            and len(out.statements) + len(callee.statements) <= MAX_INLINED
        )
        if is_copied:
            inner = self.begin(
                FunctionCopy(callee, 0, f"@call{self.number()}", call=moved, active=(*copy.active, name))
            )
            stores = self.bind(copy, inner, moved, pairs)
            yield self.body(inner, None)
        else:
            shared = self.shared.get(name) or self.share(callee, name)
            stores = self.bind(copy, shared.copy, moved, pairs)
            back = f"back@{self.number()}"
            if self.is_indirect:
                address = self.register("%callee", 64)
                self.emit(moved, "mov.u64", address, Symbol(name))
                self.emit(moved, "call", address, guard=Guard(shared.is_running, False))
                self.emit(moved, "mov.pred", shared.is_running, Immediate(1))
            self.emit(moved, "mov.u32", shared.came_from, Immediate(len(shared.places)))
            self.emit(moved, "bra", Label(shared.start))
            shared.calls.append(out.statements[-1])
            out.labels[back] = len(out.statements)
            shared.places.append(back)
            if self.is_indirect:
                self.emit(moved, "mov.pred", shared.is_running, Immediate(0))
        out.statements += stores

    def share(self, callee: Function, name: str) -> _Shared:
        """Return a new body that stands once; its parameters are addresses in registers."""
        suffix = f"@shared{self.number()}"
        copy = self.begin(
            FunctionCopy(callee, 0, suffix, call=Statement("call", (), None, callee.line, None), active=(name,))
        )
        for formal in (*callee.parameters, *callee.returns):
            if formal.space != "reg":
                copy.symbols[formal.name] = self.register(f"{formal.name}{suffix}", 64)
        shared = _Shared(
            copy, f"start{suffix}", self.register(f"%came_from{suffix}", 32), self.register(f"%running{suffix}", 1)
        )
        self.shared[name] = shared
        self.waiting.append(shared)
        return shared

    def bind(
        self,
        copy: FunctionCopy,
        callee: FunctionCopy,
        call: Statement,
        pairs: list[tuple[Variable, Operand | None, bool]],
    ) -> list[Statement]:
        """Bind the callee's parameters; return the statements that fetch results after the call."""
        after: list[Statement] = []
        for formal, actual, is_result in pairs:
            moved = copy.operand(actual)
            if formal.space == "reg":
                after += self.bind_register(callee, formal, actual, moved, call, is_result=is_result)
                continue
            if not isinstance(actual, Symbol):  # a value in place of a .param variable
                holder = Symbol(f"{formal.name}@held{self.number()}")
                self.declare(Variable(holder.name, "local", formal.size, formal.align))
                if is_result and isinstance(moved, Register):
                    after.append(self.made(call, f"ld.local.b{8 * formal.size}", moved, Address(holder, 0)))
                elif not is_result and moved is not None:
                    self.emit(call, f"st.local.b{8 * formal.size}", Address(holder, 0), moved)
                moved = holder
            known = callee.symbols.get(formal.name)
            if isinstance(known, Register):
                self.emit(call, "mov.u64", known, moved)
            else:
                assert isinstance(moved, Symbol | Register)
                callee.symbols[formal.name] = moved
        return after

    def bind_register(
        self,
        callee: FunctionCopy,
        formal: Variable,
        actual: Operand | None,
        moved: Operand | None,
        call: Statement,
        *,
        is_result: bool,
    ) -> list[Statement]:
        """Emit the move of a register parameter before the call; return the move of a register result after it."""
        indices = callee.function.register_parameters.get(formal.name, ())
        given = moved.elements if isinstance(moved, Vector) else (moved,) * max(len(indices), 1)
        if len(indices) != len(given) or (len(indices) > 1 and isinstance(moved, Register | Immediate)):
            raise unsupported(f"{callee.function.name} takes {len(indices)} registers for {formal.name}", call)
        after: list[Statement] = []
        for place_in_vector, (index, element) in enumerate(zip(indices, given, strict=True)):
            own = callee.register(Register(index))
            bits = self.out.register_bits[own.index]
            move, width = ("mov.pred" if bits == 1 else f"mov.b{max(bits, 16)}"), max(bits, 8)
            if isinstance(actual, Symbol):
                assert isinstance(element, Symbol | Register)
                offset = getattr(element, "offset", 0) + place_in_vector * width // 8
                held = Address(Symbol(element.name) if isinstance(element, Symbol) else element, offset)
                if is_result:
                    after.append(self.made(call, f"st.local.b{width}", held, own))
                else:
                    self.emit(call, f"ld.local.b{width}", own, held)
            elif not is_result:
                self.emit(call, move, own, element)
            elif element is not None:
                after.append(self.made(call, move, element, own))
        return after

    # ---- statements
    def made(self, call: Statement, opcode: str, *operands: Operand | None, guard: Guard | None = None) -> Statement:
        """Return a statement at the place of a call."""
        return replace(call, opcode=opcode, operands=operands, guard=guard)

    def emit(self, call: Statement, opcode: str, *operands: Operand | None, guard: Guard | None = None) -> None:
        """Append a statement that is a part of a call."""
        self.out.statements.append(self.made(call, opcode, *operands, guard=guard))

    def number(self) -> int:
        """Return a new number for labels and variables."""
        self.copies += 1
        return self.copies


def _run(work: Work) -> None:
    """Run work and all the work that it yields, in order, at any depth."""
    stack = [work]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(inner)


def _vector(operand: Operand | None) -> Vector:
    assert isinstance(operand, Vector)
    return operand


def _paired(
    callee: Function, results: Vector, arguments: Vector, call: Statement
) -> list[tuple[Variable, Operand | None, bool]]:
    """Return formal parameters and results with their actual operands, and whether each is a result."""
    found: list[tuple[Variable, Operand | None, bool]] = []
    for actuals, formals, kind in (
        (arguments.elements, callee.parameters, "arguments"),
        (results.elements, callee.returns, "results"),
    ):
        if len(actuals) != len(formals):
            what = f"{callee.name} has {len(formals)} {kind}, the call gives {len(actuals)}"
            raise RefsimError("unsupported-feature", what, where=place(call), rule=CALL_RULE)
        found += [(formal, actual, kind == "results") for formal, actual in zip(formals, actuals, strict=True)]
    return found


def _local(statement: Statement, copy: FunctionCopy) -> Statement:
    """Return an access to a parameter of a call as an access to local memory; parameters of the entry stay."""
    mnemonic, _, rest = statement.opcode.partition(".param")
    if mnemonic not in ("ld", "ld.weak", "st", "st.weak", "cvta", "cvta.to") or rest.startswith("::entry"):
        return statement
    names = [
        operand.base.name if isinstance(operand, Address) and isinstance(operand.base, Symbol) else ""
        for operand in statement.operands
        if isinstance(operand, Address | Symbol)
    ]
    if copy.call is None and next(iter(names), "") not in copy.symbols:
        return statement
    return replace(statement, opcode=f"{mnemonic}.local{rest.removeprefix('::func')}")


def runtime_call(out: Function, call: Statement, name: str, rule: str) -> list[Statement]:
    """Return a call as one statement of the machine, between loads of its arguments and the store of its result."""
    widths, result = RUNTIME[name]
    results, _, arguments = call.operands[:3]
    given = arguments.elements if isinstance(arguments, Vector) else ()
    wanted = results.elements if isinstance(results, Vector) else ()
    if len(given) != len(widths) or len(wanted) > 1 or any(not isinstance(one, Symbol) for one in (*given, *wanted)):
        what = f"{name} takes {len(widths)} .param variables"
        raise RefsimError("unsupported-feature", what, where=place(call), rule=rule)
    made = [_fresh(out, bits, name) for bits in (*widths, *([result] if result else []))]
    taken = made[: len(widths)]
    statements = [
        replace(call, opcode=f"ld.local.b{bits}", operands=(register, Address(symbol, 0)))
        for register, bits, symbol in zip(taken, widths, given, strict=True)
        if isinstance(symbol, Symbol)
    ]
    statements.append(replace(call, opcode=f"call.{name}", operands=tuple(made[len(widths) :] + taken)))
    for symbol in wanted:
        if isinstance(symbol, Symbol) and result:
            statements.append(replace(call, opcode=f"st.local.b{result}", operands=(Address(symbol, 0), made[-1])))
    return statements


def _fresh(out: Function, bits: int, name: str) -> Register:
    """Return a new register of the function."""
    out.register_bits.append(bits)
    out.register_names.append(f"{name}@{len(out.register_bits)}")
    return Register(len(out.register_bits) - 1)
