"""The happens-before order of the PTX memory model: barriers, and releases that acquires observe.

Agents are lanes. What a lane knows of its own CTA lies in arrays over all lanes, from coarse to fine. The arrays for
the whole CTA and for its own warp always exist. The arrays for every warp of the CTA and for every lane of the warp are
made once something partial happens. What it learned from single threads or from other CTAs is the number of a
`Knowledge`. A barrier of the CTA costs one store, and a kernel that uses no other synchronization pays for nothing
else.

Sequentially consistent fences may be separated by barriers from the accesses that publish the data. "All threads write;
__threadfence(); __syncthreads(); thread 0 counts the block" is no release pattern of a single thread: the fences of the
others stand before the barrier. It is correct. If a reader's fence came before one of these fences in their total
order, the reader's load of the counter would come before the count that it saw. So a fence that happened before a
strong write covers for a fence after a strong read of it, with barriers in between. Their scopes must include both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx.checks.knowledge import (
    NOTHING,
    Answers,
    Fenced,
    Gathered,
    Key,
    Knowledge,
    Released,
    Rows,
    as_stamps,
    joined,
    largest,
    of_lane,
    of_lanes,
    places,
    together,
)
from refsim.ptx.execution.geometry import Geometry, Ids, key_of, runs
from refsim.ptx.memory.access import CLUSTER, CTA, GPU, SYS, Semantics
from refsim.ptx.memory.arrays import Array, Bools

BARRIERS = 16  # of a CTA
_NO_FENCES: Fenced = {}
_MANY = 256  # questions from which equal neighbors are asked once


@dataclass
class FenceOrder:
    """For each lane: the knowledge of fences that happened before it, and of fences before the writes that it saw.
    `before` and `seen` number entries of `known`; `fresh` lanes fenced since. `within`: each lane's CTA, cluster or GPU."""

    lanes: int
    snapshot: Callable[[Ids], Knowledge]
    within: Array
    known: list[Knowledge] = field(default_factory=lambda: [NOTHING])
    is_used: bool = False

    def __post_init__(self) -> None:
        self.before, self.seen = np.zeros(self.lanes, np.int32), np.zeros(self.lanes, np.int32)
        self.fresh: Bools = np.zeros(self.lanes, np.bool_)

    def fence(self, lanes: Ids) -> None:
        """Record that lanes execute a fence; its coverage is computed when the lane writes or meets others."""
        self.fresh[lanes] = self.is_used = True

    def covered(self, lane: int) -> Knowledge:
        """Return the knowledge that fences before a lane's next write cover."""
        found = self.known[int(self.before[lane])]
        return found | self.snapshot(np.array([lane])) if self.fresh[lane] else found

    def see(self, lanes: Ids, found: Knowledge) -> None:
        """Record that strong reads by lanes saw a write after fences that cover `found`."""
        if found is NOTHING:
            return
        self.is_used = True
        for number, some in self.seen_by(lanes):
            before = self.known[number]
            if (after := before | found) is not before:
                self.seen[some] = self._number(after)

    def seen_by(self, lanes: Ids) -> Iterator[tuple[int, Ids]]:
        """Yield groups of lanes with equal knowledge of seen fences, with its number in `known`."""
        seen = self.seen[lanes]
        for number in np.unique(seen).tolist() if len(lanes) > 1 else seen.tolist():
            yield number, lanes[seen == number]

    def share(self, lanes: Ids, group: Array, waited: Bools | None = None) -> None:
        """Share knowledge within each group that met; lanes that only arrived (`waited` is False) learn nothing."""
        if not self.fresh[lanes].any() and all(
            (table[lanes] == table[lanes[0]]).all() for table in (self.before, self.seen)
        ):
            return
        order = np.argsort(group, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            mine = lanes[part]
            to = mine if waited is None else lanes[part[waited[part]]]
            fresh = mine[self.fresh[mine]]
            if len(fresh) or (self.before[mine] != self.before[mine[0]]).any():
                self._put(self.before, mine, to, [self.snapshot(fresh)] if len(fresh) else [])
                self.fresh[to] = False
            if (self.seen[mine] != self.seen[mine[0]]).any():
                self._put(self.seen, mine, to, [])

    def _put(self, table: Array, lanes: Ids, to: Ids, more: list[Knowledge]) -> None:
        """Set the entries of lanes `to` in a table to all that `lanes` and `more` know."""
        held = [self.known[number] for number in np.unique(table[lanes]).tolist() if number]
        table[to] = self._number(joined((*held, *more)))

    def _number(self, found: Knowledge) -> int:
        self.known.append(found)
        return len(self.known) - 1


@dataclass
class Clocks:
    """The happens-before order of one launch: rows of the running lanes, and what is released at locations. `released`
    outlives the running CTAs for locations in global memory. Stamps are access numbers. `ignores_scopes`: arrivals at
    mbarriers of other CTAs are effective there, whatever their scope. `fenced`: the fences by their `scopes`."""

    geometry: Geometry
    released: dict[Key, Released]
    ignores_scopes: bool = False
    scopes: Iterable[int] = (CTA, CLUSTER, GPU)
    known: list[Knowledge] = field(default_factory=lambda: [NOTHING])
    answers: Answers = field(default_factory=Answers)
    learned: dict[tuple[int, Knowledge], int] = field(default_factory=dict)
    fences: dict[int, Rows] = field(default_factory=dict)
    pending: dict[int, dict[int, Released]] = field(default_factory=dict)
    gathered: dict[int, Gathered] = field(default_factory=dict)
    repeated: dict[tuple[int, Key], tuple[Knowledge, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = self.geometry.first * self.geometry.threads
        self.rows = Rows.empty(self.geometry.lanes)
        ctas, lanes = self.geometry.cta + self.geometry.first, self.geometry.lanes
        within = {CTA: 2 * ctas, CLUSTER: 2 * (ctas // self.geometry.cluster_ctas) + 1, GPU: np.full(lanes, -1)}
        self.fenced = {it: FenceOrder(lanes, partial(self.at_fences, scope=it), within[it]) for it in self.scopes}

    # ---- questions
    def is_ordered(self, lanes: Ids, agent: Array, stamp: Array) -> Bools:
        """Return whether access `stamp` of thread `agent` (of the grid) happened before what each lane does now."""
        if len(lanes) == 1:
            return np.array([self._is_one_ordered(int(lanes[0]), int(agent[0]), int(stamp[0]))])
        if len(lanes) >= _MANY:
            differs = (lanes[1:] != lanes[:-1]) | (agent[1:] != agent[:-1]) | (stamp[1:] != stamp[:-1])
            starts = np.append(0, np.flatnonzero(differs) + 1)
            if len(starts) <= len(lanes) // 2:  # neighbors usually ask about one access
                few = self.is_ordered(lanes[starts], agent[starts], stamp[starts])
                return few.repeat(np.diff(starts, append=len(lanes)))
        geometry, rows = self.geometry, self.rows
        cta, thread = agent // geometry.threads, agent % geometry.threads
        mine = geometry.cta[lanes] + geometry.first
        inside, warp = cta == mine, thread // WARP
        near = inside & (warp == geometry.thread[lanes] // WARP)
        stamps = np.where(inside, rows.cta[lanes], 0)
        stamps = np.where(near, np.maximum(stamps, rows.warp[lanes]), stamps)
        if rows.warps is not None:
            stamps = np.where(inside, np.maximum(stamps, rows.warps[lanes, warp]), stamps)
        if rows.lanes is not None:
            stamps = np.where(near, np.maximum(stamps, rows.lanes[lanes, thread % WARP]), stamps)
        ordered = (stamp <= stamps) | (agent == self.thread(lanes))
        foreign = rows.foreign[lanes]
        for number in np.unique(foreign[~ordered & (foreign > 0)]).tolist():
            some = np.flatnonzero(~ordered & (foreign == number))
            names = cta[some], cta[some] * geometry.warps + warp[some], agent[some]
            known = self.answers.stamps(self.known[number], *names)
            ordered[some] = stamp[some] <= known
        return np.asarray(ordered)

    def comes_after(self, lane: int, agents: Array, stamp: int) -> Bools:
        """Return for each thread that made access `stamp` whether it happened before what one lane does now."""
        if len(agents) == 1:
            return np.array([self._is_one_ordered(lane, int(agents[0]), stamp)])
        threads, rows = self.geometry.threads, self.rows
        of_grid, mine = divmod(lane, threads)
        thread = agents - (of_grid + self.geometry.first) * threads
        inside = (thread >= 0) & (thread < threads)
        near = inside & (thread // WARP == mine // WARP)
        ordered = agents == lane + self.first
        if stamp <= rows.cta[lane]:
            ordered |= inside
        if stamp <= rows.warp[lane]:
            ordered |= near
        if rows.warps is not None:
            ordered[inside] |= stamp <= rows.warps[lane, thread[inside] // WARP]
        if rows.lanes is not None:
            ordered[near] |= stamp <= rows.lanes[lane, thread[near] % WARP]
        foreign = int(rows.foreign[lane])
        if foreign and not ordered.all():
            others = agents[~ordered]
            names = others // threads, others // threads * self.geometry.warps + others % threads // WARP, others
            ordered[~ordered] = stamp <= self.answers.stamps(self.known[foreign], *names)
        return np.asarray(ordered)

    def _is_one_ordered(self, lane: int, agent: int, stamp: int) -> bool:
        """Return whether access `stamp` of thread `agent` happened before what one lane does now."""
        geometry, rows = self.geometry, self.rows
        (cta, thread), foreign = divmod(agent, geometry.threads), int(rows.foreign[lane])
        if agent == lane + self.first:
            return True
        if cta == geometry.cta[lane] + geometry.first:
            warp, is_near = thread // WARP, thread // WARP == geometry.thread[lane] // WARP
            if (
                stamp <= rows.cta[lane]
                or (is_near and stamp <= rows.warp[lane])
                or (rows.warps is not None and stamp <= rows.warps[lane, warp])
                or (is_near and rows.lanes is not None and stamp <= rows.lanes[lane, thread % WARP])
            ):
                return True
        names = (np.array([name]) for name in (cta, cta * geometry.warps + thread // WARP, agent))
        return foreign > 0 and bool(stamp <= self.answers.stamps(self.known[foreign], *names)[0])

    def thread(self, lanes: Ids) -> Ids:
        """Return the number of each lane's thread in the grid."""
        return lanes + self.first

    def floor(self, alive: Bools) -> int:
        """Return the newest access number up to which every living lane comes after all accesses of its own CTA."""
        return int(self.rows.cta[alive].min(initial=np.iinfo(np.int32).max))

    # ---- meetings
    def meet_cta(self, lanes: Ids, now: int) -> None:
        """Record a barrier of all living threads of these lanes' CTAs, each CTA for itself."""
        self.rows.cta[key_of(lanes)] = now
        if len(self.known) > 1:
            self._share(lanes, self.geometry.cta[lanes])
        self.share_fences(lanes, self.geometry.cta)

    def meet_warps(self, lanes: Ids, now: int) -> None:
        """Record a barrier of all living lanes of these warps, each warp for itself."""
        if self.rows.lanes is not None or len(self.known) > 1:  # otherwise all lanes of a warp have equal knowledge
            self._share_rows(lanes, self.geometry.warp[lanes])
        self.share_fences(lanes, self.geometry.warp)
        self.rows.warp[key_of(lanes)] = now

    def meet_lanes(self, lanes: Ids, group: Array, now: int) -> None:
        """Record a barrier of the lanes of each group; a group lies in one warp."""
        if self.rows.lanes is None:
            self.rows.lanes = np.zeros((self.geometry.lanes, WARP), np.int32)
        starts, order = met = runs(group)
        self._share_rows(lanes, group, met)
        for fences in self.fenced.values():
            fences.share(lanes, group)
        number = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(lanes)))
        mine = lanes[order]
        members = np.zeros((len(starts), WARP), np.bool_)
        members[number, self.geometry.laneid[mine]] = True
        self.rows.lanes[mine] = np.where(members[number], now, self.rows.lanes[mine])

    def arrive(self, slot: int, lanes: Ids, now: int) -> None:
        """Record that warps arrive at a barrier (CTA * 16 + number): waiting lanes come after what these did so far."""
        rows, found = self._with_warps(), self.gathered.setdefault(slot, Gathered(self.geometry.warps))
        found.cta = max(found.cta, int(rows.cta[lanes].max()))
        assert rows.warps is not None
        np.maximum(found.warps, rows.warps[lanes].max(axis=0), out=found.warps)
        found.warps[np.unique(self.geometry.thread[lanes] // WARP)] = now
        found.foreign |= set(np.unique(rows.foreign[lanes]).tolist())
        found.lanes.append(lanes)

    def leave(self, slot: int, lanes: Ids) -> None:
        """Record that these lanes waited at the barrier until it was complete."""
        found = self.gathered.pop(slot, None)
        if found is None:
            return
        self.learn_of_cta(lanes, found.cta, found.warps)
        self.learn(lanes, together(self.known[number] for number in sorted(found.foreign)))
        self.share_fences(lanes, self.geometry.cta, found.lanes)

    def learn_of_cta(self, lanes: Ids, cta: int, warps: Array) -> None:
        """Let lanes come after the accesses of their own CTA up to `cta`, and of each of its warps up to `warps`."""
        self.rows.cta[lanes] = np.maximum(self.rows.cta[lanes], cta)
        if (warps > cta).any():
            table = self._with_warps().warps
            assert table is not None
            table[lanes] = np.maximum(table[lanes], warps)

    def _with_warps(self) -> Rows:
        """Return the rows, with the table of warps made if it is missing."""
        if self.rows.warps is None:
            self.rows.warps = np.zeros((self.geometry.lanes, self.geometry.warps), np.int32)
        return self.rows

    def _share_rows(self, lanes: Ids, group: Array, met: tuple[Ids, Ids] | None = None) -> None:
        """Let the lanes of each group know what any of them knew; `met`: the runs of the groups, if they are known."""
        rows = self.rows
        for table in (rows.cta, rows.warp, rows.warps, rows.lanes):
            if table is None:
                continue
            held = table[lanes]
            if (held == held[:1]).all():
                continue
            starts, order = met = met or runs(group)
            most = np.maximum.reduceat(held[order], starts, axis=0)
            table[lanes[order]] = np.repeat(most, np.diff(starts, append=len(lanes)), axis=0)
        self._share(lanes, group)

    def _share(self, lanes: Ids, group: Array) -> None:
        """Let the lanes of each group know what any of them learned from other CTAs or single threads."""
        if len(self.known) == 1:
            return
        foreign = self.rows.foreign[lanes]
        if (foreign == foreign[0]).all():
            return
        starts, order = runs(group)
        least, most = (function.reduceat(foreign[order], starts) for function in (np.minimum, np.maximum))
        stops = np.append(starts[1:], len(lanes))
        for number in np.flatnonzero(least != most).tolist():
            mine = lanes[order[starts[number] : stops[number]]]
            self.learn(mine, together(self.known[each] for each in np.unique(self.rows.foreign[mine]).tolist()))

    def share_fences(self, lanes: Ids, group: Array, arrived: Sequence[Ids] = (), *, spans_ctas: bool = False) -> None:
        """Let lanes know of the fences in their `group` (of all lanes), or of those that `arrived`, by scope. A group of
        one CTA needs no division by scope."""
        for order in self.fenced.values():
            if order.is_used:
                everyone = np.unique(np.concatenate([*arrived, lanes])) if arrived else lanes
                groups = group[everyone]
                if spans_ctas and order.within[0] >= 0:  # the GPU's fences are one group
                    groups = groups + order.within[everyone] * order.lanes
                order.share(everyone, groups, np.isin(everyone, lanes) if arrived else None)

    # ---- releases and acquires
    def fence(self, lanes: Ids, meaning: Semantics, now: int) -> None:
        """Record a fence of these lanes. It releases what they know now by their next strong write, and acquires what
        their strong reads observed."""
        if meaning.acquires and self.pending:
            for lane, one in zip(lanes.tolist(), lanes[:, None], strict=True):
                for found in self.pending.pop(lane, {}).values():
                    self._acquire(one, found, meaning.scope)
        for scope, order in self.fenced.items():
            if meaning.sequential and meaning.scope >= scope:
                for number, some in order.seen_by(lanes) if order.is_used else ():
                    self.learn(some, order.known[number])
                order.fence(lanes)
        if meaning.releases:
            for scope in range(min(meaning.scope, GPU) + 1):
                self._note(self.fences.setdefault(scope, Rows.empty(self.geometry.lanes)), lanes, now)

    def at_fences(self, lanes: Ids, scope: int = GPU) -> Knowledge:
        """Return the joint knowledge at the last fences of these lanes that have at least this scope."""
        if scope not in self.fences:
            return NOTHING
        rows, geometry = self.fences[scope], self.geometry
        if rows.warps is not None or rows.lanes is not None or len(lanes) == 1:
            return joined(tuple(self.snapshot(rows, lane, int(rows.own[lane])) for lane in lanes.tolist()))
        foreign = tuple(self.known[number] for number in np.unique(rows.foreign[lanes]).tolist() if number)
        ctas, warps = geometry.cta[lanes] + geometry.first, geometry.warp[lanes] + geometry.first * geometry.warps
        stamps = (rows.cta, ctas), (rows.warp, warps), (rows.own, self.thread(lanes))
        return joined(foreign, *(as_stamps(*largest(names, table[lanes])) for table, names in stamps))

    def _note(self, to: Rows, lanes: Ids, now: int) -> None:
        """Copy the rows of lanes to another table, with `now` as their newest own access."""
        rows = self.rows
        to.cta[lanes], to.warp[lanes], to.foreign[lanes] = rows.cta[lanes], rows.warp[lanes], rows.foreign[lanes]
        to.own[lanes] = now
        for name in ("warps", "lanes"):
            table = getattr(rows, name)
            if table is not None:
                if getattr(to, name) is None:
                    setattr(to, name, np.zeros_like(table))
                getattr(to, name)[lanes] = table[lanes]

    def read(self, lanes: Ids, keys: list[Key], meaning: Semantics) -> None:
        """Record that strong reads observe what is released at these locations."""
        if not self.released:
            return
        for key, positions in places(keys).items():
            found = self.released.get(key)
            if found is None:
                continue
            readers = lanes[positions]
            for order in self.fenced.values() if found.fenced else ():
                within = order.within[readers]
                if within[0] == within[-1] and (within == within[0]).all():
                    order.see(readers, found.fenced.get(int(within[0]), NOTHING))
                    continue
                for number in np.unique(within).tolist():
                    order.see(readers[within == number], found.fenced.get(number, NOTHING))
            if meaning.acquires:
                self._acquire(readers, found, meaning.scope)
                continue
            for lane in readers.tolist():
                self.pending.setdefault(lane, {})[id(found)] = found

    def write(self, lanes: Ids, keys: list[Key], meaning: Semantics, now: int, *, update: bool) -> None:
        """Record writes to these locations: a read-modify-write continues a chain of releases, others end it."""
        orders = [order for order in self.fenced.values() if order.is_used] if meaning.strong else []
        for lane, key in zip(lanes.tolist(), keys, strict=True):
            before = self.released.get(key) if update else None
            added = self._release(lane, key, meaning, now) if meaning.strong else None
            fenced = self._fenced(orders, lane) if orders else _NO_FENCES
            if added is not None or fenced:
                self.released[key] = self._merged(before, *(added or (NOTHING, CTA)), fenced, lane)
            elif before is None:
                self.released.pop(key, None)

    @staticmethod
    def _fenced(orders: Sequence[FenceOrder], lane: int) -> Fenced:
        """Return what fences before a lane's write cover, by where they count."""
        found = ((int(order.within[lane]), order.covered(lane)) for order in orders)
        return {within: known for within, known in found if known is not NOTHING}

    @property
    def matters(self) -> bool:
        """Return whether a write may begin or end a chain of releases: none can without fences and releases."""
        return bool(self.released or self.fences)

    def _release(self, lane: int, key: Key, meaning: Semantics, now: int) -> tuple[Knowledge, int] | None:
        """Return what a strong write by a lane releases, and its scope; None for nothing. A release covers what the
        lane knows. Another write covers what the lane knew at its last fence, or what its last release of this location
        covered: the one of wider scope, or both."""
        if meaning.releases:
            found = self.snapshot(self.rows, lane, now), min(meaning.scope, GPU)
            self.repeated[lane + self.first, key] = found
            return found
        again = self.repeated.get((lane + self.first, key)) if self.repeated else None
        for scope in range(min(meaning.scope, GPU), -1, -1):
            rows = self.fences.get(scope)
            if rows is not None and rows.own[lane]:
                if again is None or again[1] < scope:
                    return self.snapshot(rows, lane, int(rows.own[lane])), scope
                known = self.snapshot(rows, lane, int(rows.own[lane]))
                return (known | again[0], scope) if again[1] == scope else again
        return again

    def snapshot(self, rows: Rows, lane: int, now: int) -> Knowledge:
        """Return what one lane knows by these rows, with all that it did itself up to `now`."""
        return of_lane(self.geometry, self.known, rows, lane, now)

    def snapshots(self, rows: Rows, lanes: Ids, now: int) -> Knowledge:
        """Return what several lanes know together."""
        return of_lanes(self.geometry, self.known, rows, lanes, now)

    def _merged(self, before: Released | None, added: Knowledge, scope: int, fenced: Fenced, lane: int) -> Released:
        """Return what a location releases after `added` (with a scope) and `fenced` join its earlier releases."""
        before = before or Released()
        cta = lane // self.geometry.threads + self.geometry.first
        cluster = self.cluster(cta)
        ctas = before.ctas | {cta: before.ctas.get(cta, NOTHING) | added}
        clusters = before.clusters
        if scope >= CLUSTER:
            clusters = clusters | {cluster: clusters.get(cluster, NOTHING) | added}
        everybody = before.everybody | added if scope >= GPU else before.everybody
        is_narrow = before.is_narrow or (scope < GPU and added is not NOTHING)
        if before.fenced:
            fenced = before.fenced | {key: before.fenced.get(key, NOTHING) | known for key, known in fenced.items()}
        return Released(everybody, fenced, clusters, ctas, is_narrow)

    def cluster(self, cta: int) -> int:
        """Return the cluster of a CTA of the grid."""
        return cta // self.geometry.cluster_ctas

    def _acquire(self, lanes: Ids, found: Released, scope: int) -> None:
        """Let lanes learn what a location released to their CTA, cluster, or GPU, within the acquire's scope."""
        if scope >= GPU and not found.is_narrow:
            self.learn(lanes, found.everybody)
            return
        ctas = self.geometry.cta[lanes] + self.geometry.first
        for cta in np.unique(ctas).tolist():
            knowledge = found.ctas.get(cta, NOTHING)
            if scope >= CLUSTER:
                knowledge = knowledge | found.clusters.get(self.cluster(cta), NOTHING)
            if min(scope, SYS) >= GPU:
                knowledge = knowledge | found.everybody
            self.learn(lanes[ctas == cta], knowledge)

    def learn(self, lanes: Ids, knowledge: Knowledge) -> None:
        """Let lanes come after what others knew; equal joins are made once."""
        if knowledge is NOTHING:
            return
        if len(lanes) == 1:
            lane = int(lanes[0])
            self.rows.foreign[lane] = self._joined(int(self.rows.foreign[lane]), knowledge)
            return
        foreign = self.rows.foreign[lanes]
        for number in np.unique(foreign).tolist():
            self.rows.foreign[lanes[foreign == number]] = self._joined(number, knowledge)

    def _joined(self, number: int, knowledge: Knowledge) -> int:
        """Return the number of the join of knowledge `number` with more knowledge."""
        before = self.known[number]
        if (found := before | knowledge) is before:
            return number
        pair = 0 if found is knowledge else number, knowledge  # equal knowledge has one number
        if pair not in self.learned:
            self.known.append(found)
            self.learned[pair] = len(self.known) - 1
        return self.learned[pair]
