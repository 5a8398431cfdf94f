"""The call graph: the functions that an entry may reach, functions whose address is taken, and recursion."""

from collections.abc import Iterator

from refsim.errors import RefsimError
from refsim.ptx.text.syntax import (
    Dual,
    Function,
    Module,
    Operand,
    Prototype,
    Statement,
    Symbol,
    Variable,
    Vector,
    place,
)

MAX_NAMED = 6  # functions at either end of a chain that an error names
CALL_RULE = "PTX ISA, call: device functions become part of the entry"


def is_call(statement: Statement) -> bool:
    """Return whether a statement calls a function."""
    return statement.opcode in ("call", "call.uni")


def has_body(module: Module, name: str) -> bool:
    """Return whether the module defines a device function of this name."""
    return name in module.functions and module.functions[name].is_defined and not module.functions[name].is_entry


def unsupported(what: str, statement: Statement) -> RefsimError:
    """Return the error for a call that cannot be resolved."""
    help = "compile without separate compilation, so that every function is in the same file"
    return RefsimError("unsupported-feature", what, where=place(statement), rule=CALL_RULE, help=help)


def check_calls(module: Module, entry: Function) -> bool:
    """Raise RefsimError for functions that call themselves by name; return whether any call is through a register."""
    is_indirect = False
    done: set[str] = set()
    chain: dict[str, None] = {}
    stack: list[tuple[str, Iterator[Statement]]] = [(entry.name, iter(entry.statements))]
    chain[entry.name] = None
    while stack:
        name, statements = stack[-1]
        for statement in statements:
            if not is_call(statement):
                continue
            callee = statement.operands[1] if len(statement.operands) > 1 else None
            if not isinstance(callee, Symbol):
                if not is_indirect:  # its possible targets are reached from here too
                    is_indirect = True
                    stack[:0] = [(one, iter(module.functions[one].statements)) for one in addressed(module)]
                continue
            target = module.aliases.get(callee.name, callee.name)
            if target in chain:
                raise _recursive([*chain, target], statement)
            if target not in done and has_body(module, target):
                chain[target] = None
                stack.append((target, iter(module.functions[target].statements)))
                break
        else:
            stack.pop()
            chain.pop(name, None)
            done.add(name)
    return is_indirect


def _recursive(chain: list[str], statement: Statement) -> RefsimError:
    """Return the error for a chain of calls that ends in a function that it contains."""
    names = chain[chain.index(chain[-1]) :]
    left_out = [f"({len(names) - 2 * MAX_NAMED} more)"] if len(names) > 2 * MAX_NAMED else []
    shown = [*names[:MAX_NAMED], *left_out, *names[-MAX_NAMED:]] if left_out else names
    help = "rewrite the recursion as a loop"
    return RefsimError("unsupported-feature", " calls ".join(shown), where=place(statement), rule=CALL_RULE, help=help)


def addressed(module: Module) -> list[str]:
    """Return the functions with a body whose address the module takes, in file order."""
    taken = {
        module.aliases.get(reference.symbol.name, reference.symbol.name)
        for variable in module.variables.values()
        for reference in variable.references
    }
    for function in module.functions.values():
        for variable in function.variables:
            taken |= {reference.symbol.name for reference in variable.references}
        for statement in function.statements:
            given = statement.operands[::2] if is_call(statement) else statement.operands
            taken |= {module.aliases.get(name, name) for name in _symbols(given)}
    return [name for name in module.functions if name in taken and has_body(module, name)]


def _symbols(operands: tuple[Operand | None, ...]) -> Iterator[str]:
    """Yield the names of symbols in operands."""
    for operand in operands:
        match operand:
            case Symbol(name):
                yield name
            case Vector(elements):
                yield from _symbols(elements)
            case Dual(first, second):
                yield from _symbols((first, second))


def fits(function: Function, prototype: Prototype) -> bool:
    """Return whether the parameters and results of a function match a prototype in space and size."""

    def shape(variables: tuple[Variable, ...]) -> list[tuple[str, int]]:
        """Return space and size of each variable."""
        return [(variable.space, variable.size) for variable in variables]

    return shape(function.parameters) == shape(prototype.parameters) and shape(function.returns) == shape(
        prototype.returns
    )
