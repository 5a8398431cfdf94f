"""Errors for faults of a simulated kernel, with PTX line, CUDA line, thread, block and address."""

from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import CHECKS, NOTE, SCHEDULE_DEPENDENT, STOPS
from refsim.ptx.text.syntax import Statement, place

# The faults that a single launch can find; differing schedules are found by comparing launches.
FAULT_CODES = frozenset(
    row.name for row in (*STOPS, *CHECKS) if row.severity != NOTE and row.name != SCHEDULE_DEPENDENT
)


class DoubtError(Exception):
    """Raised on trial, if `finding` would be reported for one of several accesses that are shown together."""

    def __init__(self, finding: RefsimError) -> None:
        super().__init__(finding)
        self.finding = finding


def fault(code: str, what: str, statement: Statement, who: str = "", rule: str = "", help: str = "") -> RefsimError:
    """Return the error for a fault of the kernel; `who` is the thread and block in words."""
    assert code in FAULT_CODES
    where = place(statement) + (f", {who}" if who else "")
    return RefsimError(code, what, where=where, rule=rule, help=help, kind=Kind.FAULT)


def open_bits(where: str, target: str, recorded: str = "", model: str = "") -> RefsimError:
    """Return the refusal of a statement whose bits are unverified on a target. `recorded`: the target whose recorded
    bits it returns. `model`: the basis of a tensor core's entry that was not compared with results of any chip."""
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
    """Return whether an error says that the kernel is wrong, rather than the request.

    is_fault(RefsimError("race", "a race", kind=Kind.FAULT)) is True, is_fault(RefsimError("unknown-entry", "k")) is False.
    Raises nothing. Source: the table `CHECKS` and `STOPS`.
    """
    return error.code in FAULT_CODES and error.kind is Kind.FAULT
