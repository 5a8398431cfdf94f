"""Copies of cp.async from global to shared memory, in groups that each thread commits and waits for.

The checks treat a copy as in flight from its issue to the wait that covers it, whenever its bytes move.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.async_ops.completion import ThreadGroups
from refsim.ptx.async_ops.queue import Queue
from refsim.ptx.checks.areas import unequal
from refsim.ptx.checks.in_flight import InFlight
from refsim.ptx.checks.in_flight_operands import OperandReads
from refsim.ptx.checks.proxies import Proxies
from refsim.ptx.checks.races import Races
from refsim.ptx.checks.undefined_memory import moved
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.memory.access import WRITE, Access
from refsim.ptx.memory.space import ITEM, Addresses
from refsim.ptx.text.syntax import place

Array = NDArray[Any]


class CopyWatch(Protocol):
    """An observer of the bytes that copies write."""

    def moved(self, lanes: Lanes, at: Array, width: int, items: Array) -> None:
        """Receive the `items` of `width` bytes that lanes wrote at byte offsets `at` of their CTA's shared memory."""


class CopyHost(Machine, Protocol):
    """A machine with the checks that follow its copies."""

    @property
    def races(self) -> Races | None: ...
    @property
    def in_flight(self) -> InFlight | None: ...
    @property
    def proxies(self) -> Proxies | None: ...
    @property
    def watching(self) -> CopyWatch | None: ...


@dataclass(frozen=True)
class AsyncCopy:
    """One executed cp.async: `size` bytes to item `index` of shared memory per lane, the first `given` from `source`.
    `group` is each lane's group. This is an AsyncOp whose parts are lanes and whose units are warps."""

    host: CopyHost
    number: int
    lanes: Lanes
    index: Addresses
    source: Addresses
    size: int
    given: Array
    group: NDArray[np.int64]
    is_performed: bool = False

    @property
    def units(self) -> NDArray[np.int64]:
        """Return the warp of each lane."""
        return self.lanes.warp

    def part(self, chosen: NDArray[np.bool_]) -> "AsyncCopy":
        """Return the copy of the lanes where `chosen`, a mask over the lanes of this copy, is true."""
        return replace(
            self,
            lanes=Lanes(self.lanes.machine, self.lanes.ids[chosen], self.lanes.statement),
            index=self.index[chosen],
            source=self.source[chosen],
            given=self.given if len(self.given) == 1 else self.given[chosen],
            group=self.group[chosen],
        )

    def performed(self) -> "AsyncCopy":
        """Write the bytes to shared memory and show them to the observers; return the performed copy."""
        host, items = self.host, self.items()
        host.shared.bytes.view(ITEM[self.size])[self.index] = items
        if host.tracking is not None:
            moved(self.lanes, self.index, self.source, self.size, self.given)
        if host.watching is not None:
            host.watching.moved(self.lanes, self.index * self.size % host.shared.stride, self.size, items)
        return replace(self, is_performed=True)

    def complete(self) -> None:
        """Report the bytes as complete to the checks, after a wait that covers the copy."""
        if self.host.in_flight is not None:
            self.host.in_flight.landed(self.index, self.size)
        if self.host.races is not None:
            counted = self.number <= self.host.copies.counted[self.lanes.ids]
            agents = self.host.races.copy_landed(self.lanes, self.index, self.size, counted)
            if self.host.proxies is not None:
                self.host.proxies.landed(self.index, self.size, agents)

    def writes_to(self, start: int, width: int) -> NDArray[np.bool_]:
        """Return for each lane whether it writes to bytes [start, start + width) of the flat shared memory."""
        first = self.index * self.size
        there: NDArray[np.bool_] = (first < start + width) & (first + self.size > start)
        return there

    def items(self) -> Array:
        """Return the items that arrive: the bytes of the source, then zeros."""
        lanes, given, size = self.lanes, self.given, self.size
        if (given == size).all():
            return self._held(self.source, size)
        amount, rows = lanes.full(given), np.zeros((lanes.count, size), np.uint8)
        for count in np.unique(amount[amount > 0]).tolist():
            chosen = amount == count
            for byte in range(count):
                rows[chosen, byte] = self._held(self.source[chosen] + byte, 1)
        return rows.reshape(-1).view(ITEM[size])

    def _held(self, source: Array, width: int) -> Array:
        state = self.host.memory.space
        return state.bytes.view(ITEM[width]).take(state.index(source.astype(np.int64) - state.base, 0, width))

    def read_source(self) -> None:
        """Show the read of the source to the observers, as an access of the issuing lane at the time of issue."""
        lanes, port, (state, owner) = self.lanes, self.host.port, self.lanes.space("global")
        at = self.source.astype(np.int64) - state.base
        if (self.given == self.size).all():
            port.touch(lanes, "global", state, at, owner, self.size)
            return
        amount = lanes.full(self.given)
        for count in np.unique(amount[amount > 0]).tolist():
            chosen = amount == count
            part = Lanes(lanes.machine, lanes.ids[chosen], lanes.statement)
            width = count if count in ITEM else 1
            for first in range(0, count, width):
                port.touch(part, "global", state, at[chosen] + first, owner, width)

    def check_source(self) -> None:
        """Raise `misaligned` where the source is not aligned for the whole copy, even if fewer bytes are read.
        `read_source` checks that the bytes exist."""
        if (self.given == self.size).all():
            return  # reading it is the check
        state, _ = self.lanes.space("global")
        at = self.source - state.base
        stray = (at % self.size != 0) & (self.lanes.full(self.given) > 0)
        if stray.any():
            lane = int(np.argmax(stray))
            what = f"address {state.address(at[lane])} is not a multiple of {self.size} bytes"
            raise self.lanes.fault("misaligned", lane, what)


@dataclass
class Copies:
    """The copies in flight of all running lanes. `issued` counts the instructions that started copies. `counted` holds,
    per lane, the newest of these that an mbarrier counts. `repeated`: copies in flight have written the same bytes."""

    machine: CopyHost
    policy: str
    choice: np.random.Generator | None
    groups: ThreadGroups = field(init=False)
    queue: Queue[AsyncCopy] = field(init=False)
    counted: NDArray[np.int64] = field(init=False)
    issued: int = 0
    repeated: bool = False

    def __post_init__(self) -> None:
        self.groups = ThreadGroups(self.machine.geometry.lanes)
        self.queue = Queue(self.policy, self.choice)
        self.counted = np.zeros(self.machine.geometry.lanes, np.int64)

    def issue(self, lanes: Lanes, to: Array, source: Array, size: int, given: Array) -> None:
        """Start copies of `size` bytes to shared addresses `to`; bytes from `given` on become zero."""
        self.issued += 1
        machine = self.machine
        ((lanes, _, at, _),) = lanes.parts("shared", to)
        state, owner = lanes.space("shared")
        lanes = copy(lanes)  # the set goes on to other statements
        access = machine.port.plan(WRITE, lanes, "shared", state, lanes.full(at), owner, size)
        machine.mbarriers.before(access)
        group = self.groups.current(lanes.key)
        flight = AsyncCopy(machine, self.issued, lanes, access.index, lanes.full(source), size, given, group)
        flight.check_source()
        flight.read_source()
        again = self._repeats(flight, access)
        for observer in machine.port.observers.get("shared", ()) if not again.all() else ():
            if isinstance(observer, InFlight | OperandReads):
                observer.before(access.of(~again) if again.any() else access)
        if machine.races is not None:
            machine.races.copy_issued(access, flight.items)
        if machine.in_flight is not None:
            machine.in_flight.issued(access.index, size)
        state.mark_written(access.index, size)
        self.queue.start(flight)

    def _repeats(self, flight: AsyncCopy, access: Access) -> NDArray[np.bool_]:
        """Return which lanes copy to a place the bytes that their own copy in flight writes there, which is a note."""
        in_flight, again = self.machine.in_flight, np.zeros(flight.lanes.count, np.bool_)
        if in_flight is None or not in_flight.met_by(access).any():
            return again
        items = flight.items()
        for old in (old for old in self.queue.flying if old.size == flight.size):
            _, mine, its = np.intersect1d(flight.lanes.ids, old.lanes.ids, return_indices=True)
            held = access.held()[mine] if old.is_performed else old.items()[its]
            again[mine[(old.index[its] == flight.index[mine]) & ~unequal(items[mine], held)]] = True
        if again.any():
            in_flight.report(access, int(np.argmax(again)), equal=True)
            self.repeated = True
        return again

    def _mark_again(self) -> None:
        """Mark the places of copies in flight, which a complete copy of the same bytes has cleared."""
        if self.repeated and self.machine.in_flight is not None:
            for flight in self.queue.flying:
                self.machine.in_flight.again(flight.index, flight.size)

    def commit(self, lanes: Lanes) -> None:
        """Put all copies since the last commit into one group."""
        self.groups.commit(lanes.key)

    def wait(self, lanes: Lanes, pending: int) -> None:
        """Complete all but the `pending` newest groups of these lanes."""
        if self.queue.flying:
            assert lanes.statement is not None
            self.groups.note_wait(lanes.ids, lanes.statement, pending)
            limit = self.groups.all_but(lanes.key, pending)
            self.queue.complete(lambda flight: flight.group < limit[flight.lanes.key])
            self._mark_again()
        if self.machine.races is not None and self.counted.any():
            self.machine.races.phases.waited_themselves(lanes.ids)

    def count_on(self, lanes: Lanes) -> None:
        """Let an mbarrier count all copies that these lanes have issued."""
        self.counted[lanes.ids] = self.issued

    def land(self, ids: Ids, issued: int) -> None:
        """Complete the copies of these lanes up to number `issued`."""
        self.queue.complete(lambda flight: np.isin(flight.lanes.ids, ids) & (flight.number <= issued))
        self._mark_again()

    def are_flying(self, ids: Ids, issued: int) -> bool:
        """Return whether a copy of one of these lanes, up to number `issued`, is in flight."""
        return any(flight.number <= issued and np.isin(flight.lanes.ids, ids).any() for flight in self.queue.flying)

    def drift(self) -> None:
        """Let some copies in flight take effect, under the random policy."""
        self.queue.drift()

    def describe(self, start: int, width: int, reader: int) -> str:
        """Return a sentence about the copy that writes to these bytes of shared memory, and its missing wait."""
        found = self.queue.writer_of(start, width)
        if found is None:
            return "a cp.async still writes them"
        flight, lane = found
        thread, group = int(flight.lanes.ids[lane]), int(flight.group[lane])
        assert flight.lanes.statement is not None
        who, behind = self.machine.geometry.describe(thread), self.groups.behind(thread, group)
        groups = "not committed" if behind == 0 else f"{behind} group{'s' * (behind > 1)} back"
        if flight.number <= self.counted[thread]:
            counted = "no wait has seen the mbarrier complete at which they arrive"
            return f"{place(flight.lanes.statement)} of {who} still writes them: {counted}"
        missing = self.groups.missing_wait(thread, group)
        others = "" if thread == reader else ", and then a barrier, as the copy is another thread's"
        return f"{place(flight.lanes.statement)} of {who} ({groups}) still writes them: {missing}{others}"
