"""The one decision over what a run of a kernel showed: `verify`, `replay`, campaigns, laws and pytest all take it here.

In this order: a fault of the device is raised before anything is compared, and outranks all. Elements that differ beyond
the promise fail, whatever arithmetic made them. Bank conflicts fail where none were promised. Only then, and only where
bits decide: elements that agree although arithmetic on their way has no fixed bits agree on this machine alone, and that is
inconclusive. Where a bound decides, such arithmetic is a note.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refsim.compare import Mismatch
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel, Outputs
from refsim.testing.verdicts import FAIL, INEXACT, TIMEOUT, UNSUPPORTED

LISTED = 6
_STATUS_OF = {Kind.FAULT: FAIL, Kind.INCONCLUSIVE: UNSUPPORTED}


@dataclass(frozen=True)
class Observation:
    """One run of a kernel: what it wrote, what differs beyond its promise, and what the device says about the run.

    `inexact` and `notes` are the launcher's findings; `conflicts` are those of its findings that the kernel promises not to
    have. `elements` are those of the outputs.
    """

    outputs: Outputs
    mismatches: tuple[Mismatch, ...]
    elements: int
    inexact: tuple[str, ...]
    notes: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What one problem showed: a status other than pass, in words and, where bits differ, as a Mismatch.

    `is_open`: arithmetic without fixed bits had a part in it.
    """

    status: str
    text: str
    problem: Any
    mismatch: Mismatch | None = None
    is_open: bool = False


@dataclass(frozen=True)
class Decision:
    """What stands after a run: the finding, None where the kernel keeps its promise, and notes that change nothing."""

    finding: Finding | None
    notes: tuple[str, ...] = field(default=())


def decide(kernel: Kernel, seen: Observation, problem: Any) -> Decision:
    """What a run says of the kernel's promise."""
    open_lines = openness(seen.inexact)
    if seen.mismatches:
        lines = [str(mismatch) for mismatch in seen.mismatches]
        worst = max(seen.mismatches, key=badness)
        text = "\n".join([*lines, *open_lines, *_advice(kernel, seen.inexact)])
        return Decision(Finding(FAIL, text, problem, worst, bool(seen.inexact)), seen.notes)
    if seen.conflicts:
        text = "\n".join(["[bank-conflicts] promised are none", *seen.conflicts])
        return Decision(Finding(FAIL, text, problem), seen.notes)
    if seen.inexact and kernel.promise.is_bitwise:
        agree = (
            f"{seen.elements} elements agree bit for bit here; a chip may return others, as the promise does not allow"
        )
        text = "\n".join([agree, *open_lines, *_advice(kernel, seen.inexact)])
        return Decision(Finding(INEXACT, text, problem, is_open=True), seen.notes)
    return Decision(None, (*seen.notes, *(f"{line} (judged by the bound)" for line in open_lines)))


def blamed(error: RefsimError, problem: Any) -> Finding:
    """The finding of a run that ended in an error; raises the error again where the kernel is not to blame."""
    status = TIMEOUT if error.code == "timeout" else _STATUS_OF.get(error.kind)
    if status is None:
        raise error
    return Finding(status, str(error), problem)


def badness(mismatch: Mismatch) -> float:
    """How far off the worst element is, to compare mismatches of one kernel."""
    return mismatch.worst.distance if mismatch.worst is not None else 0.0


def openness(inexact: Sequence[str]) -> list[str]:
    """The statements whose results have no fixed bits, in lines."""
    if not inexact:
        return []
    more = len(inexact) - LISTED
    shown = "; ".join(inexact[:LISTED]) + (f"; and {more} more" if more > 0 else "")
    return [f"bits are open after {shown}"]


def _advice(kernel: Kernel, inexact: Sequence[str]) -> list[str]:
    if not inexact or not kernel.promise.is_bitwise:
        return []
    return [
        "help: Promise.WITHIN(ulps, because=...) or Promise.BOUNDED(because=...) promises what such arithmetic can keep"
    ]
