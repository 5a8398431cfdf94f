"""State spaces: flat bytes, a mark for each uninitialized byte, regions with red zones between them, vectorized access.

Every access names byte positions for many lanes at once. It is checked (inside one region, aligned, initialized) before
a byte moves, so a fault leaves memory as it was. Global addresses start at GLOBAL_BASE: a pointer cut to 32 bits, or a
null pointer, hits nothing. Shared memory starts at SHARED_BASE within its window, so address 0 traps there too.

Shared memory of a cluster as one window: bits 24 and up of a shared address are the rank of the CTA that owns it.

CTA 3 of a cluster sees its own byte 1040 at 0x03000410, and CTA 0 reaches it there too. An address of rank r is the
same number in the window of `.shared::cta` of that CTA and in that of `.shared::cluster` of all. Without a cluster the
rank is 0. Source: PTX ISA, mapa and getctarank; the shift is what ptxas emits for the address of a shared variable from
sm_90 on.

Large buffers of device memory: a page gets its first contents when it is first touched.

A buffer beyond 2 GiB then costs the pages that a kernel and the host touch."""

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.memory.arrays import Array, Bools

PAGE = 1 << 20
POISON = 0xA5
LARGE_BYTES = 64 << 20
"""Buffers of this size or more are sparse."""

_FILE = 16 << 20
_MAP_FIXED = 0x10
Bytes = NDArray[np.uint8]
_POISONED = np.full(PAGE, POISON, np.uint8)
_POISONED.flags.writeable = False


@dataclass(frozen=True)
class Fill:
    """The first contents of bytes [start, end): the elements of an array in order, then zeros; None: poison."""

    start: int
    end: int
    contents: Array | None

    def page(self, number: int) -> tuple[Bytes, int]:
        """Return the bytes of a whole page, and the mark of each: 1 if it is uninitialized."""
        if self.contents is None:
            return _POISONED, 1
        width, first = self.contents.dtype.itemsize, number * PAGE - self.start
        begin, stop = max(first, 0) // width, -(-(first + PAGE) // width)
        elements = np.ascontiguousarray(self.contents.flat[begin:stop]).view(np.uint8)
        elements = elements[max(first, 0) - begin * width :][: PAGE + min(first, 0)]
        found: Bytes = np.zeros(PAGE, np.uint8)
        found[max(-first, 0) :][: len(elements)] = elements
        return found, 0


@dataclass
class Sparse:
    """The pages of one space that have no contents yet, by number, and the fills of its large buffers."""

    absent: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    fills: list[Fill] = field(default_factory=list)

    def add(self, fill: Fill) -> range:
        """Make the whole pages of a new buffer absent; return their numbers."""
        pages = range(-(-fill.start // PAGE), fill.end // PAGE)
        self.remove(fill.start, fill.end)
        self.fills.append(fill)
        if pages.stop > len(self.absent):
            self.absent = np.concatenate([self.absent, np.zeros(pages.stop - len(self.absent), np.bool_)])
        self.absent[pages.start : pages.stop] = True
        return pages

    def remove(self, start: int, end: int) -> None:
        """Forget a freed buffer: its absent pages hold zeros."""
        self.fills = [each for each in self.fills if not start <= each.start < end]
        self.absent[-(-start // PAGE) : end // PAGE] = False

    def contents(self, number: int) -> tuple[Bytes, int]:
        """Return the first contents of an absent page and the mark of its bytes."""
        fill = self.fill_of(number)
        assert fill is not None
        return fill.page(number)

    def fill_of(self, number: int) -> Fill | None:
        """Return the fill of the large buffer that holds a whole page, or None."""
        begin = number * PAGE
        return next((each for each in self.fills if each.start <= begin and begin + PAGE <= each.end), None)

    def among(self, start: int, end: int) -> list[int]:
        """Return the absent pages that bytes [start, end) touch."""
        first = start // PAGE
        found: list[int] = (first + np.flatnonzero(self.absent[first : -(-end // PAGE)])).tolist()
        return found

    def parts(self, start: int, end: int) -> Iterator[tuple[slice, slice, int]]:
        """Yield pieces of bytes [start, end): their place, their place in a page, and the absent page or -1."""
        at = start
        for page in [*self.among(start, end), -(-end // PAGE)]:
            low, high = max(start, page * PAGE), min(end, (page + 1) * PAGE)
            if at < (stop := min(low, end)):
                yield slice(at, stop), slice(0, 0), -1
            if low < high:
                yield slice(low, high), slice(low % PAGE, low % PAGE + high - low), page
            at = high

    def touched(self, at: Array, width: int) -> list[int]:
        """Return the absent pages that accesses of `width` bytes at these positions touch."""
        pages = np.unique(np.concatenate([at, at + (width - 1)]) // PAGE)
        pages = pages[(pages >= 0) & (pages < len(self.absent))]
        found: list[int] = pages[self.absent[pages]].tolist()
        return found


def repeated(contents: object) -> Array | None:
    """Return a copy of a large view that repeats elements, as a view of as few elements; None for other contents."""
    if not isinstance(contents, np.ndarray) or contents.nbytes < LARGE_BYTES or contents.dtype.hasobject:
        return None
    repeats = [stride == 0 and extent > 1 for stride, extent in zip(contents.strides, contents.shape, strict=True)]
    if not any(repeats):
        return None
    once = contents[tuple(slice(0, 1) if each else slice(None) for each in repeats)].copy()
    return np.broadcast_to(once, contents.shape)


def zeros(count: int, kind: Any) -> Array:
    """Return zeros that the system backs page by page at their first touch, also more than the machine's memory."""
    size = count * np.dtype(kind).itemsize
    if size >= LARGE_BYTES and sys.platform == "linux":
        with suppress(OSError, ValueError):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
            return np.frombuffer(mmap.mmap(-1, size, flags=flags), kind)
    return np.zeros(count, kind)


def poisoned(size: int) -> Bytes:
    """Return poison; on Linux, its bytes are mappings of one file, so that only pages that are changed cost memory."""
    found: Bytes = zeros(size, np.uint8)
    whole, base = 0, found.ctypes.data
    if size >= LARGE_BYTES and sys.platform == "linux":
        with suppress(OSError):
            handle = os.memfd_create("poison")
            for _ in range(_FILE // PAGE):
                os.write(handle, _POISONED.data)
            place = ctypes.CDLL(None, use_errno=True).mmap
            place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            place.restype = ctypes.c_void_p
            rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
            while whole + _FILE <= size and place(base + whole, _FILE, rights, flags, handle, 0) == base + whole:
                whole += _FILE
            os.close(handle)
    found[whole:] = POISON
    return found


Addresses = NDArray[np.int64]
GLOBAL_BASE = 0x0000_0040_0000_0000
WINDOWS = {"shared": 0x0000_0020_0000_0000, "local": 0x0000_0030_0000_0000, "param": 0x0000_0038_0000_0000}
WINDOW_SIZE = 1 << 32
FUNCTION_BASE = 0x0000_0010_0000_0000  # addresses of functions, in no window: nothing is read or written there
SHARED_BASE = 1024
MAX_BYTES = 16 << 30
THREADS = 1 << 40  # a byte's writer is a PTX line * THREADS + the number of the thread in its grid

# Items of one access, by width: one move per lane, whatever it holds. complex128 is NumPy's only 16-byte item.
ITEM: dict[int, np.dtype[Any]] = {
    width: np.dtype(kind) for width, kind in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "u8"), (16, "c16"))
}
_SHIFT = {width: np.array([width.bit_length() - 1]) for width in ITEM}  # sooner than with a Python integer


@dataclass(frozen=True)
class Region:
    """A piece of memory that a kernel may touch: byte positions [start, end) of its space."""

    name: str
    start: int
    end: int
    writable: bool = True


class AccessError(Exception):
    """A lane that broke a rule; the machine adds the statement and the thread."""

    def __init__(self, code: str, lane: int, what: str) -> None:
        """Keep the code of the rule, the lane's position in its set, and the text."""
        super().__init__(what)
        self.code, self.lane, self.what = code, lane, what


class StoreWatch(Protocol):
    """An observer of a store before it is made."""

    def before(self, region: Region | None, index: Array, width: int) -> None: ...


class Blocks(Protocol):
    """Pieces of one region that come and go, such as the blocks of a heap."""

    @property
    def region(self) -> Region: ...
    def check(self, at: Addresses, width: int) -> None: ...
    def where(self, position: int) -> str: ...
    def state(self) -> Any: ...
    def restore(self, state: Any) -> None: ...
    def are_pointers(self, words: Array) -> Bools: ...


@dataclass
class Space:
    """One state space. `stride` bytes belong to each owner (CTA or lane); global memory has one owner.

    `unwritten` is 1 for a byte that neither the host nor a kernel wrote, else 0: zeros cost nothing. `blocks` are the
    parts of a region that an access may touch, if it may not touch all of it. `maps` are the positions of tensor maps
    that ended launches made there. `freed` are idle regions that were freed, the oldest first; an access to one is
    reported by its name. `sparse` knows the pages of large buffers that have no contents yet.
    """

    name: str
    base: int
    stride: int = 0
    bytes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    unwritten: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    writer: NDArray[np.int64] | None = None
    regions: list[Region] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    initialised: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    undo: StoreWatch | None = None
    blocks: Blocks | None = None
    maps: set[int] = field(default_factory=set)
    freed: deque[Region] = field(default_factory=deque)
    sparse: Sparse | None = None

    def __post_init__(self) -> None:
        self.origin = np.array([self.base])

    def add(self, region: Region) -> None:
        """Add a region; regions are added in rising order."""
        self.regions.append(region)
        self.starts.append(region.start)

    def region_at(self, position: int) -> Region | None:
        """Return the region that holds a byte position, or None."""
        found = bisect_right(self.starts, position) - 1
        return self.regions[found] if found >= 0 and position < self.regions[found].end else None

    def describe(self, position: int, width: int) -> str:
        """Return where an access outside its region is, relative to the nearest one."""
        for idle in self.freed:
            if idle.start <= position < idle.end:
                return f"byte {position - idle.start} of {idle.name} ({idle.end - idle.start} B), which was freed"
        found = bisect_right(self.starts, position + width - 1) - 1
        if found < 0:
            return f"below every {self.name} buffer" if self.regions else f"the kernel has no {self.name} memory"
        region = self.regions[found]
        size = f"{region.name} ({region.end - region.start} B)"
        if position < region.start:
            return f"it starts {region.start - position} B before {size}"
        past = position - region.end
        return f"{past} B past the end of {size}" if past >= 0 else f"it ends {past + width} B past the end of {size}"

    def where(self, position: int) -> str:
        """Return a position in some region as text: `byte 4 of argument 1`."""
        region = self.region_at(position)
        if self.blocks is not None and region is self.blocks.region:
            return self.blocks.where(position)
        return f"byte {position - (region.start if region else 0)} of {region.name if region else self.name}"

    def check(self, at: Addresses, width: int, *, store: bool) -> Region | None:
        """Raise AccessError unless each access is aligned in one region; return the region that all share, or None."""
        if len(at) == 1:
            low = high = stray = at.item()
        else:
            low, high = at.item(at.argmin()), at.item(at.argmax())  # sooner than a reduction
            stray = int(np.bitwise_or.reduce(at))
        shared = self.region_at(low)
        if shared is None or high + width > shared.end:
            self.check_each(at, width)
            shared = None
        if stray & (width - 1):
            lane = int(np.flatnonzero(at & (width - 1))[0])
            where = f"address {self.address(at[lane])} is not a multiple of {width} bytes"
            raise AccessError("misaligned", lane, where)
        if store and (shared is None or not shared.writable):
            for lane, position in enumerate(at):
                region = self.region_at(int(position))
                if region is not None and not region.writable:
                    raise AccessError("read-only", lane, f"{region.name} is read-only")
        if self.blocks is not None:
            self.blocks.check(at, width)
        if self.sparse is not None:
            self.touch(at, width)
        return shared

    def touch(self, at: Addresses, width: int) -> None:
        """Give their first contents to the pages of large buffers that accesses at these positions touch."""
        if self.sparse is not None:
            self._fill(self.sparse.touched(at, width))

    def touch_all(self, start: int, end: int) -> None:
        """Give their first contents to the pages of large buffers among bytes [start, end)."""
        if self.sparse is not None:
            self._fill(self.sparse.among(start, end))

    def _fill(self, pages: list[int]) -> None:
        assert self.sparse is not None
        for page in pages:
            part = slice(page * PAGE, (page + 1) * PAGE)
            self.bytes[part], self.unwritten[part] = self.sparse.contents(page)
            self.sparse.absent[page] = False

    def check_each(self, at: Addresses, width: int) -> None:
        """Raise AccessError for the first access that is not inside one region."""
        starts = np.array(self.starts or [0], dtype=np.int64)
        ends = np.array([region.end for region in self.regions] or [0], dtype=np.int64)
        found = np.searchsorted(starts, at, side="right") - 1
        bad = (found < 0) | (at + width > ends[np.maximum(found, 0)])
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            position = int(at[lane])
            where = f"{width} B at {self.name} address {self.address(position)}: {self.describe(position, width)}"
            raise AccessError("out-of-bounds", lane, where)

    def address(self, position: Any) -> str:
        """Return the address of a byte position as the kernel sees it."""
        return hex(int(position) + self.base)

    def index(self, at: Addresses, owner: Addresses | int, width: int) -> Addresses:
        """Return item numbers in the flat bytes for positions of each owner; the stride is a multiple of 16."""
        flat = at + owner * self.stride if self.stride else at
        return flat if width == 1 else flat >> _SHIFT[width]

    def is_initialised(self, region: Region | None) -> bool:
        """Return whether the host wrote all bytes of a region."""
        return region is not None and region.name in self.initialised

    def check_initialised(self, at: Addresses, index: Addresses, width: int) -> None:
        """Raise AccessError for the first access that reads an uninitialized byte."""
        narrow = min(width, 8)
        marks: Array = self.unwritten.view(ITEM[width]).take(index).view(ITEM[narrow])
        if np.count_nonzero(marks) and (bad := (marks != 0).reshape(len(at), -1).any(axis=1)).any():
            lane = int(np.flatnonzero(bad)[0])
            at_lane = int(at[lane])
            raise AccessError(
                "uninitialised",
                lane,
                f"{width} B at {self.name} address {self.address(at_lane)} ({self.where(at_lane)}) were never written",
            )

    def note_stored(self, region: Region | None) -> None:
        """Record a store to a region; None means several regions, so that any of them may have changed."""
        if region is not None:
            self.stored.add(region.name)
        else:
            self.stored.update(one.name for one in self.regions if one.writable)

    def put(self, region: Region | None, index: Addresses, items: Array, width: int) -> None:
        """Write items to checked places; if two places are equal, the last item stays."""
        self.note_stored(region)
        if self.undo is not None:
            self.undo.before(region, index, width)
        self.bytes.view(ITEM[width])[index] = items
        if not self.is_initialised(region):
            self.mark_written(index, width)

    def mark_written(self, index: Addresses, width: int) -> None:
        """Mark these items as written."""
        self.unwritten.view(ITEM[width])[index] = 0


def per_owner(name: str, owners: int, size: int, regions: list[Region], poison: int) -> Space:
    """Return a space with `size` bytes for each owner (CTA, lane); regions are byte positions of one owner."""
    stride = -(-(size + 16) // 16) * 16
    if owners * stride > MAX_BYTES:
        raise RefsimError("out-of-memory", f"{owners} x {stride} B of {name} memory: the limit is {MAX_BYTES} B")
    space = Space(name, 0, stride)
    space.bytes = np.full(owners * stride, poison, np.uint8)
    space.unwritten = np.ones(owners * stride, np.uint8)
    for region in regions:
        space.add(region)
    return space


# ---- shared memory of a cluster
RANK_SHIFT = 24
OFFSETS = (1 << RANK_SHIFT) - 1
_SHARED = WINDOWS["shared"]
_RANKS = WINDOW_SIZE - 1 - OFFSETS

Place = Array


def rank_bits(rank: Array) -> NDArray[np.uint64]:
    """Return the rank bits of shared addresses of a CTA of that rank."""
    bits: NDArray[np.uint64] = rank.astype(np.uint64) << np.uint64(RANK_SHIFT)
    return bits


def rank_of(address: Place) -> NDArray[np.int64]:
    """Return the rank in a shared address, within its window or generic."""
    ranks: NDArray[np.int64] = (address.astype(np.int64) & _RANKS) >> RANK_SHIFT
    return ranks


def position_of(address: Place) -> NDArray[np.int64]:
    """Return the byte position within the owner's shared memory."""
    positions: NDArray[np.int64] = address.astype(np.int64) & OFFSETS
    return positions


def with_rank(address: Place, rank: Array) -> Place:
    """Return the corresponding byte of another CTA: (0x03000410, 1) gives 0x01000410; generic addresses stay
    generic."""
    mapped: Place = (address & ~address.dtype.type(_RANKS)) | rank_bits(rank).astype(address.dtype)
    return mapped


def is_shared(address: Place) -> Bools:
    """Return which generic addresses lie in the window of shared memory."""
    at = address.astype(np.int64, copy=False)
    inside: Bools = (at >= _SHARED) & (at < _SHARED + WINDOW_SIZE)
    return inside
