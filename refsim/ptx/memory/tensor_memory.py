"""Tensor memory: 128 lanes of 512 columns of 32 bits for each CTA; a kernel allocates columns."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TENSOR_LANES, TENSOR_COLUMNS = 128, 512
LANE_SHIFT, COLUMN_MASK = 16, 0xFFFF
LEAST_COLUMNS = 32


@dataclass
class TensorMemory:
    """The tensor memory of the running CTAs: `words` (CTAs, lanes, columns).

    `unwritten` marks the cells not written since the allocation of their columns. In a launch with tracking, `bits` and
    `events` are the masks of undefined bits. `blocks` are the columns that each CTA holds, by their first; `closed` are
    the CTAs that gave up the right to allocate.
    """

    ctas: int
    poison: int
    words: Array = field(init=False)
    unwritten: NDArray[np.bool_] = field(init=False)
    bits: NDArray[np.uint32] | None = None
    events: NDArray[np.int32] | None = None
    blocks: dict[int, dict[int, int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        shape = (self.ctas, TENSOR_LANES, TENSOR_COLUMNS)
        self.words, self.unwritten = np.zeros(shape, np.uint32), np.zeros(shape, np.bool_)

    def follow(self) -> None:
        """Add masks of undefined bits to the cells."""
        self.bits, self.events = np.zeros(self.words.shape, np.uint32), np.zeros(self.words.shape, np.int32)

    def allocate(self, cta: int, columns: int) -> int | None:
        """Return the first of `columns` free columns, a multiple of their number, or None if there are none."""
        held = self.held(cta)
        for first in range(0, TENSOR_COLUMNS, columns):
            if not held[first : first + columns].any():
                self.blocks.setdefault(cta, {})[first] = columns
                mine = cta, slice(None), slice(first, first + columns)
                self.words[mine], self.unwritten[mine] = self.poison, True
                if self.events is not None:
                    self.events[mine] = 0
                return first
        return None

    def free(self, cta: int, first: int, columns: int) -> bool:
        """Free columns; return whether they are one allocation."""
        if self.blocks.get(cta, {}).get(first) != columns:
            return False
        del self.blocks[cta][first]
        return True

    def held(self, cta: int) -> NDArray[np.bool_]:
        """Return which columns a CTA holds."""
        found = np.zeros(TENSOR_COLUMNS, np.bool_)
        for first, columns in self.blocks.get(cta, {}).items():
            found[first : first + columns] = True
        return found

    def spoken(self, cta: int) -> str:
        """Return the columns that a CTA holds as text: `columns 0 to 63 and 128 to 255`."""
        parts = [f"{first} to {first + columns - 1}" for first, columns in sorted(self.blocks.get(cta, {}).items())]
        return f"columns {' and '.join(parts)}" if parts else "none"
