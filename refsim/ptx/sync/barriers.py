"""Barriers of a CTA (bar, barrier) and of a cluster (barrier.cluster), and the order of launches (griddepcontrol): which
threads have arrived, which lanes wait, and when these go on."""

import numpy as np
from numpy.typing import NDArray

from refsim.ptx import events
from refsim.ptx.checks.happens_before import BARRIERS
from refsim.ptx.events import Passing
from refsim.ptx.execution.geometry import Ids, union
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import mark_written, put
from refsim.ptx.isa.definedness.warp import barrier_result
from refsim.ptx.memory.access import WEAK, Semantics
from refsim.ptx.memory.arrays import Bools
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place

BAR_RULE = "PTX ISA, bar: barrier 0 to 15, the thread count a positive multiple of the warp size, the same for all"


class Barriers:
    """The 16 barriers of every running CTA. A warp arrives when all its lanes that have not exited are at the barrier.
    Without a count, a barrier completes when every running warp of the CTA is there; with a count, when that many
    threads are there, each warp counting 32. The lanes of `bar.arrive` go on as soon as their warp has arrived."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        lanes, slots = machine.geometry.lanes, machine.geometry.count * BARRIERS
        self.slot = np.full(lanes, -1, np.int64)
        self.pc = np.zeros(lanes, np.int64)
        self.value = np.zeros(lanes, np.bool_)
        self.passes = np.zeros(lanes, np.bool_)
        self.arrived_warps = np.zeros(slots, np.int64)
        self.expected = np.zeros(slots, np.int64)

    def arrive(
        self,
        lanes: Lanes,
        number: NDArray[np.uint32],
        count: NDArray[np.uint32] | None,
        *,
        wait: bool,
        value: Bools | None = None,
    ) -> None:
        """Let lanes arrive at barrier `number`, which expects `count` threads (None: all of the CTA). `wait` is
        False for bar.arrive; `value`: the predicate of each lane for bar.red. Raises the fault of an invalid number
        or count."""
        machine, barrier = self.machine, number.astype(np.int64)
        if (barrier >= BARRIERS).any():
            what = f"barrier {barrier.max()} of {BARRIERS}"
            raise lanes.fault("barrier-misuse", int(np.argmax(barrier >= BARRIERS)), what, BAR_RULE)
        slot = lanes.cta * BARRIERS + barrier
        expected = np.zeros(1, np.int64) if count is None else count.astype(np.int64)
        if (stray := (expected % 32 != 0) | ((expected == 0) & (count is not None))).any():
            place = int(np.argmax(stray))
            raise lanes.fault("barrier-misuse", place, f"a thread count of {int(expected[place])}", BAR_RULE)
        self.agree(lanes, slot, lanes.full(expected))
        if wait and value is None and self.is_everyone(lanes, barrier, expected):
            lanes.emit(events.MEET_CTA)
            machine.go(lanes.pc + 1, lanes.ids)
            return
        self.slot[lanes.ids], self.pc[lanes.ids], self.passes[lanes.ids] = slot, lanes.pc, not wait
        if value is not None:
            self.value[lanes.ids] = value
        self.release()

    def agree(self, lanes: Lanes, slot: NDArray[np.int64], expected: NDArray[np.int64]) -> None:
        """Record how many threads each barrier expects. Raises a fault if counts differ within a phase."""
        busy = self.arrived_warps > 0
        busy[self.slot[self.slot >= 0]] = True
        everyone = -(-self.machine.geometry.threads // 32) * 32
        before = np.where(busy[slot], self.expected[slot], expected)
        self.expected[slot] = expected
        for other in (before, self.expected[slot]):
            stray = np.where(other > 0, other, everyone) != np.where(expected > 0, expected, everyone)
            if stray.any():
                lane = int(np.argmax(stray))
                mine, others = (f"{count or 'all'} threads" for count in (expected[lane], other[lane]))
                what = f"barrier {slot[lane] % BARRIERS} for {mine}, while others {self.whereabouts(slot[lane])} for {others}"
                raise lanes.fault("barrier-misuse", lane, what, BAR_RULE)

    def whereabouts(self, slot: int) -> str:
        """Return where lanes wait at a barrier: `wait there (bar.sync at PTX line 12 (k.cu:3))`."""
        waiting = np.flatnonzero(self.slot == slot)
        if not len(waiting):
            return "arrive there"
        return f"wait there ({place(self.machine.code.steps[int(self.pc[waiting[0]])].statement)})"

    def is_everyone(self, lanes: Lanes, barrier: NDArray[np.int64], expected: NDArray[np.int64]) -> bool:
        """Return whether all running threads are at one barrier of their CTA, and none has arrived elsewhere."""
        threads = self.machine.geometry.threads
        return bool(
            len(barrier) == 1
            and len(expected) == 1
            and int(expected[0]) in (0, threads)
            and (expected[0] == 0 or lanes.is_full)
            and lanes.count == np.count_nonzero(self.machine.alive)
            and not self.arrived_warps.any()
        )

    def release(self) -> None:
        """Resume the lanes of each complete barrier until none is complete; warps beyond a count wait on."""
        while len(leaving := self.leaving()):
            for pc in np.unique(self.pc[leaving]):
                self.finish(int(pc), leaving[self.pc[leaving] == pc], leaving)
            self.slot[leaving] = -1

    def leaving(self) -> Ids:
        """Return the lanes that may go on now, and take their warps off the counts of their barriers."""
        geometry, alive = self.machine.geometry, self.machine.alive
        waiting = np.flatnonzero(self.slot >= 0)
        if not len(waiting) and not self.arrived_warps.any():
            return waiting
        all_warps = geometry.warps * geometry.count
        living = np.bincount(geometry.warp[alive], minlength=all_warps)
        pairs, first, pair, lanes = np.unique(
            self.slot[waiting] * all_warps + geometry.warp[waiting],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        slot, whole = pairs // all_warps, lanes == living[pairs % all_warps]
        passing = np.zeros(len(pairs), np.bool_)
        passing[pair[self.passes[waiting]]] = True
        np.add.at(self.arrived_warps, slot[passing & whole], 1)
        slots = len(self.expected)
        ready = np.flatnonzero(whole & ~passing)
        there = np.bincount(slot[ready], minlength=slots)
        living_warps = np.count_nonzero(living.reshape(geometry.count, geometry.warps), axis=1)
        needed = np.where(self.expected > 0, self.expected // 32, np.repeat(living_warps, BARRIERS))
        complete = (there + self.arrived_warps >= needed) & (there + self.arrived_warps > 0)
        taken = np.where(complete, np.maximum(needed - self.arrived_warps, 0), 0)
        self.arrived_warps = np.where(complete, np.maximum(self.arrived_warps - needed, 0), self.arrived_warps)
        rank = np.arange(len(ready)) - np.searchsorted(slot[ready], slot[ready])
        going = passing & whole
        going[ready[rank < taken[slot[ready]]]] = True
        if events.PASSED in self.machine.heard and going.any():
            # Without a count, exited warps count as arrived; with a count, they do not.
            running = np.repeat(np.count_nonzero(living.reshape(geometry.count, -1), axis=1), BARRIERS)
            everyone = np.where(self.expected > 0, geometry.warps, running)
            at = self.pc[waiting[first[going]]]
            passed = Passing(slot[going], ~passing[going], everyone, at)
            self.machine.emit(events.PASSED, pairs[going] % all_warps, payload=passed)
        leaving: Ids = waiting[going[pair]]
        return leaving

    def finish(self, pc: int, ids: Ids, everyone: Ids) -> None:
        """Resume lanes that waited at one instruction; a bar.red combines `everyone` that leaves the barrier."""
        machine = self.machine
        step = machine.code.steps[pc]
        lanes = Lanes(machine, ids, step.statement)
        reduce = step.bound.modifiers.get("reduction")
        if reduce:
            counts = np.bincount(self.slot[everyone], weights=self.value[everyone], minlength=len(self.expected))
            totals = np.bincount(self.slot[everyone], minlength=len(self.expected))
            count, total = counts[self.slot[ids]], totals[self.slot[ids]]
            value = {"popc": count.astype(np.uint32), "and": count == total, "or": count > 0}[reduce]
            result = step.results[0][0]
            if isinstance(result, int):
                put(lanes, result, value)
                mark_written(lanes, result)
                if machine.tracking is not None:
                    bits = machine.code.register_bits[result]
                    barrier_result(lanes, result, bits, self.slot, everyone)
        machine.go(pc + 1, ids)

    def waiting(self) -> list[tuple[int, Ids]]:
        """Return the program counters at which lanes wait, with these lanes, for a deadlock report."""
        ids = np.flatnonzero(self.slot >= 0)
        return [(int(pc), ids[self.pc[ids] == pc]) for pc in np.unique(self.pc[ids])]

    def question(self, lane: int) -> str:
        """Return what a lane waits for at a barrier: its number, and how many of the expected threads are there."""
        slot = int(self.slot[lane])
        if slot < 0:
            return ""
        geometry, alive = self.machine.geometry, self.machine.alive
        there = int(np.count_nonzero(self.slot == slot)) + int(self.arrived_warps[slot]) * 32
        cta = geometry.cta == slot // BARRIERS
        expected = int(self.expected[slot]) or int(np.count_nonzero(alive & cta))
        statement = self.machine.code.steps[int(self.pc[lane])].statement
        return f"{place(statement)}: {there} of the {expected} threads of barrier {slot % BARRIERS} are there"


CLUSTER_RULE = "PTX ISA, barrier.cluster: each thread arrives once, then waits, in each phase"
IDLE, ARRIVED, COMPLETE = range(3)
_RELEASES = Semantics(releases=True)


class ClusterBarrier:
    """The state of each lane in the current phase of its cluster's barrier; without clusters, each CTA is its own
    cluster. `state`: IDLE, ARRIVED or COMPLETE for each lane; `pc`: the statement at which a lane waits, -1 if it does
    not wait."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        self.state = np.zeros(machine.geometry.lanes, np.int8)
        self.pc = np.full(machine.geometry.lanes, -1, np.int64)

    def arrive(self, lanes: Lanes, *, releases: bool) -> None:
        """Record that lanes arrive, and let them go on; `releases` is False for `.relaxed`."""
        again = self.state[lanes.ids] != IDLE
        if again.any():
            raise lanes.fault(
                "barrier-misuse", int(np.argmax(again)), "a second arrival without a wait between", CLUSTER_RULE
            )
        self.state[lanes.ids] = ARRIVED
        meaning, alive = _RELEASES if releases else WEAK, self.machine.alive.copy()
        lanes.emit(events.CLUSTER_ARRIVE, meaning, alive)
        self.machine.go(lanes.pc + 1, lanes.ids)
        self.release()

    def wait(self, lanes: Lanes) -> None:
        """Let lanes that have arrived wait for the other lanes of their cluster."""
        state = self.state[lanes.ids]
        if (idle := state == IDLE).any():
            raise lanes.fault(
                "barrier-misuse", int(np.argmax(idle)), "a wait without an arrival before it", CLUSTER_RULE
            )
        self.pc[lanes.ids] = lanes.pc
        self._go_on(lanes.ids[state == COMPLETE])

    def release(self) -> None:
        """Complete the phase of each cluster whose threads have all arrived or exited, and resume its waiting lanes."""
        machine, geometry = self.machine, self.machine.geometry
        arrived = self.state == ARRIVED
        if not arrived.any():
            return
        cluster = geometry.cta // geometry.cluster_ctas
        clusters = geometry.count // geometry.cluster_ctas
        missing = np.bincount(cluster[machine.alive & ~arrived], minlength=clusters)
        here = np.bincount(cluster[arrived], minlength=clusters)
        complete = (missing == 0) & (here > 0)
        if not complete.any():
            return
        going = np.flatnonzero(complete[cluster] & arrived)
        self.state[going] = COMPLETE
        machine.emit(events.CLUSTER_FINISH, going, payload=np.flatnonzero(complete))
        self._go_on(going[self.pc[going] >= 0])

    def _go_on(self, ids: Ids) -> None:
        if not len(ids):
            return
        self.machine.emit(events.CLUSTER_WAIT, ids)
        self.state[ids] = IDLE
        for pc in np.unique(self.pc[ids]).tolist():
            self.machine.go(pc + 1, ids[self.pc[ids] == pc])
        self.pc[ids] = -1

    def waiting(self) -> list[tuple[int, Ids]]:
        """Return the program counters at which lanes wait, with these lanes, for a deadlock report."""
        ids = np.flatnonzero(self.pc >= 0)
        return [(int(pc), ids[self.pc[ids] == pc]) for pc in np.unique(self.pc[ids])]

    def question(self, lane: int) -> str:
        """Return what a waiting lane waits for: how many threads have arrived, and the first that has not."""
        if self.pc[lane] < 0:
            return ""
        geometry = self.machine.geometry
        cluster = geometry.cta // geometry.cluster_ctas
        living = self.machine.alive & (cluster == cluster[lane])
        absent = np.flatnonzero(living & (self.state == IDLE))
        statement = self.machine.code.steps[int(self.pc[lane])].statement
        arrived = f"{np.count_nonzero(living) - len(absent)} of the {np.count_nonzero(living)} threads of the cluster"
        who = f", {geometry.describe(int(absent[0]))} has not" if len(absent) else ""
        return f"{place(statement)}: {arrived} have arrived{who}"


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
        lanes.emit(events.LAUNCH_WAIT)
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
        lanes.emit(events.LAUNCH_NEXT)
        self.has_let[lanes.cta] = True
        self.machine.go(lanes.pc + 1, lanes.ids)

    @property
    def lets_others_begin(self) -> bool:
        """Return whether every CTA has allowed the next launch to begin, or has exited."""
        alive = self.machine.alive.reshape(self.machine.geometry.count, -1).any(axis=1)
        return bool((self.has_let | ~alive).all())
