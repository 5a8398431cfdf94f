"""The heap of device malloc and free: blocks within one stretch of global memory, with red zones between them.

It outlives launches, as a context's heap does. Blocks are placed in rising order, and a place is used again only after all
behind it were used, so that who keeps a pointer to a freed block meets nobody else's memory. An access is checked byte by
byte: each one must lie in one block that is not freed.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.snapshot import PAGE
from refsim.ptx.memory.space import ITEM, POISON, AccessError, Addresses, Region, Space
from refsim.ptx.text.syntax import Statement, place

LIMIT = 8 << 20  # bytes, cudaLimitMallocHeapSize as it is unless the host sets it
ALIGN = 16
RED_ZONE = 128
# What a block takes from the limit beyond its bytes, and at least: blocks of up to 48 bytes lie 80 apart on an H100.
OVERHEAD, LEAST = 32, 80
REMEMBERED = 1 << 16  # freed blocks that a finding can still name
HEAP = "device heap"
ROOM = 4 * LIMIT  # positions: blocks, their red zones, and the time until a place is used again


@dataclass(frozen=True)
class HeapBlock:
    """Bytes [start, start + size) that malloc gave: by which statement to whom, and who took them back, as text.

    `reused`: some of these bytes were a block's before.
    """

    number: int
    start: int
    size: int
    statement: Statement
    who: str
    reused: bool = False
    freed: str = ""

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def charge(self) -> int:
        return max(LEAST, _up(self.size, ALIGN) + OVERHEAD)

    def __str__(self) -> str:
        taken = f", which {self.freed} took back" if self.freed else ""
        return f"the {self.size} B from {place(self.statement)}, {self.who}{taken}"


@dataclass(frozen=True)
class HeapState:
    """All that changes about a heap, at one moment."""

    cursor: int
    used: int
    numbers: int
    highest: int
    live: tuple[HeapBlock, ...]
    freed: tuple[HeapBlock, ...]


@dataclass
class Heap:
    """The blocks in `region` of a space. `allowed` is 1 for each byte that lies in a block which is not freed."""

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
    allowed: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.cursor = self.region.start + RED_ZONE
        self.allowed = np.zeros(_up(self.region.end - self.region.start, ALIGN), np.uint8)

    # ---- malloc and free
    def take(self, size: int, align: int, statement: Statement, who: str) -> HeapBlock | None:
        """A block of unwritten bytes at a multiple of `align`; None where the limit leaves no room for it."""
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
        """The block at a byte position is free from now on."""
        block = self.live.pop(position)
        del self.starts[bisect_left(self.starts, position)]
        self.used -= block.charge
        self._allow(block, 0)
        self.freed.append(replace(block, freed=freed))

    def _allow(self, block: HeapBlock, value: int) -> None:
        first = self.region.start
        self.allowed[block.start - first : block.end - first] = value

    def _place(self, size: int, align: int) -> int | None:
        """The first gap behind the cursor that takes a block, else the first one of all."""
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
        """Raise AccessError for the first lane that touches a byte of the heap which belongs to no block."""
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
        """The block that holds a byte and is not freed."""
        found = bisect_right(self.starts, position) - 1
        block = self.live[self.starts[found]] if found >= 0 else None
        return block if block is not None and position < block.end else None

    def freed_at(self, position: int, width: int = 1) -> HeapBlock | None:
        """The freed block that held some byte last, unless it was used again since."""
        found = next((one for one in reversed(self.freed) if one.start < position + width and position < one.end), None)
        return None if found is None or self.block_at(position) is not None else found

    def describe(self, position: int, width: int) -> str:
        """Where an access that hits no block lies, relative to the nearest one before it, else behind it."""
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
        """`byte 4 of the 40 B from call.malloc at PTX line 12 (k.cu:5), thread (0, 0, 0) of block (0, 0, 0)`."""
        block = self.block_at(position) or self.freed_at(position)
        inside = position - (self.region.start if block is None else block.start)
        return f"byte {inside} of {block or self.region.name}"

    # ---- one moment
    def state(self) -> HeapState:
        """All that changes, as it is now."""
        return HeapState(
            self.cursor, self.used, self.numbers, self.highest, tuple(self.live.values()), tuple(self.freed)
        )

    def restore(self, state: HeapState | None) -> None:
        """Back to a moment; None: to the one when there were no blocks yet. The bytes are the space's own."""
        for block in self.live.values():
            self._allow(block, 0)
        state = state or HeapState(self.region.start + RED_ZONE, 0, 0, 0, (), ())
        self.cursor, self.used, self.numbers, self.highest = state.cursor, state.used, state.numbers, state.highest
        self.live = {block.start: block for block in state.live}
        self.starts = sorted(self.live)
        self.freed = deque(state.freed, REMEMBERED)
        for block in state.live:
            self._allow(block, 1)

    # ---- what is lost
    def lost(self, first: int) -> list[HeapBlock]:
        """The blocks from number `first` on to which no pointer stands in memory: not in a buffer or a variable, nor in a
        block that one leads to."""
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
        """Positions in the heap that the aligned words of some bytes are addresses of."""
        words = self.space.bytes[_up(start, 8) : max(end // 8 * 8, _up(start, 8))].view(np.uint64)
        found: list[int] = np.unique(self.positions(words)).tolist()
        return found

    def positions(self, words: NDArray[Any]) -> NDArray[np.int64]:
        """The byte positions that those words mean which are addresses within the heap."""
        return (words[self.are_pointers(words)] - np.uint64(self.space.base)).astype(np.int64)

    def are_pointers(self, words: NDArray[Any]) -> NDArray[np.bool_]:
        """Which words are addresses within the heap."""
        lowest = np.uint64(self.region.start + self.space.base)
        found: NDArray[np.bool_] = words - lowest < np.uint64(self.region.end - self.region.start)
        return found


def _up(position: int, align: int) -> int:
    return -(-position // align) * align
