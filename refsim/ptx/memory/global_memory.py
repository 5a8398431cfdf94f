"""Device memory of one simulated GPU: named buffers with red zones between them.

It is one `Space` that grows as buffers are allocated; the space checks the accesses of a kernel.
"""

from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refsim.errors import Kind, RefsimError
from refsim.integers import array_of, is_whole
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.heap import HEAP, ROOM, Heap
from refsim.ptx.memory.snapshot import Snapshot, TouchedBytes
from refsim.ptx.memory.space import (
    GLOBAL_BASE,
    LARGE_BYTES,
    MAX_BYTES,
    PAGE,
    POISON,
    THREADS,
    Fill,
    Region,
    Space,
    Sparse,
    poisoned,
    repeated,
    zeros,
)

RED_ZONE = 512
IDLE, IDLE_BYTES = 64, 64 << 20
"""The most freed buffers that stay idle, and the most bytes of all of them."""
STEP = 1 << 16  # memory grows by this: a small launch clears, copies and compares all of it


@dataclass(frozen=True)
class Lot:
    """Buffers that the host has written, laid out one after another for any memory that ends at one byte. `given` holds
    the initial bytes by position; zeros follow."""

    regions: tuple[Region, ...]
    given: tuple[tuple[int, bytes], ...]

    @staticmethod
    def behind(end: int, wanted: Iterable[tuple[str, int, bytes, bool]]) -> "Lot":
        """Return a layout of the wanted buffers after byte `end`. Each is a name, a size, initial bytes, and whether a
        kernel may write it."""
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
    host nor a kernel wrote is a fault in a launch. `placed` holds the addresses of module variables. `touched` are the
    bytes of the last launch if it lets the next one start early.
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
        initial: bytes | Array | None = None,
        align: int = 256,
        offset: int = 0,
        writable: bool = True,
    ) -> int:
        """Reserve `size` bytes at an address that is `offset` more than a multiple of `align`; return the address.

        With `initial` (bytes or an array) the buffer counts as written, and is zero after these bytes. Without it, the
        buffer is poisoned and uninitialized. Zeros cost no memory until they are touched. Of a buffer of 64 MiB or more,
        neither do poison and a view that repeats elements (`numpy.broadcast_to`). Raises RefsimError `out-of-memory`
        beyond 16 GiB, and `bad-buffer` for invalid sizes and contents.
        """
        view = repeated(initial)
        space, raw = self.space, None if initial is None or view is not None else _raw(initial)
        held = len(raw) if raw is not None else view.nbytes if view is not None else None
        numbers = is_whole(size) and is_whole(align, 1) and is_whole(offset)
        if not isinstance(name, str) or not numbers or (held is not None and held > size):
            what = f"a buffer {name!r:.40} of {size!r:.40} B{'' if held is None else f', holding {held} B'}"
            rule = "a name, whole numbers of bytes, an alignment from 1, and no more contents than bytes"
            raise RefsimError("bad-buffer", what, f"aligned to {align!r:.40} + {offset!r:.40}", rule)
        size, align, offset = int(size), int(align), int(offset)
        hole = self._hole(size, align, offset)
        start = _start_behind(self.end, size, name, align, offset) if hole is None else hole
        self.reserve(start + size + RED_ZONE)
        region = Region(name, start, start + size, writable)
        self._placed(region)
        if size >= LARGE_BYTES:
            given = np.zeros(0, np.uint8) if raw is None else raw
            first = view if raw is None else np.broadcast_to(np.uint8(0), size)
            self._fill_later(Fill(start, start + size, first), given)
        elif raw is not None:
            space.bytes[start : start + len(raw)] = raw
        else:
            space.bytes[start : start + size] = POISON
            space.unwritten[start : start + size] = 1
        if initial is not None:
            space.initialised.add(name)
        return start + GLOBAL_BASE

    def _fill_later(self, fill: Fill, given: NDArray[np.uint8]) -> None:
        """Fill the ends of a large buffer now, and each whole page of it when it is first touched.

        Of contents that are `given`, copy the pages that are not zero now.
        """
        space = self.space
        space.sparse = space.sparse or Sparse()
        pages = space.sparse.add(fill)
        for start, end in ((fill.start, pages.start * PAGE), (pages.stop * PAGE, fill.end)):
            page, mark = fill.page(start // PAGE)
            space.bytes[start:end], space.unwritten[start:end] = page[start % PAGE :][: end - start], mark
        for first in range(0, len(given), PAGE):
            part = given[first : first + PAGE]
            if part.any():
                at = fill.start + first
                space.touch_all(at, at + len(part))
                space.bytes[at : at + len(part)] = part

    def add(self, lot: Lot) -> None:
        """Reserve the buffers of a layout for a memory that ends where this one does."""
        space = self.space
        self.reserve(lot.regions[-1].end + RED_ZONE)
        for region in lot.regions:
            self._placed(region)
            space.initialised.add(region.name)
        for start, initial in lot.given:
            space.bytes[start : start + len(initial)] = np.frombuffer(initial, np.uint8)

    def free(self, address: int, *, idle: bool = False) -> int:
        """Free the buffer that begins at an address; return its size in bytes. Later buffers may take its place.

        An `idle` buffer stays unused until there are many of them, so that later uses of it are found. Raises
        RefsimError `bad-address` where no buffer begins. A kernel that uses freed memory faults.
        """
        space, start = self.space, address - GLOBAL_BASE
        region = space.region_at(start)
        at = bisect_left(space.starts, start)  # an empty buffer holds no byte, but it has a start
        if region is None and at < len(space.starts) and space.starts[at] == start:
            region = space.regions[at]
        if region is None or region.start != start:
            what = f"no buffer begins at {address:#x}"
            raise RefsimError("bad-address", what, rule="an address that allocate returned")
        del space.regions[at], space.starts[at]
        space.initialised.discard(region.name)
        space.stored.discard(region.name)
        if self._by_name.get(region.name) is region:
            del self._by_name[region.name]
        self._clear(start, region.end)
        space.maps = {each for each in space.maps if not start <= each < region.end}
        if idle:
            space.freed.append(region)
        else:
            self._given_back += region.end - start
        while space.freed and (len(space.freed) > IDLE or self._idle_bytes() > IDLE_BYTES):
            oldest = space.freed.popleft()
            self._given_back += oldest.end - oldest.start
        return region.end - start

    def _clear(self, start: int, end: int) -> None:
        """Set freed bytes to zero; of a large buffer, touch only the pages that are not zero."""
        space = self.space
        if end - start >= LARGE_BYTES and space.sparse is not None:
            space.sparse.remove(start, end)
        for first in range(start, end, PAGE):
            for flat in (space.bytes, space.unwritten):
                if (part := flat[first : min(first + PAGE, end)]).any():
                    part[:] = 0

    def _idle_bytes(self) -> int:
        return sum(each.end - each.start for each in self.space.freed)

    def _hole(self, size: int, align: int, offset: int) -> int | None:
        """Return where a buffer fits between others, or None if no freed place is large enough."""
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
        """Return the latest buffer of a name, or None."""
        region = self._by_name.get(name)
        return region if region is not None and self.space.region_at(region.start) is region else None

    @property
    def end(self) -> int:
        """Return the byte position after the last buffer that ever existed."""
        return self._high

    def was_stored_to(self, address: int) -> bool:
        """Return whether a kernel may have written the buffer at an address."""
        region = self.space.region_at(address - GLOBAL_BASE)
        return region is None or region.name in self.space.stored

    def reserve(self, size: int) -> None:
        """Make room up to a byte position, and more than that: room that is not touched is free."""
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
        """Return a copy of the bytes at an address, written or not."""
        start, sparse = address - GLOBAL_BASE, self.space.sparse
        if sparse is None or not (absent := sparse.among(start, start + size)):
            return self.space.bytes[start : start + size].copy()
        is_poison = sparse.contents(absent[0])[1] == 1
        found = poisoned(size) if is_poison else zeros(size, np.uint8)
        for place, within, page in sparse.parts(start, start + size):
            if page < 0:
                found[place.start - start : place.stop - start] = self.space.bytes[place]
                continue
            held, mark = sparse.contents(page)
            if not (mark if is_poison else not held.any()):
                found[place.start - start : place.stop - start] = held[within]
        return found

    def written(self, address: int, size: int) -> Bools:
        """Return which of the bytes at an address were ever written."""
        start = address - GLOBAL_BASE
        if self.space.sparse is None:
            known: Bools = self.space.unwritten[start : start + size] == 0
            return known
        found = np.empty(size, np.bool_)
        for place, _, page in self.space.sparse.parts(start, start + size):
            mark = self.space.unwritten[place] if page < 0 else self.space.sparse.contents(page)[1]
            found[place.start - start : place.stop - start] = mark == 0
        return found

    def write(self, address: int, contents: Array) -> None:
        """Copy the host's `contents` into a buffer."""
        raw, start = _raw(contents), address - GLOBAL_BASE
        self.space.touch_all(start, start + len(raw))
        self.space.bytes[start : start + len(raw)] = raw
        self.space.unwritten[start : start + len(raw)] = 0
        self.space.maps = {at for at in self.space.maps if not start <= at < start + len(raw)}

    def snapshot(self) -> Snapshot:
        """Return all bytes and which of them were written; `restore` puts them back."""
        return Snapshot.of(self.space, self.end)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot; later buffers stay."""
        snapshot.restore(self.space)

    def first_difference(self, snapshot: Snapshot) -> int | None:
        """Return the first byte position that was written now or at the snapshot and differs, or None."""
        return snapshot.first_difference(self.space)

    def track_writers(self) -> None:
        """Remember from now on who wrote each byte, and where; costs eight bytes a byte, for failure reports."""
        self.space.writer = np.zeros(len(self.space.bytes), np.int64)

    def writer(self, address: int) -> int:
        """Return the global thread number that last wrote a byte, or -1."""
        return self._written(address)[1]

    def writing_line(self, address: int) -> int:
        """Return the PTX line of the statement that last wrote a byte, or -1."""
        return self._written(address)[0]

    def _written(self, address: int) -> tuple[int, int]:
        found = 0 if self.space.writer is None else int(self.space.writer[address - GLOBAL_BASE])
        return (-1, -1) if found == 0 else divmod(found, THREADS)  # a PTX line is at least 1


def _start_behind(end: int, size: int, name: str, align: int = 256, offset: int = 0) -> int:
    """Return where a buffer begins in a memory that ends at a byte, after a red zone."""
    start = -(-(end + RED_ZONE) // align) * align + offset
    if start + size > MAX_BYTES:
        raise RefsimError("out-of-memory", f"{size} B for {name}: the simulated GPU has {MAX_BYTES} B")
    return start


def _zeros(size: int, generous: int) -> NDArray[np.uint8]:
    """Return at least `size` zeros, and `generous` if there is room."""
    for asked in (max(size, generous), size):
        with suppress(MemoryError):
            return zeros(-(-asked // STEP) * STEP, np.uint8)
    raise RefsimError("out-of-memory", f"the system has no room for {size} B of device memory", kind=Kind.MISSING)


def _raw(contents: bytes | Array) -> NDArray[np.uint8]:
    """Return bytes, or the bytes of an array of numbers, as uint8."""
    if isinstance(contents, bytes):
        return np.frombuffer(contents, np.uint8)
    array = np.ascontiguousarray(array_of("contents", contents)).reshape(-1)
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise RefsimError("bad-buffer", f"contents of {array.dtype}", rule="numbers, or bytes")
    return array.view(np.uint8)
