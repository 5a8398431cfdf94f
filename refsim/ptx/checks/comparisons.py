"""Comparisons of a new access with the marks in memory: whether anything orders the two.

Observation is the first step of causality order. A write comes before the morally strong read that returns its value,
or the value of a chain of read-modify-writes that it began. So it comes before everything after that read, without any
fence. Earlier accesses of the writer are only ordered by a release.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import AccessEvent, By, History
from refsim.ptx.checks.marks import AccessPart, Area, Chains, Link, Marks, Repeats
from refsim.ptx.checks.orders import Orders
from refsim.ptx.checks.race_reports import Pair, Reporter
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import WARPGROUP, Ids
from refsim.ptx.execution.matrix_operands import CORE_ROW
from refsim.ptx.isa.definedness.tracking import tear
from refsim.ptx.memory.access import CLUSTER, GPU, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import Space

Pairs = tuple[Array, Array]
_MOST, _LANES = 64, 64  # most events to visit and most lanes that ask; beyond, chains are walked one by one
_EACH = 2  # chains of a lane from which this pays
_SIDE_BY_SIDE = 8  # chains of many lanes from which it pays to walk them together


def morally_strong(clocks: Clocks, one: By, other: By) -> bool:
    """Return whether two accesses are strong, of one size, and each within the other's scope."""
    if not (one.meaning.strong and other.meaning.strong) or one.element != other.element:
        return False
    scope, threads = min(one.meaning.scope, other.meaning.scope), clocks.geometry.threads
    ctas = one.agent // threads, other.agent // threads
    return (
        scope >= GPU or ctas[0] == ctas[1] or (scope == CLUSTER and clocks.cluster(ctas[0]) == clocks.cluster(ctas[1]))
    )


def not_morally_strong(clocks: Clocks, one: By, history: History, number: int, agents: list[int]) -> list[int]:
    """Return the threads of access `number` with which an access is not morally strong: usually all or none."""
    meaning, element, _ = history.by(number, -1)
    if not (one.meaning.strong and meaning.strong) or one.element != element:
        return agents
    if min(one.meaning.scope, meaning.scope) >= GPU:
        return []
    return [agent for agent in agents if not morally_strong(clocks, one, By(meaning, element, agent))]


@dataclass
class Observers:
    """The strong reads of one granule that a lane comes after.

    Given the writes of the granule from the newest back, `unobserved` tells which of them these reads observed. A write
    that reads nothing (`end`) limits what later reads observe. A thread seen to write (`known`) has been seen to write
    there before, since the writes of one location have one order.
    """

    history: History
    clocks: Clocks
    lane: int
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    end: int = np.iinfo(np.int32).max

    def add_reads(self, chain: Iterable[Link]) -> None:
        """Add the reads of a chain of marks."""
        for number, agents, _ in chain:
            self._add(number, agents)

    def unobserved(self, number: int, agents: Array) -> Iterator[int]:
        """Yield the threads that made write `number` and whose writes no read observed."""
        meaning = self.history.meaning(number)
        if meaning.atomic and meaning.returns:
            self._add(number, agents)
        for place, agent in enumerate(agents.tolist()):
            if agent not in self.known and not (meaning.strong and self._has_seen(number, place, agent)):
                yield agent
                continue
            self.known.add(agent)
        if not meaning.atomic:
            self.end = number

    def _has_seen(self, number: int, place: int, agent: int) -> bool:
        """Return whether a read observed the write of the lane at index `place` in access `number`."""
        write = self.history.by(number, agent)
        return any(
            (number, place) < (when, after)
            and when < self.end
            and morally_strong(self.clocks, write, self.history.by(when, reader))
            for when, after, reader in self.reads
        )

    def _add(self, number: int, agents: Array) -> None:
        """Add the strong reads of an access that happened before what the lane does now."""
        if not (meaning := self.history.meaning(number)).strong or not meaning.returns:
            return
        ordered = self.clocks.comes_after(self.lane, agents, number)
        self.reads += [(number, place, int(agents[place])) for place in np.flatnonzero(ordered).tolist()]


class Comparisons:
    """The comparisons of one launch. Every running lane comes after what its own CTA did to shared memory up to access
    `floor`. `is_private`: other CTAs cannot access a CTA's shared memory, so that its barriers order all accesses."""

    def __init__(self, machine: Context, history: History, orders: Orders, reporter: Reporter) -> None:
        self.machine, self.history, self.orders, self.reporter = machine, history, orders, reporter
        self.strict, self.geometry = orders.strict, orders.geometry
        self.first = self.geometry.first * self.geometry.threads
        self.is_private = self.geometry.cluster_ctas == 1
        self.floor = 0
        self.volatile = np.zeros(len(machine.alive), np.bool_)  # the lanes that made volatile accesses
        self.users, self.crowded = np.zeros(len(machine.alive), np.uint8), False  # how many of a warp; several of any

    def compare(
        self,
        part: AccessPart,
        marks: Marks,
        lanes: Ids,
        index: Array,
        *,
        reading: bool = False,
        threads: bool = False,
        by_products: bool = False,
    ) -> bool:
        """Report a race of these lanes with the accesses marked there; return whether all of these happened before.
        `lanes` access items `index` of the area. `reading`: the access reads. `threads`: compare only with accesses of
        threads, not of copy engines and tensor cores. `by_products`: completed products are all that orders the two."""
        area, count = part.area, part.count
        if not part.is_volatile and marks.never_race(part.strength, index, count):
            return False
        found = marks.lasts(index, count)
        if int(found.max(initial=0)) <= (self.floor if area.is_shared else 0):
            return True
        agents = marks.take(marks.agent, index, count)
        late = found > (self.strict.rows.cta[lanes][:, None] if area.is_shared and self.is_private else 0)
        if not marks.has_chains:
            late &= agents != self.agents(lanes)[:, None]
        if part.strength and marks.has_strong:
            strong = late & (marks.take(marks.strength, index, count) == part.strength)
            if part.is_volatile and strong.any():
                strong &= ~self._in_warp(np.repeat(lanes[:, None], strong.shape[1], 1), agents, found)
                linked = (marks.take(marks.since, index, count) > 0) | are_shared(self.history, found)
                strong &= ~linked  # other lanes may have made older accesses, or the same one
            late &= ~strong
        if threads:
            late &= ~self._are_made_by(found, self.history.is_asynchronous) | (
                marks.take(marks.since, index, count) > 0
            )
        who, place = np.nonzero(late)
        if not len(who):
            return not (part.strength and marks.has_strong and strong.any())
        granule = index[who] * count + place
        doubtful = self._doubtful(marks, lanes[who], granule, agents[late], found[late], reads=marks is area.reads)
        if part.repeats is not None and marks is area.writes and doubtful.any():
            doubtful &= ~self._beside_equal(part, part.repeats, who, granule, (agents[late], found[late]), doubtful)
        chains = Chains(self.history)
        for one in np.flatnonzero(doubtful).tolist():
            lane, at = int(lanes[who[one]]), int(granule[one])
            pair = self._first_race(part, marks, chains, lane, at, reading=reading, threads=threads)
            if pair is not None:
                pair = replace(pair, converged=pair.converged or by_products, by_products=by_products)
                where = self.position(area, int(granule[one]), area.granule)
                event = self.history.listed.get(pair.number)
                if marks is area.reads and event is not None and event.product is not None and not pair.converged:
                    items = granule[[one]] * area.granule // CORE_ROW
                    error = self.reporter.error(part.access, pair, where)
                    tear(self.machine, part.access.statement, event.product, items, error)
                    continue
                self.reporter.report(part.access, pair, where)
                if by_products or not self.reporter.is_news(part.access.statement):
                    break
        return not doubtful.any()

    def _doubtful(
        self, marks: Marks, lanes: Ids, granules: Array, agents: Array, numbers: Array, *, reads: bool
    ) -> Bools:
        """Return which lanes may not come after all that the marks of their granules hold: accesses `numbers` of threads
        `agents`, and the chains before them."""
        doubtful, linked = ~self.strict.is_ordered(lanes, agents, numbers), np.zeros(len(lanes), np.bool_)
        if marks.has_chains:
            linked = (marks.since[granules] > 0) | are_shared(self.history, numbers)
            doubtful |= linked
            if len(doubtful) > 1 and doubtful.any():
                links = granules, agents, numbers, marks.since[granules]
                doubtful &= ~come_after(self.history, self.strict, lanes, *links)
        if reads and self.machine.code.has_async_proxy and doubtful.any():
            doubtful &= linked | ~self._waited_for(lanes, agents, numbers)
        return doubtful

    def _beside_equal(
        self, part: AccessPart, repeats: Repeats, who: Array, granule: Array, others: Pairs, doubtful: Bools
    ) -> Bools:
        """Return which granules of a copy already hold the bytes that it writes, from another unordered copy; this is a
        note. `who`, `granule`, `others` (threads, access numbers) and `doubtful` are the candidates of `compare`, one
        each."""
        agents, numbers = others
        equal = doubtful & self._are_made_by(numbers, self.history.is_bulk_copy)
        if equal.any():
            equal &= ~self.strict.is_ordered(part.access.threads.ids[who], agents, numbers)
        items = np.unique(who[equal])
        if len(items):
            same = np.zeros(len(part.index), np.bool_)
            same[items] = repeats(part.access.index[items], part.access.width)
            equal &= same[who]
            part.repeated = same if part.repeated is None else part.repeated | same
        if equal.any():
            one = int(np.argmax(equal))
            pair = Pair(int(part.access.threads.ids[who[one]]), int(agents[one]), int(numbers[one]), "write")
            self.reporter.note_equal(part.access, pair, self.position(part.area, int(granule[one]), part.area.granule))
        return equal

    def _first_race(
        self, part: "AccessPart", marks: Marks, chains: Chains, lane: int, granule: int, *, reading: bool, threads: bool
    ) -> Pair | None:
        """Return the newest access in a granule's chain that races with this lane's access. A read that comes after one
        of several writers of one value sees that value whenever the others come. Of several strong writers, each may
        have changed the value."""
        writes = marks is part.area.writes
        observers, access = None, part.access
        mine = By(access.semantics, access.width // access.semantics.elements, lane + self.first)
        for number, agents, benign in chains.of(marks, granule):
            if threads and self.history.is_asynchronous(number):
                continue
            later = ~self.strict.comes_after(lane, agents, number)
            if not writes and self.machine.code.has_async_proxy and later.any():
                later &= ~self._waited_for(np.full(len(agents), lane), agents, np.full(len(agents), number))
            others = agents[later].tolist()
            if writes and observers is None:
                observers = self.observers(part.area, chains, lane, granule)
            if observers is not None:
                unobserved = set(observers.unobserved(number, agents))
                others = [other for other in others if other in unobserved]
            meaning = self.history.meaning(number)
            if reading and len(others) < len(agents) and not meaning.atomic and (benign or not meaning.strong):
                return None
            if reading and benign:
                continue
            racing = not_morally_strong(self.strict, mine, self.history, number, others)
            if not racing and others and part.is_volatile:
                near = self._in_warp(np.full(len(others), lane), np.array(others), np.full(len(others), number))
                racing = [other for other, is_near in zip(others, near.tolist(), strict=True) if is_near]
                if racing and not writes:  # who wrote after reading: that write is compared
                    wrote = {
                        each for when, by, _ in chains.of(part.area.writes, granule) if when > number for each in by
                    }
                    racing = [other for other in racing if other not in wrote]
            if racing:
                return self.pair(lane, racing, number, "write" if writes else "read")
        return None

    def is_volatile(self, access: Access) -> bool:
        """Return whether an access is volatile, does not poll, and other lanes of its warps made such accesses too."""
        if id(access.threads.statement) not in self.history.volatile:
            return False
        lanes, warp = access.threads.ids, self.geometry.warp
        if len(new := lanes[~self.volatile[lanes]]):
            self.volatile[new] = True
            np.add.at(self.users, warp[new], 1)
            self.crowded |= bool((self.users[warp[new]] > 1).any())
        return self.crowded and bool((self.users[warp[lanes]] > 1).any())

    def _in_warp(self, lanes: Ids, agents: Array, numbers: Array) -> Bools:
        """Return which accesses other lanes of the lanes' warps made, volatile ones that do not poll. Such accesses are
        morally strong, but lanes that use them in place of __syncwarp rely on the order in which they run. Source: CUDA
        C++ Programming Guide, independent thread scheduling."""
        near = self._are_beside(lanes, agents, WARP)
        near &= agents != lanes + self.first
        return near & self._are_made_by(numbers, self.history.is_volatile) if near.any() else near

    def _waited_for(self, lanes: Ids, agents: Array, numbers: Array) -> Bools:
        """Return which accesses are reads of shared memory by wgmma of the lanes' own warpgroups. They are marked once
        a wgmma.wait_group covers them, which the warpgroup executes together. The product is an operation of the whole
        warpgroup, so each thread that waited knows that all four warps have read."""
        own = self._are_beside(lanes, agents, WARPGROUP)
        return own & self._are_made_by(numbers, self.history.is_product) if own.any() else own

    def _are_beside(self, lanes: Ids, agents: Array, size: int) -> Bools:
        """Return which agents are threads of the lanes' own blocks and of the same `size` threads there."""
        geometry = self.geometry
        cta, thread = agents // geometry.threads, agents % geometry.threads
        beside: Bools = thread // size == geometry.thread[lanes] // size
        beside &= cta == geometry.cta[lanes] + geometry.first
        return beside

    @staticmethod
    def _are_made_by(numbers: Array, those: Callable[[int], bool]) -> Bools:
        """Return which accesses, by number, satisfy `those`."""
        names, back = np.unique(numbers, return_inverse=True)
        return np.array([those(name) for name in names.tolist()])[back.reshape(numbers.shape)]

    def observers(self, area: Area, chains: Chains, lane: int, granule: int) -> Observers:
        """Return the strong reads of a granule that this lane comes after."""
        found = Observers(self.history, self.strict, lane)
        area.mark_reads(self.floor if area.is_shared else 0, self.history)
        if area.reads.is_used:
            found.add_reads(chains.of(area.reads, granule))
        return found

    def pair(self, lane: int, others: list[int], number: int, kind: str, *, same: bool = False) -> Pair:
        """Return the race of a lane with access `number` of threads `others`. It is marked as converged if the loose
        order, which counts convergence, orders all of them."""
        if self.orders.loose is None or same:
            return Pair(lane, others[0], number, kind, same=same)
        for other in others:
            if not self.orders.loose.is_ordered(np.array([lane]), np.array([other]), np.array([number]))[0]:
                return Pair(lane, other, number, kind)
        return Pair(lane, others[0], number, kind, converged=True)

    # ---- places
    def agents(self, lanes: Ids) -> Array:
        """Return the numbers of lanes' threads in the grid."""
        return (lanes + self.first).astype(np.int32)

    def position(self, area: Area, index: int, width: int) -> tuple[Space, int]:
        """Return the space of an item and its byte position (in shared memory: within its CTA)."""
        flat = int(index) * width
        if area.is_shared:
            return self.machine.shared, flat % self.machine.shared.stride
        return self.machine.memory.space, flat + area.base


def come_after(
    history: History, clocks: Clocks, lanes: Array, granules: Array, agents: Array, numbers: Array, since: Array
) -> Bools:
    """Return for each lane and granule whether the lane comes after all accesses that the granule's chain may hold.
    True means that the chain need not be walked; False decides nothing. `agents`, `numbers`, `since`: the marks of the
    granules."""
    found = np.zeros(len(lanes), np.bool_)
    names = np.unique(lanes).tolist()
    if len(names) <= _LANES and len(lanes) >= _EACH * len(names):
        for lane in names:
            own = lanes == lane
            found[own] = _comes_after(history, clocks, lane, granules[own], numbers[own], since[own])
    elif len(lanes) >= _SIDE_BY_SIDE:
        found[_side_by_side(history, clocks, lanes, granules, agents, numbers, since)] = True
    return found


def _side_by_side(
    history: History, clocks: Clocks, lanes: Array, granules: Array, agents: Array, numbers: Array, since: Array
) -> Array:
    """Return the indices of lanes that come after their granule's whole chain, following all chains one link at a time.
    Accesses that lanes of one statement made lie at one depth. A chain with an access that several threads made is left
    to the exact walk."""
    here, ended = np.arange(len(lanes)), []
    for _ in range(_MOST):
        right = ~are_shared(history, numbers) & clocks.is_ordered(lanes[here], agents, numbers)
        here, since = here[right], since[right]
        following = np.zeros((3, len(here)), np.int64)
        for name in np.unique(since).tolist():
            own = np.flatnonzero(since == name)
            event = history.listed.get(name)
            if event is not None and event.replaced is not None:
                following[:, own] = -1 if event.shared else _replaced(event, granules[here[own]])
        numbers, agents, since = following
        ended.append(here[numbers == 0])
        going = numbers > 0
        here, numbers, agents, since = here[going], numbers[going], agents[going], since[going]
        if not len(here):
            break
    return np.concatenate(ended)


def _replaced(event: AccessEvent, granules: Array) -> Array:
    """Return the marks that an access replaced in granules of one thread each: (3, n): number, thread, since."""
    assert event.replaced is not None
    order = np.argsort(event.first, kind="stable")
    rows = order[np.searchsorted(event.first[order], granules, side="right") - 1]
    places = granules - event.first[rows]
    return np.stack([table[rows, places] for table in event.replaced])


def _comes_after(history: History, clocks: Clocks, lane: int, granules: Array, numbers: Array, since: Array) -> bool:
    """Return whether one lane comes after the chains of all these granules, and after their events in between."""
    low, high = int(granules.min()), int(granules.max())
    waiting = {*np.unique(numbers).tolist(), *np.unique(since).tolist()} - {0}
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        seen.add(number)
        event = history.listed.get(number)
        if event is None or len(seen) > _MOST:
            return False
        near = (event.first <= high) & (event.first + event.count > low)
        agents = event.agents[near]
        if not _come_before(clocks, lane, agents, np.full(len(agents), number)):
            return False
        if event.replaced is None:
            continue
        last, agents, earlier = (table if len(table) == 1 else table[near] for table in event.replaced)
        some = last > 0
        if not _come_before(clocks, lane, agents[some], last[some]):
            return False
        waiting |= {*np.unique(last[some]).tolist(), *np.unique(earlier).tolist()} - seen - {0}
    return True


def are_shared(history: History, numbers: Array) -> Bools:
    """Return which of these accesses had several threads at one granule."""
    names, back = np.unique(numbers, return_inverse=True)
    events = [history.listed.get(name) for name in names.tolist()]
    return np.array([event is not None and event.shared for event in events])[back.reshape(numbers.shape)]


def _come_before(clocks: Clocks, lane: int, agents: Array, numbers: Array) -> bool:
    """Return whether all these accesses (threads and access numbers) happened before what a lane does now."""
    pairs = np.unique(agents.astype(np.int64) << 32 | numbers)
    if not len(pairs):
        return True
    return bool(clocks.is_ordered(np.full(len(pairs), lane), pairs >> 32, pairs & 0xFFFFFFFF).all())
