"""The order that mbarriers give: a thread that sees a phase complete comes after the arrivals and copies of that phase.

Arrivals of the object's own CTA are stamps in arrays; a whole warp and the whole CTA become one stamp each once all
their threads are there. Arrivals from other CTAs of the cluster, which must release at cluster scope, are joined one by
one. Copies that arrive belong to no program order. Each thread therefore has a virtual agent (its number plus the
number of threads of the grid) that makes the accesses of its copies. A wait for the phase then orders the copies
without the later accesses of the issuing thread.

Arrivals tell a copy in addition which threads are done with its stage (`HandedStages`). Completed asynchronous work
needs no release. Values that threads loaded before products have arrived once these products were waited for. Neither
orders an access of a thread: only the comparison of a copy uses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx import events
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, Released, Rows, together
from refsim.ptx.checks.race_reports import Pair, Reporter
from refsim.ptx.events import Hear, LaunchEvent
from refsim.ptx.execution.geometry import WARPGROUP, Geometry, Ids
from refsim.ptx.memory.access import CLUSTER, READ, WRITE, Semantics
from refsim.ptx.memory.arrays import Array

OBJECT_BYTES = 8
_NEVER = np.iinfo(np.int64).max
_WARPS = WARPGROUP // WARP
Stamps = dict[int, int]


@dataclass(frozen=True)
class Done:
    """Work that is over for a copy, by the kind of evidence.

    `settled`: asynchronous work before arrivals of any kind. `loaded`: reads of threads before a releasing arrival in
    another CTA, whatever the scope of either side, as pipelines hand stages back without a scope. `fed`: reads of
    threads before products that a releasing thread had waited for.
    """

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    fed: Knowledge = NOTHING

    def __or__(self, other: "Done") -> "Done":
        return Done(self.settled | other.settled, self.loaded | other.loaded, self.fed | other.fed)


NOTHING_DONE = Done()


@dataclass
class HandedBack:
    """What the threads that arrived at one object were done with. `products`: for each warp of the grid, its newest
    access by products that an arrival has waited for; `fed`: its newest access before these products."""

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    products: Stamps = field(default_factory=dict)
    fed: Stamps = field(default_factory=dict)

    def add(self, known: Knowledge, meaning: Semantics) -> None:
        """Record an arrival of threads with this knowledge, relaxed or from another CTA."""
        self.settled = self.settled | known
        if meaning.releases:
            self.loaded = self.loaded | known

    def done(self, known: Stamps) -> Done:
        """Return all of it except what is `known` of warps anyway."""
        products, fed = (
            {warp: stamp for warp, stamp in stamps.items() if stamp > known.get(warp, 0)}
            for stamps in (self.products, self.fed)
        )
        settled = self.settled | Knowledge(warps=products) if products else self.settled
        return Done(settled, self.loaded, Knowledge(warps=fed) if fed else NOTHING)


class HandedStages:
    """The products that warpgroups have waited for, and what lanes that waited at mbarriers know of others."""

    def __init__(self, clocks: list[Clocks], geometry: Geometry) -> None:
        self.clocks, self.geometry = clocks, geometry
        self.products, self.fed = (np.zeros(geometry.count * geometry.warpgroups, np.int64) for _ in range(2))
        self.known: list[dict[int, Done]] = [{} for _ in clocks]

    def products_waited_for(self, groups: Ids, now: int, begun: int) -> None:
        """Record that warpgroups waited for products that end with access `now` and began after access `begun`."""
        self.products[groups] = now
        self.fed[groups] = np.maximum(self.fed[groups], begun)

    def arrive(self, at: HandedBack, lanes: Ids, meaning: Semantics) -> None:
        """Record that lanes arrive after products that their warpgroups have waited for."""
        if self.products.any():
            at.products.update(self._of_warps(self.products, lanes))
            at.fed.update(self._of_warps(self.fed, lanes) if meaning.releases else {})

    def learn(self, order: int, lanes: Ids, done: Done, meaning: Semantics) -> None:
        """Record that lanes saw a phase complete whose arrivals were `done` with work; loads need an acquire."""
        if not meaning.acquires:
            done = Done(done.settled)
        if done.settled is not NOTHING or done.fed is not NOTHING:
            known = self.known[order]
            known.update({lane: known.get(lane, NOTHING_DONE) | done for lane in lanes.tolist()})

    @contextmanager
    def known_to(self, lanes: list[int], *kinds: str) -> Iterator[list[int]]:
        """Let lanes know the work in these fields of `Done` during a comparison; yield the lanes that know any."""
        before = []
        tables = [{"settled": self.products, "fed": self.fed}[kind] for kind in kinds if kind in ("settled", "fed")]
        for clocks, known in zip(self.clocks, self.known, strict=True):
            for lane in lanes if known or any(stamps.any() for stamps in tables) else ():
                own = [Knowledge(warps=at) for stamps in tables if (at := self._of_warps(stamps, np.array([lane])))]
                more = together([getattr(known.get(lane, NOTHING_DONE), kind) for kind in kinds] + own)
                if more is not NOTHING:
                    before.append((clocks, lane, int(clocks.rows.foreign[lane])))
                    clocks.learn(np.array([lane]), more)
        try:
            yield [lane for _, lane, _ in before]
        finally:
            for clocks, lane, foreign in before:
                clocks.rows.foreign[lane] = foreign

    def _of_warps(self, stamps: Array, lanes: Ids) -> Stamps:
        """Return the stamps of the warpgroups of these lanes as stamps of all their warps."""
        geometry, found = self.geometry, Stamps()
        for group in np.unique(geometry.warpgroup[lanes]).tolist():
            if stamps[group]:
                cta, rank = divmod(group, geometry.warpgroups)
                first = (cta + geometry.first) * geometry.warps + rank * _WARPS
                found.update(dict.fromkeys(range(first, first + _WARPS), int(stamps[group])))
        return found


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
        clocks.share_fences(lanes, np.zeros(clocks.geometry.lanes, np.int64), (self.arrived,), spans_ctas=True)

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
        self.notes: dict[object, list[Arrived]] = {}
        nobody = np.zeros(0, np.int64)
        self.nothing = Complete(0, np.zeros(self.geometry.warps, np.int64), NOTHING, NOTHING, nobody)

    def hears(self) -> dict[str, Hear]:
        """Return what hears the events of each verb."""
        return {
            events.FENCE_INITS: self.inits_fenced,
            events.CLUSTER_FINISH: self.clusters_completed,
            events.MBARRIER_INIT: self.born,
            events.MBARRIER_END: self.died,
            events.MBARRIER_TOUCH: self.touched,
            events.MBARRIER_ARRIVE: self.arrive,
            events.MBARRIER_ASK: self.note,
            events.MBARRIER_COME: self.arrive_noted,
            events.MBARRIER_OBSERVE: self.observed,
            events.WAIT_COPIES: self.waited_themselves,
            events.WAIT_BULK: self.waited_for,
        }

    # ---- objects
    def born(self, event: LaunchEvent) -> None:
        """Record that a lane's newest access initialized an object."""
        flat = event.payload
        self.births[flat] = Birth(self._agent(int(event.lanes[0])), self.history.now)
        self.arrived[flat] = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        self.complete[flat] = [self.nothing for _ in self.clocks]

    def touched(self, event: LaunchEvent) -> None:
        """Record that threads arrive at an object or wait for it; report a thread that does not come after its init."""
        access, flat = event.payload
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

    def inits_fenced(self, event: LaunchEvent) -> None:
        """Record that threads fence the objects that they initialized, for those who meet them at the cluster
        barrier."""
        own = set((event.lanes + self._agent(0)).tolist())
        for birth in self.births.values():
            birth.is_fenced |= birth.agent in own

    def clusters_completed(self, event: LaunchEvent) -> None:
        """Record that all threads of clusters met: they come after every fenced initialization."""
        clusters, self.cluster_met[event.lanes] = event.payload, self.history.now
        for flat, birth in self.births.items():
            if birth.is_fenced and birth.met == _NEVER and self.geometry.cluster_of(flat // self.stride) in clusters:
                birth.met = self.history.now

    def died(self, event: LaunchEvent) -> None:
        """Record that a thread ends an object; report an access of another thread to it that did not happen before. A
        meeting of the warp is enough, as cuda::pipeline ends its barriers so."""
        access, flat = event.payload
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
    def arrive(self, event: LaunchEvent) -> None:
        """Record arrivals: they release what the lanes know, or, if relaxed, what they knew at their last fence."""
        flat, lanes, meaning = event.payload, event.lanes, event.meaning
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

    def note(self, event: LaunchEvent) -> None:
        """Note what lanes of one CTA know now, in each order, for a later arrival at an object on their behalf."""
        lanes, (flat, arrival) = event.lanes, event.payload
        notes = self.notes[arrival] = [Arrived.nobody(self.geometry.warps) for _ in self.clocks]
        is_own = self.geometry.cta[lanes[0]] == flat // self.stride
        for clocks, arrived in zip(self.clocks, notes, strict=True):
            if is_own:
                arrived.add(self.geometry, clocks.rows, lanes, self.history.now)
            else:
                arrived.far = arrived.back.settled = clocks.snapshots(clocks.rows, lanes, self.history.now)

    def arrive_noted(self, event: LaunchEvent) -> None:
        """Add arrivals that were noted before."""
        flat, arrival = event.payload
        for arrived, note in zip(self.arrived[flat], self.notes.pop(arrival), strict=True):
            arrived.join(note)

    # ---- copies that arrived
    def landed(self, lanes: Ids) -> Array:
        """Make the newest access one of the virtual agents of these lanes, and return the numbers of these agents."""
        self.shadows[lanes] = self.history.now
        return (lanes + self._agent(0) + self.geometry.grid_threads).astype(np.int32)

    def waited_themselves(self, event: LaunchEvent) -> None:
        """Let lanes come after their own copies, which they waited for by groups."""
        for lane in event.lanes[self.shadows[event.lanes] > 0].tolist():
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: int(self.shadows[lane])})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    def agent_of(self, flat: int) -> int:
        """Return the virtual agent, of no thread, that makes the accesses of copy engines counted at an object."""
        cta, at = divmod(flat, self.stride)
        thread = at // OBJECT_BYTES % self.geometry.threads
        return self._agent(cta * self.geometry.threads + thread) + 2 * self.geometry.grid_threads

    def waited_for(self, event: LaunchEvent) -> None:
        """Let each lane come after an access of its virtual agent, as it waited for that bulk group."""
        for lane, number in (each for each in event.payload if each[1]):
            known = Knowledge(threads={self._agent(lane) + self.geometry.grid_threads: number})
            for clocks in self.clocks:
                clocks.learn(np.array([lane]), known)

    # ---- phases
    def observed(self, event: LaunchEvent) -> None:
        """Complete a phase when the first thread sees it complete: its knowledge is fixed from now on. It covers the
        arrivals so far, the copies of lanes, and the transfers of copy engines."""
        flat, copied, transfers = event.payload
        self.unseen.pop(flat, None)
        shadows = self._shadows(flat // self.stride, np.unique(np.concatenate(copied))) if copied else NOTHING
        if transfers:
            shadows = shadows | Knowledge(threads=transfers)
        self.complete[flat] = [
            self._freeze(clocks, arrived, flat // self.stride, shadows)
            for clocks, arrived in zip(self.clocks, self.arrived[flat], strict=True)
        ]

    def passed(self, event: LaunchEvent) -> None:
        """Let lanes acquire the knowledge of the phase that they saw complete."""
        flat, lanes, meaning = event.payload, event.lanes, event.meaning
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
        geometry = self.geometry
        stamps = np.zeros(geometry.warps * WARP, np.int64)
        stamps[geometry.thread[copied]] = self.shadows[copied]
        exists = np.arange(len(stamps)) < geometry.threads
        whole = np.where(exists, stamps, _NEVER).reshape(-1, WARP).min(axis=1)
        number = cta + geometry.first + geometry.grid_threads // geometry.threads
        warps = {number * geometry.warps + warp: int(whole[warp]) for warp in np.flatnonzero(whole).tolist()}
        some = np.flatnonzero(exists & (stamps > np.repeat(whole, WARP))).tolist()
        return Knowledge({}, warps, {number * geometry.threads + thread: int(stamps[thread]) for thread in some})
