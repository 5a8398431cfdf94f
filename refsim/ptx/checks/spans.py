"""Granules as runs: what was touched, where all that matters is whether somebody touches any of it again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST = 1 << 12  # runs beyond which marks are sooner


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Spans:
    """Runs of granules [starts, ends), rising and apart; those that adjoin are one."""

    starts: Array = field(default_factory=_none)
    ends: Array = field(default_factory=_none)

    def and_items(self, index: Array, count: int) -> "Spans | None":
        """These runs and those of items of `count` granules each: None where two items, or an item and a run, share a
        granule, and where the runs are many.

        Items 4, 5, 6, 0, 1 of two granules are the runs [8, 14) and [0, 4).
        """
        if (longer := self._each_longer(index, count)) is not None:
            return longer
        breaks = np.flatnonzero(index[1:] != index[:-1] + 1)
        if len(breaks) + len(self.starts) > _MOST:
            return None
        starts = np.concatenate([self.starts, index[:1] * count, index[breaks + 1] * count])
        ends = np.concatenate([self.ends, (index[breaks] + 1) * count, (index[-1:] + 1) * count])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        if np.count_nonzero(starts[1:] < ends[:-1]):
            return None
        apart = np.flatnonzero(starts[1:] != ends[:-1])
        return Spans(starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)])

    def _each_longer(self, index: Array, count: int) -> "Spans | None":
        """These runs where an item goes on behind each and reaches no other: a column of a matrix behind the columns before
        it."""
        if len(index) != len(self.ends) or len(index) < 2 or (index * count != self.ends).any():
            return None
        ends = self.ends + count
        return Spans(self.starts, ends) if (ends[:-1] < self.starts[1:]).all() else None
