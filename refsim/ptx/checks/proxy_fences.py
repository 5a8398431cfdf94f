"""The proxy fences that a launch executed, and whether one of them stands between two accesses.

Only a proxy fence between them orders an access of a thread and an access of an asynchronous unit. The thread's access
happens before the fence, and the fence before the instruction that starts the other access. Any thread may execute the
fence: the writer before it arrives at a barrier, the issuing thread after the barrier, or a third thread between two
barriers. (The ISA's text permits the last two, and states them for `fence.proxy.alias` only.)

A write to a tensor map reaches a copy by a release after the write, and by an acquire of that map after the release and
before the copy. Any thread may execute them, within their scopes. An acquire of another map has no effect.
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
from refsim.ptx.memory.semantics import CLUSTER, CTA
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
_KEPT = 4096
MAP_RELEASE, MAP_ACQUIRE = "fence.proxy.tensormap::generic.release", "fence.proxy.tensormap::generic.acquire"
_KEPT_OF_MAPS = 1024


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
        since = list(self._since(int(numbers.min(initial=self.history.now)), proxy, space))
        for look in (self._by_writer, self._by_others):  # most writers execute the fence themselves
            for fence in since:
                if found.all():
                    return found
                open_ = ~found & (numbers < fence.number)
                if fence.is_of_own_cta:
                    open_ &= np.isin(owner, self.clocks.geometry.cta[fence.lanes])
                if len(some := np.flatnonzero(open_)):
                    found[some] = look(fence, lanes[some], agents[some], numbers[some])
        return found

    def _since(self, number: int, proxy: str, space: str) -> Iterator[Fence]:
        return (each for each in self.fences if each.number > number and each.proxy == proxy and each.covers(space))

    def _by_writer(self, fence: Fence, lanes: Ids, agents: Array, _: Array) -> NDArray[np.bool_]:
        """Return where the accessing thread executed a fence that happens before what the lane does now."""
        found = np.isin(agents - self.clocks.first, fence.lanes)
        if found.any():
            found[found] = self.clocks.is_ordered(lanes[found], agents[found], np.full(int(found.sum()), fence.number))
        return found

    def _by_others(self, fence: Fence, lanes: Ids, agents: Array, numbers: Array) -> NDArray[np.bool_]:
        """Return where a fence stands between that the lane executed, or another thread."""
        first, found = self.clocks.first, np.zeros(len(lanes), np.bool_)
        by_lane = np.isin(lanes, fence.lanes)
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
        if len(kept) > _KEPT_OF_MAPS:
            self.forgotten = max(self.forgotten, kept[_KEPT_OF_MAPS // 2].number)
            del kept[: _KEPT_OF_MAPS // 2 + 1]

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
