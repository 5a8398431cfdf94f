"""The order of launches (griddepcontrol): a launch waits for the previous ones, and allows the next one to begin."""

import numpy as np

from refsim.ptx.execution.geometry import Ids, union
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.sync.scheduler import Scheduler


class LaunchOrder:
    """The state of griddepcontrol in one launch. `is_open`: the previous launches are complete, as always unless this
    launch runs concurrently with the previous one. `waiting`: the lanes that wait for that, by the statement at which
    they go on. `has_let`: the CTAs that allowed the next launch."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        self.is_open = True
        self.waiting: dict[int, Ids] = {}
        self.has_let = np.zeros(machine.geometry.count, np.bool_)

    def wait(self, lanes: Lanes) -> None:
        """Let lanes wait until the previous launches are complete and their writes visible."""
        machine, after = self.machine, lanes.pc + 1
        if machine.dependency is not None:
            assert lanes.statement is not None
            machine.dependency.wait(lanes.ids, lanes.statement)
        if self.is_open:
            machine.go(after, lanes.ids)
        else:
            self.waiting[after] = union(self.waiting[after], lanes.ids) if after in self.waiting else lanes.ids

    def open(self) -> None:
        """Record that the previous launches are complete, and resume the waiting lanes."""
        self.is_open = True
        for pc, ids in self.waiting.items():
            self.machine.go(pc, ids)
        self.waiting = {}

    def let_others_begin(self, lanes: Lanes) -> None:
        """Record that the CTAs of these lanes allow the next launch to begin."""
        if self.machine.dependency is not None:
            self.machine.dependency.let_others_begin(lanes.ids)
        self.has_let[lanes.cta] = True
        self.machine.go(lanes.pc + 1, lanes.ids)

    @property
    def lets_others_begin(self) -> bool:
        """Return whether every CTA has allowed the next launch to begin, or has exited."""
        alive = self.machine.alive.reshape(self.machine.geometry.count, -1).any(axis=1)
        return bool((self.has_let | ~alive).all())
