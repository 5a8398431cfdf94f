"""The order that mbarriers give: a thread that sees a phase complete comes after the arrivals and copies of that phase.

Arrivals of the object's own CTA are stamps in arrays; a whole warp and the whole CTA become one stamp each once all
their threads are there. Arrivals from other CTAs of the cluster, which must release at cluster scope, are joined one by
one. Copies that arrive belong to no program order. Each thread therefore has a virtual agent (its number plus the
number of threads of the grid) that makes the accesses of its copies. A wait for the phase then orders the copies
without the later accesses of the issuing thread.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.handed_stages import NOTHING_DONE, Done, HandedBack, HandedStages
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, Released
from refsim.ptx.checks.race_reports import Pair, Reporter
from refsim.ptx.checks.snapshots import Rows
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.access import READ, WRITE, Access
from refsim.ptx.memory.semantics import CLUSTER, Semantics

Array = NDArray[Any]
OBJECT_BYTES = 8
_NEVER = np.iinfo(np.int64).max


@dataclass
class Arrived:
    """The joint knowledge of the threads that arrived at one object, in one order. `cta`, `warps`, `threads`: stamps of
    its CTA and of each warp and thread of it. `foreign`: numbers of knowledge from elsewhere; `far`: what other CTAs of
    the cluster released."""

    cta: int
    warps: Array
    threads: Array
    foreign: set[int] = field(default_factory=set)
    far: Knowledge = NOTHING
    back: HandedBack = field(default_factory=HandedBack)
    ids: list[Ids] = field(default_factory=list)

    @staticmethod
    def nobody(warps: int) -> "Arrived":
        """Return the state before any arrival, for a CTA of so many warps."""
        return Arrived(0, np.zeros(warps, np.int64), np.zeros(warps * WARP, np.int64))

    def add(self, geometry: Geometry, rows: Rows, lanes: Ids, stamps: Array | int) -> None:
        """Add lanes of the object's CTA with their knowledge in `rows`, and their own accesses up to `stamps`."""
        thread = geometry.thread[lanes]
        self.cta = max(self.cta, int(rows.cta[lanes].max()))
        np.maximum.at(self.warps, thread // WARP, rows.warp[lanes])
        if rows.warps is not None:
            np.maximum(self.warps, rows.warps[lanes].max(axis=0), out=self.warps)
        if rows.lanes is not None:
            np.maximum.at(self.threads, thread[:, None] // WARP * WARP + np.arange(WARP), rows.lanes[lanes])
        np.maximum.at(self.threads, thread, stamps)
        self.foreign |= set(np.unique(rows.foreign[lanes]).tolist())
        self.ids.append(lanes)

    def join(self, other: "Arrived") -> None:
        """Add the arrivals of another set."""
        self.cta = max(self.cta, other.cta)
        np.maximum(self.warps, other.warps, out=self.warps)
        np.maximum(self.threads, other.threads, out=self.threads)
        self.foreign |= other.foreign
        self.ids += other.ids
        self.far = self.far | other.far
        self.back.settled = self.back.settled | other.back.settled


@dataclass(frozen=True, eq=False)
class Complete:
    """The knowledge that a complete phase gives to a thread of its CTA: two coarse stamps, and the rest."""

    cta: int
    warps: Array
    rest: Knowledge
    far: Knowledge
    arrived: Ids
    done: Done = NOTHING_DONE

    def give(self, clocks: Clocks, lanes: Ids, scope: int) -> None:
        """Let these lanes learn it, as they saw the phase complete and acquire at a scope."""
        clocks.learn_of_cta(lanes, self.cta, self.warps)
        clocks.learn(lanes, self.rest)
        if scope >= CLUSTER or clocks.ignores_scopes:
            clocks.learn(lanes, self.far)
        if clocks.fenced.is_used:
            everyone = np.union1d(self.arrived, lanes)
            clocks.fenced.share(everyone, np.zeros(len(everyone), np.int64), np.isin(everyone, lanes))

    def released(self, geometry: Geometry, cta: int) -> Released:
        """Return this knowledge as what a later acquire by a fence gets."""
        number = cta + geometry.first
        stamps = {number * geometry.warps + warp: int(self.warps[warp]) for warp in np.flatnonzero(self.warps).tolist()}
        near = self.rest | Knowledge({number: self.cta}, stamps)
        return Released(ctas={number: near}, clusters={number // geometry.cluster_ctas: self.far}, is_narrow=True)


@dataclass
class Birth:
    """The thread and access that initialized an object, and the last access of every thread to it since. `is_fenced`: a
    fence.mbarrier_init of that thread followed. `met`: the newest access when its cluster met after that; the threads
    of that meeting know the object."""

    agent: int
    number: int
    touched: dict[int, int] = field(default_factory=dict)
    is_fenced: bool = False
    met: int = _NEVER


class PhaseOrder:
    """The mbarrier objects by their byte position in the flat shared memory: their arrivals, and the knowledge of their
    last phase. `arrived` and `complete` hold one entry for each of `clocks`. `shadows`: the newest access of each
    lane's virtual agent."""

    def __init__(self, clocks: list[Clocks], history: History, reporter: Reporter, stride: int) -> None:
        self.clocks, self.history, self.reporter, self.stride = clocks, history, reporter, stride
        self.geometry = clocks[0].geometry
        self.loosest = [each for each in clocks if not each.ignores_scopes][-1]
        self.arrived: dict[int, list[Arrived]] = {}
        self.complete: dict[int, list[Complete]] = {}
        self.births: dict[int, Birth] = {}
        self.shadows = np.zeros(self.geometry.lanes, np.int64)
        self.stages = HandedStages(clocks, self.geometry)
        self.cluster_met = np.full(self.geometry.lanes, -1, np.int64)
        self.unseen: dict[int, dict[int, int]] = {}
        nobody = np.zeros(0, np.int64)
        self.nothing = Complete(0, np.zeros(self.geometry.warps, np.int64), NOTHING, NOTHING, nobody)

    # ---- objects
    def born(self, flat: int, lane: int) -> None:
        """Record that a lane's newest access initialized an object."""
        self.births[flat] = Birth(self._agent(lane), self.history.now)
        self.arrived[flat] = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        self.complete[flat] = [self.nothing for _ in self.clocks]

    def touched(self, access: Access, flat: int) -> None:
        """Record that threads arrive at an object or wait for it; report a thread that does not come after its init."""
        birth, lanes = self.births[flat], access.threads.ids
        number = self.history.number(access.statement, access.width)
        own = self.geometry.cta[lanes] == flat // self.stride
        late = lanes[~own | (self.clocks[0].rows.cta[lanes] < birth.number)]
        if len(late) and self.reporter.is_news(access.statement):
            born = np.full(len(late), birth.agent), np.full(len(late), birth.number)
            ordered = self.clocks[0].is_ordered(late, *born) | (self.cluster_met[late] >= birth.met)
            if not ordered.all():
                pair = self._race_with_init(int(late[np.argmin(ordered)]), birth.agent, birth.number)
                self.reporter.report(access, pair, (access.space, flat % self.stride))
        birth.touched.update(dict.fromkeys((lanes + self._agent(0)).tolist(), number))

    def inits_fenced(self, lanes: Ids) -> None:
        """Record that these threads fence the objects that they initialized."""
        own = set((lanes + self._agent(0)).tolist())
        for birth in self.births.values():
            birth.is_fenced |= birth.agent in own

    def clusters_completed(self, clusters: Array, lanes: Ids) -> None:
        """Record that all threads of clusters (`lanes`) met: they come after every fenced initialization."""
        self.cluster_met[lanes] = self.history.now
        for flat, birth in self.births.items():
            if birth.is_fenced and birth.met == _NEVER and self.geometry.cluster_of(flat // self.stride) in clusters:
                birth.met = self.history.now

    def died(self, access: Access, flat: int) -> None:
        """Record that a thread ends an object; report an access of another thread to it that did not happen before. A
        meeting of the warp is enough, as cuda::pipeline ends its barriers so."""
        birth = self.births.pop(flat)
        self.unseen.pop(flat, None)
        del self.arrived[flat], self.complete[flat]
        agents, numbers = (np.fromiter(each, np.int64) for each in (birth.touched.keys(), birth.touched.values()))
        lane = np.repeat(access.threads.ids[:1], len(agents))
        ordered = self.loosest.is_ordered(lane, agents, numbers)
        if not ordered.all() and self.reporter.is_news(access.statement):
            other = int(np.argmin(ordered))
            pair = Pair(int(lane[0]), int(agents[other]), int(numbers[other]), READ)
            self.reporter.report(replace(access, kind=WRITE), pair, (access.space, flat % self.stride))

    def _race_with_init(self, lane: int, other: int, number: int) -> Pair:
        """Return the race of a lane with an object's initialization; converged if the loosest order has it."""
        loose = self.loosest.is_ordered(np.array([lane]), np.array([other]), np.array([number]))
        return Pair(lane, other, number, WRITE, converged=bool(loose[0]))

    def _agent(self, lane: int) -> int:
        """Return the number of a lane's thread in the grid."""
        return lane + self.geometry.first * self.geometry.threads

    # ---- arrivals
    def arrive(self, flat: int, lanes: Ids, meaning: Semantics) -> None:
        """Record arrivals: they release what the lanes know, or, if relaxed, what they knew at their last fence."""
        own = self.geometry.cta[lanes] == flat // self.stride
        if not own.all():
            agents = (lanes[~own] + self._agent(0)).tolist()
            self.unseen.setdefault(flat, {}).update(dict.fromkeys(agents, self.history.now))
        for clocks, arrived in zip(self.clocks, self.arrived[flat], strict=True):
            if own.any():
                self._add_near(clocks, arrived, lanes[own], meaning)
            for lane in lanes[~own].tolist():
                arrived.far = arrived.far | self._released_far(clocks, lane, meaning)
            if len(done := lanes[self._settles(own, meaning)]):
                arrived.back.add(clocks.snapshots(clocks.rows, done, self.history.now), meaning)
            self.stages.arrive(arrived.back, lanes, meaning)

    def unseen_at(self, cta: int) -> dict[int, int]:
        """Return the threads of other CTAs whose arrivals at objects of this CTA no thread saw complete, with their
        newest arrival. The CTA must not exit before these arrivals."""
        found: dict[int, int] = {}
        for flat in [flat for flat in self.unseen if flat // self.stride == cta]:
            for agent, number in self.unseen.pop(flat).items():
                found[agent] = max(found.get(agent, 0), number)
        return found

    def _settles(self, own: NDArray[np.bool_], meaning: Semantics) -> NDArray[np.bool_]:
        """Return which arrivals only say that the thread is done with copied data: relaxed or from other CTAs."""
        return ~own | (not meaning.releases)

    def _add_near(self, clocks: Clocks, arrived: Arrived, lanes: Ids, meaning: Semantics) -> None:
        """Add arrivals from the object's own CTA: what they release now, or released by their last fences."""
        if meaning.releases:
            arrived.add(self.geometry, clocks.rows, lanes, self.history.now)
            return
        for rows in clocks.fences.values():
            fenced = lanes[rows.own[lanes] > 0]
            if len(fenced):
                arrived.add(self.geometry, rows, fenced, rows.own[fenced])

    def _released_far(self, clocks: Clocks, lane: int, meaning: Semantics) -> Knowledge:
        """Return what an arrival of a lane of another CTA releases to the object's CTA."""
        if meaning.scope < CLUSTER and not clocks.ignores_scopes:
            return NOTHING
        if meaning.releases:
            return clocks.snapshot(clocks.rows, lane, self.history.now)
        found = NOTHING
        for scope, rows in clocks.fences.items():
            if scope >= CLUSTER and rows.own[lane]:
                found = found | clocks.snapshot(rows, lane, int(rows.own[lane]))
        return found

    def note(self, lanes: Ids, flat: int) -> list[Arrived]:
        """Return what lanes of one CTA know now, in each order, for later arrivals at an object on their behalf."""
        notes = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        is_own = self.geometry.cta[lanes[0]] == flat // self.stride
        for clocks, arrived in zip(self.clocks, notes, strict=True):
            if is_own:
                arrived.add(self.geometry, clocks.rows, lanes, self.history.now)
            else:
                arrived.far = arrived.back.settled = clocks.snapshots(clocks.rows, lanes, self.history.now)
        return notes

    def arrive_noted(self, flat: int, notes: list[Arrived]) -> None:
        """Add arrivals that were noted before."""
        for arrived, note in zip(self.arrived[flat], notes, strict=True):
            arrived.join(note)

    # ---- copies that arrived
    def landed(self, lanes: Ids) -> Array:
        """Make the newest access one of the virtual agents of these lanes, and return the numbers of these agents."""
        self.shadows[lanes] = self.history.now
        return (lanes + self._agent(0) + self.geometry.grid_threads).astype(np.int32)

    def waited_themselves(self, lanes: Ids) -> None:
        """Let lanes come after their own copies, which they waited for by groups."""
        for lane in lanes[self.shadows[lanes] > 0].tolist():
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: int(self.shadows[lane])})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    def agent_of(self, flat: int) -> int:
        """Return the virtual agent, of no thread, that makes the accesses of copy engines counted at an object."""
        cta, at = divmod(flat, self.stride)
        thread = at // OBJECT_BYTES % self.geometry.threads
        return self._agent(cta * self.geometry.threads + thread) + 2 * self.geometry.grid_threads

    def waited_for(self, lane: int, number: int) -> None:
        """Let a lane come after access `number` of its virtual agent, as it waited for that bulk group."""
        if number:
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: number})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    # ---- phases
    def observed(self, flat: int, copied: Ids, transfers: dict[int, int]) -> None:
        """Complete a phase when the first thread sees it complete: its knowledge is fixed from now on. It covers the
        arrivals so far, the copies of lanes `copied`, and `transfers` of copy engines: for each agent, its newest
        access."""
        self.unseen.pop(flat, None)
        shadows = self._shadows(flat // self.stride, copied)
        if transfers:
            shadows = shadows | Knowledge(threads=transfers)
        self.complete[flat] = [
            self._freeze(clocks, arrived, flat // self.stride, shadows)
            for clocks, arrived in zip(self.clocks, self.arrived[flat], strict=True)
        ]

    def passed(self, flat: int, lanes: Ids, meaning: Semantics) -> None:
        """Let lanes acquire the knowledge of the phase that they saw complete."""
        for order, (clocks, complete) in enumerate(zip(self.clocks, self.complete[flat], strict=True)):
            self.stages.learn(order, lanes, complete.done, meaning)
            if meaning.acquires:
                complete.give(clocks, lanes, meaning.scope)
                continue
            found = complete.released(self.geometry, flat // self.stride)
            for lane in lanes.tolist():
                clocks.pending.setdefault(lane, {})[id(found)] = found

    def _freeze(self, clocks: Clocks, arrived: Arrived, cta: int, shadows: Knowledge) -> Complete:
        """Return the knowledge of the arrivals so far in the coarsest form; the next phase continues from it."""
        exists = np.arange(len(arrived.threads)) < self.geometry.threads
        whole = np.where(exists, arrived.threads, _NEVER).reshape(-1, WARP).min(axis=1)
        np.maximum(arrived.warps, whole, out=arrived.warps)
        arrived.cta = max(arrived.cta, int(arrived.warps.min()))
        covered = np.maximum(arrived.cta, np.repeat(arrived.warps, WARP))
        first = self._agent(cta * self.geometry.threads)
        some = np.flatnonzero(exists & (arrived.threads > covered)).tolist()
        threads = {first + thread: int(arrived.threads[thread]) for thread in some}
        rest = (Knowledge(threads=threads) if threads else NOTHING) | shadows
        for number in arrived.foreign:
            rest = rest | clocks.known[number]
        if rest is not NOTHING:
            clocks.known.append(rest)
        arrived.foreign = set() if rest is NOTHING else {len(clocks.known) - 1}
        ids = np.unique(np.concatenate(arrived.ids)) if arrived.ids else np.zeros(0, np.int64)
        arrived.ids = []
        first = (cta + self.geometry.first) * self.geometry.warps
        known = {first + warp: max(stamp, arrived.cta) for warp, stamp in enumerate(arrived.warps.tolist())}
        return Complete(arrived.cta, arrived.warps.copy(), rest, arrived.far, ids, arrived.back.done(known))

    def _shadows(self, cta: int, copied: Ids) -> Knowledge:
        """Return the knowledge of the copies of lanes up to their newest access, with whole warps as one stamp."""
        if not len(copied):
            return NOTHING
        geometry = self.geometry
        stamps = np.zeros(geometry.warps * WARP, np.int64)
        stamps[geometry.thread[copied]] = self.shadows[copied]
        exists = np.arange(len(stamps)) < geometry.threads
        whole = np.where(exists, stamps, _NEVER).reshape(-1, WARP).min(axis=1)
        number = cta + geometry.first + geometry.grid_threads // geometry.threads
        warps = {number * geometry.warps + warp: int(whole[warp]) for warp in np.flatnonzero(whole).tolist()}
        some = np.flatnonzero(exists & (stamps > np.repeat(whole, WARP))).tolist()
        return Knowledge({}, warps, {number * geometry.threads + thread: int(stamps[thread]) for thread in some})
