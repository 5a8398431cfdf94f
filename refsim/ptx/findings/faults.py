"""What a simulated kernel does wrong, said so that its author can find it: PTX line, CUDA line, thread, block, address."""

from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import CHECKS, NOTE, SCHEDULE_DEPENDENT, STOPS
from refsim.ptx.text.syntax import Statement, place

# What a launch itself finds wrong with a kernel; that schedules differ is found by comparing launches.
FAULT_CODES = frozenset(
    row.name for row in (*STOPS, *CHECKS) if row.severity != NOTE and row.name != SCHEDULE_DEPENDENT
)


class DoubtError(Exception):
    """Something would be said of one of several accesses that are shown together, on trial."""


def fault(code: str, what: str, statement: Statement, who: str = "", rule: str = "", help: str = "") -> RefsimError:
    """The error for a kernel's own fault; `who` names thread and block."""
    assert code in FAULT_CODES
    where = place(statement) + (f", {who}" if who else "")
    return RefsimError(code, what, where=where, rule=rule, help=help, kind=Kind.FAULT)


def open_bits(where: str, target: str, recorded: str = "", model: str = "") -> RefsimError:
    """The refusal of a statement whose bits are not known on a target; `recorded`: the one whose chip's bits it returns;
    `model`: what the row of a tensor core rests on that no chip's results were compared with."""
    found = f"are assumed: those of {recorded}, unverified on {target}" if recorded else "are left open"
    found = f"are those of a model alone on {target} ({model})" if model else found
    return RefsimError(
        "open-bits",
        f"the bits of its result {found}",
        where,
        rule="arithmetic 'known' takes no result whose bits the chip may choose otherwise",
        help=f"a target whose chip was recorded, such as {recorded}; or arithmetic 'silicon'"
        if recorded
        else "arithmetic 'silicon'",
        kind=Kind.INCONCLUSIVE,
    )


def is_fault(error: RefsimError) -> bool:
    """Whether an error says that the kernel is wrong, rather than the request.

    is_fault(RefsimError("race", "a race", kind=Kind.FAULT)) is True, is_fault(RefsimError("no-entry", "k")) is False.
    Raises nothing. Source: the table `CHECKS` and `STOPS`.
    """
    return error.code in FAULT_CODES and error.kind is Kind.FAULT
