"""The phase that each thread waits for by parity.

A parity only says whether the phase is even. A thread that forgets to flip its parity asks again for a phase that it
has seen complete, and passes at once.
"""

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
    """For each object: the last phase that each lane saw complete, and the lane's count of arrivals by then."""

    machine: Machine
    seen: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    arrivals: Array = field(init=False)

    def __post_init__(self) -> None:
        self.arrivals = np.zeros(self.machine.geometry.lanes, np.int64)

    def arrived(self, lanes: Ids) -> None:
        """Count an arrival of lanes at any object."""
        self.arrivals[lanes] += 1

    def forget(self, flat: int) -> None:
        """Drop the record of an object that ended."""
        self.seen.pop(flat, None)

    def passed(self, lanes: Lanes, flat: int, phase: int, *, is_filling: bool) -> None:
        """Record that a parity wait lets lanes pass since `phase` is complete; report a lane that passes the phase
        again. `is_filling`: some thread has already arrived in the next phase."""
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
