"""The fences of tensor maps: whether a map that threads wrote was released and acquired before a copy uses it.

A write to a map reaches a copy by a release after the write, and by an acquire of that map after the release and before
the copy. Any thread may execute them, within their scopes. An acquire of another map has no effect.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.proxy_fences import as_then, rows_of
from refsim.ptx.checks.snapshots import Rows
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.semantics import CLUSTER, CTA
from refsim.ptx.text.syntax import Statement

MAP_RELEASE, MAP_ACQUIRE = "fence.proxy.tensormap::generic.release", "fence.proxy.tensormap::generic.acquire"
_KEPT = 1024


@dataclass(frozen=True, eq=False)
class MapFence:
    """One executed fence: its access number, lanes and scope, what the lanes knew; `address` is set for an acquire."""

    number: int
    lanes: Ids
    scope: int
    knew: Rows
    address: NDArray[Any] | None = None

    def of(self, address: int) -> list[int]:
        """Return the lanes that acquired the map at an address."""
        chosen: list[int] = self.lanes[self.address == address].tolist()
        return chosen


class MapFences:
    """The newest fences of a launch; accesses up to number `forgotten` count as fenced."""

    def __init__(self, clocks: Clocks, history: History) -> None:
        self.clocks, self.history = clocks, history
        self.releases: list[MapFence] = []
        self.acquires: list[MapFence] = []
        self.fine: set[tuple[int, int, int, int]] = set()
        self.forgotten = 0

    def add(self, lanes: Ids, statement: Statement, scope: int, address: NDArray[Any] | None = None) -> None:
        """Record that lanes execute a release, or acquire the maps at these addresses."""
        number = self.history.number(statement, 0)
        kept = self.releases if address is None else self.acquires
        kept.append(MapFence(number, lanes, scope, rows_of(self.clocks.rows, lanes), address))
        if len(kept) > _KEPT:
            self.forgotten = max(self.forgotten, kept[_KEPT // 2].number)
            del kept[: _KEPT // 2 + 1]

    def missing(self, lane: int, agent: int, number: int, address: int) -> str | None:
        """Return the missing fence between access `number` of thread `agent` to a map and its use by a lane, or
        None."""
        asked = lane, agent, number, address
        if number <= self.forgotten or asked in self.fine:
            return None
        found = MAP_ACQUIRE
        for fence in reversed(self.acquires):
            if fence.number <= number:
                break
            for acquiring in _first(lane, fence.of(address)):
                if acquiring == lane or self._is_ordered(lane, acquiring, fence.number):
                    if self._is_released(fence, acquiring, agent, number):
                        self.fine.add(asked)
                        return None
                    found = MAP_RELEASE
        return found

    def is_acquired(self, lane: int, address: int) -> bool:
        """Return whether an acquire of a map comes before what a lane does now."""
        return any(
            acquiring == lane or self._is_ordered(lane, acquiring, fence.number)
            for fence in reversed(self.acquires)
            for acquiring in _first(lane, fence.of(address))
        )

    def _is_released(self, acquire: MapFence, acquiring: int, agent: int, number: int) -> bool:
        """Return whether a release of that access comes before an acquire, with both in each other's scope."""
        now = self.clocks.rows
        for fence in reversed(self.releases):
            if fence.number <= number:
                break
            if fence.number > acquire.number:
                continue
            for releasing in _first(agent - self.clocks.first, fence.lanes.tolist()):
                if not self._are_near(releasing, acquiring, min(fence.scope, acquire.scope)):
                    continue
                try:
                    self.clocks.rows = as_then(now, acquire.lanes, acquire.knew)
                    came = releasing == acquiring or self._is_ordered(acquiring, releasing, fence.number)
                    self.clocks.rows = as_then(now, fence.lanes, fence.knew)
                    if came and self.clocks.is_ordered(np.array([releasing]), np.array([agent]), np.array([number]))[0]:
                        return True
                finally:
                    self.clocks.rows = now
        return False

    def _is_ordered(self, lane: int, other: int, number: int) -> bool:
        agent = np.array([other + self.clocks.first])
        return bool(self.clocks.is_ordered(np.array([lane]), agent, np.array([number]))[0])

    def _are_near(self, one: int, other: int, scope: int) -> bool:
        """Return whether two lanes lie within one scope."""
        geometry = self.clocks.geometry
        if scope > CLUSTER:
            return True
        ctas = 1 if scope == CTA else geometry.cluster_ctas
        return one // geometry.threads // ctas == other // geometry.threads // ctas


def _first(lane: int, lanes: list[int]) -> Iterator[int]:
    """Yield lanes, beginning with `lane` itself, which decides most often."""
    if lane in lanes:
        yield lane
    yield from (each for each in lanes if each != lane)
