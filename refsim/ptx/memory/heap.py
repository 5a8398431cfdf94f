"""The heap of device malloc and free: blocks within one region of global memory, with red zones between them.

It outlives launches, like the heap of a context. Blocks are placed in rising order, and a place is used again only
after all later places. A pointer to a freed block therefore meets no other block for long. An access is checked byte by
byte: each byte must be in one block that is not freed.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, PAGE, POISON, AccessError, Addresses, Region, Space
from refsim.ptx.text.syntax import Statement, place

LIMIT = 8 << 20  # bytes, cudaLimitMallocHeapSize as it is unless the host sets it
ALIGN = 16
RED_ZONE = 128
# Bytes that a block takes from the limit beyond its size, and at least: blocks of up to 48 B are 80 B apart on an H100.
OVERHEAD, LEAST = 32, 80
REMEMBERED = 1 << 16  # freed blocks that a finding can still name
HEAP = "device heap"
ROOM = 4 * LIMIT  # positions: blocks, their red zones, and the time until a place is used again


@dataclass(frozen=True)
class HeapBlock:
    """Bytes [start, start + size) that malloc returned. `statement` and `who` allocated it, `freed` tells who freed it.
    `reused`: some of these bytes belonged to an earlier block."""

    number: int
    start: int
    size: int
    statement: Statement
    who: str
    reused: bool = False
    freed: str = ""

    @property
    def end(self) -> int:
        """Return the position after its last byte."""
        return self.start + self.size

    @property
    def charge(self) -> int:
        """Return how many bytes of the limit it takes."""
        return max(LEAST, _up(self.size, ALIGN) + OVERHEAD)

    def __str__(self) -> str:
        taken = f", which {self.freed} took back" if self.freed else ""
        return f"the {self.size} B from {place(self.statement)}, {self.who}{taken}"


@dataclass(frozen=True)
class HeapState:
    """The whole changing state of a heap at one moment."""

    cursor: int
    used: int
    numbers: int
    highest: int
    live: tuple[HeapBlock, ...]
    freed: tuple[HeapBlock, ...]


@dataclass
class Heap:
    """The blocks in `region` of a space; `allowed` is 1 for each byte in a block that is not freed."""

    space: Space
    region: Region
    limit: int = LIMIT
    used: int = 0
    numbers: int = 0
    cursor: int = 0
    highest: int = 0
    starts: list[int] = field(default_factory=list)
    live: dict[int, HeapBlock] = field(default_factory=dict)
    freed: deque[HeapBlock] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def __post_init__(self) -> None:
        self.cursor = self.region.start + RED_ZONE
        self.allowed: NDArray[np.uint8] = np.zeros(_up(self.region.end - self.region.start, ALIGN), np.uint8)

    # ---- malloc and free
    def take(self, size: int, align: int, statement: Statement, who: str) -> HeapBlock | None:
        """Return a block of uninitialized bytes at a multiple of `align`, or None beyond the limit."""
        block = HeapBlock(self.numbers + 1, 0, size, statement, who)
        start = self._place(size, max(align, ALIGN)) if self.used + block.charge <= self.limit else None
        if start is None:
            return None
        block = replace(block, start=start, reused=start < self.highest)
        self.numbers, self.used, self.cursor = block.number, self.used + block.charge, block.end + RED_ZONE
        self.highest = max(self.highest, block.end)
        insort(self.starts, start)
        self.live[start] = block
        space = self.space
        if space.undo is not None and size:
            space.undo.before(None, np.append(np.arange(start, block.end, PAGE), block.end - 1), 1)
        space.bytes[start : block.end] = POISON
        space.unwritten[start : block.end] = 1
        self._allow(block, 1)
        return block

    def give_back(self, position: int, freed: str) -> None:
        """Free the block at a byte position."""
        block = self.live.pop(position)
        del self.starts[bisect_left(self.starts, position)]
        self.used -= block.charge
        self._allow(block, 0)
        self.freed.append(replace(block, freed=freed))

    def _allow(self, block: HeapBlock, value: int) -> None:
        first = self.region.start
        self.allowed[block.start - first : block.end - first] = value

    def _place(self, size: int, align: int) -> int | None:
        """Return the first gap after the cursor that takes a block, else the first gap of all, else None."""
        for begin in (self.cursor, self.region.start + RED_ZONE):
            start = _up(begin, align)
            number = bisect_left(self.starts, start)
            if number:
                start = max(start, _up(self.live[self.starts[number - 1]].end + RED_ZONE, align))
            while start + size + RED_ZONE <= self.region.end:
                if number == len(self.starts) or start + size + RED_ZONE <= self.starts[number]:
                    return start
                start = max(start, _up(self.live[self.starts[number]].end + RED_ZONE, align))
                number += 1
        return None

    # ---- accesses
    def check(self, at: Addresses, width: int) -> None:
        """Raise AccessError for the first lane that touches a byte of the heap outside all blocks."""
        inside = (at >= self.region.start) & (at < self.region.end)
        if not inside.any():
            return
        ones = np.ones(width, np.uint8).view(ITEM[width])[0]
        items = np.where(inside, at - self.region.start, 0) // width
        bad = inside & (self.allowed.view(ITEM[width])[items] != ones)
        if bad.any():
            lane = int(np.argmax(bad))
            position = int(at[lane])
            block = self.freed_at(position, width)
            code = "out-of-bounds" if block is None else "use-after-free"
            said = self.describe(position, width) if block is None else f"byte {position - block.start} of {block}"
            raise AccessError(code, lane, f"{width} B at global address {self.space.address(position)}: {said}")

    def block_at(self, position: int) -> HeapBlock | None:
        """Return the live block that holds a byte, or None."""
        found = bisect_right(self.starts, position) - 1
        block = self.live[self.starts[found]] if found >= 0 else None
        return block if block is not None and position < block.end else None

    def freed_at(self, position: int, width: int = 1) -> HeapBlock | None:
        """Return the freed block that last held some byte, or None if none did or the byte was used again."""
        found = next((one for one in reversed(self.freed) if one.start < position + width and position < one.end), None)
        return None if found is None or self.block_at(position) is not None else found

    def describe(self, position: int, width: int) -> str:
        """Return where an access that hits no block is, relative to the nearest block."""
        found = bisect_right(self.starts, position + width - 1) - 1
        before = self.live[self.starts[found]] if found >= 0 else None
        after = self.live[self.starts[found + 1]] if found + 1 < len(self.starts) else None
        if before is not None and (after is None or position - before.end <= after.start - position):
            past = position - before.end
            return (
                f"{past} B past the end of {before}"
                if past >= 0
                else f"it ends {past + width} B past the end of {before}"
            )
        return (
            f"it starts {after.start - position} B before {after}" if after else "no block of the device heap is there"
        )

    def where(self, position: int) -> str:
        """Return a position as text: `byte 4 of the 40 B from call.malloc at PTX line 12 (k.cu:5), thread (0, 0,
        0)...`."""
        block = self.block_at(position) or self.freed_at(position)
        inside = position - (self.region.start if block is None else block.start)
        return f"byte {inside} of {block or self.region.name}"

    # ---- one moment
    def state(self) -> HeapState:
        """Return the changing state as it is now."""
        return HeapState(
            self.cursor, self.used, self.numbers, self.highest, tuple(self.live.values()), tuple(self.freed)
        )

    def restore(self, state: HeapState | None) -> None:
        """Restore a state; None is the state without blocks. The bytes belong to the space."""
        for block in self.live.values():
            self._allow(block, 0)
        state = state or HeapState(self.region.start + RED_ZONE, 0, 0, 0, (), ())
        self.cursor, self.used, self.numbers, self.highest = state.cursor, state.used, state.numbers, state.highest
        self.live = {block.start: block for block in state.live}
        self.starts = sorted(self.live)
        self.freed = deque(state.freed, REMEMBERED)
        for block in state.live:
            self._allow(block, 1)

    # ---- leaks
    def lost(self, first: int) -> list[HeapBlock]:
        """Return the blocks from number `first` on that no pointer in memory reaches. Pointers count in buffers, in
        variables, and in blocks that are reached themselves."""
        if not any(block.number >= first for block in self.live.values()):
            return []
        waiting = [
            start
            for region in self.space.regions
            if region is not self.region
            for start in self._pointed_to(region.start, region.end)
        ]
        known: set[int] = set()
        while waiting:
            block = self.block_at(waiting.pop())
            if block is not None and block.start not in known:
                known.add(block.start)
                waiting += self._pointed_to(block.start, block.end)
        return [block for start, block in sorted(self.live.items()) if block.number >= first and start not in known]

    def _pointed_to(self, start: int, end: int) -> list[int]:
        """Return positions in the heap whose addresses are among the aligned 64-bit words of some bytes."""
        words = self.space.bytes[_up(start, 8) : max(end // 8 * 8, _up(start, 8))].view(np.uint64)
        found: list[int] = np.unique(self.positions(words)).tolist()
        return found

    def positions(self, words: Array) -> NDArray[np.int64]:
        """Return the byte positions of the 64-bit `words` that are addresses within the heap."""
        return (words[self.are_pointers(words)] - np.uint64(self.space.base)).astype(np.int64)

    def are_pointers(self, words: Array) -> Bools:
        """Return which 64-bit words are addresses within the heap."""
        lowest = np.uint64(self.region.start + self.space.base)
        found: Bools = words - lowest < np.uint64(self.region.end - self.region.start)
        return found


def _up(position: int, align: int) -> int:
    return -(-position // align) * align
