"""One run of one problem: what it shows, as a finding and as a verdict."""

import time
from dataclasses import dataclass
from typing import Any

from refsim.compare import Mismatch
from refsim.device import Device
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.testing import verdicts
from refsim.testing.laws import observe
from refsim.testing.recipes import spelled, to_json
from refsim.testing.verdicts import Verdict

_STATUS_OF = {Kind.FAULT: verdicts.FAIL, Kind.INCONCLUSIVE: verdicts.UNSUPPORTED}


@dataclass(frozen=True)
class Finding:
    """What one problem showed: a status other than pass, in words and, where bits differ, as a Mismatch."""

    status: str
    text: str
    problem: Any
    mismatch: Mismatch | None = None


def run_problem(kernel: Kernel, problem: Any, device: Device, *, replay: str = "") -> Verdict:
    """The verdict of one problem, run once; nothing is generated or shrunk."""
    started = time.monotonic()
    finding, elements, notes = examine(kernel, problem, device)
    return Verdict(
        kernel.name,
        finding.status if finding else verdicts.PASS,
        describe(device),
        "replay",
        cases=1,
        elements=elements,
        seconds=time.monotonic() - started,
        finding=finding.text if finding else "",
        mismatch=finding.mismatch if finding else None,
        problem=to_json(problem),
        problem_text=spelled(problem),
        replay=replay,
        promise=str(kernel.promise),
        notes=notes,
    )


def examine(kernel: Kernel, problem: Any, device: Device) -> tuple[Finding | None, int, tuple[str, ...]]:
    """What one run of a problem shows (None: it agrees), how many elements were compared, and notes."""
    try:
        seen = observe(kernel, problem, device)
    except RefsimError as error:
        return Finding(_blame(error), str(error), problem), 0, ()
    except Exception as error:
        error.add_note(f"while {kernel.name} ran {spelled(problem)}")
        raise
    finding = None
    if seen.mismatches:
        text = "\n".join(str(mismatch) for mismatch in seen.mismatches)
        finding = Finding(verdicts.FAIL, text, problem, seen.mismatches[0])
    if seen.conflicts and finding is None:
        finding = Finding(verdicts.FAIL, "\n".join(["[bank-conflicts] promised are none", *seen.conflicts]), problem)
    if seen.inexact:  # bits that are not fixed can neither confirm nor refute
        text = "\n".join(["inexact arithmetic on the data path", *seen.inexact, *([finding.text] if finding else [])])
        finding = Finding(verdicts.INEXACT, text, problem, finding.mismatch if finding else None)
    return finding, seen.elements, seen.notes


def describe(device: Device) -> dict[str, str]:
    """The device's name and what it says of itself: after a run also hashes, flags and tools of what ran."""
    return {"name": device.name, **device.describe()}


def _blame(error: RefsimError) -> str:
    """The status of a run that ended in an error; raises the error again where the kernel is not to blame."""
    if error.code == "timeout":
        return verdicts.TIMEOUT
    status = _STATUS_OF.get(error.kind)
    if status is None:
        raise error
    return status
