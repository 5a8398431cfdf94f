"""One run of one problem: what it shows, as a finding and as a verdict."""

import time
from dataclasses import dataclass
from typing import Any

from refsim.device import Device
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing import verdicts
from refsim.testing.decisions import Finding, blamed, decide
from refsim.testing.laws import observe
from refsim.testing.recipes import spelled, to_json
from refsim.testing.user_code import shortened
from refsim.testing.verdicts import Verdict


@dataclass(frozen=True)
class Examined:
    """What one run of a problem showed: the finding (None: it agrees), and how many elements were compared and differ."""

    finding: Finding | None
    elements: int = 0
    differing: int = 0
    notes: tuple[str, ...] = ()


def run_problem(kernel: Kernel, problem: Any, device: Device, *, replay: str = "") -> Verdict:
    """The verdict of one problem, run once; nothing is generated or shrunk."""
    started = time.monotonic()
    found = examine(kernel, problem, device)
    finding = found.finding
    record, text, remarks = described(kernel, problem)
    return Verdict(
        kernel.name,
        finding.status if finding else verdicts.PASS,
        describe(device),
        "replay",
        cases=1,
        elements=found.elements,
        differing=found.differing,
        seconds=time.monotonic() - started,
        finding=finding.text if finding else "",
        mismatch=finding.mismatch if finding else None,
        worst=finding.mismatch if finding else None,
        problem=record,
        problem_text=text,
        replay=replay,
        promise=str(kernel.promise),
        notes=(*found.notes, *remarks),
    )


def examine(kernel: Kernel, problem: Any, device: Device) -> Examined:
    """Runs a problem once and decides what that shows; an error that is not the kernel's is raised."""
    try:
        seen = observe(kernel, problem, device)
    except RefsimError as error:
        return Examined(blamed(error, problem))
    except Exception as error:
        error.add_note(f"while {kernel.name} ran {shortened(problem)}")
        raise
    decision = decide(kernel, seen, problem)
    differing = sum(mismatch.count for mismatch in seen.mismatches)
    return Examined(decision.finding, seen.elements, differing, decision.notes)


def described(kernel: Kernel, problem: Any) -> tuple[Any, str, tuple[str, ...]]:
    """A problem as JSON (None where it cannot be), in one line, and a note where it cannot."""
    try:
        return to_json(problem), spelled(problem), ()
    except RefsimError as error:
        return None, shortened(problem), (f"no case of this problem can be written: {error.what}",)


def describe(device: Device) -> dict[str, str]:
    """The device's name and what it says of itself: after a run also hashes, flags and tools of what ran."""
    return {"name": device.name, **device.describe()}
