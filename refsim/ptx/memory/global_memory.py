"""Device memory of one simulated GPU: named buffers with red zones between them.

It is one `Space` that grows as buffers are allocated; what a kernel may do to it is checked there.
"""

from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import Kind, RefsimError
from refsim.integers import array_of, is_whole
from refsim.ptx.memory.heap import HEAP, ROOM, Heap
from refsim.ptx.memory.snapshot import PAGE, Snapshot
from refsim.ptx.memory.space import GLOBAL_BASE, MAX_BYTES, POISON, THREADS, Region, Space
from refsim.ptx.memory.touched import TouchedBytes

RED_ZONE = 512
IDLE, IDLE_BYTES = 64, 64 << 20
"""How many buffers, and of how many bytes together, lie idle when they were taken back."""
STEP = 1 << 16  # memory grows by so much: a small launch clears, copies and compares what it has


@dataclass(frozen=True)
class Lot:
    """Buffers that the host has written, laid out one behind another for memories that end at one byte; `given`: by position
    what they begin with, zeros follow."""

    regions: tuple[Region, ...]
    given: tuple[tuple[int, bytes], ...]

    @staticmethod
    def behind(end: int, wanted: Iterable[tuple[str, int, bytes, bool]]) -> "Lot":
        """Each of those wanted: its name, its size, what it begins with, whether a kernel may write it."""
        regions, given = [], []
        for name, size, initial, writable in wanted:
            start = _start_behind(end, size, name)
            end = start + size
            regions.append(Region(name, start, end, writable))
            if initial:
                given.append((start, initial))
        return Lot(tuple(regions), tuple(given))


class GlobalMemory:
    """Device memory of one simulated GPU: named buffers with red zones between them.

    `allocate` returns an address; buffers keep their contents from launch to launch. Reading a byte that neither the
    host nor a kernel wrote is a fault in a launch. `placed` is where variables of modules lie, for whoever places them,
    `touched` are the bytes of the last launch, where that lets the next one
    begin early.
    """

    def __init__(self) -> None:
        self.space = Space("global", GLOBAL_BASE)
        self.heap: Heap | None = None
        self.touched: TouchedBytes | None = None
        self.placed: dict[tuple[str, str], dict[str, int]] = {}
        self._by_name: dict[str, Region] = {}
        self._high = self._given_back = 0

    def allocate(
        self,
        size: int,
        name: str,
        *,
        initial: bytes | NDArray[Any] | None = None,
        align: int = 256,
        offset: int = 0,
        writable: bool = True,
    ) -> int:
        """Reserve `size` bytes at an address that is `offset` more than a multiple of `align`; return the address.

        With `initial` (bytes or an array) the buffer counts as written, and is zero behind what is given; else it is
        poisoned and unread. Memory that holds zeros costs nothing until somebody touches it.
        Raises RefsimError `out-of-memory` beyond 16 GiB, and `bad-buffer` for sizes and contents that are none.
        """
        space, raw = self.space, None if initial is None else _raw(initial)
        numbers = is_whole(size) and is_whole(align, 1) and is_whole(offset)
        if not isinstance(name, str) or not numbers or (raw is not None and len(raw) > size):
            held = "" if raw is None else f", holding {len(raw)} B"
            what = f"a buffer {name!r:.40} of {size!r:.40} B{held}"
            rule = "a name, whole numbers of bytes, an alignment from 1, and no more contents than bytes"
            raise RefsimError("bad-buffer", what, f"aligned to {align!r:.40} + {offset!r:.40}", rule)
        size, align, offset = int(size), int(align), int(offset)
        hole = self._hole(size, align, offset)
        start = _start_behind(self.end, size, name, align, offset) if hole is None else hole
        self.reserve(start + size + RED_ZONE)
        region = Region(name, start, start + size, writable)
        self._placed(region)
        if raw is not None:
            space.bytes[start : start + len(raw)] = raw
            space.initialised.add(name)
        else:
            space.bytes[start : start + size] = POISON
            space.unwritten[start : start + size] = 1
        return start + GLOBAL_BASE

    def add(self, lot: Lot) -> None:
        """Reserve buffers that were laid out for a memory that ends where this one does."""
        space = self.space
        self.reserve(lot.regions[-1].end + RED_ZONE)
        for region in lot.regions:
            self._placed(region)
            space.initialised.add(region.name)
        for start, initial in lot.given:
            space.bytes[start : start + len(initial)] = np.frombuffer(initial, np.uint8)

    def free(self, address: int, *, idle: bool = False) -> int:
        """Take back the buffer that begins at an address; its size in bytes. Later buffers may lie where it lay.

        An `idle` one lies unused until there are many of them, so that whoever uses it still is found. Raises RefsimError
        `bad-address` where no buffer begins. Memory that was taken back faults a kernel that uses it.
        """
        space, start = self.space, address - GLOBAL_BASE
        region = space.region_at(start)
        at = bisect_left(space.starts, start)  # an empty buffer holds no byte, and begins somewhere all the same
        if region is None and at < len(space.starts) and space.starts[at] == start:
            region = space.regions[at]
        if region is None or region.start != start:
            raise RefsimError(
                "bad-address", f"no buffer begins at {address:#x}", rule="an address that allocate returned"
            )
        del space.regions[at], space.starts[at]
        space.initialised.discard(region.name)
        space.stored.discard(region.name)
        if self._by_name.get(region.name) is region:
            del self._by_name[region.name]
        space.bytes[start : region.end] = 0
        space.unwritten[start : region.end] = 0
        space.maps = {each for each in space.maps if not start <= each < region.end}
        if idle:
            space.freed.append(region)
        else:
            self._given_back += region.end - start
        while space.freed and (len(space.freed) > IDLE or self._idle_bytes() > IDLE_BYTES):
            oldest = space.freed.popleft()
            self._given_back += oldest.end - oldest.start
        return region.end - start

    def _idle_bytes(self) -> int:
        return sum(each.end - each.start for each in self.space.freed)

    def _hole(self, size: int, align: int, offset: int) -> int | None:
        """Where a buffer fits between others, if some were taken back."""
        if size > self._given_back:
            return None
        before = 0
        taken = self.space.regions
        if self.space.freed:
            taken = sorted((*taken, *self.space.freed), key=lambda each: each.start)
        for region in taken:
            start = -(-(before + RED_ZONE) // align) * align + offset
            if start + size + RED_ZONE <= region.start:
                self._given_back -= size
                return start
            before = region.end
        return None

    def _placed(self, region: Region) -> None:
        space = self.space
        if region.start < self._high:
            at = bisect_left(space.starts, region.start)
            space.regions.insert(at, region)
            space.starts.insert(at, region.start)
        else:
            space.add(region)
        self._high = max(self._high, region.end)
        self._by_name[region.name] = region

    def begin_heap(self) -> None:
        """Make room for the blocks of device malloc, unless that was done before."""
        if self.heap is None:
            start = -(-(self.end + RED_ZONE) // PAGE) * PAGE
            self.reserve(start + ROOM + RED_ZONE)
            region = Region(HEAP, start, start + ROOM)
            self._placed(region)
            self.heap = self.space.blocks = Heap(self.space, region)

    def named(self, name: str) -> Region | None:
        """The latest buffer of a name, or None."""
        region = self._by_name.get(name)
        return region if region is not None and self.space.region_at(region.start) is region else None

    @property
    def end(self) -> int:
        """The byte position behind the last buffer that there ever was."""
        return self._high

    def was_stored_to(self, address: int) -> bool:
        """Whether a kernel may have written the buffer at an address."""
        region = self.space.region_at(address - GLOBAL_BASE)
        return region is None or region.name in self.space.stored

    def reserve(self, size: int) -> None:
        """Make room up to a byte position: more than is asked for, as room that nobody touches is free."""
        space = self.space
        if size > (used := len(space.bytes)):
            before = Snapshot.of(space, used)
            space.bytes, space.unwritten = _zeros(size, 2 * used), _zeros(size, 2 * used)
            before.restore(space)
            if space.writer is not None:
                writer = np.zeros(len(space.bytes), np.int64)
                writer[: len(space.writer)] = space.writer
                space.writer = writer

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """A copy of the bytes at an address, whoever wrote them."""
        start = address - GLOBAL_BASE
        return self.space.bytes[start : start + size].copy()

    def written(self, address: int, size: int) -> NDArray[np.bool_]:
        """Which of the bytes at an address were ever written."""
        start = address - GLOBAL_BASE
        known: NDArray[np.bool_] = self.space.unwritten[start : start + size] == 0
        return known

    def write(self, address: int, contents: NDArray[Any]) -> None:
        """The host's copy into a buffer."""
        raw, start = _raw(contents), address - GLOBAL_BASE
        self.space.bytes[start : start + len(raw)] = raw
        self.space.unwritten[start : start + len(raw)] = 0
        self.space.maps = {at for at in self.space.maps if not start <= at < start + len(raw)}

    def snapshot(self) -> Snapshot:
        """All bytes and which of them were written; `restore` puts them back."""
        return Snapshot.of(self.space, self.end)

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot; buffers that came later stay."""
        snapshot.restore(self.space)

    def first_difference(self, snapshot: Snapshot) -> int | None:
        """The first byte position that was written now or at the snapshot and differs; None if there is none."""
        return snapshot.first_difference(self.space)

    def track_writers(self) -> None:
        """From now on remember who wrote each byte, and where; costs eight bytes a byte, for reports after a failure."""
        self.space.writer = np.zeros(len(self.space.bytes), np.int64)

    def writer(self, address: int) -> int:
        """The global thread number that last wrote a byte, or -1."""
        return self._written(address)[1]

    def writing_line(self, address: int) -> int:
        """The PTX line of the statement that last wrote a byte, or -1."""
        return self._written(address)[0]

    def _written(self, address: int) -> tuple[int, int]:
        found = 0 if self.space.writer is None else int(self.space.writer[address - GLOBAL_BASE])
        return (-1, -1) if found == 0 else divmod(found, THREADS)  # a PTX line is at least 1


def _start_behind(end: int, size: int, name: str, align: int = 256, offset: int = 0) -> int:
    """Where a buffer begins in a memory that ends at a byte: a red zone lies between."""
    start = -(-(end + RED_ZONE) // align) * align + offset
    if start + size > MAX_BYTES:
        raise RefsimError("out-of-memory", f"{size} B for {name}: the simulated GPU has {MAX_BYTES} B")
    return start


def _zeros(size: int, generous: int) -> NDArray[np.uint8]:
    """At least `size` zeros, if there is room; the system backs a page when it is first touched."""
    for asked in (max(size, generous), size):
        with suppress(MemoryError):
            return np.zeros(-(-asked // STEP) * STEP, np.uint8)
    raise RefsimError("out-of-memory", f"the system has no room for {size} B of device memory", kind=Kind.MISSING)


def _raw(contents: bytes | NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes, or those of an array of numbers."""
    if isinstance(contents, bytes):
        return np.frombuffer(contents, np.uint8)
    array = np.ascontiguousarray(array_of("contents", contents)).reshape(-1)
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise RefsimError("bad-buffer", f"contents of {array.dtype}", rule="numbers, or bytes")
    return array.view(np.uint8)
