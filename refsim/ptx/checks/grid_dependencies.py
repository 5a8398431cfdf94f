"""Launches that begin before the previous launch has ended (programmatic serialization): `missing-grid-wait`.

Only after griddepcontrol.wait may a thread touch what the previous launch wrote, or write what it read. The check looks
at one launch after another, whether they overlap or not. An earlier launch counts if it lets the next one begin early
(griddepcontrol.launch_dependents). So does the launch before that, unless some block of the earlier launch let others
begin only after its own wait.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.history import History
from refsim.ptx.checks.orders import Orders
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.access import DISCARD, READ, Access
from refsim.ptx.memory.touched import TouchedBytes
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
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
    done: NDArray[np.bool_] = field(init=False)
    has_let: NDArray[np.bool_] = field(init=False)
    too_early: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.done = np.zeros(self.machine.geometry.lanes, np.bool_)
        self.has_let, self.too_early = np.zeros((2, self.machine.geometry.count), np.bool_)
        if self.leaves and self.history.touched is None:
            self.history.touched = TouchedBytes.nothing(self.machine.memory.end)

    def wait(self, lanes: Ids, statement: Statement) -> None:
        """Record that lanes have waited for the previous launches."""
        self.done[lanes] = True
        self.waited.append((self.history.number(statement, 0), lanes))

    def let_others_begin(self, lanes: Ids) -> None:
        """Record that the blocks of lanes let the next launch begin: too early if a lane does not come after a wait."""
        if self.earlier is None:
            return
        cta = self.machine.geometry.cta
        self.has_let[cta[lanes]] = True
        for lane in lanes[~self.done[lanes]].tolist():
            if not self.too_early[cta[lane]] and not self._comes_after_a_wait(lane):
                self.too_early[cta[lane]] = True

    def finish(self) -> None:
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
