"""The contents of device memory at one moment, for a launch that runs several times from the initial bytes.

Pages of zeros and pages that nobody touched are left out, so declared memory that is not touched costs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.space import Blocks, Space
from refsim.ptx.memory.sparse import PAGE

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Snapshot:
    """Bytes [0, end) of a space and their marks of uninitialized bytes, by the first position of each nonzero page.
    `absent` are the pages of large buffers that had no contents yet."""

    end: int
    pages: dict[int, tuple[Bytes, Bytes]]
    blocks: Any = None
    maps: frozenset[int] = frozenset()
    absent: NDArray[np.bool_] | None = None

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
        for start, (contents, unwritten) in self.pages.items():
            space.bytes[start : start + len(contents)] = contents
            space.unwritten[start : start + len(unwritten)] = unwritten
        if space.sparse is not None and self.absent is not None:
            space.sparse.absent[: len(self.absent)] = self.absent
        space.maps = set(self.maps)
        if space.blocks is not None:
            space.blocks.restore(self.blocks)

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


def _first(space: Space, start: int, size: int) -> tuple[Bytes, Bytes]:
    """Return the first contents of a page and its marks: zeros, or what the buffer was filled with."""
    if space.sparse is not None and (fill := space.sparse.fill_of(start // PAGE)) is not None:
        contents, mark = fill.page(start // PAGE)
        return contents, np.full(size, mark, np.uint8)
    return np.zeros(size, np.uint8), np.zeros(size, np.uint8)


def _is_placed(blocks: Blocks, start: int, before: Bytes, after: Bytes) -> NDArray[np.bool_]:
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
