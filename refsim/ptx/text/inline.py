"""Calls of device functions, replaced by the functions' bodies before an entry is lowered.

Every call gets a copy of its own: fresh registers, labels and local variables. The .param variables of a call sequence
become local memory of each lane, and the callee's formal parameters are other names for them: PTX passes by value, and
a callee only reads its parameters and only writes its results.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from refsim.errors import RefsimError
from refsim.ptx.findings.faults import place
from refsim.ptx.text.syntax import (
    Address,
    Dual,
    Function,
    Guard,
    Immediate,
    Label,
    Module,
    Negated,
    Operand,
    Register,
    Statement,
    Symbol,
    Vector,
)

MAX_STATEMENTS = 100_000
RULE = "device functions are inlined: PTX ISA, call"


def inline(module: Module, function: Function) -> Function:
    """A function without calls that does what the given one does; the same object if it calls nothing.

    Raises RefsimError: `recursive-call`, `indirect-call`, `unsupported-call` (a function without a body in the module,
    or arguments that are no .param variables), `too-many-calls` (the bodies together exceed 100,000 statements).
    """
    return _expand(module, function, (function.name,), {})


@dataclass
class _Copy:
    """Where a copied body finds what it names: registers shifted, labels suffixed, symbols by a table."""

    registers: int
    suffix: str
    symbols: dict[str, Symbol]

    def operand(self, operand: Operand | None) -> Operand | None:
        match operand:
            case Register(index):
                return Register(index + self.registers)
            case Negated(register):
                return Negated(Register(register.index + self.registers))
            case Label(name):
                return Label(name + self.suffix)
            case Symbol(name, offset) if name in self.symbols:
                actual = self.symbols[name]
                return Symbol(actual.name, actual.offset + offset)
            case Address(base, offset, coordinates):
                moved = self.operand(base)
                assert isinstance(moved, Register | Symbol | Immediate)
                groups = (Vector(tuple(map(self.operand, group.elements))) for group in coordinates)
                return Address(moved, offset, tuple(groups))
            case Vector(elements):
                return Vector(tuple(map(self.operand, elements)))
            case Dual(first, second):
                return Dual(self.operand(first), self.operand(second))
        return operand

    def guard(self, guard: Guard | None) -> Guard | None:
        return guard and Guard(Register(guard.register.index + self.registers), guard.negated)


def _expand(module: Module, function: Function, callers: tuple[str, ...], done: dict[str, Function]) -> Function:
    if function.name in done:
        return done[function.name]
    calls = [statement for statement in function.statements if _is_call(statement)]
    if not calls and not any(variable.space == "param" for variable in function.variables):
        return function
    parameters = frozenset(variable.name for variable in function.variables if variable.space == "param")
    out = replace(
        function, statements=[], labels={}, branch_tables=dict(function.branch_tables),
        register_bits=list(function.register_bits), register_names=list(function.register_names),
        variables=[replace(variable, space="local") if variable.name in parameters else variable
                   for variable in function.variables],
    )  # fmt: skip
    moved: list[int] = []
    for statement in function.statements:
        moved.append(len(out.statements))
        if not _is_call(statement):
            out.statements.append(_local(statement, lambda name: name in parameters))
        elif _callee_name(statement) in _RUNTIME and not _has_body(module, _callee_name(statement)):
            out.statements += _runtime_call(out, statement)
        else:
            callee = _expand(module, _callee(module, statement, callers), (*callers, _callee_name(statement)), done)
            if len(out.statements) + len(callee.statements) > MAX_STATEMENTS:
                raise RefsimError(
                    "too-many-calls", f"{function.name} has more than {MAX_STATEMENTS} statements once its calls are inlined",
                    where=place(statement), rule=RULE,
                )  # fmt: skip
            _insert(out, statement, callee)
    moved.append(len(out.statements))
    out.labels.update({label: moved[at] for label, at in function.labels.items()})
    done[function.name] = out
    return out


def _is_call(statement: Statement) -> bool:
    return statement.opcode in ("call", "call.uni")


def _callee_name(statement: Statement) -> str:
    callee = statement.operands[1] if len(statement.operands) == 3 else None
    return callee.name if isinstance(callee, Symbol) else ""


def _has_body(module: Module, name: str) -> bool:
    return name in module.functions and module.functions[name].is_defined


def _callee(module: Module, statement: Statement, callers: tuple[str, ...]) -> Function:
    """The function that a call names; it must be known, have a body, and not be calling already."""
    name, where = _callee_name(statement), place(statement)
    if not name:
        raise RefsimError("indirect-call", "the function called is not named in the text", where=where, rule=RULE)
    if name in callers:
        raise RefsimError("recursive-call", f"{' calls '.join((*callers, name))}", where=where, rule=RULE,
                          help="rewrite the recursion as a loop")  # fmt: skip
    if not _has_body(module, name):
        raise RefsimError("unsupported-call", f"{name} has no body in this module", where=where, rule=RULE,
                          help="compile without separate compilation, so that the function is in the same file")  # fmt: skip
    return module.functions[name]


def _insert(out: Function, call: Statement, callee: Function) -> None:
    """Append a copy of the callee; a guarded call is branched around, a return is a branch to the end."""
    suffix = f"@call{len(out.statements)}"
    copy = _Copy(len(out.register_bits), suffix, _bindings(call, callee))
    for variable in callee.variables:
        if variable.space == "local":
            copy.symbols[variable.name] = Symbol(variable.name + suffix)
            out.variables.append(replace(variable, name=variable.name + suffix))
        elif variable not in out.variables:
            out.variables.append(variable)
    out.register_bits += callee.register_bits
    out.register_names += [name + suffix for name in callee.register_names]
    out.branch_tables |= {name + suffix: tuple(label + suffix for label in labels)
                          for name, labels in callee.branch_tables.items()}  # fmt: skip
    end = f"return{suffix}"
    if call.guard:
        around = Guard(call.guard.register, not call.guard.negated)
        out.statements.append(replace(call, opcode="bra", operands=(Label(end),), guard=around))
    start = len(out.statements)
    for statement in callee.statements:
        copied = replace(
            statement, operands=tuple(map(copy.operand, statement.operands)), guard=copy.guard(statement.guard)
        )
        if statement.opcode in ("ret", "ret.uni"):
            copied = replace(copied, opcode="bra", operands=(Label(end),))
        out.statements.append(_local(copied, lambda _: True))
    out.labels |= {label + suffix: start + at for label, at in callee.labels.items()}
    out.labels[end] = len(out.statements)


def _bindings(call: Statement, callee: Function) -> dict[str, Symbol]:
    """The callee's formal parameters and results as names of the caller's .param variables."""
    results, _, arguments = call.operands
    assert isinstance(results, Vector)
    assert isinstance(arguments, Vector)
    bound: dict[str, Symbol] = {}
    for actuals, formals, what in (
        (results.elements, callee.returns, "results"), (arguments.elements, callee.parameters, "arguments"),
    ):  # fmt: skip
        if len(actuals) != len(formals):
            raise RefsimError("unsupported-call", f"{callee.name} has {len(formals)} {what}, the call gives {len(actuals)}",
                              where=place(call), rule=RULE)  # fmt: skip
        for actual, formal in zip(actuals, formals, strict=True):
            if not isinstance(actual, Symbol):
                raise RefsimError("unsupported-call", f"an operand of the call of {callee.name} is no .param variable",
                                  where=place(call), rule=RULE)  # fmt: skip
            bound[formal.name] = actual
    return bound


def _local(statement: Statement, is_parameter: Callable[[str], bool]) -> Statement:
    """An access to a parameter of a call as one to local memory; parameters of the entry stay where they are."""
    mnemonic, _, rest = statement.opcode.partition(".param")
    if mnemonic not in ("ld", "ld.weak", "st", "st.weak", "cvta", "cvta.to") or rest.startswith("::entry"):
        return statement
    names = [
        operand.base.name if isinstance(operand, Address) and isinstance(operand.base, Symbol) else ""
        for operand in statement.operands
        if isinstance(operand, Address | Symbol)
    ]
    if not is_parameter(next(iter(names), "")):
        return statement
    return replace(statement, opcode=f"{mnemonic}.local{rest.removeprefix('::func')}")


# ---- functions of the CUDA runtime that have no body in any module
# The bits of their arguments, and of the result if there is one.
_RUNTIME: dict[str, tuple[tuple[int, ...], int]] = {
    "vprintf": ((64, 64), 32), "__assertfail": ((64, 64, 32, 64, 64), 0),
}  # fmt: skip


def _runtime_call(out: Function, call: Statement) -> list[Statement]:
    """A call as one statement that the machine runs, between loads of its arguments and the store of its result."""
    name = _callee_name(call)
    widths, result = _RUNTIME[name]
    results, _, arguments = call.operands
    given = arguments.elements if isinstance(arguments, Vector) else ()
    wanted = results.elements if isinstance(results, Vector) else ()
    if len(given) != len(widths) or len(wanted) > 1 or any(not isinstance(one, Symbol) for one in (*given, *wanted)):
        raise RefsimError(
            "unsupported-call", f"{name} takes {len(widths)} .param variables", where=place(call), rule=RULE
        )
    made = [_fresh(out, bits, name) for bits in (*widths, *([result] if result else []))]
    taken = made[: len(widths)]
    statements = [
        replace(call, opcode=f"ld.local.b{bits}", operands=(register, Address(symbol, 0)))
        for register, bits, symbol in zip(taken, widths, given, strict=True) if isinstance(symbol, Symbol)
    ]  # fmt: skip
    statements.append(replace(call, opcode=f"call.{name}", operands=tuple(made[len(widths) :] + taken)))
    for symbol in wanted:
        if isinstance(symbol, Symbol) and result:
            statements.append(replace(call, opcode=f"st.local.b{result}", operands=(Address(symbol, 0), made[-1])))
    return statements


def _fresh(out: Function, bits: int, name: str) -> Register:
    """A register that the function did not have."""
    out.register_bits.append(bits)
    out.register_names.append(f"{name}@{len(out.register_bits)}")
    return Register(len(out.register_bits) - 1)
