"""Where one launch stands between its neighbours: what it waits for, and whom it lets begin (griddepcontrol)."""

import numpy as np

from refsim.ptx.execution.geometry import Ids, union
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.sync.scheduler import Scheduler


class LaunchOrder:
    """`is_open`: the launches before are complete, which they always are unless a launch runs beside the one before it.
    `waiting` are the lanes that wait for that, by the statement at which they go on."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        self.is_open = True
        self.waiting: dict[int, Ids] = {}
        self.has_let = np.zeros(machine.geometry.count, np.bool_)

    def wait(self, lanes: Lanes) -> None:
        """Lanes wait until the launches before are complete, and their writes seen."""
        machine, after = self.machine, lanes.pc + 1
        if machine.dependency is not None:
            assert lanes.statement is not None
            machine.dependency.wait(lanes.ids, lanes.statement)
        if self.is_open:
            machine.go(after, lanes.ids)
        else:
            self.waiting[after] = union(self.waiting[after], lanes.ids) if after in self.waiting else lanes.ids

    def open(self) -> None:
        """The launches before are complete: those that waited go on."""
        self.is_open = True
        for pc, ids in self.waiting.items():
            self.machine.go(pc, ids)
        self.waiting = {}

    def let_others_begin(self, lanes: Lanes) -> None:
        """The blocks of these lanes have no objection to the next launch."""
        if self.machine.dependency is not None:
            self.machine.dependency.let_others_begin(lanes.ids)
        self.has_let[lanes.cta] = True
        self.machine.go(lanes.pc + 1, lanes.ids)

    @property
    def lets_others_begin(self) -> bool:
        """Whether every block has said so, or has exited."""
        alive = self.machine.alive.reshape(self.machine.geometry.count, -1).any(axis=1)
        return bool((self.has_let | ~alive).all())
