"""The work of a copy engine for one thread: bytes are read from one memory and written to another at a later time."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import rounded_words
from refsim.ptx.async_ops.copies import CopyHost
from refsim.ptx.checks.undefined_copies import defined, transferred
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.atomic import ElementUpdate
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.memory.access import UPDATE, Access
from refsim.ptx.memory.space import ITEM, Region, Space

Array = NDArray[Any]
NO_GROUP = 1 << 60
_ONE = np.zeros(1, np.int64)
_ALL = np.ones(1, np.bool_)


class Counter(Protocol):
    """The mbarriers, which count arriving bytes."""

    def counted(self, one: Lanes, at: int) -> tuple[int, int]: ...
    def arrived(self, transfer: "Transfer") -> None: ...


class TransferHost(CopyHost, Protocol):
    """A machine that has a copy engine."""

    @property
    def code(self) -> Code: ...
    @property
    def counter(self) -> Counter: ...


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

    host: TransferHost
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

    def part(self, chosen: NDArray[np.bool_]) -> "Transfer":
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
        if self.host.in_flight is not None and self.writes is not None:
            updates = self.writes.proxy if self.writes.kind == UPDATE else ""
            self.host.in_flight.landed(self.writes.index, self.writes.width, updates)

    def landed(self) -> dict[int, int]:
        """Return the agent that now owns its writes, with the newest access, after a thread observed the phase."""
        races = self.host.races
        if races is None or self.writes is None:
            return {}
        agent = races.phases.agent_of(self.barrier)
        return {agent: races.transfer_landed(self.writes, agent)}

    def release(self) -> None:
        """Let other threads write its source and its map, after its thread has waited for the read."""
        if self.host.in_flight is not None and self.reads is not None:
            self.host.in_flight.was_read(self.reads.index, self.reads.width)
        self.reads, self.map_at = None, 0

    def source_was_read(self) -> None:
        """Record the read of the shared source for the thread or mbarrier agent that knows of its end."""
        races = self.host.races
        if races is not None and self.reads is not None:
            by_thread = self.barrier < 0
            races.transfer_read(
                self.reads, self.lane + races.first if by_thread else races.phases.agent_of(self.barrier)
            )

    def writes_to(self, start: int, width: int) -> NDArray[np.bool_]:
        """Return whether it still writes some of these bytes of the flat shared memory."""
        return self._touches(self.writes, start, width)

    def reads_from(self, start: int, width: int) -> NDArray[np.bool_]:
        """Return whether it still reads some of these bytes of the flat shared memory."""
        return self._touches(self.reads, start, width)

    def _touches(self, access: Access | None, start: int, width: int) -> NDArray[np.bool_]:
        if access is None:
            return ~_ALL
        first = access.index * access.width
        return np.array([bool(((first < start + width) & (first + access.width > start)).any())])
