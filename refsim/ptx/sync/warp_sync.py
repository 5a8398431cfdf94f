"""Meetings of the lanes of a warp: instructions that all lanes of a warp, or of a member mask, execute together.

Lanes that arrive are parked until their partners are there. When no thread can run otherwise, lanes parked at different
instructions of one opcode meet too, as the ISA allows for a member mask: `bar.warp.sync` in both arms of a branch.

`deadlock` reports that no thread can go on: which threads wait where and for what, and which threads never came.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, counted
from refsim.ptx.execution.geometry import WARPGROUP, Ids, union
from refsim.ptx.execution.lanes import ALL_LANES, Lanes, is_left_out
from refsim.ptx.findings.record import fault
from refsim.ptx.lowering.steps import Step, fetch
from refsim.ptx.memory.arrays import Bools
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place

MASK_RULE = "PTX ISA, .sync instructions: every lane that the member mask names executes it with the same mask"
MEETING_RULE = "PTX ISA, bar and .sync instructions: every thread that the barrier expects must arrive"
WARPGROUP_RULE = "PTX ISA, wgmma: .aligned, all threads of the warpgroup execute the same instruction"
_POOL = "PTX ISA, setmaxnreg.inc: waits until its block has as many registers free"
_COLUMNS = "PTX ISA, tcgen05.alloc: waits until its block has as many columns of tensor memory free"
_PHASE = "PTX ISA, mbarrier: a phase completes once its pending arrivals have come and its tx-count is zero"
_POLL = "a loop that polls memory ends when a thread that can run writes there"
_CLUSTER = "PTX ISA, barrier.cluster: all threads of the cluster that have not exited must arrive"
_CAUSES = (
    _POOL,
    _COLUMNS,
    _PHASE,
    _POLL,
    _CLUSTER,
    WARPGROUP_RULE,
    MEETING_RULE,
)  # from cause to consequence: threads that wait by the first rules hold up the others
_NAMED = 8


class Meetings:
    """The lanes parked at each statement."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        self.parked: dict[int, Ids] = {}

    def meet(self, pc: int, step: Step, lanes: Lanes) -> Lanes | None:
        """Park the lanes that arrive, and return the lanes whose partners are all there; None if there are none."""
        ids = union(self.parked.pop(pc), lanes.ids) if pc in self.parked else lanes.ids
        arrived = lanes if len(ids) == lanes.count else Lanes(self.machine, ids, step.statement)
        if step.bound.clause.rendezvous == "warpgroup":
            return self.meet_warpgroups(pc, arrived)
        named = self.member_mask(step, arrived) if step.bound.clause.rendezvous == "mask" else None
        is_whole_warp = step.bound.clause.rendezvous == "warp"
        whole = named is None or (len(named) == 1 and int(named[0]) == ALL_LANES)
        if whole and arrived.in_whole_warps:
            return arrived
        everybody = (named is None or len(named) == 1) and arrived.count == np.count_nonzero(self.machine.alive)
        if everybody:
            if is_whole_warp:
                self.demand_everybody(pc, arrived)
            return arrived
        ready = self.is_complete(ids, named, self.machine.warp_bits(ids))
        if not ready.all():
            self.parked[pc] = ids[~ready]
        if not ready.any():
            return None
        meeting = Lanes(self.machine, ids[ready], step.statement)
        if named is not None and len(named) > 1 and (named != named[0]).any():
            self.demand_one_mask(meeting, named[ready])
        if is_whole_warp:
            self.demand_everybody(pc, meeting)
        return meeting

    def meet_warpgroups(self, pc: int, lanes: Lanes) -> Lanes | None:
        """Return the lanes of complete warpgroups, and park the others. Raises a fault if other threads exited."""
        if lanes.in_whole_warpgroups:
            return lanes
        geometry, alive = self.machine.geometry, self.machine.alive
        present, living = (np.bincount(geometry.warpgroup[ids]) for ids in (lanes.ids, np.flatnonzero(alive)))
        own = geometry.warpgroup[lanes.ids]
        if (short := (living[own] < WARPGROUP) & (present[own] == living[own])).any():
            who = int(np.argmax(short))
            what = f"{int(present[own[who]])} of the warpgroup's {WARPGROUP} threads are here, and there are no others"
            raise lanes.fault("divergent-sync", who, what, WARPGROUP_RULE)
        ready = present[own] == WARPGROUP
        if not ready.all():
            self.parked[pc] = lanes.ids[~ready]
        return lanes.select(ready)

    def demand_one_mask(self, lanes: Lanes, mask: NDArray[np.int64]) -> None:
        """Report a lane that a member mask names and that comes with another mask."""
        alive = self.machine.warp_bits(np.flatnonzero(self.machine.alive))[lanes.warp]
        names, group = np.unique(np.stack([lanes.warp, mask]), axis=1, return_inverse=True)
        members = np.zeros(names.shape[1], np.int64)
        np.bitwise_or.at(members, group, np.int64(1) << lanes.laneid)
        stray = mask & alive & ~members[group]
        if stray.any():
            who = int(np.argmax(stray != 0))
            other = int(stray[who] & -stray[who]).bit_length() - 1
            what = f"member mask {int(mask[who]):#010x} names lane {other}, which comes with another mask"
            self.machine.report(lanes.fault("divergent-sync", who, what, MASK_RULE), lanes.statement)

    def demand_everybody(self, pc: int, lanes: Lanes) -> None:
        """Report a lane that skipped this instruction of whole warps and exited. A lane skipped it if it exited at code
        that this instruction leads to. A lane that left the kernel on a separate path did not. An instruction with a
        member mask waits only for lanes that have not exited: PTX ISA, vote.sync and shfl.sync."""
        machine = self.machine
        if machine.alive.all():
            return
        exited = np.flatnonzero(~machine.alive & np.isin(machine.geometry.warp, np.unique(lanes.warp)))
        around = [lane for lane in exited.tolist() if machine.code.leads_to(pc, int(machine.exit_pc[lane]))]
        if around:
            who = int(np.argmax(lanes.warp == machine.geometry.warp[around[0]]))
            what = f"{machine.geometry.describe(around[0])} went around it and has exited; the lanes of a warp come together"
            machine.report(lanes.fault("divergent-sync", who, what, MEETING_RULE), lanes.statement)

    def is_complete(self, ids: Ids, named: NDArray[np.int64] | None, present: NDArray[np.int64]) -> Bools:
        """Return for each lane whether all its living partners are in `present` (a bit mask for each warp)."""
        warps = self.machine.geometry.warp[ids]
        needed = self.machine.warp_bits(np.flatnonzero(self.machine.alive))[warps]
        if named is not None:
            needed = needed & named
        complete: Bools = (needed & ~present[warps]) == 0
        return complete

    def member_mask(self, step: Step, lanes: Lanes) -> NDArray[np.int64]:
        """Return the `mask` operand of each lane, or (1,) if it names all. Report a lane that its mask leaves out. If
        the launch goes on, this lane waits for its whole warp, until no other lane can run."""
        assert step.mask_at is not None
        given = fetch(lanes, *step.sources[step.mask_at]).astype(np.int64)
        if len(given) == 1 and given[0] == ALL_LANES:
            return np.asarray(given)
        mask = lanes.full(given)
        absent = is_left_out(lanes, mask)
        if absent.any():
            who = int(np.argmax(absent))
            what = f"member mask {int(mask[who]):#010x} does not name the lane itself"
            self.machine.report(lanes.fault("divergent-sync", who, what), lanes.statement)
        return np.where(absent, ALL_LANES, mask)

    def wake(self) -> None:
        """Look again at the parked lanes when no thread can run: their partners may have exited or wait elsewhere."""
        machine = self.machine
        for pc, ids in list(self.parked.items()):
            step = machine.code.steps[pc]
            del self.parked[pc]
            ready = self.meet(pc, step, Lanes(machine, ids, step.statement))
            if ready is not None:
                machine.execute([(pc, ready)], ready)
        if not machine.groups:
            self.meet_across()
        if not machine.groups:
            self.converge()
        if not machine.groups and not machine.resting and machine.checks.divergence != "error":
            self.arrive_apart()

    def meet_across(self) -> None:
        """Execute instructions of one opcode at several places together, for lanes that complete a member mask."""
        places: dict[str, list[int]] = {}
        for pc in sorted(self.parked):
            step = self.machine.code.steps[pc]
            if step.bound.clause.rendezvous == "mask":
                places.setdefault(step.statement.opcode, []).append(pc)
        for counters in places.values():
            if len(counters) < 2:
                continue
            present = self.machine.warp_bits(np.sort(np.concatenate([self.parked[pc] for pc in counters])))
            going: list[tuple[int, Lanes]] = []
            for pc in counters:
                step, ids = self.machine.code.steps[pc], self.parked[pc]
                named = self.member_mask(step, Lanes(self.machine, ids, step.statement))
                ready = self.is_complete(ids, named, present)
                if ready.any():
                    going.append((pc, Lanes(self.machine, ids[ready], step.statement)))
                    self.parked[pc] = ids[~ready]
                    if ready.all():
                        del self.parked[pc]
            if going:
                everyone = np.sort(np.concatenate([lanes.ids for _, lanes in going]))
                self.machine.execute(going, Lanes(self.machine, everyone, going[0][1].statement))

    def converge(self) -> None:
        """Execute the earliest instruction without `.sync` for the lanes that came: no others can reach it first."""
        if not self.parked:
            return
        parked = [pc for pc in self.parked if self.machine.code.steps[pc].bound.clause.rendezvous == "converged"]
        if parked:
            pc = min(parked)
            lanes = Lanes(self.machine, self.parked.pop(pc), self.machine.code.steps[pc].statement)
            self.machine.execute([(pc, lanes)], lanes)

    def arrive_apart(self) -> None:
        """Let parts of warps arrive at aligned barriers of the CTA; record the finding if the check says "record". Let
        lanes go on that their member masks leave out, of which a finding was made."""
        for pc in sorted(self.parked):
            step = self.machine.code.steps[pc]
            here = Lanes(self.machine, self.parked[pc], step.statement)
            is_barrier = step.bound.clause.mnemonic in ("bar", "barrier")
            if is_barrier and self.machine.checks.divergence == "record":
                self.machine.record(self.report_deadlock(), step.statement)
            lanes = here if is_barrier else self.left_out(step, here)
            if lanes is not None:
                self.parked[pc] = np.setdiff1d(self.parked[pc], lanes.ids)
                if not len(self.parked[pc]):
                    del self.parked[pc]
                self.machine.execute([(pc, lanes)], lanes)

    def left_out(self, step: Step, lanes: Lanes) -> Lanes | None:
        """Return the lanes whose member masks leave them out; None if there are none."""
        if step.bound.clause.rendezvous != "mask":
            return None
        assert step.mask_at is not None
        return lanes.select(is_left_out(lanes, fetch(lanes, *step.sources[step.mask_at])))

    def report_deadlock(self) -> RefsimError:
        """Return the error for a launch in which no lane can go on."""
        return deadlock(self.machine, self.parked)


def merged(parts: list[tuple[Lanes, list[Any]]], everyone: Lanes) -> list[Any]:
    """Return the operands of several sets of lanes, fetched separately, as operands of all lanes in lane order."""
    order = np.argsort(np.concatenate([lanes.ids for lanes, _ in parts]), kind="stable")
    assert len(order) == everyone.count
    return [
        np.concatenate([lanes.full(arguments[place]) for lanes, arguments in parts])[order]
        for place in range(len(parts[0][1]))
    ]


@dataclass(frozen=True)
class _Wait:
    """Lanes that wait at one statement for one thing: `where` describes it, `rule` is the rule by which they wait."""

    pc: int
    ids: Ids
    where: str
    rule: str


def deadlock(machine: Scheduler, parked: Mapping[int, Ids]) -> RefsimError:
    """Return the error for a launch in which no lane can go on. `parked`: the lanes that wait for partners, by the
    program counter of their instruction. The code is divergent-sync if the threads of a warp or a warpgroup wait at
    different instructions, deadlock otherwise."""
    geometry = machine.geometry
    waiting = [
        *parked.items(),
        *machine.barriers.waiting(),
        *machine.cluster_barrier.waiting(),
        *machine.register_pool.waiting(),
        *machine.tensor_columns.waiting(),
        *machine.resting.items(),
    ]
    waiting.sort(key=lambda pair: pair[0])
    waits = [wait for pc, ids in waiting for wait in _by_question(machine, pc, ids)]
    lines: list[str] = []
    absent: list[str] = []
    for wait in waits:
        first = int(wait.ids[0])
        if wait.rule == _PHASE:
            absent += _absent(machine, first, waiting)
        warps = np.unique(geometry.warp[wait.ids] % geometry.warps)
        blocks = len(np.unique(geometry.cta[wait.ids]))
        lines.append(
            f"{counted(len(wait.ids), 'thread')} (first {geometry.describe(first)}, warps {', '.join(map(str, warps[:_NAMED]))}"
            f"{f' of {blocks} blocks' if blocks > 1 else ''}) wait{'s' * (len(wait.ids) == 1)} at {wait.where}"
        )
    exited = int(np.count_nonzero(~machine.alive))
    rule = min((wait.rule for wait in waits), key=_CAUSES.index)
    warps = np.concatenate([np.unique(geometry.warp[ids]) for _, ids in waiting])
    apart, what = False, "no thread can go on"
    if rule not in (_POOL, _COLUMNS) and any(wait.rule == WARPGROUP_RULE for wait in waits):
        apart, rule = True, WARPGROUP_RULE
        what = "not all four warps of a warpgroup reached one of its instructions"
    elif rule in (_CLUSTER, MEETING_RULE) and len(np.unique(warps)) < len(warps):
        apart, rule, what = True, MEETING_RULE, "the threads of a warp wait at different instructions"
    end = f"; {counted(exited, 'thread')} exited" if exited else ""
    said = "; ".join([*lines, *dict.fromkeys(absent)])
    statement = machine.code.steps[waiting[0][0]].statement
    return fault("divergent-sync" if apart else "deadlock", f"{what}: {said}{end}", statement, rule=rule)


def _by_question(machine: Scheduler, pc: int, ids: Ids) -> list[_Wait]:
    """Return lanes that wait at one statement, grouped by the barrier, object, or registers that they wait for."""
    asked: dict[tuple[str, str], list[int]] = {}
    for lane in ids.tolist():
        asked.setdefault(_question(machine, pc, lane), []).append(lane)
    return [_Wait(pc, np.array(lanes, np.int64), *asks) for asks, lanes in asked.items()]


def _question(machine: Scheduler, pc: int, lane: int) -> tuple[str, str]:
    """Return what a lane waits for, and the rule by which it waits."""
    step = machine.code.steps[pc]
    if pc in machine.resting:
        found = machine.mbarriers.question(lane)
        return (found, _PHASE) if found else (place(step.statement), _POLL)
    if found := machine.barriers.question(lane):
        return found, MEETING_RULE
    if found := machine.cluster_barrier.question(lane):
        return found, _CLUSTER
    if found := machine.register_pool.question(lane):
        return found, _POOL
    if found := machine.tensor_columns.question(lane):
        return found, _COLUMNS
    return place(step.statement), WARPGROUP_RULE if step.bound.clause.rendezvous == "warpgroup" else MEETING_RULE


def _absent(machine: Scheduler, lane: int, waiting: list[tuple[int, Ids]]) -> Iterable[str]:
    """Yield a sentence for each thread that came to the lane's mbarrier in the previous phase and not in this one. If
    there is none, one sentence names the statements that arrive at an mbarrier and that no thread has executed.
    `waiting`: all waiting lanes by program counter."""
    geometry = machine.geometry
    missing = machine.mbarriers.missing(lane)
    for ids, statement in missing:
        one = int(ids[0])
        now = next((pc for pc, there in waiting if one in there), None)
        does = "has exited" if now is None else f"waits at {place(machine.code.steps[now].statement)}"
        others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f"{geometry.describe(one)}{others} came to it in the phase before, by {place(statement)}, and now {does}"
    if not missing and (never := machine.mbarriers.arrivals.never_executed()):
        yield f"no thread has executed {', '.join(place(statement) for statement in never[:_NAMED])}"
