"""What a search may spend: work that is counted, so that answers do not depend on the machine, or processor time."""

import time
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from refsim.computations.engine import Computation
from refsim.computations.ways import Codes, Indices, lines_chosen

WORK = 3.0
"""The work of a search without a time: about as many seconds on one core of a server."""
LOOKED_AFTER = 1 << 15
"""Number of elements that are computed between two looks at what is left."""
JUDGED_SHARE = 0.15
"""Share of the effort for one plan of all judged rows: plans that fit, or nearly do, are computed again."""


@dataclass
class Clock:
    """Processor time, or the work done so far."""

    is_timed: bool
    done: float = 0.0

    def now(self) -> float:
        """Return the reading of the clock."""
        return time.process_time() if self.is_timed else self.done


@dataclass(frozen=True)
class Limit:
    """The reading of a clock at which a search ends."""

    clock: Clock
    end: float

    @classmethod
    def of(cls, seconds: float | None) -> Self:
        """Return the limit after so much processor time; None: after the usual work."""
        clock = Clock(seconds is not None)
        return cls(clock, clock.now() + (WORK if seconds is None else seconds))

    @property
    def left(self) -> float:
        return self.end - self.clock.now()

    def is_reached(self) -> bool:
        """Return whether the search ends here."""
        return self.clock.now() > self.end

    def count(self, work: float) -> None:
        """Add work that was done."""
        self.clock.done += work

    def part(self, share: float) -> Self:
        """Return the limit after a share of what is left."""
        return replace(self, end=self.clock.now() + share * self.left)


def tile_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows in a tile."""
    return max(1, LOOKED_AFTER // max(1, shape[1]))


def judged_rows(subject: Computation, got: Codes, want: Codes | None, limit: Limit) -> Indices | None:
    """Return the rows where outputs differ most, and some others; without `want`, evenly spaced rows; None: all."""
    if not subject.is_sampled or subject.shape[0] <= tile_rows(subject.shape):
        return None
    rows, step = subject.shape[0], tile_rows(subject.shape)
    took = subject.work(step * subject.shape[1])
    if limit.clock.is_timed:
        columns = np.arange(subject.shape[1])
        subject.codes(subject.usual, (np.arange(1), columns[:16]))  # the first call also compiles, so it is not timed
        began = limit.clock.now()
        subject.codes(subject.usual, (np.arange(step), columns))
        took = limit.clock.now() - began
    most = int(JUDGED_SHARE * limit.left / max(took, 1e-6)) * step
    if most >= rows:
        return None
    if want is not None:
        return lines_chosen((got != want).sum(axis=1), max(step, most))
    return np.unique(np.linspace(0, rows - 1, max(step, most)).astype(np.int64))
