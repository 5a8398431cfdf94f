"""Sequentially consistent fences of GPU scope, separated by barriers from the accesses that publish the data.

"All threads write; __threadfence(); __syncthreads(); thread 0 counts the block" is no release pattern of a single
thread: the fences of the others stand before the barrier. It is correct nevertheless. If a reader's fence came before
one of these fences in their total order, the reader's load of the counter would come before the count that it saw. So a
fence that happened before a strong write covers for a fence after a strong read of it, with barriers in between.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.knowledge import NOTHING, Knowledge, joined
from refsim.ptx.execution.geometry import Ids

Array = NDArray[Any]


@dataclass
class FenceOrder:
    """For each lane: the knowledge of fences that happened before it, and of fences before the writes that it saw.
    `before` and `seen` hold numbers of entries of `known`; `fresh` marks lanes that fenced since."""

    lanes: int
    snapshot: Callable[[Ids], Knowledge]
    known: list[Knowledge] = field(default_factory=lambda: [NOTHING])
    before: Array = field(init=False)
    seen: Array = field(init=False)
    fresh: NDArray[np.bool_] = field(init=False)
    is_used: bool = False

    def __post_init__(self) -> None:
        self.before, self.seen = np.zeros(self.lanes, np.int32), np.zeros(self.lanes, np.int32)
        self.fresh = np.zeros(self.lanes, np.bool_)

    def fence(self, lanes: Ids) -> None:
        """Record that lanes execute a fence; its coverage is computed when the lane writes or meets others."""
        self.fresh[lanes] = self.is_used = True

    def covered(self, lane: int) -> Knowledge:
        """Return the knowledge that fences before a lane's next write cover."""
        found = self.known[int(self.before[lane])]
        return found | self.snapshot(np.array([lane])) if self.fresh[lane] else found

    def see(self, lanes: Ids, found: Knowledge) -> None:
        """Record that strong reads by lanes saw a write after fences that cover `found`."""
        if found is NOTHING:
            return
        self.is_used = True
        for number, some in self.seen_by(lanes):
            before = self.known[number]
            if (after := before | found) is not before:
                self.seen[some] = self._number(after)

    def seen_by(self, lanes: Ids) -> Iterator[tuple[int, Ids]]:
        """Yield groups of lanes with equal knowledge of seen fences, with its number in `known`."""
        seen = self.seen[lanes]
        for number in np.unique(seen).tolist() if len(lanes) > 1 else seen.tolist():
            yield number, lanes[seen == number]

    def share(self, lanes: Ids, group: Array, waited: NDArray[np.bool_] | None = None) -> None:
        """Share knowledge within each group that met; lanes that only arrived (`waited` is False) learn nothing."""
        if not self.is_used:
            return
        if not self.fresh[lanes].any() and all(
            (table[lanes] == table[lanes[0]]).all() for table in (self.before, self.seen)
        ):
            return
        order = np.argsort(group, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            mine = lanes[part]
            to = mine if waited is None else lanes[part[waited[part]]]
            fresh = mine[self.fresh[mine]]
            if len(fresh) or (self.before[mine] != self.before[mine[0]]).any():
                self._put(self.before, mine, to, [self.snapshot(fresh)] if len(fresh) else [])
                self.fresh[to] = False
            if (self.seen[mine] != self.seen[mine[0]]).any():
                self._put(self.seen, mine, to, [])

    def _put(self, table: Array, lanes: Ids, to: Ids, more: list[Knowledge]) -> None:
        """Set the entries of lanes `to` in a table to all that `lanes` and `more` know."""
        held = [self.known[number] for number in np.unique(table[lanes]).tolist() if number]
        table[to] = self._number(joined((*held, *more)))

    def _number(self, found: Knowledge) -> int:
        self.known.append(found)
        return len(self.known) - 1
