"""Comparisons of a new access with the marks in memory: whether anything orders the two."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.areas import AccessPart, Area, Repeats
from refsim.ptx.checks.chain_order import are_shared, come_after
from refsim.ptx.checks.history import By, History
from refsim.ptx.checks.marks import Chains, Marks
from refsim.ptx.checks.observed import Observers, not_morally_strong
from refsim.ptx.checks.orders import Orders
from refsim.ptx.checks.race_reports import Pair, Reporter
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.space import Space

Array = NDArray[Any]


class Comparisons:
    """The comparisons of one launch. Every running lane comes after what its own CTA did to shared memory up to access
    `floor`, unless other CTAs can access that memory."""

    def __init__(self, machine: Context, history: History, orders: Orders, reporter: Reporter) -> None:
        self.machine, self.history, self.orders, self.reporter = machine, history, orders, reporter
        self.strict, self.geometry = orders.strict, orders.geometry
        self.first = self.geometry.first * self.geometry.threads
        self.floor = 0

    @property
    def is_private(self) -> bool:
        """Return whether other CTAs cannot access a CTA's shared memory, so that its barriers order all accesses."""
        return self.geometry.cluster_ctas == 1

    def compare(
        self,
        part: "AccessPart",
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
        if marks.never_race(part.strength, index, count):
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
            late &= ~strong
        if threads:
            late &= ~self._are_made_by(found, self.history.is_asynchronous) | (
                marks.take(marks.since, index, count) > 0
            )
        who, place = np.nonzero(late)
        if not len(who):
            return not (part.strength and marks.has_strong and strong.any())
        granule = index[who] * count + place
        doubtful = ~self.strict.is_ordered(lanes[who], agents[late], found[late])
        if marks.has_chains:
            doubtful |= (marks.since[granule] > 0) | are_shared(self.history, found[late])
            if len(doubtful) > 1 and doubtful.any():
                links = granule, agents[late], found[late], marks.since[granule]
                doubtful &= ~come_after(self.history, self.strict, lanes[who], *links)
        if part.repeats is not None and marks is area.writes and doubtful.any():
            doubtful &= ~self._beside_equal(part, part.repeats, who, granule, (agents[late], found[late]), doubtful)
        chains = Chains(self.history)
        for one in np.flatnonzero(doubtful).tolist():
            lane, at = int(lanes[who[one]]), int(granule[one])
            pair = self._first_race(part, marks, chains, lane, at, reading=reading, threads=threads)
            if pair is not None:
                pair = replace(pair, converged=pair.converged or by_products, by_products=by_products)
                self.reporter.report(part.access, pair, self.position(area, int(granule[one]), area.granule))
                if by_products or not self.reporter.is_news(part.access.statement):
                    break
        return not doubtful.any()

    def _beside_equal(
        self,
        part: "AccessPart",
        repeats: Repeats,
        who: Array,
        granule: Array,
        others: tuple[Array, Array],
        doubtful: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
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
            others = agents[~self.strict.comes_after(lane, agents, number)].tolist()
            if writes and observers is None:
                observers = self._observers(part.area, chains, lane, granule)
            if observers is not None:
                unobserved = set(observers.unobserved(number, agents))
                others = [other for other in others if other in unobserved]
            meaning = self.history.meaning(number)
            if reading and len(others) < len(agents) and not meaning.atomic and (benign or not meaning.strong):
                return None
            if reading and benign:
                continue
            racing = not_morally_strong(self.strict, mine, self.history, number, others)
            if racing:
                return self.pair(lane, racing, number, "write" if writes else "read")
        return None

    @staticmethod
    def _are_made_by(numbers: Array, those: Callable[[int], bool]) -> NDArray[np.bool_]:
        """Return which accesses, by number, satisfy `those`."""
        names, back = np.unique(numbers, return_inverse=True)
        return np.array([those(name) for name in names.tolist()])[back.reshape(numbers.shape)]

    def _observers(self, area: Area, chains: Chains, lane: int, granule: int) -> Observers:
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
