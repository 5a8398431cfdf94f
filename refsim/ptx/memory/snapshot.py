"""What device memory held at one moment: for a launch that runs several times from the same bytes.

Pages that are zero all over are left out, so that declared memory which nobody touched costs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.space import Blocks, Space

PAGE = 1 << 20

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Snapshot:
    """Bytes [0, end) of a space and which of them nobody wrote, by the first position of each page that holds any."""

    end: int
    pages: dict[int, tuple[Bytes, Bytes]]
    blocks: Any = None
    maps: frozenset[int] = frozenset()

    @classmethod
    def of(cls, space: Space, end: int) -> "Snapshot":
        """The space as it is now."""
        pages = _used(space, end)
        blocks = None if space.blocks is None else space.blocks.state()
        held = {start: (contents.copy(), unwritten.copy()) for start, contents, unwritten in pages}
        return cls(end, held, blocks, frozenset(space.maps))

    def restore(self, space: Space) -> None:
        """Put everything back; what lies behind `end` stays."""
        for start, contents, unwritten in _used(space, self.end):
            if start not in self.pages:
                contents[:], unwritten[:] = 0, 0
        for start, (contents, unwritten) in self.pages.items():
            space.bytes[start : start + len(contents)] = contents
            space.unwritten[start : start + len(unwritten)] = unwritten
        space.maps = set(self.maps)
        if space.blocks is not None:
            space.blocks.restore(self.blocks)

    def first_difference(self, space: Space) -> int | None:
        """The first position that was written now or then and does not hold the same now; None if there is none.

        Where a heap places its blocks is nobody's result: neither its bytes nor addresses within it are compared.
        """
        now = {start: (contents, unwritten) for start, contents, unwritten in _used(space, self.end)}
        for start in sorted(now.keys() | self.pages.keys()):
            size = min(PAGE, self.end - start)
            zero = np.zeros(size, np.uint8)
            (before, unwritten), (after, still) = self.pages.get(start, (zero, zero)), now.get(start, (zero, zero))
            differ = (unwritten != still) | ((before != after) & (unwritten == 0))
            if differ.any() and space.blocks is not None:
                differ &= ~_is_placed(space.blocks, start, before, after)
            if differ.any():
                return start + int(np.argmax(differ))
        return None


def _is_placed(blocks: Blocks, start: int, before: Bytes, after: Bytes) -> NDArray[np.bool_]:
    """Which bytes of a page from `start` on say only where a heap placed something: its own, and addresses in it."""
    whole = len(before) // 8 * 8
    both = blocks.are_pointers(before[:whole].view(np.uint64)) & blocks.are_pointers(after[:whole].view(np.uint64))
    found = np.zeros(len(before), np.bool_)
    found[:whole] = np.repeat(both, 8)
    found[max(blocks.region.start - start, 0) : max(blocks.region.end - start, 0)] = True
    return found


def _used(space: Space, end: int) -> Iterator[tuple[int, Bytes, Bytes]]:
    """First position, bytes and marks of each page below `end` that is not zero all over."""
    for start in range(0, end, PAGE):
        part = slice(start, min(start + PAGE, end))
        contents, unwritten = space.bytes[part], space.unwritten[part]
        if contents.any() or unwritten.any():
            yield start, contents, unwritten
