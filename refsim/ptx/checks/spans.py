"""Runs of touched granules, for memory where it only matters whether a granule is touched again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MOST = 1 << 12  # most runs; beyond, marks are cheaper


def _none() -> Array:
    """Return an empty array."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Spans:
    """Runs of granules [starts, ends), rising and disjoint; adjacent runs are merged."""

    starts: Array = field(default_factory=_none)
    ends: Array = field(default_factory=_none)

    def and_items(self, index: Array, count: int) -> "Spans | None":
        """Return these runs with items of `count` granules each added. None if two items, or an item and a run, share a
        granule, or if there are too many runs. Items 4, 5, 6, 0, 1 of two granules are the runs [8, 14) and [0, 4)."""
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
        """Return the runs if one item extends each and reaches no other, as columns of a matrix do; else None."""
        if len(index) != len(self.ends) or len(index) < 2 or (index * count != self.ends).any():
            return None
        ends = self.ends + count
        return Spans(self.starts, ends) if (ends[:-1] < self.starts[1:]).all() else None
