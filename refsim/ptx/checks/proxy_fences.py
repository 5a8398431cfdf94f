"""The proxy fences that a launch executed, and whether one of them stands between two accesses.

Only a proxy fence between them orders an access of a thread and an access of an asynchronous unit. The thread's access
happens before the fence, and the fence before the instruction that starts the other access. Any thread may execute the
fence: the writer before it arrives at a barrier, the issuing thread after the barrier, or a third thread between two
barriers. (The ISA's text permits the last two, and states them for `fence.proxy.alias` only.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.snapshots import Rows
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
_KEPT = 4096


@dataclass(frozen=True, eq=False)
class Fence:
    """One executed fence: its access number, its lanes, the proxy and memory it is for, and what these lanes knew."""

    number: int
    lanes: Ids
    proxy: str
    space: str | None
    knew: Rows

    def covers(self, space: str) -> bool:
        """Return whether the fence covers this state space."""
        return self.space is None or self.space.startswith(space)

    @property
    def is_of_own_cta(self) -> bool:
        """Return whether the fence only covers the memory of the CTA that executes it."""
        return self.space == "shared::cta"


class ProxyFences:
    """The newest fences of a launch; accesses up to number `forgotten` count as fenced."""

    def __init__(self, clocks: Clocks, history: History) -> None:
        self.clocks, self.history = clocks, history
        self.fences: list[Fence] = []
        self.forgotten = 0

    def add(self, lanes: Ids, statement: Statement, proxy: str, space: str | None) -> None:
        """Record that lanes execute a fence."""
        number = self.history.number(statement, 0)
        self.fences.append(Fence(number, lanes, proxy, space, rows_of(self.clocks.rows, lanes)))
        if len(self.fences) > _KEPT:
            self.forgotten = self.fences[_KEPT // 2].number
            del self.fences[: _KEPT // 2 + 1]

    def between(
        self, lanes: Ids, agents: Array, numbers: Array, proxy: str, space: str, owner: Array
    ) -> NDArray[np.bool_]:
        """Return for each lane whether a fence stands between access `number` of thread `agent` and what the lane does
        now. `owner`: the running CTA whose memory is accessed."""
        found: NDArray[np.bool_] = numbers <= self.forgotten
        for fence in self._since(int(numbers.min(initial=self.history.now)), proxy, space):
            open_ = ~found & (numbers < fence.number)
            if fence.is_of_own_cta:
                open_ &= np.isin(owner, self.clocks.geometry.cta[fence.lanes])
            if not open_.any():
                if found.all():
                    break
                continue
            some = np.flatnonzero(open_)
            found[some] = self._is_between(fence, lanes[some], agents[some], numbers[some])
        return found

    def _since(self, number: int, proxy: str, space: str) -> Iterator[Fence]:
        return (each for each in self.fences if each.number > number and each.proxy == proxy and each.covers(space))

    def _is_between(self, fence: Fence, lanes: Ids, agents: Array, numbers: Array) -> NDArray[np.bool_]:
        """Return where one fence stands between: executed by the accessing thread, the lane, or another thread."""
        first = self.clocks.first
        by_writer = np.isin(agents - first, fence.lanes)
        found = np.zeros(len(lanes), np.bool_)
        if by_writer.any():
            stamps = np.full(int(by_writer.sum()), fence.number)
            found[by_writer] = self.clocks.is_ordered(lanes[by_writer], agents[by_writer], stamps)
        by_lane = ~found & np.isin(lanes, fence.lanes)
        if by_lane.any():
            found[by_lane] = self._knew(fence, lanes[by_lane], agents[by_lane], numbers[by_lane])
        for lane in fence.lanes.tolist() if not found.all() else ():
            left = np.flatnonzero(~found)
            stamps, one = np.full(len(left), fence.number), np.full(len(left), lane)
            before = self.clocks.is_ordered(lanes[left], one + first, stamps)
            some = left[before]
            if len(some):
                found[some] = self._knew(fence, one[: len(some)], agents[some], numbers[some])
            if found.all():
                break
        return found

    def _knew(self, fence: Fence, lanes: Ids, agents: Array, numbers: Array) -> NDArray[np.bool_]:
        """Return whether lanes came after these accesses when they executed a fence."""
        clocks, now = self.clocks, self.clocks.rows
        clocks.rows = as_then(now, fence.lanes, fence.knew)
        try:
            return clocks.is_ordered(lanes, agents, numbers)
        finally:
            clocks.rows = now


def rows_of(rows: Rows, lanes: Ids) -> Rows:
    """Return the rows of some lanes, copied."""
    tables = (rows.warps, rows.lanes)
    warps, others = (None if table is None else table[lanes].copy() for table in tables)
    return Rows(rows.cta[lanes].copy(), rows.warp[lanes].copy(), rows.foreign[lanes].copy(), rows.own, warps, others)


def as_then(now: Rows, lanes: Ids, knew: Rows) -> Rows:
    """Return rows of all lanes in which `lanes` know what they knew then, and the others nothing."""
    found = Rows.empty(len(now.cta))
    for name in ("cta", "warp", "foreign", "warps", "lanes"):
        held = getattr(knew, name)
        if held is None:
            continue
        table = getattr(found, name)
        if table is None:
            table = np.zeros((len(now.cta), held.shape[1]), held.dtype)
            setattr(found, name, table)
        table[lanes] = held
    return found
