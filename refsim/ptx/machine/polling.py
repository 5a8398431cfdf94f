"""Polling: lanes that poll memory rest between two reads; this module decides when they resume or are deadlocked."""

from typing import Protocol

from refsim.ptx.async_ops.engine import CopyEngine
from refsim.ptx.async_ops.tensor_products import TensorCore
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import get
from refsim.ptx.sync.launch_order import LaunchOrder
from refsim.ptx.sync.mbarriers import Mbarriers
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.sync.warp_sync import Meetings

PATIENCE = 50_000  # rounds of polling without a write until they are a deadlock
FORBEARANCE = 1_000  # such rounds until a part of a warp arrives at an aligned barrier, where that need not be an error
QUIET = 100  # of them in which no other lane runs either, until the states of the waiting lanes are compared
LONG = 1 << 41  # the advance of clocks then, 37 minutes of %globaltimer


class Polled(Scheduler, Protocol):
    """A scheduler with meetings of lanes and waits at mbarriers."""

    meetings: Meetings

    launches: LaunchOrder

    @property
    def mbarriers(self) -> Mbarriers: ...
    @property
    def engine(self) -> CopyEngine: ...
    @property
    def tensor_pipe(self) -> TensorCore: ...


class Polling:
    """The rounds of polling of one machine, and the writes between them."""

    def __init__(self, machine: Polled) -> None:
        self.machine = machine
        self.idle = self.quiet = self.seen_writes = 0
        self.before: list[bytes] = []

    def resume(self) -> bool:
        """Resume the resting lanes; return whether there are any. After many rounds without a write the lanes are
        deadlocked, unless some wait for the previous launch."""
        machine = self.machine
        machine.mbarriers.fire()
        machine.engine.fire()
        machine.tensor_pipe.fire()
        if not machine.resting:
            return False
        changed = machine.port.writes != self.seen_writes or bool(machine.launches.waiting)
        self.idle = 0 if changed else self.idle + 1
        self.quiet = 0 if changed else self.quiet + (not machine.groups)
        self.seen_writes = machine.port.writes
        if self.idle == FORBEARANCE and machine.checks.divergence != "error":
            machine.meetings.arrive_apart()
        if self.idle > PATIENCE or self._is_stuck():
            raise machine.meetings.report_deadlock()
        for pc, ids in machine.resting.items():
            machine.go(pc, ids)
        machine.resting = {}
        return True

    def _is_stuck(self) -> bool:
        """Return whether resting lanes have come back to equal counters, registers and memory while no other lane ran.
        Everything that they do then repeats. Time is advanced before the decision, as a lane may wait for a clock."""
        machine = self.machine
        quiet = QUIET if machine.code.has_mbarriers else FORBEARANCE
        if (
            machine.groups
            or self.quiet <= quiet
            or machine.mbarriers.delayed
            or machine.engine.is_pending
            or machine.tensor_pipe.is_pending
        ):
            return False
        if self.quiet == quiet + 1:
            machine.clock, self.before = machine.clock + LONG, []
            return False
        now = [machine.local.bytes.tobytes()]
        for pc, ids in sorted(machine.resting.items()):
            lanes = Lanes(machine, ids)
            now += [ids.tobytes(), *(get(lanes, index).tobytes() for index in machine.code.live_at(pc))]
        before, self.before = self.before, now
        return now == before
