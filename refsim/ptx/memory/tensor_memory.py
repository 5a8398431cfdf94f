"""Tensor memory: 128 lanes of 512 columns of 32 bits for each CTA, of which a kernel allocates columns."""

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
    """The tensor memory of the CTAs that run: `words` (CTAs, lanes, columns) and, in `unwritten`, which of them nobody wrote
    since their columns were allocated. In a launch whose undefined bits are followed `bits` and `events` have their masks.

    `blocks` are the columns that each CTA holds, by the first of them; `closed` the CTAs that gave up allocating more.
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
        """From now on masks of undefined bits go with the words."""
        self.bits, self.events = np.zeros(self.words.shape, np.uint32), np.zeros(self.words.shape, np.int32)

    def allocate(self, cta: int, columns: int) -> int | None:
        """The first of so many columns that nobody holds, which they are a multiple of; None where there are none."""
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
        """Give columns back, where they are one allocation."""
        if self.blocks.get(cta, {}).get(first) != columns:
            return False
        del self.blocks[cta][first]
        return True

    def held(self, cta: int) -> NDArray[np.bool_]:
        """Which columns a CTA holds."""
        found = np.zeros(TENSOR_COLUMNS, np.bool_)
        for first, columns in self.blocks.get(cta, {}).items():
            found[first : first + columns] = True
        return found

    def spoken(self, cta: int) -> str:
        """`columns 0 to 63 and 128 to 255`."""
        parts = [f"{first} to {first + columns - 1}" for first, columns in sorted(self.blocks.get(cta, {}).items())]
        return f"columns {' and '.join(parts)}" if parts else "none"
