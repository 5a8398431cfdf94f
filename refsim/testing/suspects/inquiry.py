"""The inquiry behind a failed campaign: which mistake explains all that was seen, from the outputs first, then from the code."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refsim.device import Device
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing.suspects.outputs import betrayed
from refsim.testing.suspects.suspicion import Suspicion
from refsim.testing.suspects.trials import repaired

WITNESSES = 8  # problems of each kind: those that failed and those that passed
LONGEST_SECONDS = 1.0


@dataclass(frozen=True)
class Witness:
    """A problem that was run: how long it took, and whether its bits differed."""

    problem: Any
    seconds: float
    failed: bool


def suspects_of(
    kernel: Kernel, device: Device, problem: Any, witnesses: Sequence[Witness], *, seconds: float
) -> tuple[Suspicion, ...]:
    """The mistake that explains why the bits of `problem` differ, held against other problems that were run; at most one.

    The kernel's PTX is edited and run on the simulated GPU, whatever `device` is; a kernel without code is judged by its
    outputs alone. Empty where nothing explains all, or the time is over.
    """
    deadline = time.monotonic() + seconds
    problems = [problem, *_chosen(problem, witnesses)]
    try:
        if found := betrayed(kernel, device, problems):
            return found
        return repaired(kernel, device.target, problems, seconds=deadline - time.monotonic())
    except RefsimError:  # what silicon runs the simulator may not, and a fault is no difference
        return ()


def _chosen(problem: Any, witnesses: Sequence[Witness]) -> list[Any]:
    """Those that failed, the longest first, for they say most; then those that passed, the quickest of them."""
    others = [each for each in witnesses if each.problem != problem and each.seconds <= LONGEST_SECONDS]
    failed = sorted((each for each in others if each.failed), key=lambda each: -each.seconds)
    passed = sorted((each for each in others if not each.failed), key=lambda each: each.seconds)
    return [each.problem for each in (*failed[:WITNESSES], *passed[:WITNESSES])]
