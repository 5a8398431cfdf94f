"""Barriers in shared memory (mbarrier objects): phases, the arrivals and bytes that they wait for, and misuse of them.

The object is the 64-bit word that a kernel may not look at; beside it the full number of its phase is kept, of which the
word has one bit, so that a wait for a phase long gone is seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.races import Races
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.memory.access import Access
from refsim.ptx.memory.semantics import Semantics

Array = NDArray[Any]
RULE = "PTX ISA, mbarrier"
BYTES, COUNT_BITS = 8, 20
MOST = (1 << COUNT_BITS) - 1
_SEQUENTIAL = 2  # phases in a row that a thread has waited for, until it counts as one that waits for each


class Host(Machine, Protocol):
    """A machine with those that hear of its barriers."""

    @property
    def races(self) -> Races | None: ...


@dataclass
class Barrier:
    """One live object: `pending` arrivals and `transactions` bytes until `phase` completes, `expected` in the next one."""

    expected: int
    pending: int
    transactions: int = 0
    phase: int = 0
    waited: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def word(self) -> int:
        """What stands in shared memory."""
        return (self.phase & 1) << 63 | (self.transactions & (2 * MOST + 1)) << 40 | self.expected << 20 | self.pending

    @property
    def token(self) -> int:
        """The state that an arrival returns: the phase that it arrived in, and how many were pending."""
        return self.phase << COUNT_BITS | self.pending


@dataclass(frozen=True)
class Delayed:
    """Arrivals of lanes at their barriers once the copies up to number `issued` have landed."""

    lanes: Lanes
    flat: Array
    issued: int
    meaning: Semantics


@dataclass
class Mbarriers:
    """The objects of all CTAs that run, by their byte position in the flat shared memory."""

    machine: Host
    live: dict[int, Barrier] = field(default_factory=dict)
    delayed: list[Delayed] = field(default_factory=list)
    positions: Array | None = None

    # ---- plain accesses
    def before(self, access: Access) -> None:
        """A load or a store that touches a live object is a misuse of it."""
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
            raise access.threads.fault("barrier-misuse", lane, "a plain access to a live mbarrier object", RULE)

    def after(self, access: Access) -> None:
        """Nothing is remembered."""

    # ---- objects
    def init(self, lanes: Lanes, space: str, addresses: Array, count: Array) -> None:
        for lane, flat in self._places(lanes, space, addresses):
            expected = int(lanes.full(count)[lane])
            if flat in self.live:
                raise lanes.fault(
                    "barrier-misuse", lane, "mbarrier.init of an object that is live: inval ends it", RULE
                )
            if not 1 <= expected <= MOST:
                raise lanes.fault("barrier-misuse", lane, f"an mbarrier for {expected} arrivals, of 1 to {MOST}", RULE)
            self.live[flat] = Barrier(expected, expected)
            self.positions = None
            self._keep(flat)

    def invalidate(self, lanes: Lanes, space: str, addresses: Array) -> None:
        for lane, flat in self._places(lanes, space, addresses):
            self._barrier(lanes, lane, flat)
            del self.live[flat]
            self.positions = None

    def arrive(
        self, lanes: Lanes, space: str, addresses: Array, count: Array, meaning: Semantics, *, drop: bool = False,
        transactions: Array | None = None, completes: bool = True,
    ) -> Array:  # fmt: skip
        """Arrivals lane after lane; the state of the phase before each."""
        tokens = np.zeros(lanes.count, np.uint64)
        for lane, flat in self._places(lanes, space, addresses):
            barrier = self._barrier(lanes, lane, flat)
            tokens[lane] = barrier.token
            if transactions is not None:
                barrier.transactions += int(lanes.full(transactions)[lane])
            number = int(lanes.full(count)[lane])
            if drop:
                barrier.expected -= number
            if not completes and number >= barrier.pending:
                what = f"an arrival of {number} that completes the phase, which .noComplete forbids"
                raise lanes.fault("barrier-misuse", lane, what, RULE)
            self._arrive(lanes, lane, flat, number, meaning)
        return tokens

    def _arrive(self, lanes: Lanes, lane: int, flat: int, number: int, meaning: Semantics) -> None:
        barrier = self._barrier(lanes, lane, flat)
        if not 1 <= number <= barrier.pending:
            what = f"an arrival of {number}, while {barrier.pending} of {barrier.expected} are pending in phase {barrier.phase}"
            raise lanes.fault("barrier-misuse", lane, what, RULE)
        if self.machine.races is not None:
            self.machine.races.mbarrier_arrived(lanes.ids[lane : lane + 1], flat, barrier.phase, meaning)
        barrier.pending -= number
        self._complete(flat, barrier)

    def change_transactions(self, lanes: Lanes, space: str, addresses: Array, amount: Array, sign: int) -> None:
        """Bytes that the phase waits for, or that have come; they may come first, while an arrival is pending."""
        for lane, flat in self._places(lanes, space, addresses):
            barrier = self._barrier(lanes, lane, flat)
            barrier.transactions += sign * int(lanes.full(amount)[lane])
            if abs(barrier.transactions) > MOST:
                raise lanes.fault("barrier-misuse", lane, f"a tx-count of {barrier.transactions}, beyond {MOST}", RULE)
            self._complete(flat, barrier)

    def _complete(self, flat: int, barrier: Barrier) -> None:
        if barrier.pending == 0 and barrier.transactions == 0:
            if self.machine.races is not None:
                self.machine.races.mbarrier_completed(flat, barrier.phase)
            barrier.phase, barrier.pending = barrier.phase + 1, barrier.expected
        self._keep(flat)

    # ---- waits
    def test(
        self, lanes: Lanes, space: str, addresses: Array, asked: Array, meaning: Semantics, *, parity: bool
    ) -> Array:
        """Whether the phase is complete that a state, or a parity, names."""
        done = np.zeros(lanes.count, np.bool_)
        for lane, flat in self._places(lanes, space, addresses):
            barrier, value = self._barrier(lanes, lane, flat), int(lanes.full(asked)[lane])
            thread = int(lanes.ids[lane])
            wanted = self._phase_of_parity(lanes, lane, barrier, value) if parity else value >> COUNT_BITS
            if wanted not in (barrier.phase, barrier.phase - 1):
                what = f"a wait for phase {wanted} of an mbarrier in phase {barrier.phase}, two phases off"
                raise lanes.fault("barrier-misuse", lane, what, RULE)
            done[lane] = wanted == barrier.phase - 1
            if done[lane]:
                last, row = barrier.waited.get(thread, (-1, 0))
                barrier.waited[thread] = wanted, row + 1 if wanted == last + 1 else row if wanted == last else 0
                if self.machine.races is not None:
                    self.machine.races.mbarrier_passed(lanes.ids[lane : lane + 1], flat, wanted, meaning)
        return done

    def _phase_of_parity(self, lanes: Lanes, lane: int, barrier: Barrier, parity: int) -> int:
        """The phase that a parity means: the current one or the one before. A thread that has waited for each phase so far
        means its next one, however far the barrier has gone on."""
        if parity not in (0, 1):
            raise lanes.fault("invalid-operand", lane, f"parity {parity}", RULE)
        last, row = barrier.waited.get(int(lanes.ids[lane]), (-1, 0))
        if row >= _SEQUENTIAL and barrier.phase >= last + 3 and (last + 1) % 2 == parity:
            return last + 1
        return barrier.phase if barrier.phase % 2 == parity else barrier.phase - 1

    # ---- arrivals of copies
    def arrive_after_copies(
        self, lanes: Lanes, space: str, addresses: Array, meaning: Semantics, *, increments: bool
    ) -> None:
        """Each lane arrives once its copies so far have landed; as late as that may be, whatever the policy."""
        flat = np.zeros(lanes.count, np.int64)
        for lane, position in self._places(lanes, space, addresses):
            barrier = self._barrier(lanes, lane, position)
            barrier.pending += increments
            flat[lane] = position
            self._keep(position)
        self.delayed.append(
            Delayed(Lanes(self.machine, lanes.ids, lanes.statement), flat, self.machine.copies.issued, meaning)
        )

    def fire(self) -> None:
        """Nobody else can run: the copies that the oldest arrival waits for land, and it comes."""
        if not self.delayed:
            return
        first = self.delayed.pop(0)
        self.machine.copies.land(first.lanes.ids, first.issued)
        for lane, flat in enumerate(first.flat.tolist()):
            self._arrive(first.lanes, lane, flat, 1, first.meaning)

    # ---- places
    def _places(self, lanes: Lanes, space: str, addresses: Array) -> Iterator[tuple[int, int]]:
        """Each lane with the flat position of its object, which must be in shared memory."""
        for part, name, at, chosen in lanes.parts(space, addresses):
            numbers = np.arange(lanes.count) if chosen is None else np.flatnonzero(chosen)
            if name != "shared":
                raise part.fault("barrier-misuse", 0, f"an mbarrier object in {name} memory", RULE)
            state, owner = part.space(name)
            access = self.machine.port.intend(part, name, state, part.full(at), owner, BYTES)
            yield from zip(numbers.tolist(), (access.index * BYTES).tolist(), strict=True)

    def _barrier(self, lanes: Lanes, lane: int, flat: int) -> Barrier:
        if flat not in self.live:
            raise lanes.fault("barrier-misuse", lane, "an mbarrier object that is not initialised", RULE)
        return self.live[flat]

    def _keep(self, flat: int) -> None:
        """The word in memory; those that poll look again."""
        shared = self.machine.shared
        shared.bytes.view(np.uint64)[flat // BYTES] = self.live[flat].word
        shared.mark_written(np.array([flat // BYTES]), BYTES)
        self.machine.port.writes += 1
