"""Functions of the CUDA runtime without a body in any module, as statements in place of their calls."""

from dataclasses import replace

from refsim.errors import RefsimError
from refsim.ptx.text.syntax import Address, Function, Register, Statement, Symbol, Vector, place

# The bits of their arguments, and of the result if there is one.
RUNTIME: dict[str, tuple[tuple[int, ...], int]] = {
    "vprintf": ((64, 64), 32),
    "__assertfail": ((64, 64, 32, 64, 64), 0),
    "malloc": ((64,), 64),
    "free": ((64,), 0),
    "__cuda_syscall_aligned_malloc": ((64, 64), 64),
}
HEAP_CALLS = frozenset({"call.malloc", "call.free", "call.__cuda_syscall_aligned_malloc"})


def runtime_call(out: Function, call: Statement, name: str, rule: str) -> list[Statement]:
    """Return a call as one statement of the machine, between loads of its arguments and the store of its result."""
    widths, result = RUNTIME[name]
    results, _, arguments = call.operands[:3]
    given = arguments.elements if isinstance(arguments, Vector) else ()
    wanted = results.elements if isinstance(results, Vector) else ()
    if len(given) != len(widths) or len(wanted) > 1 or any(not isinstance(one, Symbol) for one in (*given, *wanted)):
        raise RefsimError(
            "unsupported-feature", f"{name} takes {len(widths)} .param variables", where=place(call), rule=rule
        )
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
