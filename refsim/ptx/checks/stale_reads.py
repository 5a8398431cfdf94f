"""Accesses to global memory that a whole launch orders: reads by ld.global.nc or ldu of bytes that the same launch wrote,
launches that begin before the previous one has ended (`missing-grid-wait`), and the last writer of each byte."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.history import History
from refsim.ptx.checks.orders import Orders
from refsim.ptx.events import END, LAUNCH_NEXT, LAUNCH_WAIT, Hear, LaunchEvent
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.access import DISCARD, READ, Access
from refsim.ptx.memory.arrays import Bools
from refsim.ptx.memory.snapshot import TouchedBytes
from refsim.ptx.memory.space import ITEM, THREADS

RULE = (
    "PTX ISA, ld.global.nc and ldu: read-only for the whole launch; CUDA makes them of __ldg, and of const __restrict__ "
    "pointers that it takes for pointers to what no thread writes"
)
_WRITTEN = {width: np.frombuffer(b"\x01" * width, item)[0] for width, item in ITEM.items()}


@dataclass(frozen=True)
class StaleReads:
    """Remembers each byte that the launch wrote. No order fixes such a read: barriers and fences do not affect that
    cache. `read_only`: the opcodes that read through the cache."""

    machine: Context
    history: History
    read_only: frozenset[str]

    def before(self, access: Access) -> None:
        """Report a read through the read-only cache of bytes that the launch wrote."""
        written = self.history.written
        if access.kind != READ or not len(written) or access.statement.opcode not in self.read_only:
            return
        if access.region is not None and not access.region.writable:
            return
        found = written.view(ITEM[access.width]).take(access.index) != 0
        if found.any():
            lane = int(np.argmax(found))
            place = access.space.where(int(access.threads.full(access.index)[lane]) * access.width)
            what = f"reads {access.width} B of what this launch wrote ({place}) through the cache for read-only data"
            error = access.threads.fault("stale-read", lane, what, RULE)
            self.machine.report(error, access.statement)

    def after(self, access: Access) -> None:
        """Record the bytes that an access wrote."""
        if access.kind in (READ, DISCARD):
            return
        index = access.index if access.wrote is None else access.index[access.wrote]
        if len(self.history.written) < len(access.space.bytes):
            grown = np.zeros(len(access.space.bytes), np.uint8)
            grown[: len(self.history.written)] = self.history.written
            self.history.written = grown
        self.history.written.view(ITEM[access.width])[index] = _WRITTEN[access.width]


GRID_CHECK = "missing-grid-wait"
_RULE = "PTX ISA, griddepcontrol: .wait lets a thread see what the launches before it did; without it nothing does"


@dataclass
class GridDependency:
    """Watches global memory: records what this launch touches if `leaves`, and compares it with what `earlier` touched.
    `waited`: the number of each executed wait, with the lanes that executed it. `done`: the lanes that have waited."""

    machine: Context
    history: History
    orders: Orders
    earlier: TouchedBytes | None
    leaves: bool
    waited: list[tuple[int, Ids]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.done: Bools = np.zeros(self.machine.geometry.lanes, np.bool_)
        self.has_let, self.too_early = np.zeros((2, self.machine.geometry.count), np.bool_)
        if self.leaves and self.history.touched is None:
            self.history.touched = TouchedBytes.nothing(self.machine.memory.end)

    def hears(self) -> dict[str, Hear]:
        """Return what hears the events of each verb."""
        return {LAUNCH_WAIT: self.wait, LAUNCH_NEXT: self.let_others_begin, END: self.finish}

    def wait(self, event: LaunchEvent) -> None:
        """Record that lanes have waited for the previous launches."""
        self.done[event.lanes] = True
        self.waited.append((self.history.number(event.statement, 0), event.lanes))

    def let_others_begin(self, event: LaunchEvent) -> None:
        """Record that the blocks of lanes let the next launch begin: too early if a lane does not come after a wait."""
        lanes = event.lanes
        if self.earlier is None:
            return
        cta = self.machine.geometry.cta
        self.has_let[cta[lanes]] = True
        for lane in lanes[~self.done[lanes]].tolist():
            if not self.too_early[cta[lane]] and not self._comes_after_a_wait(lane):
                self.too_early[cta[lane]] = True

    def finish(self, event: LaunchEvent) -> None:
        """Record that all lanes have exited, which lets the next launch begin if nothing did before."""
        waited = self.done.reshape(len(self.has_let), -1).any(axis=1)
        self.history.began_behind |= bool(np.where(self.has_let, ~self.too_early, waited).any())

    def before(self, access: Access) -> None:
        """Report an access to bytes of the earlier launch by a lane that does not come after a wait."""
        if self.earlier is None or access.kind == DISCARD:
            return
        open_ = np.flatnonzero(~self.done[access.threads.ids])
        if not len(open_) or self.machine.findings.is_known(GRID_CHECK, access.statement):
            return
        start = access.threads.full(access.at)[open_][:, None] + np.arange(access.width)
        hit = self.earlier.meets(start, writes=access.kind != READ)
        for one in np.flatnonzero(hit).tolist():
            lane = int(access.threads.ids[open_[one]])
            if not self._comes_after_a_wait(lane):
                self._report(access, int(open_[one]), int(start[one, 0]))
                return

    def after(self, access: Access) -> None:
        """Record the bytes that this launch touched."""
        if self.history.touched is not None and access.kind != DISCARD:
            at = access.threads.full(access.at)[:, None] + np.arange(access.width)
            self.history.touched.add(at, writes=access.kind != READ)

    def _comes_after_a_wait(self, lane: int) -> bool:
        """Return whether some thread's wait happened before what a lane does now."""
        clocks, first = self.orders.strict, self.orders.strict.first
        for number, lanes in self.waited:
            some = np.full(len(lanes), lane)
            if clocks.is_ordered(some, lanes + first, np.full(len(lanes), number)).any():
                return True
        return False

    def _report(self, access: Access, lane: int, position: int) -> None:
        space, is_read = access.space, access.kind == READ
        act = "reads" if is_read else "writes"
        other = "wrote" if is_read else "touched"
        what = (
            f"{act} {access.width} B at global address {space.address(position)} ({space.where(position)}), which the launch "
            f"before it {other} and which may still run: no griddepcontrol.wait comes first"
        )
        self.machine.report(access.threads.fault(GRID_CHECK, lane, what, _RULE), access.statement)


@dataclass(frozen=True)
class Writers:
    """Keeps `Space.writer`: the PTX line and the number of the thread in its grid; lane 0 is thread `first`."""

    first: int

    def before(self, access: Access) -> None:
        """Do nothing: a write is recorded after it was made."""

    def after(self, access: Access) -> None:
        """Record the threads of a write."""
        table = access.space.writer
        if access.kind == READ or table is None:
            return
        threads: NDArray[Any] = access.threads.ids + (self.first + access.statement.line * THREADS)
        index = access.index
        if access.wrote is not None:
            index, threads = index[access.wrote], threads[access.wrote]
        items = table[: len(table) // access.width * access.width].reshape(-1, access.width)
        items[index] = threads[:, None]
