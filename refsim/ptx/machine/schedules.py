"""Which lanes run next: those at the lowest counter with turns for others, or a random choice of hardware's choices."""

from collections.abc import Callable

import numpy as np

from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.arrays import Bools
from refsim.ptx.sync.scheduler import Scheduler

FAIRNESS = 1024  # picks between two turns of groups that a spinning group keeps waiting
TURN = 32  # picks of such a turn: enough to leave a critical section
RANDOM_SPLIT = 0.5
LATER_SPLIT = 1 / 8
RARE_SPLIT = 1 / 32
FREELY = 48  # blocks of a random schedule whose warps are split freely

Resume = Callable[[], bool]  # lanes that rest look again


class LowestFirst:
    """The lowest counter first, with turns for other counters so that a spinning group starves no other group. The
    turns go to the highest counter, then to the one below it, and so on, as groups may spin on both sides of it."""

    def __init__(self, machine: Scheduler, resume: Resume) -> None:
        self.machine, self.resume = machine, resume

    def pick(self) -> tuple[int, Ids]:
        """Return a counter and all its lanes, removed from the groups that can run."""
        groups = self.machine.groups
        turn, picked = divmod(self.machine.clock, FAIRNESS)
        if turn and picked == 0:
            self.resume()
        pc = sorted(groups)[-1 - (turn - 1) % len(groups)] if turn and picked < TURN else min(groups)
        return pc, groups.pop(pc)


class Random:
    """A random group, sometimes only some of its warps; with `late`, one warp of each CTA runs as late as possible."""

    def __init__(self, machine: Scheduler, resume: Resume, choice: np.random.Generator, *, late: bool) -> None:
        self.machine, self.resume, self.choice = machine, resume, choice
        self.late = _late_lanes(machine.geometry, choice) if late else None

    def pick(self) -> tuple[int, Ids]:
        """Return a counter and some of its lanes, removed from the groups that can run."""
        return self._pick_early() or self._pick_any()

    def _pick_early(self) -> tuple[int, Ids] | None:
        """Return lanes that are not late, of a random group; None if there are none, and every FAIRNESS picks."""
        machine = self.machine
        if self.late is None or machine.clock % FAIRNESS == 0:
            return None
        for pc in self.choice.permutation(sorted(machine.groups)).tolist():
            early = ~self.late[machine.groups[pc]]
            if early.any():
                ids = machine.groups.pop(pc)
                machine.go(pc, ids[~early])
                return pc, ids[early]
        return None

    def _pick_any(self) -> tuple[int, Ids]:
        """Return a random group, sometimes only some of its warps: a schedule that hardware may choose."""
        machine, choice = self.machine, self.choice
        if machine.resting and choice.random() < LATER_SPLIT:
            self.resume()
        counters = sorted(machine.groups)
        pc = counters[int(choice.integers(len(counters)))]
        ids = machine.groups.pop(pc)
        warps = machine.geometry.warp[ids]
        share = self._split_share(pc)
        if warps[0] != warps[-1] and choice.random() < share:
            runs = choice.random(int(warps[-1] - warps[0]) + 1) < RANDOM_SPLIT
            chosen = runs[warps - warps[0]]
            if chosen.any() and not chosen.all():
                machine.groups[pc] = ids[~chosen]
                return pc, ids[chosen]
        return pc, ids

    def _split_share(self, pc: int) -> float:
        """Return how often a random schedule splits the warps at a block. The share is small where the block only ends
        in a meeting of each warp. It is smaller in a long run, to keep parts between two barriers few."""
        terminator = self.machine.code.blocks[pc].terminator
        clause = None if terminator is None else terminator.bound.clause
        if clause is not None and clause.rendezvous is not None and not clause.flow:
            return RARE_SPLIT
        return RANDOM_SPLIT if self.machine.clock < FREELY else LATER_SPLIT


class HeldLanes:
    """Lanes that come to one strong access wait there while others take a few turns, or while any other lane can run.

    Lanes that may come to that access run first. `seed` is 4 times the statement's number plus a position in `TURNS`: a
    wait as long as others can run, a wait of a few turns, or none, with turns for all groups at every strong access.
    Threads that check and then set, or read two words that belong together, show other results if others run between.
    Every such schedule is one that hardware may choose.
    """

    TURNS = (1 << 12, 3, 16, 0)

    def __init__(self, machine: Scheduler, resume: Resume, seed: int) -> None:
        self.machine, self.resume = machine, resume
        self.at, self.turns = seed // 4, self.TURNS[seed % 4]
        self.near, self.left, self.seen = machine.code.leading_to(self.at), self.turns, 0
        self.ran = np.zeros(machine.geometry.lanes, np.int64)

    def pick(self) -> tuple[int, Ids]:
        """Return a counter and all its lanes, removed from the groups that can run."""
        machine = self.machine
        may_resume = machine.clock % FAIRNESS < FAIRNESS - TURN  # else lanes that write while they poll starve others
        if machine.resting and may_resume and machine.port.writes != self.seen:
            self.seen = machine.port.writes
            self.resume()
        groups = machine.groups
        if not self.turns:
            pc = min(groups, key=lambda pc: (self.ran[groups[pc]].min(), pc))
            self.ran[groups[pc]] = machine.clock
            return pc, groups.pop(pc)
        if self.at in groups:
            if self.left and (others := self._others()):
                self.left -= 1
                pc = min(others)
                return pc, groups.pop(pc)
            self.left = self.turns
            return self.at, groups.pop(self.at)
        pc = min([pc for pc in groups if pc in self.near] or groups)
        return pc, groups.pop(pc)

    def _others(self) -> list[int]:
        """Return the counters of lanes that are not held; lanes that have met at a barrier go on."""
        machine = self.machine
        if len(machine.groups) == 1:
            held = machine.groups.pop(self.at)
            machine.wake()
            machine.go(self.at, held)
        return [pc for pc in machine.groups if pc != self.at]


def _late_lanes(geometry: Geometry, choice: np.random.Generator) -> Bools | None:
    """Return the lanes of one random warp of each CTA that runs as late as possible, to expose order by luck alone."""
    if geometry.warps == 1:
        return None
    last = choice.integers(geometry.warps, size=geometry.count)
    warps = np.arange(geometry.count * geometry.warps)
    late: Bools = (warps % geometry.warps == last[warps // geometry.warps])[geometry.warp]
    return late


Schedule = LowestFirst | Random | HeldLanes
