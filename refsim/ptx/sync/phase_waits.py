"""Which phase each thread waits for by parity, which says only whether it is an even one: a thread that forgets to turn its
parity asks for a phase again that it has seen complete, and passes at once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine

Array = NDArray[Any]
_NONE = -2
_RULE = "PTX ISA, mbarrier.test_wait: a parity means the current phase or the one before it, whichever thread asks"


@dataclass
class PhaseWaits:
    """For each object the phase that each lane saw complete last, and how often the lane had arrived anywhere by then."""

    machine: Machine
    seen: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    arrivals: Array = field(init=False)

    def __post_init__(self) -> None:
        self.arrivals = np.zeros(self.machine.geometry.lanes, np.int64)

    def arrived(self, lanes: Ids) -> None:
        """Lanes arrive at some object."""
        self.arrivals[lanes] += 1

    def forget(self, flat: int) -> None:
        """An object ends."""
        self.seen.pop(flat, None)

    def passed(self, lanes: Lanes, flat: int, phase: int, *, is_filling: bool) -> None:
        """A parity lets lanes pass, as a phase is complete; `is_filling`: somebody has come to the next one."""
        ids = lanes.ids
        if flat not in self.seen:
            count = self.machine.geometry.lanes
            self.seen[flat] = np.full(count, _NONE, np.int64), np.zeros(count, np.int64)
        phases, counts = self.seen[flat]
        again = (phases[ids] == phase) & (counts[ids] < self.arrivals[ids])
        if is_filling and again.any():
            what = (
                f"waits again for phase {phase} of an mbarrier, which it saw complete before it arrived elsewhere: it passes "
                f"at once, and phase {phase + 1} is under way"
            )
            error = lanes.fault("phase-waited-twice", int(np.argmax(again)), what, _RULE)
            self.machine.report(error, lanes.statement)
        phases[ids], counts[ids] = phase, self.arrivals[ids]
