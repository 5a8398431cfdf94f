"""What mbarriers order: whoever sees a phase complete comes after those that arrived in it, and after the copies that did.

Arrivals of the object's own CTA are stamps in arrays, whole warps and the whole CTA one stamp each once all are there;
arrivals from elsewhere in the cluster, which must release to the cluster, are joined one by one. Copies that arrive are
accesses of nobody's program: each thread has a shadow behind the threads of the grid, whose accesses they are, so that a
wait for the phase brings the copies without what their thread did meanwhile.
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
    """What those that arrived at one object know, by one order: stamps of its CTA, of each warp and thread of it, numbers of
    what they learned elsewhere, and what others of the cluster released."""

    cta: int
    warps: Array
    threads: Array
    foreign: set[int] = field(default_factory=set)
    far: Knowledge = NOTHING
    back: HandedBack = field(default_factory=HandedBack)
    ids: list[Ids] = field(default_factory=list)

    @staticmethod
    def nobody(warps: int) -> "Arrived":
        return Arrived(0, np.zeros(warps, np.int64), np.zeros(warps * WARP, np.int64))

    def add(self, geometry: Geometry, rows: Rows, lanes: Ids, stamps: Array | int) -> None:
        """Lanes of the object's CTA know what stands in `rows`, and were there up to access `stamps`."""
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
        """Those of another set have arrived too."""
        self.cta = max(self.cta, other.cta)
        np.maximum(self.warps, other.warps, out=self.warps)
        np.maximum(self.threads, other.threads, out=self.threads)
        self.foreign |= other.foreign
        self.ids += other.ids
        self.far = self.far | other.far
        self.back.settled = self.back.settled | other.back.settled


@dataclass(frozen=True, eq=False)
class Complete:
    """What a complete phase brings to a thread of its CTA: two coarse stamps, and the rest."""

    cta: int
    warps: Array
    rest: Knowledge
    far: Knowledge
    arrived: Ids
    done: Done = NOTHING_DONE

    def give(self, clocks: Clocks, lanes: Ids, scope: int) -> None:
        """These lanes saw it, and acquire to a scope."""
        clocks.learn_of_cta(lanes, self.cta, self.warps)
        clocks.learn(lanes, self.rest)
        if scope >= CLUSTER or clocks.ignores_scopes:
            clocks.learn(lanes, self.far)
        if clocks.fenced.is_used:
            everyone = np.union1d(self.arrived, lanes)
            clocks.fenced.share(everyone, np.zeros(len(everyone), np.int64), np.isin(everyone, lanes))

    def released(self, geometry: Geometry, cta: int) -> Released:
        """The same as what a later acquire by a fence brings."""
        number = cta + geometry.first
        stamps = {number * geometry.warps + warp: int(self.warps[warp]) for warp in np.flatnonzero(self.warps).tolist()}
        near = self.rest | Knowledge({number: self.cta}, stamps)
        return Released(ctas={number: near}, clusters={number // geometry.cluster_ctas: self.far}, is_narrow=True)


@dataclass
class Birth:
    """Who initialised an object, by which access, and the last access of every thread to it since.

    `is_fenced`: a fence.mbarrier_init of that thread followed; `met`: the access behind which its cluster then met, so that
    whoever was there knows the object.
    """

    agent: int
    number: int
    touched: dict[int, int] = field(default_factory=dict)
    is_fenced: bool = False
    met: int = _NEVER


class PhaseOrder:
    """The objects by their byte position in the flat shared memory: their arrivals, and what their last phase brings."""

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
        """A lane's newest access initialised the object."""
        self.births[flat] = Birth(self._agent(lane), self.history.now)
        self.arrived[flat] = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        self.complete[flat] = [self.nothing for _ in self.clocks]

    def touched(self, access: Access, flat: int) -> None:
        """Threads arrive or wait: what initialised the object must have happened before."""
        birth, lanes = self.births[flat], access.threads.ids
        number = self.history.number(access.statement, access.width)
        own = self.geometry.cta[lanes] == flat // self.stride
        late = lanes[~own | (self.clocks[0].rows.cta[lanes] < birth.number)]
        if len(late) and self.reporter.is_news(access.statement):
            born = np.full(len(late), birth.agent), np.full(len(late), birth.number)
            ordered = self.clocks[0].is_ordered(late, *born) | (self.cluster_met[late] >= birth.met)
            if not ordered.all():
                pair = self._pair(int(late[np.argmin(ordered)]), birth.agent, birth.number)
                self.reporter.report(access, pair, (access.space, flat % self.stride))
        birth.touched.update(dict.fromkeys((lanes + self._agent(0)).tolist(), number))

    def inits_fenced(self, lanes: Ids) -> None:
        """These threads fence what they initialised."""
        own = set((lanes + self._agent(0)).tolist())
        for birth in self.births.values():
            birth.is_fenced |= birth.agent in own

    def clusters_completed(self, clusters: Array, lanes: Ids) -> None:
        """All threads of these clusters have arrived at the barrier: `lanes`, which come after every init that was fenced."""
        self.cluster_met[lanes] = self.history.now
        for flat, birth in self.births.items():
            if birth.is_fenced and birth.met == _NEVER and self.geometry.cluster_of(flat // self.stride) in clusters:
                birth.met = self.history.now

    def died(self, access: Access, flat: int) -> None:
        """A thread ends the object: what others did there must have happened before. A meeting of the warp is enough, as
        cuda::pipeline ends its barriers so."""
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

    def _pair(self, lane: int, other: int, number: int) -> Pair:
        loose = self.loosest.is_ordered(np.array([lane]), np.array([other]), np.array([number]))
        return Pair(lane, other, number, WRITE, converged=bool(loose[0]))

    def _agent(self, lane: int) -> int:
        return lane + self.geometry.first * self.geometry.threads

    # ---- arrivals
    def arrive(self, flat: int, lanes: Ids, meaning: Semantics) -> None:
        """Lanes arrive: a release of what they know, or where they are relaxed of what they knew at their last fence."""
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
        """The threads of other CTAs that arrived at objects of this one in phases that no thread saw complete, and their newest
        arrival: the CTA has to stay until these are over."""
        found: dict[int, int] = {}
        for flat in [flat for flat in self.unseen if flat // self.stride == cta]:
            for agent, number in self.unseen.pop(flat).items():
                found[agent] = max(found.get(agent, 0), number)
        return found

    def _settles(self, own: NDArray[np.bool_], meaning: Semantics) -> NDArray[np.bool_]:
        """Which arrivals say that the thread is done with what copies brought, and release nothing that a wait of the CTA gets:
        relaxed ones, and those of other CTAs, whatever their scope."""
        return ~own | (not meaning.releases)

    def _add_near(self, clocks: Clocks, arrived: Arrived, lanes: Ids, meaning: Semantics) -> None:
        if meaning.releases:
            arrived.add(self.geometry, clocks.rows, lanes, self.history.now)
            return
        for rows in clocks.fences.values():
            fenced = lanes[rows.own[lanes] > 0]
            if len(fenced):
                arrived.add(self.geometry, rows, fenced, rows.own[fenced])

    def _released_far(self, clocks: Clocks, lane: int, meaning: Semantics) -> Knowledge:
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
        """What lanes of one CTA know now, for arrivals at an object that will come on their behalf."""
        notes = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        is_own = self.geometry.cta[lanes[0]] == flat // self.stride
        for clocks, arrived in zip(self.clocks, notes, strict=True):
            if is_own:
                arrived.add(self.geometry, clocks.rows, lanes, self.history.now)
            else:
                arrived.far = arrived.back.settled = clocks.snapshots(clocks.rows, lanes, self.history.now)
        return notes

    def arrive_noted(self, flat: int, notes: list[Arrived]) -> None:
        """Those arrivals have come."""
        for arrived, note in zip(self.arrived[flat], notes, strict=True):
            arrived.join(note)

    # ---- copies that arrived
    def landed(self, lanes: Ids) -> Array:
        """The newest access is by the shadows of these lanes; their numbers."""
        self.shadows[lanes] = self.history.now
        return (lanes + self._agent(0) + self.geometry.grid_threads).astype(np.int32)

    def waited_themselves(self, lanes: Ids) -> None:
        """These lanes waited for their copies by groups, whoever else counts on them."""
        for lane in lanes[self.shadows[lanes] > 0].tolist():
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: int(self.shadows[lane])})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    def agent_of(self, flat: int) -> int:
        """Whose accesses those of a copy engine are that the object at a byte position counts: nobody's thread."""
        cta, at = divmod(flat, self.stride)
        thread = at // OBJECT_BYTES % self.geometry.threads
        return self._agent(cta * self.geometry.threads + thread) + 2 * self.geometry.grid_threads

    def waited_for(self, lane: int, number: int) -> None:
        """A lane has waited for a bulk group, of which its shadow made access `number`."""
        if number:
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: number})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    # ---- phases
    def observed(self, flat: int, copied: Ids, transfers: dict[int, int]) -> None:
        """Somebody sees, as the first one, that a phase is complete: from now on it brings what had arrived by then, the
        copies of these lanes, and what copy engines wrote: up to which access of each agent."""
        self.unseen.pop(flat, None)
        shadows = self._shadows(flat // self.stride, copied)
        if transfers:
            shadows = shadows | Knowledge(threads=transfers)
        self.complete[flat] = [
            self._freeze(clocks, arrived, flat // self.stride, shadows)
            for clocks, arrived in zip(self.clocks, self.arrived[flat], strict=True)
        ]

    def passed(self, flat: int, lanes: Ids, meaning: Semantics) -> None:
        """Lanes saw that the phase before the current one is complete."""
        for order, (clocks, complete) in enumerate(zip(self.clocks, self.complete[flat], strict=True)):
            self.stages.learn(order, lanes, complete.done, meaning)
            if meaning.acquires:
                complete.give(clocks, lanes, meaning.scope)
                continue
            found = complete.released(self.geometry, flat // self.stride)
            for lane in lanes.tolist():
                clocks.pending.setdefault(lane, {})[id(found)] = found

    def _freeze(self, clocks: Clocks, arrived: Arrived, cta: int, shadows: Knowledge) -> Complete:
        """What has arrived so far, as coarse as it may be said; the next phase goes on from it."""
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
        """Up to which access the copies of lanes are known, whole warps as one."""
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
