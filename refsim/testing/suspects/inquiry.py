"""The inquiry behind a failed campaign: which mistake explains all that was seen, from the outputs first, then from the code."""

import time
from collections.abc import Sequence
from typing import Any

from refsim.device import Device
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing.suspects.outputs import betrayed
from refsim.testing.suspects.sizes import tail_left_out
from refsim.testing.suspects.suspicion import Suspicion
from refsim.testing.suspects.trials import OutOfTimeError, repaired
from refsim.testing.suspects.witnesses import Witness, witnesses_of

LEAST = 3  # problems without which nothing is named


def suspects_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float
) -> tuple[Suspicion, ...]:
    """The mistake that explains why the bits of `problem` differ, held against other problems; at most one.

    The kernel's PTX is edited and run on the simulated GPU, whatever `device` is; a kernel without code is judged by its
    outputs alone. Empty where nothing explains all. Raises OutOfTimeError where the time was over before all had been tried.
    """
    started = time.process_time()
    try:
        witnesses = witnesses_of(kernel, device, problem, known, seconds=seconds / 4)
        problems = [each.problem for each in witnesses]
        spent = time.process_time() - started
        if len(problems) < LEAST and spent > seconds / 4:
            raise OutOfTimeError(0)
        if len(problems) < LEAST:
            return ()
        if found := betrayed(kernel, device, problems):
            return found
        try:
            found = repaired(kernel, device.target, problems, seconds=started + seconds - time.process_time())
        except OutOfTimeError:
            if by_size := tail_left_out(witnesses):
                return by_size
            raise
        return found or tail_left_out(witnesses)
    except RefsimError:  # what silicon runs the simulator may not, and a fault is no difference
        return ()
