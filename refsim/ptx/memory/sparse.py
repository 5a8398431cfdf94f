"""Large buffers of device memory: a page gets its first contents when it is first touched.

A buffer beyond 2 GiB then costs the pages that a kernel and the host touch.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    contents: NDArray[Any] | None

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

    absent: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
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

    def touched(self, at: NDArray[Any], width: int) -> list[int]:
        """Return the absent pages that accesses of `width` bytes at these positions touch."""
        pages = np.unique(np.concatenate([at, at + (width - 1)]) // PAGE)
        pages = pages[(pages >= 0) & (pages < len(self.absent))]
        found: list[int] = pages[self.absent[pages]].tolist()
        return found


def repeated(contents: object) -> NDArray[Any] | None:
    """Return a copy of a large view that repeats elements, as a view of as few elements; None for other contents."""
    if not isinstance(contents, np.ndarray) or contents.nbytes < LARGE_BYTES or contents.dtype.hasobject:
        return None
    repeats = [stride == 0 and extent > 1 for stride, extent in zip(contents.strides, contents.shape, strict=True)]
    if not any(repeats):
        return None
    once = contents[tuple(slice(0, 1) if each else slice(None) for each in repeats)].copy()
    return np.broadcast_to(once, contents.shape)


def zeros(count: int, kind: Any) -> NDArray[Any]:
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
