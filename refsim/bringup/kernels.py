"""The declared kernels on a device: the campaign engine's verdicts as cases."""

from collections.abc import Sequence
from functools import partial

from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Difference
from refsim.bringup.tasks import Task, hashed, outcome
from refsim.device import Device
from refsim.kernels import Kernel
from refsim.testing import find_kernels, run_campaign, verdicts
from refsim.testing.kernel_files import bundled_kernels
from refsim.testing.verdicts import PASS, UNSUPPORTED

PROFILE = "quick"
_STATUS = {verdicts.PASS: PASS, verdicts.FAIL: DIFFERS, verdicts.UNSUPPORTED: UNSUPPORTED}


def fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    folder = bundled_kernels().parent
    return hashed([*folder.glob("*.py"), *folder.glob("kernels/*.cu*")])


def tasks(device: Device) -> Sequence[Task]:
    """Return a case for each kernel that is part of refsim."""
    files = sorted(bundled_kernels().parent.glob("*bindings.py"))
    return [Task(kernel.name, partial(_run, kernel, device)) for kernel in find_kernels(files)]


def _run(kernel: Kernel, device: Device) -> Case:
    """Return the verdict of a kernel's campaign as a case."""
    verdict = run_campaign(kernel, device, profile=PROFILE)
    status = _STATUS.get(verdict.status, LEFT_OUT)
    difference = None
    if status == DIFFERS:
        lines = (f"test case {verdict.problem_text}", *verdict.finding.splitlines())
        difference = Difference(lines, "see above", "what the oracle says")
    inconclusive = verdict.status not in _STATUS
    return outcome(
        status,
        words=verdict.elements,
        differing=verdict.differing,
        coverage=f"{verdict.cases} test cases, profile {PROFILE}; promise: {verdict.promise}",
        difference=difference,
        note=f"{verdict.status}: {verdict.finding}"
        if inconclusive
        else verdict.finding
        if status == UNSUPPORTED
        else "",
    )
