"""Memory at another moment than now: what a launch touched, what it overwrote, and all contents of a device.

The bytes that a launch wrote and read are kept for the next one, which may begin before it has ended. Overwritten bytes
are kept until a launch ends, so that it can run again from the initial memory: pages are copied just before the first
store into them. A snapshot leaves out pages of zeros and pages that nobody touched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import PAGE, Blocks, Region, Space

Bytes = NDArray[np.uint8]


@dataclass(eq=False)
class TouchedBytes:
    """The bytes of global memory, by their position, that a launch wrote and read."""

    wrote: Bools
    read: Bools

    @staticmethod
    def nothing(size: int) -> "TouchedBytes":
        """Return a record of `size` untouched bytes."""
        return TouchedBytes(np.zeros(size, np.bool_), np.zeros(size, np.bool_))

    def joined(self, other: "TouchedBytes") -> "TouchedBytes":
        """Return the bytes that either record touched."""
        found = TouchedBytes.nothing(max(len(self.wrote), len(other.wrote)))
        for each in (self, other):
            found.wrote[: len(each.wrote)] |= each.wrote
            found.read[: len(each.read)] |= each.read
        return found

    def add(self, at: Array, *, writes: bool) -> None:
        """Record an access to these bytes."""
        (self.wrote if writes else self.read)[at[at < len(self.wrote)]] = True

    def meets(self, at: Array, *, writes: bool) -> Bools:
        """Return which items (n, bytes) conflict: written before, or read before if the access `writes`."""
        known, place = at < len(self.wrote), np.minimum(at, len(self.wrote) - 1)
        found = self.wrote[place] | self.read[place] if writes else self.wrote[place]
        return np.asarray((found & known).any(axis=1))


UNDO_PAGE = 1 << 17
_FEW = 16  # pages that are looked up without asking which of them the items fall in


@dataclass
class Undo:
    """The old bytes of one space and their marks, by page; a context manager that watches the space's stores."""

    space: Space
    pages: dict[int, tuple[Bytes, Bytes]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    regions: list[Region] = field(default_factory=list)
    initialised: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    blocks: Any = None

    def __enter__(self) -> "Undo":
        space = self.space
        self.blocks = None if space.blocks is None else space.blocks.state()
        self.regions, self.initialised, self.stored = list(space.regions), set(space.initialised), set(space.stored)
        space.undo = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.space.undo = None

    def before(self, region: Region | None, index: Array, width: int) -> None:
        """Save the pages of items that are about to be written; `region` is the one that holds them all, or None."""
        if region is not None and region.start in self.whole:
            return
        if region is not None and region.end - region.start <= UNDO_PAGE:
            low, high = region.start, region.end
            self.whole.add(region.start)
        else:
            low, high = int(index.min()) * width, (int(index.max()) + 1) * width
        pages: Sequence[int] = range(low // UNDO_PAGE, -(-high // UNDO_PAGE))
        if len(pages) > _FEW:
            pages = np.unique(index * width // UNDO_PAGE).tolist()
        for page in pages:
            if page not in self.pages:
                part = slice(page * UNDO_PAGE, (page + 1) * UNDO_PAGE)
                self.pages[page] = self.space.bytes[part].copy(), self.space.unwritten[part].copy()

    def restore(self) -> None:
        """Restore everything: bytes, marks of uninitialized bytes, and the buffers and blocks that existed."""
        space = self.space
        _put_back(space, {page * UNDO_PAGE: held for page, held in self.pages.items()}, self.blocks)
        space.regions, space.starts = list(self.regions), [region.start for region in self.regions]
        space.initialised, space.stored = set(self.initialised), set(self.stored)


@dataclass(frozen=True)
class Snapshot:
    """Bytes [0, end) of a space and their marks of uninitialized bytes, by the first position of each nonzero page.
    `absent` are the pages of large buffers that had no contents yet."""

    end: int
    pages: dict[int, tuple[Bytes, Bytes]]
    blocks: Any = None
    maps: frozenset[int] = frozenset()
    absent: Bools | None = None

    @classmethod
    def of(cls, space: Space, end: int) -> "Snapshot":
        """Return the space as it is now."""
        pages = _used(space, end)
        blocks = None if space.blocks is None else space.blocks.state()
        held = {start: (contents.copy(), unwritten.copy()) for start, contents, unwritten in pages}
        absent = None if space.sparse is None else space.sparse.absent[: end // PAGE].copy()
        return cls(end, held, blocks, frozenset(space.maps), absent)

    def restore(self, space: Space) -> None:
        """Restore everything up to `end`; later bytes stay."""
        for start, contents, unwritten in _used(space, self.end):
            if start not in self.pages:
                contents[:], unwritten[:] = 0, 0
        _put_back(space, self.pages, self.blocks)
        if space.sparse is not None and self.absent is not None:
            space.sparse.absent[: len(self.absent)] = self.absent
        space.maps = set(self.maps)

    def first_difference(self, space: Space) -> int | None:
        """Return the first position that was written now or then and differs, or None. The places of heap blocks are no
        result: neither the heap's bytes nor addresses within it are compared."""
        now = {start: (contents, unwritten) for start, contents, unwritten in _used(space, self.end)}
        for start in sorted(now.keys() | self.pages.keys()):
            size = min(PAGE, self.end - start)
            rest = _first(space, start, size)
            (before, unwritten), (after, still) = self.pages.get(start, rest), now.get(start, rest)
            differ = (unwritten != still) | ((before != after) & (unwritten == 0))
            if differ.any() and space.blocks is not None:
                differ &= ~_is_placed(space.blocks, start, before, after)
            if differ.any():
                return start + int(np.argmax(differ))
        return None


def _put_back(space: Space, pages: dict[int, tuple[Bytes, Bytes]], blocks: Any) -> None:
    """Restore bytes and marks by the first position of each page, and the blocks of the heap."""
    for start, (contents, unwritten) in pages.items():
        space.bytes[start : start + len(contents)] = contents
        space.unwritten[start : start + len(unwritten)] = unwritten
    if space.blocks is not None:
        space.blocks.restore(blocks)


def _first(space: Space, start: int, size: int) -> tuple[Bytes, Bytes]:
    """Return the first contents of a page and its marks: zeros, or what the buffer was filled with."""
    if space.sparse is not None and (fill := space.sparse.fill_of(start // PAGE)) is not None:
        contents, mark = fill.page(start // PAGE)
        return contents, np.full(size, mark, np.uint8)
    return np.zeros(size, np.uint8), np.zeros(size, np.uint8)


def _is_placed(blocks: Blocks, start: int, before: Bytes, after: Bytes) -> Bools:
    """Return which bytes of a page tell only where a heap placed blocks: its own bytes, and addresses within it."""
    whole = len(before) // 8 * 8
    both = blocks.are_pointers(before[:whole].view(np.uint64)) & blocks.are_pointers(after[:whole].view(np.uint64))
    found = np.zeros(len(before), np.bool_)
    found[:whole] = np.repeat(both, 8)
    found[max(blocks.region.start - start, 0) : max(blocks.region.end - start, 0)] = True
    return found


def _used(space: Space, end: int) -> Iterator[tuple[int, Bytes, Bytes]]:
    """Yield first position, bytes and marks of each page below `end` that is not all zero or absent."""
    absent = frozenset() if space.sparse is None else frozenset(space.sparse.among(0, end))
    for start in range(0, end, PAGE):
        if start // PAGE in absent:
            continue
        part = slice(start, min(start + PAGE, end))
        contents, unwritten = space.bytes[part], space.unwritten[part]
        if contents.any() or unwritten.any():
            yield start, contents, unwritten
