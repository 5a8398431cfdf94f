"""Barriers in shared memory (mbarrier objects): phases, the arrivals and bytes that they wait for, and misuse of them.

The object is a 64-bit word that a kernel may not read. The word holds one bit of the phase; the full number of the
phase is kept next to it, so that a state of an old phase is detected. Arrivals of copies happen when no thread can run
otherwise. Their bytes are in memory once some thread has seen the phase complete. Both are as late as the ISA allows,
under any policy.

`PhaseWaits` records the phase that each thread waits for by parity. A parity only says whether the phase is even. A
thread that forgets to flip its parity asks again for a phase that it has seen complete, and passes at once.

`Arrivals` records the threads that arrived at each mbarrier, phase by phase, for deadlock reports.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refsim.ptx import events
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.memory.access import READ, WRITE, Access, Semantics
from refsim.ptx.memory.arrays import Array
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import Statement, place

CODE, RULE = "barrier-misuse", "PTX ISA, mbarrier"
BYTES = 8
_NONE = -2
_NOBODY = np.zeros(0, np.int64)
_RULE = "PTX ISA, mbarrier.test_wait: a parity means the current phase or the one before it, whichever thread asks"
Came = list[tuple[Ids, Statement]]


COUNT_BITS = 20
MOST_ARRIVALS = (1 << COUNT_BITS) - 1


@dataclass
class Barrier:
    """One live object: `pending` arrivals and `transactions` bytes until `phase` completes, `expected` arrivals in the
    next one.

    `is_observed`: some thread saw the previous phase complete. `copies`: (lanes, number of their latest copy) of
    cp.async copies that arrived in this phase. `landing`: these of the previous phase, until some thread sees it
    complete. `counted` and `brought` hold transfers of copy engines in this way.
    """

    expected: int
    pending: int
    transactions: int = 0
    phase: int = 0
    is_observed: bool = True
    copies: list[tuple[Ids, int]] = field(default_factory=list)
    landing: list[tuple[Ids, int]] = field(default_factory=list)
    counted: list[Any] = field(default_factory=list)
    brought: list[Any] = field(default_factory=list)

    @property
    def word(self) -> int:
        """Return the 64-bit word in shared memory."""
        return (
            (self.phase & 1) << 63
            | (self.transactions & (2 * MOST_ARRIVALS + 1)) << 40
            | self.expected << 20
            | self.pending
        )

    @property
    def is_filling(self) -> bool:
        """Return whether some thread has arrived in this phase, or announced bytes for it."""
        return self.pending != self.expected or self.transactions != 0

    def complete(self) -> None:
        """Begin the next phase if no arrival and no byte of this one is pending."""
        if self.pending == 0 and self.transactions == 0:
            self.phase, self.pending, self.is_observed = self.phase + 1, self.expected, False
            self.landing, self.copies = self.copies, []
            self.brought, self.counted = self.counted, []


@dataclass
class PhaseWaits:
    """For each object: the last phase that each lane saw complete, and the lane's count of arrivals by then."""

    machine: Machine
    seen: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrivals: Array = np.zeros(self.machine.geometry.lanes, np.int64)

    def arrived(self, lanes: Ids) -> None:
        """Count an arrival of lanes at any object."""
        self.arrivals[lanes] += 1

    def forget(self, flat: int) -> None:
        """Drop the record of an object that ended."""
        self.seen.pop(flat, None)

    def passed(self, lanes: Lanes, flat: int, phase: int, *, is_filling: bool) -> None:
        """Record that a parity wait lets lanes pass since `phase` is complete; report a lane that passes the phase
        again. `is_filling`: some thread has already arrived in the next phase."""
        ids = lanes.ids
        if flat not in self.seen:
            count = self.machine.geometry.lanes
            self.seen[flat] = np.full(count, _NONE, np.int64), np.zeros(count, np.int64)
        phases, counts = self.seen[flat]
        again = (phases[ids] == phase) & (counts[ids] < self.arrivals[ids])
        if is_filling and again.any():
            what = (
                f"waits again for phase {phase} of an mbarrier, which it saw complete before it arrived elsewhere: it passes "
                f"at once, and phase {phase + 1} is under way"
            )
            error = lanes.fault("phase-waited-twice", int(np.argmax(again)), what, _RULE)
            self.machine.report(error, lanes.statement)
        phases[ids], counts[ids] = phase, self.arrivals[ids]


@dataclass
class Arrivals:
    """The arrivals at each mbarrier object in its current phase and in the previous one. `came` maps the object's byte
    in the flat shared memory to {phase: [(lanes, statement)]}; `executed` holds the ids of the statements that arrived
    anywhere."""

    machine: Machine
    came: dict[int, dict[int, Came]] = field(default_factory=dict)
    executed: set[int] = field(default_factory=set)

    def note(self, flat: int, phase: int, lanes: Ids, statement: Statement) -> None:
        """Record that lanes arrive at an object in a phase; phases older than the previous one are dropped."""
        self.executed.add(id(statement))
        phases = self.came.setdefault(flat, {})
        if phase not in phases:
            phases[phase] = []
            for old in [each for each in phases if each < phase - 1]:
                del phases[old]
        phases[phase].append((lanes, statement))

    def forget(self, flat: int) -> None:
        """Drop the arrivals at an object that ended."""
        self.came.pop(flat, None)

    def missing(self, flat: int, phase: int) -> Came:
        """Return the lanes that arrived in the previous phase and not in this one, with each arrival's statement."""
        phases = self.came.get(flat, {})
        here = np.array(sorted({lane for ids, _ in phases.get(phase, []) for lane in ids.tolist()}), np.int64)
        rest = [(ids[~np.isin(ids, here)], statement) for ids, statement in phases.get(phase - 1, [])]
        return [(ids, statement) for ids, statement in rest if len(ids)]

    def never_executed(self) -> list[Statement]:
        """Return the statements that arrive at mbarriers and that no thread has executed."""
        steps = (step.statement for step in self.machine.code.steps)
        return [each for each in steps if "mbarrier.arrive" in each.opcode and id(each) not in self.executed]

    def named(self, position: int) -> str:
        """Return an address in shared memory with the variable that contains it, if any: `0x408 (full+8)`."""
        machine = self.machine
        names = machine.in_shared & machine.symbols.keys()  # variables that the entry names
        starts = [(machine.symbols[name], name) for name in names if not name.startswith("generic(")]
        start, name = max((each for each in starts if each[0] <= position), default=(0, ""))
        name, offset = name.partition("@")[0], f"+{position - start}" if position > start else ""
        return f"{position:#x} ({name}{offset})" if name else f"{position:#x}"


@dataclass(frozen=True, eq=False)
class Delayed:
    """Arrivals of lanes at one object, due once their copies up to number `issued` are complete."""

    lanes: Lanes
    flat: int
    access: Access
    issued: int


@dataclass(frozen=True)
class Object:
    """An mbarrier object that some lanes address: its byte position, the lanes, their indices among the executing
    lanes, the access."""

    flat: int
    lanes: Lanes
    at: Array
    access: Access

    def of(self, values: Array) -> Array:
        """Return the part of an operand that belongs to these lanes."""
        return values[self.at] if len(values) > 1 else np.broadcast_to(values, len(self.at))


@dataclass
class Mbarriers:
    """The mbarrier objects of all running CTAs, by their byte position in the flat shared memory. `live` and `ended`:
    objects between init and inval, and after it. `delayed`: arrivals that wait for copies. `asked`: (object, phase,
    statement) that each waiting lane polls."""

    machine: Scheduler
    live: dict[int, Barrier] = field(default_factory=dict)
    ended: dict[int, Statement] = field(default_factory=dict)
    delayed: list[Delayed] = field(default_factory=list)
    positions: Array | None = None
    asked: dict[int, tuple[int, int, Statement]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrivals, self.waits = Arrivals(self.machine), PhaseWaits(self.machine)

    # ---- plain accesses
    def before(self, access: Access) -> None:
        """Raise the fault of a load, store or copy that touches a live object."""
        if not self.live:
            return
        if self.positions is None:
            self.positions = np.array(sorted(self.live), np.int64)
        first = access.index * access.width
        at = np.searchsorted(self.positions, first - BYTES, side="right")
        inside = at < len(self.positions)
        hit = inside & (self.positions[np.minimum(at, len(self.positions) - 1)] < first + access.width)
        if hit.any():
            lane = min(int(np.argmax(hit)), access.threads.count - 1)
            raise access.threads.fault(CODE, lane, "a plain access to a live mbarrier object", RULE)

    def after(self, access: Access) -> None:
        """Do nothing: no access is remembered."""

    # ---- objects
    def init(self, lanes: Lanes, space: str, addresses: Array, count: Array) -> None:
        """Begin objects that expect `count` arrivals (mbarrier.init). Raises the fault of a count out of range; reports
        an object that is live already."""
        made: list[tuple[Object, Barrier]] = []
        try:
            for found in self.objects(lanes, space, addresses, own="initialised"):
                expected, many = int(found.of(count)[0]), len(found.at)
                if found.flat in self.live or many > 1:
                    what = f"one object by {many} lanes" if many > 1 else "an object that is live: inval ends it"
                    again = found.lanes.fault(CODE, 0, f"mbarrier.init of {what}", RULE)
                    if (found.of(count) != expected).any():
                        raise again
                    self.machine.report(again, found.lanes.statement)  # a waiver allows equal counts
                if found.flat in self.live:
                    self._end(found)  # a known compiler leaves out the inval
                if not 1 <= expected <= MOST_ARRIVALS:
                    what = f"an mbarrier for {expected} arrivals, of 1 to {MOST_ARRIVALS}"
                    raise found.lanes.fault(CODE, 0, what, RULE)
                made.append((found, Barrier(expected, expected)))
        finally:  # the objects before an invalid one have begun: findings of their store are reported first
            if made:
                self._store(lanes, space, addresses, {int(found.at[0]): barrier.word for found, barrier in made})
            for found, barrier in made:
                self.live[found.flat], self.positions = barrier, None
                found.lanes.emit(events.MBARRIER_INIT, payload=found.flat)

    def invalidate(self, lanes: Lanes, space: str, addresses: Array) -> None:
        """End objects (mbarrier.inval) and clear their words."""
        self._come_due()
        for found in self.objects(lanes, space, addresses, own="invalidated"):
            self.barrier(found, 0)
            if len(found.at) > 1:
                raise found.lanes.fault(CODE, 1, "mbarrier.inval of an object that another thread has ended", RULE)
            self._end(found)
            self._store(lanes, space, addresses, {int(found.at[0]): 0})

    def _end(self, found: Object) -> None:
        """Remove an object from all records."""
        found.lanes.emit(events.MBARRIER_END, payload=(found.access, found.flat))
        del self.live[found.flat]
        self.arrivals.forget(found.flat)
        self.waits.forget(found.flat)
        self.positions, self.ended[found.flat] = None, found.access.statement

    def _store(self, lanes: Lanes, space: str, addresses: Array, words: dict[int, int]) -> None:
        """Store the words of objects at once; `words` maps an index among the lanes to the word of its object."""
        places, held = sorted(words), np.array([words[place] for place in sorted(words)], np.uint64)
        some = Lanes(self.machine, lanes.ids[places], lanes.statement)
        some.store(space, lanes.full(addresses)[places], held, BYTES)

    # ---- arrivals
    def arrive(
        self,
        lanes: Lanes,
        space: str,
        addresses: Array,
        count: Array,
        meaning: Semantics,
        *,
        drop: bool = False,
        transactions: Array | None = None,
        completes: bool = True,
    ) -> Array:
        """Make the arrivals of lanes, lane after lane, and return a state token for each: the phase and its pending
        count. `count`: arrivals of each lane; `drop` lowers the expected count of later phases; `transactions`: bytes
        that the lane announces; `completes` is False for .noComplete, which may not complete a phase."""
        tokens = np.zeros(lanes.count, np.uint64)
        for found in self.objects(lanes, space, addresses):
            barrier, numbers = self.barrier(found, 0), found.of(count).astype(np.int64)
            self.touch(found)
            if transactions is not None:
                self._expect(found, barrier, int(found.of(transactions).astype(np.int64).sum()))
            before = barrier.pending - np.cumsum(numbers) + numbers
            self.check(found, barrier, numbers, before, completes=completes)
            tokens[found.at] = (barrier.phase << COUNT_BITS | before).astype(np.uint64)
            if drop:
                barrier.expected -= int(numbers.sum())
            found.lanes.emit(events.MBARRIER_ARRIVE, meaning, found.flat)
            barrier.pending -= int(numbers.sum())
            self.arrivals.note(found.flat, barrier.phase, found.lanes.ids, found.access.statement)
            self.waits.arrived(found.lanes.ids)
            barrier.complete()
            self.keep(found.flat)
        return tokens

    def check(self, found: Object, barrier: Barrier, numbers: Array, before: Array, *, completes: bool) -> None:
        """Raise the fault of arrivals that a phase does not take. These are more arrivals than are pending (`before`,
        for each lane), or arrivals before some thread saw the previous phase complete, or, unless `completes`, arrivals
        that complete the phase."""
        if not barrier.is_observed:
            what = f"an arrival in phase {barrier.phase} of an mbarrier, whose phase {barrier.phase - 1} no thread saw complete"
            raise found.lanes.fault(CODE, 0, what, RULE)
        if (stray := (numbers < 1) | (numbers > before)).any():
            lane = int(np.argmax(stray))
            left = f"while {max(int(before[lane]), 0)} of {barrier.expected} are pending in phase {barrier.phase}"
            raise found.lanes.fault(CODE, lane, f"an arrival of {numbers[lane]}, {left}", RULE)
        if not completes and (stray := numbers == before).any():
            lane = int(np.argmax(stray))
            what = f"an arrival of {numbers[lane]} that completes the phase, which .noComplete forbids"
            raise found.lanes.fault(CODE, lane, what, RULE)

    def change_transactions(self, lanes: Lanes, space: str, addresses: Array, amount: Array, sign: int) -> None:
        """Add `sign` times `amount` bytes to the bytes that a phase waits for; bytes may precede expect_tx."""
        for found in self.objects(lanes, space, addresses):
            barrier = self.barrier(found, 0)
            self.touch(found)
            self._expect(found, barrier, sign * int(found.of(amount).astype(np.int64).sum()))
            barrier.complete()
            self.keep(found.flat)

    def _expect(self, found: Object, barrier: Barrier, amount: int) -> None:
        barrier.transactions += amount
        if abs(barrier.transactions) > MOST_ARRIVALS:
            raise found.lanes.fault(CODE, 0, f"a tx-count of {barrier.transactions}, beyond {MOST_ARRIVALS}", RULE)

    # ---- waits
    def test(
        self, lanes: Lanes, space: str, addresses: Array, asked: Array, meaning: Semantics, *, parity: bool
    ) -> Array:
        """Return for each lane whether the phase that a state token or a parity names is complete. Only the previous
        phase is complete; the current one is not. `asked`: tokens, or parities if `parity`."""
        done = np.zeros(lanes.count, np.bool_)
        for found in self.objects(lanes, space, addresses, own="waited for"):
            barrier = self.barrier(found, 0)
            found.access.kind = READ
            self.touch(found)
            wanted = self._wanted(found, barrier, found.of(asked), parity=parity)
            passed = wanted == barrier.phase - 1
            done[found.at] = passed
            ids = found.lanes.ids
            question = found.flat, barrier.phase, found.access.statement
            self.asked.update(dict.fromkeys(ids[~passed].tolist(), question))
            if passed.any():
                for lane in ids[passed].tolist():
                    self.asked.pop(lane, None)
                some = found.lanes.select(passed)
                if parity and some is not None:
                    self.waits.passed(some, found.flat, barrier.phase - 1, is_filling=barrier.is_filling)
                self._observe(found.flat, barrier)
                self.machine.emit(events.MBARRIER_PASS, ids[passed], lanes.statement, meaning, found.flat)
        return done

    def _wanted(self, found: Object, barrier: Barrier, asked: Array, *, parity: bool) -> Array:
        """Return the number of the phase that each lane asks for: the current phase or the previous one."""
        if parity:  # its lowest bit: ptxas shifts the others out, and Triton writes -1 where the ISA says 1
            return np.where(asked % 2 == barrier.phase % 2, barrier.phase, barrier.phase - 1)
        wanted = (asked >> np.uint64(COUNT_BITS)).astype(np.int64)
        if (stray := (wanted != barrier.phase) & (wanted != barrier.phase - 1)).any():
            lane = int(np.argmax(stray))
            what = (
                f"a wait by the state of phase {wanted[lane]} of an mbarrier in phase {barrier.phase}, two phases off"
            )
            raise found.lanes.fault(CODE, lane, what, RULE)
        return wanted

    def _observe(self, flat: int, barrier: Barrier) -> None:
        """Complete the copies and transfers that arrived in the last phase, as some thread saw it complete."""
        if barrier.is_observed:
            return
        barrier.is_observed = True
        for ids, issued in barrier.landing:
            self.machine.copies.land(ids, issued)
        copied = [ids for ids, _ in barrier.landing]
        barrier.landing = []
        transfers, barrier.brought = self.machine.engine.land(barrier.brought) if barrier.brought else {}, []
        self.machine.emit(events.MBARRIER_OBSERVE, _NOBODY, payload=(flat, copied, transfers))

    def missing(self, lane: int) -> Came:
        """Return the lanes that arrived in the phase before the awaited phase of a lane, and not in the awaited one."""
        flat, phase, _ = self.asked[lane]
        return self.arrivals.missing(flat, phase)

    def question(self, lane: int) -> str:
        """Return what a resting lane waits for: object, phase, and missing arrivals; "" if it waits for no object."""
        if lane not in self.asked:
            return ""
        flat, phase, statement = self.asked[lane]
        barrier, geometry, shared = self.live.get(flat), self.machine.geometry, self.machine.shared
        if barrier is None or barrier.phase != phase:
            return ""
        block = geometry.describe(flat // shared.stride * geometry.threads).partition(" of ")[2]
        named = self.arrivals.named(flat % shared.stride)
        where = f"{place(statement)} for phase {phase} of the mbarrier at shared address {named} of {block}"
        arrivals = f"{barrier.pending} of {barrier.expected} arrivals"
        if barrier.transactions < 0:
            more = f"{-barrier.transactions} bytes more have come than expect_tx announced"
            return f"{where}: {arrivals} are missing, and {more}"
        bytes_ = f" and {barrier.transactions} bytes" if barrier.transactions else ""
        return f"{where}: {arrivals}{bytes_} are missing"

    # ---- arrivals of copies
    def arrive_after_copies(self, lanes: Lanes, space: str, addresses: Array, *, increments: bool) -> None:
        """Let each lane arrive once its copies so far are complete: at once if none is in flight. `increments`: the
        pending count grows by one for each lane (without .noinc)."""
        for found in self.objects(lanes, space, addresses, own="counted on by copies"):
            barrier = self.barrier(found, 0)
            self.touch(found)
            barrier.pending += increments * len(found.at)
            if barrier.pending > MOST_ARRIVALS:
                raise found.lanes.fault(CODE, 0, f"{barrier.pending} pending arrivals, beyond {MOST_ARRIVALS}", RULE)
            self.keep(found.flat)
            self.machine.copies.count_on(found.lanes)
            ours = Lanes(self.machine, found.lanes.ids, lanes.statement)
            arrival = Delayed(ours, found.flat, found.access, self.machine.copies.issued)
            ours.emit(events.MBARRIER_ASK, payload=(found.flat, arrival))
            if self.machine.copies.are_flying(arrival.lanes.ids, arrival.issued):
                self.delayed.append(arrival)
            else:
                self._come(arrival)

    def fire(self) -> None:
        """Make the oldest delayed arrival of every CTA, since no thread can run otherwise."""
        oldest: dict[int, Delayed] = {}
        later = []
        for each in self.delayed:
            if oldest.setdefault(each.flat // self.machine.shared.stride, each) is not each:
                later.append(each)
        self.delayed = later
        for each in oldest.values():
            self._come(each)

    def _come_due(self) -> None:
        """Make the delayed arrivals whose copies some thread has waited for."""
        copies, delayed = self.machine.copies, self.delayed
        self.delayed = [each for each in delayed if copies.are_flying(each.lanes.ids, each.issued)]
        for each in delayed:
            if each not in self.delayed:
                self._come(each)

    def _come(self, first: Delayed) -> None:
        """Make one delayed arrival: count its lanes, and remember their copies until the phase is seen complete."""
        found = Object(first.flat, first.lanes, np.arange(first.lanes.count), first.access)
        barrier, ones = self.barrier(found, 0), np.ones(first.lanes.count, np.int64)
        self.check(found, barrier, ones, barrier.pending - np.arange(first.lanes.count), completes=True)
        first.lanes.emit(events.MBARRIER_COME, payload=(first.flat, first))
        barrier.copies.append((first.lanes.ids, first.issued))
        barrier.pending -= first.lanes.count
        self.arrivals.note(first.flat, barrier.phase, first.lanes.ids, first.access.statement)
        barrier.complete()
        self.keep(first.flat)

    # ---- places
    def objects(self, lanes: Lanes, space: str, addresses: Array, *, own: str = "") -> Iterator[Object]:
        """Yield the objects that lanes address, which must lie in shared memory. `own`: the objects must lie in the
        lane's own CTA; the text says what is done to them, for the error."""
        for part, name, at, chosen in lanes.parts(space, addresses):
            numbers = np.arange(lanes.count) if chosen is None else np.flatnonzero(chosen)
            if name != "shared":
                self.machine.report(part.fault(CODE, 0, f"an mbarrier object in {name} memory", RULE), part.statement)
                yield from self.objects(lanes, "shared", addresses, own=own)  # a known compiler means shared addresses
                return
            state, owner = part.space(name)
            if own and (elsewhere := np.asarray(owner != part.cta)).any():
                what = f"an mbarrier of another CTA is {own}; there threads may only arrive"
                raise part.fault(CODE, int(np.argmax(elsewhere)), what, RULE)
            access = self.machine.port.plan(WRITE, part, name, state, part.full(at), owner, BYTES)
            flats = access.index * BYTES
            for flat in sorted(set(flats.tolist())):
                mine = flats == flat
                some = part.select(mine)
                assert some is not None
                yield Object(flat, some, numbers[mine], access if some is part else access.of(mine))

    def barrier(self, found: Object, lane: int) -> Barrier:
        """Return the live barrier of an object. Raises the fault of `lane` for an uninitialized or ended object."""
        if found.flat in self.live:
            return self.live[found.flat]
        ended = self.ended.get(found.flat)
        what = "that is not initialized" if ended is None else f"that mbarrier.inval ended ({place(ended)})"
        raise found.lanes.fault(CODE, lane, f"an mbarrier object {what}", RULE)

    def touch(self, found: Object) -> None:
        """Emit an access to an object."""
        found.lanes.emit(events.MBARRIER_TOUCH, payload=(found.access, found.flat))

    def keep(self, flat: int) -> None:
        """Write the word of an object to memory, and let polling lanes look again."""
        self.machine.shared.bytes.view(np.uint64)[flat // BYTES] = self.live[flat].word
        self.machine.port.writes += 1
