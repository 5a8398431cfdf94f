"""Races: two accesses of different threads to one byte, at least one a write, that nothing orders.

A read is compared with the writes that memory still holds, a write with them and with the reads since. Two strong accesses
whose scopes include each other never race. A write of what is there already races with nobody. Reads are only listed; they
are marked when a write comes before the next barrier of everybody, so that a kernel whose threads meet between reads and
writes pays nothing, and so that a buffer which a launch only reads has no marks at all.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.areas import AccessPart, Area, Read, is_rising, unequal
from refsim.ptx.checks.chain_order import are_all_before, are_shared
from refsim.ptx.checks.cluster_order import RemoteAccesses
from refsim.ptx.checks.history import AccessEvent, By, History
from refsim.ptx.checks.marks import Chains, Marks
from refsim.ptx.checks.observed import Observers, morally_strong
from refsim.ptx.checks.orders import Orders
from refsim.ptx.checks.phase_order import PhaseOrder
from refsim.ptx.checks.race_reports import Pair, Reporter
from refsim.ptx.checks.same_place import changes, collision
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.memory.access import READ, UPDATE, WRITE, Access
from refsim.ptx.memory.semantics import Semantics
from refsim.ptx.memory.space import Region, Space

Array = NDArray[Any]
_PENDING = 1 << 21  # lanes of reads that wait to be marked


class Races:
    """Watches shared and global memory; `orders` says what happened before what."""

    def __init__(self, machine: Context, history: History, granules: dict[str, int], *, converges: bool) -> None:
        self.machine, self.history, self.granules = machine, history, granules
        self.geometry = machine.geometry
        self.orders = Orders(machine, history, converges=converges)
        self.strict = self.orders.strict
        self.remote = RemoteAccesses(self.strict)
        self.reporter = Reporter(machine, history)
        self.phases = PhaseOrder(self.orders.clocks, history, self.reporter, machine.shared.stride)
        self.shared = Area.over(0, len(machine.shared.bytes), granules["shared"], is_shared=True)
        self.first = self.geometry.first * self.geometry.threads
        self.floor = 0
        self.parts: list[AccessPart] = []

    @property
    def is_private(self) -> bool:
        """Whether no other CTA reaches a CTA's shared memory, so that a barrier of the CTA orders all that touch it."""
        return self.geometry.cluster_ctas == 1

    # ---- accesses
    def before(self, access: Access) -> None:
        self.parts = self._parts(access)
        for part in self.parts:
            self._examine(part)

    def after(self, access: Access) -> None:
        for part in self.parts:
            self._mark(part)

    def _parts(self, access: Access) -> "list[AccessPart]":
        """An access by the area it falls in; nothing for memory that nobody writes."""
        if access.name == "shared":
            return [AccessPart(self.shared, access)]
        if access.region is not None:
            return self._part(access, access.region)
        at = access.threads.full(access.at)
        found = []
        starts = np.searchsorted(np.array(access.space.starts), at, side="right") - 1
        for number in np.unique(starts).tolist():
            found += self._part(access.of(starts == number), access.space.regions[number])
        return found

    def _part(self, access: Access, region: Region) -> "list[AccessPart]":
        if not region.writable:
            return []
        area = self.history.areas.get(region.start)
        if area is None:
            area = Area.over(region.start, region.end, self.granules["global"], is_shared=False)
            self.history.areas[region.start] = area
        return [AccessPart(area, access)]

    def _examine(self, part: "AccessPart") -> None:
        area, access = part.area, part.access
        if access.kind == READ:
            if (area.unmarked or area.writes.is_used) and self.reporter.is_news(access.statement):
                area.settle()
                self._compare(part, area.writes, access.threads.ids, part.index, reading=True)
            return
        part.changed = changes(part)
        if access.kind == WRITE and not access.semantics.strong and part.changed.all():
            part.fresh = area.fresh(part.index, part.count)
            if part.fresh is not None:
                return
        if not self.reporter.is_news(access.statement):
            return
        lanes, index = access.threads.ids, part.index
        if access.kind == UPDATE and not part.changed.all() and self.history.meaning_of(access.statement).returns:
            area.settle()
            if not area.writes.never_race(part.strength, index, part.count):
                self._compare(part, area.writes, lanes[~part.changed], index[~part.changed], reading=True)
        if not part.changed.any():
            return
        area.settle()
        if not part.changed.all():
            lanes, index = lanes[part.changed], index[part.changed]
        area.mark_reads(self.floor if area.is_shared else 0, self.history)
        if area.reads.is_used:  # first: what was read since is newer than what was written
            part.reads_are_ordered = self._compare(part, area.reads, lanes, index)
        if self.reporter.is_news(access.statement):
            self._compare(part, area.writes, lanes, index)

    def _mark(self, part: "AccessPart") -> None:
        access, meaning = part.access, part.access.semantics
        number = self.history.number(access.statement, access.width // meaning.elements)
        if access.kind == READ:
            self._list_read(part, number, slice(None))
        else:
            self._mark_write(part, number)
            self._collide(part)
        if part.area.is_shared and not self.is_private:
            owner = access.index * access.width // access.space.stride
            mine = self.geometry.cta[access.threads.ids]
            if (elsewhere := owner != mine).any():
                self.remote.note(owner[elsewhere], self._agents(access.threads.ids[elsewhere]), self.history.now)
        if meaning.strong or (access.kind != READ and (self.strict.matters or self.history.journal.strong)):
            self.orders.synchronise(part)

    def _list_read(self, part: "AccessPart", number: int, chosen: Any) -> None:
        area = part.area
        area.waiting.append(Read(part, number, chosen, self.first))
        area.lanes += part.access.threads.count
        if area.lanes > _PENDING:
            area.mark_reads(self.floor if area.is_shared else 0, self.history)

    def _mark_write(self, part: "AccessPart", number: int) -> None:
        """Marks of the lanes that changed something, and of those that did not; a compare-and-swap that found another
        value has only read."""
        access, changed = part.access, part.changed
        lanes = access.threads.ids
        assert changed is not None
        wrote = access.wrote
        if wrote is not None and not wrote.all():
            self._list_read(part, number, ~wrote)
            number = self.history.number(access.statement, access.width // access.semantics.elements)
        if not changed.all():
            benign = ~changed if wrote is None else wrote & ~changed
            if benign.any():
                self._put(part, number, lanes[benign], part.index[benign], benign=True)
                number = self.history.number(access.statement, access.width // access.semantics.elements)
        if changed.any():
            chosen = slice(None) if changed.all() else changed
            self._put(part, number, lanes[chosen], part.index[chosen], benign=False)

    def _put(self, part: "AccessPart", number: int, lanes: Ids, index: Array, *, benign: bool) -> None:
        area, count, marks = part.area, part.count, part.area.writes
        event = AccessEvent(number, self._agents(lanes), index * count, count, benign)
        strength = part.strength
        if part.fresh is not None:
            area.unmarked.append((event, index))
            area.spans = part.fresh
            self.history.list(event)
            return
        if area.is_shared and not (benign or part.access.semantics.strong or area.reads.is_used) and is_rising(index):
            area.unmarked.append((event, index))
            self.history.list(event)
            return
        area.settle()
        late = marks.lasts(index, count) > (self.floor if area.is_shared else 0)
        if (benign or part.access.semantics.strong) and late.any():
            marks.take_over(event, index, late, strength, self.history)
        else:
            marks.put(event, index, strength)
        if not (benign or part.access.semantics.strong) and area.reads.is_used and part.reads_are_ordered:
            self._forget_reads(area, index, count)
        lost = marks.lost(event, index)
        if lost.any():
            event.shared = marks.has_chains = True
        self.history.list(event)

    def _forget_reads(self, area: Area, index: Array, count: int) -> None:
        """The reads before a write that was compared with them matter no more: who comes after the write does after them."""
        area.reads.fill(area.reads.last, index, count, 0)

    def _collide(self, part: "AccessPart") -> None:
        """Report two lanes that write to one place by one instruction, if they race."""
        access, lanes = part.access, part.access.threads.ids
        found = collision(part, self.geometry)
        if found is not None and self.reporter.is_news(access.statement):
            one, other = int(lanes[found[0]]), int(lanes[found[1]]) + self.first
            pair = self._pair(one, [other], self.history.now, "write", same=True)
            self.reporter.report(access, pair, self._position(part.area, int(part.index[found[0]]), access.width))

    # ---- comparing
    def _compare(self, part: "AccessPart", marks: Marks, lanes: Ids, index: Array, *, reading: bool = False) -> bool:
        """Raise or record a race of these lanes with what is marked there; whether all of that happened before."""
        area, count = part.area, part.count
        if marks.never_race(part.strength, index, count):
            return False
        found = marks.lasts(index, count)
        if int(found.max(initial=0)) <= (self.floor if area.is_shared else 0):
            return True
        agents = marks.take(marks.agent, index, count)
        late = found > (self.strict.rows.cta[lanes][:, None] if area.is_shared and self.is_private else 0)
        if not marks.has_chains:
            late &= agents != self._agents(lanes)[:, None]
        if part.strength and marks.has_strong:
            strong = late & (marks.take(marks.strength, index, count) == part.strength)
            late &= ~strong
        who, place = np.nonzero(late)
        if not len(who):
            return not (part.strength and marks.has_strong and strong.any())
        granule = index[who] * count + place
        doubtful = ~self.strict.is_ordered(lanes[who], agents[late], found[late])
        if marks.has_chains:
            doubtful |= (marks.since[granule] > 0) | are_shared(self.history, found[late])
            if len(doubtful) > 1 and (lanes == lanes[0]).all() and doubtful.any():
                since = marks.since[granule]
                doubtful &= not are_all_before(self.history, self.strict, int(lanes[0]), granule, found[late], since)
        chains = Chains(self.history)
        for one in np.flatnonzero(doubtful).tolist():
            pair = self._first_race(part, marks, chains, int(lanes[who[one]]), int(granule[one]), reading=reading)
            if pair is not None:
                self.reporter.report(part.access, pair, self._position(area, int(granule[one]), area.granule))
                if not self.reporter.is_news(part.access.statement):
                    break
        return not doubtful.any()

    def _first_race(
        self, part: "AccessPart", marks: Marks, chains: Chains, lane: int, granule: int, *, reading: bool
    ) -> Pair | None:
        """The newest access in a granule's chain that races with this lane's.

        A read that comes after one of several writers of one value sees it whenever the others come; of several strong
        writers each may have changed the value.
        """
        writes = marks is part.area.writes
        observers, access = None, part.access
        mine = By(access.semantics, access.width // access.semantics.elements, lane + self.first)
        for number, agents, benign in chains.of(marks, granule):
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
            racing = [one for one in others if not morally_strong(self.strict, mine, self.history.by(number, one))]
            if racing:
                return self._pair(lane, racing, number, "write" if writes else "read")
        return None

    def _observers(self, area: Area, chains: Chains, lane: int, granule: int) -> Observers:
        """The strong reads of a granule that this lane comes after."""
        found = Observers(self.history, self.strict, lane)
        area.mark_reads(self.floor if area.is_shared else 0, self.history)
        if area.reads.is_used:
            found.add_reads(chains.of(area.reads, granule))
        return found

    def _pair(self, lane: int, others: list[int], number: int, kind: str, *, same: bool = False) -> Pair:
        """A race; only a matter of convergence where the order that counts it has them all in order."""
        if self.orders.loose is None or same:
            return Pair(lane, others[0], number, kind, same=same)
        for other in others:
            if not self.orders.loose.is_ordered(np.array([lane]), np.array([other]), np.array([number]))[0]:
                return Pair(lane, other, number, kind)
        return Pair(lane, others[0], number, kind, converged=True)

    # ---- copies
    def copy_issued(self, access: Access, items: Callable[[], Array]) -> None:
        """A copy of `items` is on its way: from now on it may write there."""
        part = AccessPart(self.shared, access)
        lanes = access.threads.ids
        if self.reporter.is_news(access.statement):
            self.shared.settle()
            self._compare(part, self.shared.writes, lanes, part.index)
            self.shared.mark_reads(self.floor, self.history)
            if self.shared.reads.is_used:
                self._compare(part, self.shared.reads, lanes, part.index)
            self._same_place(part, items)

    def copy_landed(self, lanes: Lanes, index: Array, width: int, counted: NDArray[np.bool_]) -> Array:
        """Copies of these lanes were waited for: from now on they are writes of theirs, or where an mbarrier counted on them
        of their shadows; whose they are."""
        assert lanes.statement is not None
        number = self.history.number(lanes.statement, width)
        count, agents = width // self.shared.granule, self._agents(lanes.ids)
        if counted.any():
            agents[counted] = self.phases.landed(lanes.ids[counted])
        event = AccessEvent(number, agents, index * count, count)
        self.shared.unmarked.append((event, index))
        if self.shared.reads.is_used:
            self._forget_reads(self.shared, index, count)
        self.history.list(event)
        return agents

    def transfer_landed(self, access: Access, agent: int) -> int:
        """What a copy engine wrote was counted in a phase that somebody saw complete: a write of an agent; its number."""
        number, count = self.history.number(access.statement, access.width), access.width // self.shared.granule
        event = AccessEvent(number, np.full(len(access.index), agent, np.int32), access.index * count, count)
        self.shared.unmarked.append((event, access.index))
        if self.shared.reads.is_used:
            self._forget_reads(self.shared, access.index, count)
        self.history.list(event)
        return number

    def transfer_sent(self, access: Access) -> int:
        """A copy engine will write to global memory: the write of a shadow of the thread that asked, until that has waited."""
        number = self.history.number(access.statement, access.width // access.semantics.elements)
        for part in self._parts(access):
            self._examine(part)
            self._put(part, number, part.access.threads.ids + self.geometry.grid_threads, part.index, benign=False)
        return number

    def _same_place(self, part: "AccessPart", items: Callable[[], Array]) -> None:
        """Two lanes that copy to one place by one instruction: either may come last, also within a warp. There equal bytes
        are left alone; in two warps the later copy may be on its way when the earlier one has been waited for."""
        if is_rising(part.index):
            return
        order = np.argsort(part.index, kind="stable")
        ordered = part.index[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if not len(twice):
            return
        first, second, lanes = order[twice], order[twice + 1], part.access.threads.ids
        copied, warp = items(), self.geometry.warp[lanes]
        differ = np.flatnonzero(unequal(copied[first], copied[second]) | (warp[first] != warp[second]))
        if len(differ):
            one, other = int(lanes[second[differ[0]]]), int(lanes[first[differ[0]]]) + self.first
            number = self.history.number(part.access.statement, part.access.width)
            pair = Pair(one, other, number, "write", same=True)
            where = self._position(part.area, int(part.index[second[differ[0]]]), part.access.width)
            self.reporter.report(part.access, pair, where)

    def renew(self, region: Region, start: int, end: int) -> None:
        """Bytes of global memory begin a new life: whoever gets them comes after all that touched them before."""
        area = self.history.areas.get(region.start)
        if area is not None:
            area.renew(start, end, self.history)

    # ---- meetings
    def everyone_met(self, lanes: Ids) -> None:
        """All lanes that run passed one barrier of their CTAs together."""
        self.orders.everyone_met(lanes)
        if self.is_private:
            self.shared.forget()
            self._lift_floor()

    def _lift_floor(self) -> None:
        self.floor = self.strict.floor(self.machine.alive)

    def barriers_met(self, slot: Array, warps: Array, waited: Array, everyone: Array, at: Array) -> None:
        """Warps pass named barriers, as `Orders.barriers_met` says."""
        if self.orders.barriers_met(slot, warps, waited, everyone, at) and self.is_private:
            self._lift_floor()

    def phase_passed(self, flat: int, lanes: Ids, meaning: Semantics) -> None:
        """Lanes saw the last phase complete of the mbarrier at a byte position of the flat shared memory."""
        self.phases.passed(flat, lanes, meaning)
        if self.is_private:
            self._lift_floor()

    def inits_fenced(self, lanes: Ids) -> None:
        """The objects that lanes initialised are visible to whoever meets them at the barrier of the cluster from now on."""
        self.phases.inits_fenced(lanes)

    def clusters_completed(self, clusters: Array, arrived: Ids) -> None:
        """All threads of these clusters have arrived at their barrier."""
        self.orders.clusters_completed(clusters, arrived)
        self.phases.clusters_completed(clusters, arrived)

    def exited(self, lanes: Ids) -> None:
        """Lanes have exited: nobody else may still be at the shared memory of their CTAs."""
        found = self.remote.left_behind(lanes, self.machine.alive) if self.remote.newest else None
        if found is not None:
            cta, agent, number = found
            self.reporter.report_exit(cta, agent - self.first, number)

    # ---- places
    def _agents(self, lanes: Ids) -> Array:
        return (lanes + self.first).astype(np.int32)

    def _position(self, area: Area, index: int, width: int) -> tuple[Space, int]:
        """The space and the byte position, in its owner's part, of an item."""
        flat = int(index) * width
        if area.is_shared:
            return self.machine.shared, flat % self.machine.shared.stride
        return self.machine.memory.space, flat + area.base
