"""The work of a copy engine for one thread: bytes are read from one memory and written to another at a later time.

Copies of cp.async from global to shared memory, in groups that each thread commits and waits for.

The checks treat a copy as in flight from its issue to the wait that covers it, whenever its bytes move."""

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import rounded_words
from refsim.ptx.async_ops.queue import Queue, ThreadGroups
from refsim.ptx.checks.in_flight import InFlight, OperandReads
from refsim.ptx.checks.marks import unequal
from refsim.ptx.checks.proxies import Proxies
from refsim.ptx.checks.races import Races
from refsim.ptx.events import COPY_BEGIN, COPY_END, SOURCE_FREE, SOURCE_READ, WAIT_COPIES
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.isa.atomic import ElementUpdate
from refsim.ptx.isa.definedness.memory import defined, moved, transferred
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.memory.access import UPDATE, WRITE, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, Addresses, Region, Space
from refsim.ptx.text.syntax import place


class CopyWatch(Protocol):
    """An observer of the bytes that copies write."""

    def moved(self, lanes: Lanes, at: Array, width: int, items: Array) -> None:
        """Receive the `items` of `width` bytes that lanes wrote at byte offsets `at` of their CTA's shared memory."""


class Counter(Protocol):
    """The mbarriers, which count arriving bytes and the commits of tensor cores."""

    def counted(self, one: Lanes, at: int) -> tuple[int, int]: ...
    def arrived(self, transfer: "Transfer") -> None: ...
    def asked(self, one: Lanes, space: str, address: Array, mask: int | None) -> list[Any]: ...
    def come(self, arrivals: list[Any], committed: Any) -> None: ...


class UnitHost(Machine, Protocol):
    """A machine with the checks that follow its asynchronous work, and the mbarriers that count it."""

    @property
    def code(self) -> Code: ...
    @property
    def races(self) -> Races | None: ...
    @property
    def in_flight(self) -> InFlight | None: ...
    @property
    def proxies(self) -> Proxies | None: ...
    @property
    def watching(self) -> CopyWatch | None: ...
    @property
    def counter(self) -> Counter: ...


@dataclass(frozen=True)
class AsyncCopy:
    """One executed cp.async: `size` bytes to item `index` of shared memory per lane, the first `given` from `source`.
    `group` is each lane's group. This is an AsyncOp whose parts are lanes and whose units are warps."""

    host: UnitHost
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

    def part(self, chosen: Bools) -> "AsyncCopy":
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
        self.lanes.emit(COPY_END, payload=(self.index, self.size, ""))
        if self.host.races is not None:
            counted = self.number <= self.host.copies.counted[self.lanes.ids]
            agents = self.host.races.copy_landed(self.lanes, self.index, self.size, counted)
            if self.host.proxies is not None:
                self.host.proxies.landed(self.index, self.size, agents)

    def writes_to(self, start: int, width: int) -> Bools:
        """Return for each lane whether it writes to bytes [start, start + width) of the flat shared memory."""
        first = self.index * self.size
        there: Bools = (first < start + width) & (first + self.size > start)
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

    machine: UnitHost
    policy: str
    choice: np.random.Generator | None
    issued: int = 0
    repeated: bool = False

    def __post_init__(self) -> None:
        self.groups = ThreadGroups(self.machine.geometry.lanes)
        self.queue: Queue[AsyncCopy] = Queue(self.policy, self.choice)
        self.counted: NDArray[np.int64] = np.zeros(self.machine.geometry.lanes, np.int64)

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
        lanes.emit(COPY_BEGIN, payload=(access.index, size, ""))
        state.mark_written(access.index, size)
        self.queue.start(flight)

    def _repeats(self, flight: AsyncCopy, access: Access) -> Bools:
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
            self.groups.note_wait(lanes.ids, lanes.statement, pending)
            limit = self.groups.all_but(lanes.key, pending)
            self.queue.complete(lambda flight: flight.group < limit[flight.lanes.key])
            self._mark_again()
        if self.counted.any():
            lanes.emit(WAIT_COPIES)

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
        who, behind = self.machine.geometry.describe(thread), self.groups.behind(thread, group)
        groups = "not committed" if behind == 0 else f"{behind} group{'s' * (behind > 1)} back"
        if flight.number <= self.counted[thread]:
            counted = "no wait has seen the mbarrier complete at which they arrive"
            return f"{place(flight.lanes.statement)} of {who} still writes them: {counted}"
        missing = self.groups.missing_wait(thread, group)
        others = "" if thread == reader else ", and then a barrier, as the copy is another thread's"
        return f"{place(flight.lanes.statement)} of {who} ({groups}) still writes them: {missing}{others}"


NO_GROUP = 1 << 60
_ONE = np.zeros(1, np.int64)
_ALL = np.ones(1, np.bool_)


@dataclass(frozen=True)
class End:
    """One end of a transfer: numbers of items in the flat bytes of a space."""

    name: str
    space: Space
    index: Array
    region: Region | None = None


@dataclass(eq=False)
class Transfer:
    """One copy of `width`-byte items for one thread: an AsyncOp of one part.

    `filled` are items of the target that have no source. `combine` computes the result of a reduction. A `rounded`
    transfer rounds float32 elements to tf32. The mbarrier of an `in_pair` transfer may be in the peer CTA. A `failed` one
    is the response to a request to cancel that failed. `writes` and `reads` are the shared bytes that it touches, as an access.

    The transfer is complete when its bytes were counted in phase `phase` of the mbarrier at byte `barrier` of the flat
    shared memory (-1: none), or when its thread has waited for its bulk `group`. `stamp` is the number of its access in
    the order of accesses. `map_at` is the address of the tensor map that it reads until a thread has waited for it, 0
    if there is none.
    """

    host: UnitHost
    lanes: Lanes
    width: int
    source: End | None
    target: End | None
    amount: int
    combine: ElementUpdate | None = None
    rounded: bool = False
    in_pair: bool = False
    failed: bool = False
    filled: End | None = None
    fill: bytes = b""
    number: int = 0
    writes: Access | None = None
    reads: Access | None = None
    barrier: int = -1
    phase: int = 0
    group: int = NO_GROUP
    stamp: int = 0
    map_at: int = 0
    is_performed: bool = False
    held: Array | None = field(default=None, repr=False)

    @property
    def units(self) -> NDArray[np.int64]:
        return _ONE

    @property
    def lane(self) -> int:
        """Return the lane that requested it."""
        return int(self.lanes.ids[0])

    def part(self, chosen: Bools) -> "Transfer":
        return self

    def fetch(self) -> None:
        """Read its source now, so that later writes to the source do not change the result."""
        if self.held is not None or self.source is None or self.target is None:
            return
        self.held = self.brings()
        if self.host.tracking is not None:
            transferred(self.lanes, self.source, self.target, self.width, is_joined=self.combine is not None)

    def brings(self) -> Array:
        """Return the items that it has read, or would read now."""
        if self.held is not None or self.source is None:
            return np.zeros(0, np.uint8) if self.held is None else self.held
        items = self.source.space.bytes.view(ITEM[self.width]).take(self.source.index)
        return rounded_words(items.view(np.uint32)).view(items.dtype) if self.rounded else items

    def performed(self) -> "Transfer":
        """Write the items to the target, count them at the mbarrier and return this transfer."""
        self.fetch()
        self._put()
        if self.filled is not None:
            index, item = self.filled.index, np.frombuffer(self.fill, ITEM[self.width])[0]
            self.filled.space.bytes.view(ITEM[self.width])[index] = item
            if self.host.tracking is not None:
                defined(self.lanes, self.filled, self.width)
        self.is_performed = True
        self.host.port.writes += 1
        if self.barrier >= 0:
            self.host.counter.arrived(self)
        return self

    def _put(self) -> None:
        """Write or combine the items in the target, and show them to the observers."""
        target, items = self.target, self.held
        if target is None or items is None:
            return
        if self.combine is not None:
            items = self.combine.combine(target.space.bytes.view(ITEM[self.width]).take(target.index), items)
        target.space.put(target.region, target.index, items, self.width)
        if self.host.watching is not None and target.name == "shared":
            several = Lanes(self.lanes.machine, np.repeat(self.lanes.ids, len(items)), self.lanes.statement)
            self.host.watching.moved(several, target.index * self.width % target.space.stride, self.width, items)

    def complete(self) -> None:
        """Mark it as complete for the checks, after a thread has observed its completion."""
        self.release()
        if self.writes is not None:
            written = self.writes.index, self.writes.width, self.writes.proxy if self.writes.kind == UPDATE else ""
            self.lanes.emit(COPY_END, payload=written)

    def landed(self) -> dict[int, int]:
        """Return the agent that now owns its writes, with the newest access, after a thread observed the phase."""
        races = self.host.races
        if races is None or self.writes is None:
            return {}
        agent = races.phases.agent_of(self.barrier)
        return {agent: races.transfer_landed(self.writes, agent)}

    def release(self) -> None:
        """Let other threads write its source and its map, after its thread has waited for the read."""
        if self.reads is not None:
            self.lanes.emit(SOURCE_FREE, payload=self.reads)
        self.reads, self.map_at = None, 0

    def source_was_read(self) -> None:
        """Emit the read of the shared source for the thread or the mbarrier that knows of its end."""
        if self.reads is not None:
            knows = self.reads, self.lane, self.barrier
            self.lanes.emit(SOURCE_READ, payload=knows)

    def writes_to(self, start: int, width: int) -> Bools:
        """Return whether it still writes some of these bytes of the flat shared memory."""
        return self._touches(self.writes, start, width)

    def reads_from(self, start: int, width: int) -> Bools:
        """Return whether it still reads some of these bytes of the flat shared memory."""
        return self._touches(self.reads, start, width)

    def _touches(self, access: Access | None, start: int, width: int) -> Bools:
        if access is None:
            return ~_ALL
        first = access.index * access.width
        return np.array([bool(((first < start + width) & (first + access.width > start)).any())])
