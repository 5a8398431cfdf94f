"""tcgen05.cp: rows of shared memory that are copied to lanes of tensor memory."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.tensor_cells import TensorBox
from refsim.ptx.execution.tensor_operands import row_chunks
from refsim.ptx.memory.tensor_memory import TENSOR_LANES

Array = NDArray[Any]
_WORDS = 4  # of a chunk of 16 bytes
_ELEMENTS = 16  # of a chunk of narrow elements, each a byte in tensor memory
_WARP = 32


@lru_cache
def _lanes(shape: str, warps: tuple[tuple[int, ...], ...]) -> Array:
    """Return the lanes that receive each row. `warps`: for each 32 rows the warps that receive them."""
    if shape.startswith("4x"):
        return np.arange(4)[:, None] * _WARP  # one row for each warp's first lane: inferred, not measured
    row = np.arange(_WARP)[:, None]
    return np.concatenate([row + _WARP * np.array(each)[None, :] for each in warps])


@lru_cache
def _mask(shape: str, warps: tuple[tuple[int, ...], ...]) -> NDArray[np.bool_]:
    """Return which lanes receive rows."""
    found = np.zeros(TENSOR_LANES, np.bool_)
    found[_lanes(shape, warps).ravel()] = True
    return found


@dataclass(frozen=True)
class CopyAsked:
    """One executed tcgen05.cp: its first column, descriptor, shape, the warps that get each 32 rows, and the bits of
    narrow elements.

    `narrow` is 0 where bytes are copied unchanged. Each CTA of a group copies from its own shared memory.
    """

    address: int
    word: int
    shape: str
    warps: tuple[tuple[int, ...], ...]
    narrow: int = 0
    ctas: int = 1

    @property
    def used(self) -> int:
        """Return how many bytes of each chunk are read."""
        return _ELEMENTS * self.narrow // 8 or _ELEMENTS

    @property
    def lanes(self) -> Array:
        """Return the lanes that get each row, (rows, copies)."""
        return _lanes(self.shape, self.warps)

    @cached_property
    def chunks(self) -> Array:
        """Return the shared addresses that it reads, (rows, chunks of a row)."""
        return row_chunks(self.word, self.shape)

    def box(self, cta: int) -> TensorBox:
        """Return the box of tensor memory that it writes in one CTA."""
        lanes, first = _mask(self.shape, self.warps), self.address & 0xFFFF
        return TensorBox(cta, lanes, first, first + _WORDS * self.chunks.shape[1])

    def words(self, held: Array) -> Array:
        """Return the 32-bit words of each row, from the bytes (rows, chunks, 16) of its chunks."""
        if self.narrow:
            bits = np.unpackbits(held, axis=-1, bitorder="little")[..., : _ELEMENTS * self.narrow]
            apart = bits.reshape(*held.shape[:2], _ELEMENTS, self.narrow)
            held = np.packbits(apart, axis=-1, bitorder="little")[..., 0]
        return np.ascontiguousarray(held).view(np.uint32).reshape(len(held), -1)
