"""Which lanes run next: those at the lowest counter, with turns for the others; or a random choice that hardware may make."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.sync.scheduler import Scheduler

FAIRNESS = 1024  # picks from one turn of those that wait behind a spinning group to the next
TURN = 32  # picks of such a turn: enough to leave a critical section
RANDOM_SPLIT = 0.5
LATER_SPLIT = 1 / 8
RARE_SPLIT = 1 / 32
FREELY = 48  # blocks of a random schedule that are parted freely

Resume = Callable[[], bool]  # lanes that rest look again


class Schedule(Protocol):
    """Who picks among the groups of a machine."""

    def pick(self) -> tuple[int, Ids]: ...


class LowestFirst:
    """The lowest counter; now and then another for a while, so that a spinning group does not starve what it waits for:
    the highest, then the one below it, and so on, as groups may spin on both sides of it."""

    def __init__(self, machine: Scheduler, resume: Resume) -> None:
        self.machine, self.resume = machine, resume

    def pick(self) -> tuple[int, Ids]:
        """A counter, and all lanes there, taken from the groups that can run."""
        groups = self.machine.groups
        turn, picked = divmod(self.machine.clock, FAIRNESS)
        if turn and picked == 0:
            self.resume()
        if turn and picked < TURN:
            pc = sorted(groups)[-1 - (turn - 1) % len(groups)]
        else:
            pc = min(groups)
        return pc, groups.pop(pc)


class Random:
    """A random group, of which sometimes only some warps run; with `late`, one warp of each CTA last wherever it may."""

    def __init__(self, machine: Scheduler, resume: Resume, choice: np.random.Generator, *, late: bool) -> None:
        self.machine, self.resume, self.choice = machine, resume, choice
        self.late = _late_lanes(machine.geometry, choice) if late else None

    def pick(self) -> tuple[int, Ids]:
        """A counter and some of the lanes there, taken from the groups that can run."""
        return self._pick_early() or self._pick_any()

    def _pick_early(self) -> tuple[int, Ids] | None:
        """Lanes that are not late, of a random group that has any; every FAIRNESS picks it is the others' turn too."""
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
        """A random group, of which sometimes only some warps run: a schedule that hardware may well choose."""
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
        """How often a random schedule parts the warps at a block: rarely where it only ends in a meeting of each warp, and
        less often in a long run, so that the parts between two barriers stay few."""
        terminator = self.machine.code.blocks[pc].terminator
        clause = None if terminator is None else terminator.bound.clause
        if clause is not None and clause.rendezvous is not None and not clause.flow:
            return RARE_SPLIT
        return RANDOM_SPLIT if self.machine.clock < FREELY else LATER_SPLIT


def _late_lanes(geometry: Geometry, choice: np.random.Generator) -> NDArray[np.bool_] | None:
    """One warp of each CTA that shall come last wherever it may: what was ordered by luck alone then goes wrong."""
    if geometry.warps == 1:
        return None
    last = choice.integers(geometry.warps, size=geometry.count)
    warps = np.arange(geometry.count * geometry.warps)
    late: NDArray[np.bool_] = (warps % geometry.warps == last[warps // geometry.warps])[geometry.warp]
    return late
