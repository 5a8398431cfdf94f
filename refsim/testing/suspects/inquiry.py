"""The search after a failed campaign for the mistake that explains everything: in the outputs, then in the code."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from refsim import ptx
from refsim.device import Device
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inputs import misread, read_one_off
from refsim.testing.suspects.outputs import betrayed
from refsim.testing.suspects.sizes import tail_left_out
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.trials import repaired
from refsim.testing.suspects.unheard import subnormals_unheard
from refsim.testing.suspects.witnesses import Witness, quickest_first, witnesses_of

LEAST = 3  # test cases needed to name a cause


def suspects_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float
) -> tuple[Suspicion, ...]:
    """Return the mistake that explains why the bits of `problem` differ, checked on other test cases; at most one.

    The kernel's PTX is edited and run on the simulated GPU, whatever `device` is; a kernel without code is judged by
    its outputs alone. Empty if nothing explains all. Raises OutOfTimeError if the time ended before all mistakes were
    tried.
    """
    started = time.process_time()
    deadline, is_late = started + seconds, False
    found: tuple[Suspicion, ...] = ()
    try:
        witnesses = witnesses_of(kernel, device, problem, known, seconds=seconds / 4)
        problems = [each.problem for each in witnesses]
        if len(problems) < LEAST and time.process_time() - started > seconds / 4:
            raise OutOfTimeError(0)
        if len(problems) < LEAST:
            return ()
        found = betrayed(Diet(kernel, device, deadline), problems)
        if found and not found[0].suspect.startswith("off"):
            return found
        # Do not run a kernel on changed inputs on a real GPU: it may fault.
        program = ptx.load(compiled(kernel.code, device.target).text, device.target)
        diet, quick = Diet(kernel, ChangedDevice(program, schedules=1), deadline), quickest_first(witnesses)
        if found:
            return read_one_off(diet, quick, found[0], seconds=_part(deadline, 0.4))
        failing, agreeing = ([each.problem for each in witnesses if each.failed == kind] for kind in (True, False))
        inquiries: tuple[Callable[[], tuple[Suspicion, ...]], ...] = (
            lambda: subnormals_unheard(diet, quick),
            lambda: misread(diet, quick, seconds=_part(deadline, 0.4)),
            lambda: tail_left_out(diet, failing, agreeing, seconds=_part(deadline, 0.4)),
        )
        for inquiry in inquiries:
            try:
                if found := inquiry():
                    return found
            except OutOfTimeError:
                is_late = True
        found = repaired(kernel, device.target, problems, seconds=_part(deadline, 1.0))
    except RefsimError:  # the simulator may lack what hardware runs; a fault explains no difference
        return found
    if is_late and not found:
        raise OutOfTimeError(0)
    return found


def _part(deadline: float, part: float) -> float:
    """Return a part of the remaining time in seconds."""
    return max(0.0, deadline - time.process_time()) * part
