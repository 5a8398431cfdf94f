"""The race check: two unordered accesses of different threads to one byte, at least one of them a write.

A read is compared with the writes that memory still holds; a write is compared with them and with the reads since. Two
strong accesses whose scopes include each other never race. A write of the value that memory already holds never races.
Reads are only listed; they are marked if a write comes before the next barrier of all threads. So a kernel whose
threads meet between reads and writes pays nothing, and a buffer that is only read has no marks.

`BarrierUsers` reports the reuse of a named barrier by other warps (`shared-barrier`). A phase counts arrivals,
whichever warps arrive. If nothing orders two uses, warps of the second use may complete the phase of the first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refsim.ptx import events
from refsim.ptx.checks.comparisons import Comparisons
from refsim.ptx.checks.happens_before import BARRIERS
from refsim.ptx.checks.history import AccessEvent, History
from refsim.ptx.checks.marks import AccessPart, Area, Chains, Read, Repeats, is_rising, unequal
from refsim.ptx.checks.orders import Orders, RemoteAccesses
from refsim.ptx.checks.phase_order import PhaseOrder
from refsim.ptx.checks.race_reports import CONVERGED, Pair, Reporter
from refsim.ptx.events import Hear, LaunchEvent, Passing
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.findings.record import fault
from refsim.ptx.isa.definedness.tracking import ProductReads
from refsim.ptx.memory.access import CTA, GPU, READ, UPDATE, WRITE, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import Region

_PENDING = 1 << 21  # most lanes of reads that wait to be marked
_REUSED = "shared-barrier"
_PHASE_RULE = "PTX ISA, bar: a barrier completes when as many threads have arrived as it expects, whichever these are"


@dataclass
class _Phases:
    """The warps of the last complete phase and of the current phase of a barrier, each with its arrival number."""

    last: dict[int, int] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)


@dataclass
class BarrierUsers:
    """The warps that used each barrier (CTA * 16 + number) of the running CTAs."""

    machine: Context
    history: History
    orders: Orders
    phases: dict[int, _Phases] = field(default_factory=dict)

    def met(self, warps: Array, passing: Passing) -> None:
        """Record that warps arrive at barriers, or pass them where they waited, and report unordered uses."""
        slot, waited, everyone, at = passing
        for number in np.unique(slot).tolist():
            here = slot == number
            phases = self.phases.setdefault(number, _Phases())
            if np.count_nonzero(here & waited) == everyone[number]:
                self.phases[number] = _Phases()  # all warps have passed: what they do next comes after
                continue
            for warp, pc in zip(warps[here].tolist(), at[here].tolist(), strict=True):
                if warp in phases.current:
                    self._report(number, warp, pc, "again before the phase is complete in which it has arrived")
                elif len(phases.last) > 1 and warp not in phases.last:  # a single warp passes alone
                    self._compare(number, warp, pc, phases.last)
                phases.current[warp] = self.history.number(self.machine.code.steps[pc].statement, 0)
            if waited[here].any():
                phases.last, phases.current = phases.current, {}

    def _compare(self, number: int, warp: int, pc: int, before: dict[int, int]) -> None:
        """Report a warp that may have come before all warps of the last phase had passed."""
        geometry = self.machine.geometry
        lanes = np.flatnonzero((geometry.warp == warp) & self.machine.alive)
        for other, stamp in before.items():
            agents = np.flatnonzero(geometry.warp == other) + geometry.first * geometry.threads
            asked = np.repeat(lanes, len(agents)), np.tile(agents, len(lanes))
            stamps = np.full(len(asked[0]), stamp)
            if any(clocks.is_ordered(*asked, stamps).any() for clocks in self.orders.clocks):
                continue  # one of its lanes comes after a lane of the other warp
            users = ", ".join(str(each % geometry.warps) for each in sorted(before))
            order = f"nothing orders it after warp {other % geometry.warps}"
            self._report(
                number, warp, pc, f"where warps {users} were before it; {order}: it could have completed their phase"
            )
            return

    def _report(self, number: int, warp: int, pc: int, how: str) -> None:
        geometry, statement = self.machine.geometry, self.machine.code.steps[pc].statement
        lane = int(np.flatnonzero(geometry.warp == warp)[0])
        what = f"warp {warp % geometry.warps} comes to barrier {number % BARRIERS} {how}"
        self.machine.report(fault(_REUSED, what, statement, geometry.describe(lane), _PHASE_RULE), statement)


class Races:
    """Watches shared and global memory; `orders` is the happens-before order, `phases` the order of mbarriers. `product`
    is the product whose reads are shown now, if a thread asks for it alone."""

    def __init__(self, machine: Context, history: History, granules: dict[str, int], *, converges: bool) -> None:
        self.machine, self.history, self.granules = machine, history, granules
        self.geometry = machine.geometry
        self.orders = Orders(machine, history, converges=converges)
        self.barrier_users = BarrierUsers(machine, history, self.orders)
        self.strict = self.orders.strict
        self.remote = RemoteAccesses(self.strict, self.orders.tensor)
        self.reporter = Reporter(machine, history)
        self.phases = PhaseOrder(self.orders.clocks, history, self.reporter, machine.shared.stride)
        self.shared = Area.over(0, len(machine.shared.bytes), granules["shared"], is_shared=True)
        self.first = self.geometry.first * self.geometry.threads
        self.compared = Comparisons(machine, history, self.orders, self.reporter)
        self.parts: list[AccessPart] = []
        self.held: list[Read] | None = None
        self.product: ProductReads | None = None

    # ---- accesses
    def before(self, access: Access) -> None:
        """Compare an access with the marks of the areas that it touches."""
        self.parts = self._parts(access)
        is_volatile = self.history.volatile and self.compared.is_volatile(access)
        for part in self.parts:
            if is_volatile:
                part.is_volatile = True
            self._examine(part)

    def after(self, access: Access) -> None:
        """Mark the access that was just made."""
        for part in self.parts:
            self._mark(part)

    def _parts(self, access: Access) -> "list[AccessPart]":
        """Return the parts of an access by area; nothing for memory that no kernel may write."""
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
        """Return the part of an access in a buffer, whose area is made at the first access."""
        if not region.writable:
            return []
        area = self.history.areas.get(region.start)
        if area is None:
            area = Area.over(region.start, region.end, self.granules["global"], is_shared=False)
            self.history.areas[region.start] = area
        return [AccessPart(area, access)]

    def _examine(self, part: "AccessPart") -> None:
        """Compare one part of an access with what is marked, and find which of its lanes change memory."""
        area, access = part.area, part.access
        if access.kind == READ:
            if (area.unmarked or area.writes.is_used) and self.reporter.is_news(access.statement):
                area.settle()
                self.compared.compare(part, area.writes, access.threads.ids, part.index, reading=True)
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
                self.compared.compare(part, area.writes, lanes[~part.changed], index[~part.changed], reading=True)
        if not part.changed.any():
            return
        area.settle()
        if not part.changed.all():
            lanes, index = lanes[part.changed], index[part.changed]
        area.mark_reads(self.compared.floor if area.is_shared else 0, self.history)
        if area.reads.is_used:  # reads first: they are newer than the writes
            part.reads_are_ordered = self.compared.compare(part, area.reads, lanes, index)
        if self.reporter.is_news(access.statement):
            self.compared.compare(part, area.writes, lanes, index)

    def _mark(self, part: "AccessPart") -> None:
        """Mark one part of an access, and report its lanes that collide; strong accesses synchronize."""
        access, meaning = part.access, part.access.semantics
        number = self.history.number(access.statement, access.width // meaning.elements)
        if access.kind == READ:
            self._list_read(part, number, slice(None))
        else:
            self._mark_write(part, number)
            self._collide(part)
        if part.area.is_shared and not self.compared.is_private:
            owner = access.index * access.width // access.space.stride
            mine = self.geometry.cta[access.threads.ids]
            if (elsewhere := owner != mine).any():
                agents = self.compared.agents(access.threads.ids[elsewhere])
                by_core = access.statement.opcode.startswith("tcgen05")
                self.remote.note(owner[elsewhere], ~agents if by_core else agents, self.history.now)
        if meaning.strong:
            self.history.strong.note(access, self.first)
        if meaning.strong or (access.kind != READ and (self.strict.matters or self.history.journal.strong)):
            self.orders.synchronise(part)

    def _list_read(self, part: "AccessPart", number: int, chosen: Any, product: ProductReads | None = None) -> None:
        """List a read, to be marked later; `chosen`: its lanes. Reads of products go to `held`."""
        area = part.area
        if self.held is not None:
            self.held.append(Read(part, number, chosen, self.first))
            return
        area.waiting.append(Read(part, number, chosen, self.first, product or self.product))
        area.lanes += part.access.threads.count
        if area.lanes > _PENDING:
            area.mark_reads(self.compared.floor if area.is_shared else 0, self.history)

    def _mark_write(self, part: "AccessPart", number: int) -> None:
        """Mark the lanes that changed something and the lanes that did not; a failed compare-and-swap only reads."""
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
        """Mark a write of lanes to items `index` as access `number`; `benign`: it changed nothing."""
        area, count, marks = part.area, part.count, part.area.writes
        event = AccessEvent(number, self.compared.agents(lanes), index * count, count, benign)
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
        late = marks.lasts(index, count) > (self.compared.floor if area.is_shared else 0)
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
        """Clear the reads before a write that was compared with them: lanes after the write come after them."""
        area.reads.fill(area.reads.last, index, count, 0)

    def _collide(self, part: "AccessPart") -> None:
        """Report two lanes that write to one place by one instruction, if they race."""
        access, lanes = part.access, part.access.threads.ids
        found = collision(part, self.geometry)
        if found is not None and self.reporter.is_news(access.statement):
            one, other = int(lanes[found[0]]), int(lanes[found[1]]) + self.first
            pair = self.compared.pair(one, [other], self.history.now, "write", same=True)
            self.reporter.report(
                access, pair, self.compared.position(part.area, int(part.index[found[0]]), access.width)
            )

    # ---- products of warpgroups
    @contextmanager
    def reads_held(self, into: list[Read]) -> Iterator[None]:
        """Collect the reads shown meanwhile in `into`; they are compared with writes but not listed. Asynchronous units
        may read until a thread has waited for them."""
        self.held = into
        try:
            yield
        finally:
            self.held = None

    def products_read(self, reads: Sequence[Read], groups: Ids, begun: int, product: ProductReads) -> None:
        """Record the reads of products that these warpgroups waited for. They count as reads made now, so a later
        writer must come after the wait. Each thread of the warpgroup knows that all four warps have read. It also knows
        that what these loaded up to access `begun`, before they issued the products, has arrived."""
        for read in reads:
            access = read.part.access
            mine = np.isin(self.geometry.warpgroup[access.threads.ids], groups)
            if mine.any():
                number = self.history.number(access.statement, access.width)
                self._list_read(read.part, number, slice(None) if mine.all() else mine, product)
        self.phases.stages.products_waited_for(groups, self.history.now, begun)

    # ---- copies
    def copy_issued(self, access: Access, items: Callable[[], Array]) -> None:
        """Compare a cp.async that was issued, and may write from now on; `items` returns the copied values."""
        part = AccessPart(self.shared, access)
        if self.reporter.is_news(access.statement):
            self._compare_all(part)
            self._same_place(part, items)

    def transfer_issued(self, access: Access, items: Callable[[], Array], lane: int) -> None:
        """Compare a transfer of a copy engine that `lane` issued, and that may write from now on. It comes after
        asynchronous work that other threads were done with when they arrived, although such arrivals release nothing to
        the lane."""
        part = AccessPart(self.shared, access)
        if not self.reporter.is_news(access.statement):
            return
        with self.phases.stages.known_to([lane], "settled") as is_settled:
            self._compare_all(part)
        if is_settled and self.reporter.is_news(access.statement):
            self._compare_threads(part, [lane])
        self._same_place(part, items)

    def transfers_issued(self, access: Access, lanes: list[int]) -> None:
        """Compare transfers of copy engines that several lanes issued, to separate places."""
        part = AccessPart(self.shared, access)
        if not self.reporter.is_news(access.statement):
            return
        with self.phases.stages.known_to(lanes, "settled") as settled:
            self._compare_all(part)
        if settled:
            chosen = np.isin(access.threads.ids, settled)
            self._compare_threads(part if chosen.all() else AccessPart(self.shared, access.of(chosen)), settled)

    def _compare_all(self, part: AccessPart) -> None:
        """Compare a coming write with all reads and writes there."""
        self.shared.settle()
        self.compared.compare(part, self.shared.writes, part.access.threads.ids, part.index)
        self.shared.mark_reads(self.compared.floor, self.history)
        if self.shared.reads.is_used:
            self.compared.compare(part, self.shared.reads, part.access.threads.ids, part.index)

    def _compare_threads(self, part: AccessPart, lanes: list[int]) -> None:
        """Compare a coming write of a copy engine with accesses of threads; warn of reads that only products order."""
        ids, statement = part.access.threads.ids, part.access.statement
        self.compared.compare(part, self.shared.writes, ids, part.index, threads=True)
        if not self.shared.reads.is_used:
            return
        with self.phases.stages.known_to(lanes, "loaded", "fed"):
            self.compared.compare(part, self.shared.reads, ids, part.index, threads=True)
        if self.reporter.is_news(statement) and not self.machine.findings.has_warned(CONVERGED, statement):
            with self.phases.stages.known_to(lanes, "loaded"):
                self.compared.compare(part, self.shared.reads, ids, part.index, threads=True, by_products=True)

    def copy_landed(self, lanes: Lanes, index: Array, width: int, counted: Bools) -> Array:
        """Mark a complete cp.async as writes of its lanes, and return the agents of these writes. The virtual agents of
        lanes make the writes where an mbarrier counts on the copies (`counted`)."""
        number = self.history.number(lanes.statement, width)
        count, agents = width // self.shared.granule, self.compared.agents(lanes.ids)
        if counted.any():
            agents[counted] = self.phases.landed(lanes.ids[counted])
        event = AccessEvent(number, agents, index * count, count)
        self.shared.unmarked.append((event, index))
        if self.shared.reads.is_used:
            self._forget_reads(self.shared, index, count)
        self.history.list(event)
        return agents

    def transfer_landed(self, access: Access, agent: int) -> int:
        """Mark a copy engine's write, in a phase that a thread saw complete, as made by `agent`; return its number."""
        number, count = self.history.number(access.statement, access.width), access.width // self.shared.granule
        event = AccessEvent(number, np.full(len(access.index), agent, np.int32), access.index * count, count)
        self.shared.unmarked.append((event, access.index))
        if self.shared.reads.is_used:
            self._forget_reads(self.shared, access.index, count)
        self.history.list(event)
        return number

    def transfer_read(self, event: LaunchEvent) -> None:
        """Mark a read of shared memory by a copy engine as made now by the thread or mbarrier that knows of its end. A
        thread saw the transfer complete now, so that a later writer must come after the threads that waited."""
        access, lane, barrier = event.payload
        agent = lane + self.first if barrier < 0 else self.phases.agent_of(barrier)
        number = self.history.number(access.statement, access.width)
        first = agent - int(access.threads.ids[0])
        self.shared.waiting.append(Read(AccessPart(self.shared, access), number, slice(None), first))
        owner = int(access.index[0]) * access.width // access.space.stride
        if agent >= 2 * self.geometry.grid_threads and not self.compared.is_private:
            if self.machine.alive[self.geometry.cta == owner].any():
                self.remote.note(np.array([owner]), np.array([agent]), number)
            else:
                self.reporter.report_exit(owner, agent, number)

    def transfer_sent(
        self, access: Access, repeats: Repeats | None = None, seen: list[AccessPart] | None = None
    ) -> int:
        """Record an asynchronous global write as made by the virtual agent of the issuing thread, and return its
        number.

        The agent (thread number + threads of the grid) is unordered with the thread until the thread waits. `repeats`:
        which items already hold the bytes. `seen`: the result of `look_at`, if no thread has touched global memory
        since.
        """
        number = self.history.number(access.statement, access.width // access.semantics.elements)
        for part in self.look_at(access, repeats) if seen is None else seen:
            agents = part.access.threads.ids + self.geometry.grid_threads
            benign = np.zeros(len(agents), np.bool_) if part.repeated is None else part.repeated
            for chosen, is_benign in ((benign, True), (~benign, False)):
                if chosen.any():
                    self._put(part, number, agents[chosen], part.index[chosen], benign=is_benign)
        return number

    def look_at(self, access: Access, repeats: Repeats | None = None) -> list[AccessPart]:
        """Return the parts of a global write that a copy engine will make, after comparing them."""
        parts = self._parts(access)
        for part in parts:
            part.repeats = repeats
            self._examine(part)
        return parts

    def note_equal(self, part: AccessPart, lanes: Ids, number: int) -> None:
        """Note that the second of these lanes stores by a copy what the first stores by the same instruction."""
        pair = Pair(
            int(lanes[1]), int(self.compared.agents(lanes[:1] + self.geometry.grid_threads)[0]), number, "write"
        )
        granule = int(part.index[0]) * part.count
        self.reporter.note_equal(part.access, pair, self.compared.position(part.area, granule, part.area.granule))

    def _same_place(self, part: "AccessPart", items: Callable[[], Array]) -> None:
        """Report two lanes that copy to one place by one instruction."""
        found = copied_twice(part, items, self.geometry)
        if found is not None:
            first, second = found
            one, other = (int(part.access.threads.ids[each]) for each in (second, first))
            number = self.history.number(part.access.statement, part.access.width)
            pair = Pair(one, other + self.first, number, "write", same=True)
            where = self.compared.position(part.area, int(part.index[second]), part.access.width)
            self.reporter.report(part.access, pair, where)

    def renew(self, event: LaunchEvent) -> None:
        """Clear the marks of bytes of global memory that are allocated anew."""
        region, start, end = event.payload
        area = self.history.areas.get(region.start)
        if area is not None:
            area.renew(start, end, self.history)

    # ---- meetings
    def hears(self) -> dict[str, Hear]:
        """Return what hears the events of each verb."""
        orders = self.orders
        found: dict[str, Hear] = {
            events.FENCE: orders.apply,
            events.MEET_WARPS: orders.apply,
            events.MEET_CTA: self.everyone_met,
            events.PASSED: self.barriers_met,
            events.CLUSTER_ARRIVE: orders.apply,
            events.CLUSTER_FINISH: orders.apply,
            events.CLUSTER_WAIT: orders.everyone_met,
            events.MBARRIER_PASS: self.phase_passed,
            events.SOURCE_READ: self.transfer_read,
            events.EXIT: self.exited,
            events.RENEW: self.renew,
        }
        return found if orders.loose is None else found | {events.CONVERGE: orders.converged}

    def everyone_met(self, event: LaunchEvent) -> None:
        """Record that all running lanes passed one barrier of their CTAs together."""
        self.orders.everyone_met(event)
        if self.compared.is_private:
            self.shared.forget()
            self._lift_floor()

    def _lift_floor(self) -> None:
        self.compared.floor = self.strict.floor(self.machine.alive)

    def barriers_met(self, event: LaunchEvent) -> None:
        """Record that warps pass named barriers."""
        self.barrier_users.met(event.lanes, event.payload)
        if self.orders.barriers_met(event) and self.compared.is_private:
            self._lift_floor()

    def phase_passed(self, event: LaunchEvent) -> None:
        """Record that lanes saw the last phase of an mbarrier complete."""
        self.phases.passed(event)
        if self.compared.is_private:
            self._lift_floor()

    def exited(self, event: LaunchEvent) -> None:
        """Report an unordered access of another CTA to the shared memory of a CTA whose lanes have exited."""
        lanes = event.lanes
        for cta in np.unique(self.geometry.cta[lanes]).tolist() if self.phases.unseen else ():
            if not self.machine.alive[self.geometry.cta == cta].any():
                newest = self.remote.newest.setdefault(cta, {})
                for agent, number in self.phases.unseen_at(cta).items():
                    newest[agent] = max(newest.get(agent, 0), number)
        found = self.remote.left_behind(lanes, self.machine.alive, self._were_seen) if self.remote.newest else None
        if found is not None:
            self.reporter.report_exit(*found)

    def _were_seen(self, cta: int, agent: int, newest: int) -> bool:
        """Return whether an exited CTA observed every write by a thread to its shared memory that it does not come
        after, `newest` among them. A relaxed read comes after the write that it observed. Source: PTX ISA, causality
        order."""
        area, chains, own = self.shared, Chains(self.history), np.flatnonzero(self.geometry.cta == cta)
        area.settle()
        area.mark_reads(self.compared.floor, self.history)
        first, size = cta * self.machine.shared.stride // area.granule, self.machine.shared.stride // area.granule
        seen = set()
        for marks in (area.writes, area.reads):
            for granule in (np.flatnonzero(marks.last[first : first + size]) + first).tolist() if marks.is_used else ():
                links = (number for number, agents, _ in chains.of(marks, granule) if agent in agents)
                late = {number for number in links if not self._comes_after(own, agent, number)}
                for lane in own.tolist() if late and marks is area.writes else ():
                    observers = self.compared.observers(area, chains, lane, granule)
                    for number, agents, _ in chains.of(marks, granule):
                        if agent in agents and agent not in set(observers.unobserved(number, agents)):
                            seen.add(number)
                if late - seen:
                    return False
        return newest in seen

    def _comes_after(self, lanes: Ids, agent: int, number: int) -> bool:
        """Return whether one of the lanes comes after an access of a thread."""
        return bool(self.orders.strict.is_ordered(lanes, np.full(len(lanes), agent), np.full(len(lanes), number)).any())


def changes(part: AccessPart) -> Bools:
    """Return which lanes write a value that differs from memory before the instruction (or their turn of an update)."""
    access = part.access
    held, items = access.held(), access.items
    assert items is not None
    if len(items) != len(held):
        items = np.broadcast_to(items, len(held))
    if access.kind != UPDATE or is_rising(part.index):
        changed = unequal(held, items)
    elif (part.index == part.index[0]).all():
        changed = unequal(np.concatenate((held[:1], items[:-1])), items)
    else:
        order = np.argsort(part.index, kind="stable")
        again = part.index[order[1:]] == part.index[order[:-1]]
        held[order[1:][again]] = items[order[:-1][again]]
        changed = unequal(held, items)
    return changed if access.wrote is None else changed & access.wrote


def collision(part: AccessPart, geometry: Geometry) -> tuple[int, int] | None:
    """Return the positions of two lanes that race within one instruction that was just made; None if there are none.
    They store different values, or update with a scope that does not include both."""
    access, meaning = part.access, part.access.semantics
    if len(part.index) == 1 or (meaning.strong and meaning.scope >= GPU) or is_rising(part.index):
        return None
    if not meaning.strong:
        assert access.items is not None
        differ = np.flatnonzero(unequal(access.held(), np.broadcast_to(access.items, len(access.index))))
        if not len(differ):
            return None
        one = int(differ[0])
        return one, int(np.flatnonzero(part.index == part.index[one])[-1])
    return _among_strong(
        part, geometry.cta[part.access.threads.ids] // (1 if meaning.scope == CTA else geometry.cluster_ctas)
    )


def copied_twice(part: AccessPart, items: Callable[[], Array], geometry: Geometry) -> tuple[int, int] | None:
    """Return the positions of two lanes that copy to one place by one instruction; None if there are none. Either copy
    may come last. Equal bytes are accepted within a warp. In two warps the later copy may still be in flight when the
    earlier one has been waited for."""
    if is_rising(part.index):
        return None
    order = np.argsort(part.index, kind="stable")
    ordered = part.index[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(twice):
        return None
    first, second = order[twice], order[twice + 1]
    copied, warp = items(), geometry.warp[part.access.threads.ids]
    differ = np.flatnonzero(unequal(copied[first], copied[second]) | (warp[first] != warp[second]))
    return (int(first[differ[0]]), int(second[differ[0]])) if len(differ) else None


def _among_strong(part: AccessPart, units: Array) -> tuple[int, int] | None:
    """Return the positions of two racing lanes of a strong access; lanes with one number in `units` share a scope."""
    access, changed = part.access, part.changed
    assert changed is not None
    assert access.items is not None
    order = np.argsort(part.index, kind="stable")
    for together in np.split(order, np.flatnonzero(np.diff(part.index[order])) + 1):
        apart = units[together]
        if (apart == apart[0]).all():
            continue
        racing = changed[together]
        if access.kind != UPDATE:
            items = np.broadcast_to(access.items, len(access.index))[together]
            racing = unequal(items, np.broadcast_to(items[:1], len(items)))
        if racing.any():
            one = int(np.flatnonzero(racing)[0])
            return int(together[one]), int(together[np.flatnonzero(apart != apart[one])[0]])
    return None
