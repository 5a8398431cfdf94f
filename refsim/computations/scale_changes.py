"""Causes in which scale an element gets: another block's, another tile's or GPU's, or none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.reading import AS_IT_IS, OperandReading
from refsim.computations.ways import DoesNotApplyError, Family
from refsim.formats import ElementType
from refsim.layouts import scale_layout
from refsim.sources import OCP_MX, PTX, Source

Scales = NDArray[Any]
TILE_ROWS, TILE_BLOCKS = 128, 4
"""Rows and blocks of K of one tile of shuffled scales."""


@dataclass(frozen=True)
class _Moved:
    """A change that takes the scale at (row, block of K) from `place(rows, blocks, shape)`."""

    place: Callable[..., tuple[Any, Any]]
    is_of_rows: bool = False

    def __call__(self, scales: Scales, format: ElementType) -> Scales:
        if scales.shape[1 - self.is_of_rows] < 2:
            raise DoesNotApplyError
        rows, blocks = np.indices(scales.shape)
        return np.ascontiguousarray(scales[self.place(rows, blocks, scales.shape)])


def _tile_order_turned(scales: Scales, format: ElementType) -> Scales:
    """Return scales of shuffled tiles that are read down the rows but follow each other along K."""
    layout = scale_layout("nvidia_128x4")
    down, across = -(-scales.shape[0] // TILE_ROWS), -(-scales.shape[1] // TILE_BLOCKS)
    return _other_tiles(scales, lambda tile, of: (tile % across) * down + tile // across, layout)


def _tiles_counted_down(scales: Scales, format: ElementType) -> Scales:
    """Return scales of tiles found by a count along K that omits the last tile, which is not full."""
    across = -(-scales.shape[1] // TILE_BLOCKS)
    whole = scales.shape[1] // TILE_BLOCKS
    if whole in (0, across):
        raise DoesNotApplyError
    return _other_tiles(
        scales,
        lambda tile, of: np.minimum(tile // across * whole + tile % across, of - 1),
        scale_layout("nvidia_128x4"),
    )


def _other_tiles(scales: Scales, tile_of: Callable[[Any, int], Any], layout: Any) -> Scales:
    """Return scales where tile i of the shuffled buffer is read from tile `tile_of(i, count)`."""
    if scales.dtype.itemsize != layout.element_bytes or len(scales) <= TILE_ROWS:
        raise DoesNotApplyError
    shuffled = layout.shuffle(scales, fill=0xFF).reshape(-1, TILE_ROWS * TILE_BLOCKS)
    moved = shuffled[tile_of(np.arange(len(shuffled)), len(shuffled))]
    return np.asarray(layout.unshuffle(moved.reshape(-1), scales.shape))


def _twice(scales: Scales, format: ElementType) -> Scales:
    """Return scales read once from a buffer that was shuffled twice."""
    layout = scale_layout("nvidia_128x4")
    if scales.dtype.itemsize != layout.element_bytes:
        raise DoesNotApplyError
    once = layout.shuffle(scales, fill=0xFF).reshape(layout.padded(scales.shape))
    return np.asarray(layout.unshuffle(layout.shuffle(once).reshape(-1), scales.shape))


def _from_buffer_of(name: str, scales: Scales, format: ElementType) -> Scales:
    """Return scales that layout `name` placed, read as tiles of 128 x 4; reads after its end find padding."""
    mine, other = scale_layout("nvidia_128x4"), scale_layout(name)
    if scales.dtype.itemsize != 1:
        raise DoesNotApplyError
    placed = other.shuffle(scales, fill=0xFF).reshape(-1)
    size = mine.size_bytes(scales.shape)
    held = np.pad(placed.view(np.uint8), (0, max(0, size - placed.nbytes)), constant_values=0xFF)[:size]
    return np.asarray(mine.unshuffle(held, scales.shape))


def _ones(scales: Scales, format: ElementType) -> Scales:
    if scales.dtype != np.float32:
        raise DoesNotApplyError
    return np.ones_like(scales)


_PLACES: tuple[tuple[str, Callable[..., tuple[Any, Any]]], ...] = (
    ("one block of K late", lambda r, t, s: (r, np.maximum(t - 1, 0))),
    ("one block of K early", lambda r, t, s: (r, np.minimum(t + 1, s[1] - 1))),
    ("of the first block of K for all", lambda r, t, s: (r, 0 * t)),
    ("of the first of four blocks for all four", lambda r, t, s: (r, t // TILE_BLOCKS * TILE_BLOCKS)),
    ("of the first 128 rows for all rows", lambda r, t, s: (r % TILE_ROWS, t)),
    ("of the first row for all rows", lambda r, t, s: (0 * r, t)),
    ("of the four blocks of a word turned about", lambda r, t, s: (r, np.minimum(t ^ 3, s[1] - 1))),
)
_ROW_PLACES: tuple[tuple[str, Callable[..., tuple[Any, Any]]], ...] = (
    ("one row late", lambda r, t, s: (np.maximum(r - 1, 0), t)),
    ("one row early", lambda r, t, s: (np.minimum(r + 1, s[0] - 1), t)),
    *((f"of the first of {n} rows for all {n}", lambda r, t, s, n=n: (r // n * n, t)) for n in (2, 4, 8, 16, 32, 64)),
    ("of the 128 rows before, where fewer than 128 are left", lambda r, t, s: (np.minimum(r, _whole(s[0]) - 1), t)),
)
"""Scales of other rows, where a block or a lane of rows is confused with another."""


def _whole(rows: int) -> int:
    """Return the rows in whole blocks of 128. Raises DoesNotApplyError where all rows are, or none."""
    if rows < TILE_ROWS or rows % TILE_ROWS == 0:
        raise DoesNotApplyError
    return rows // TILE_ROWS * TILE_ROWS


def _rows() -> Iterator[OperandReading]:
    """Yield every reading of scales from another place or with another value."""
    blocks = OCP_MX["section 5.2, scales of blocks"]
    tiles: Source = PTX["tcgen05, scale factor layouts"]
    for says, place in _PLACES:
        yield OperandReading(says, Family.SCALE_LAYOUT, blocks, _Moved(place))
    for says, place in _ROW_PLACES:
        yield OperandReading(says, Family.SCALE_LAYOUT, blocks, _Moved(place, is_of_rows=True), rank=2)
    yield OperandReading("from tiles in the order of the rows", Family.SCALE_LAYOUT, tiles, _tile_order_turned)
    yield OperandReading("from tiles along K that are counted down", Family.SCALE_LAYOUT, tiles, _tiles_counted_down)
    yield OperandReading("from a buffer that was shuffled twice", Family.SCALE_LAYOUT, tiles, _twice)
    for name in _OTHERS:

        def found(scales: Scales, format: ElementType, name: str = name) -> Scales:
            return _from_buffer_of(name, scales, format)

        says = f"in nvidia_128x4 where they lie in {name}"
        yield OperandReading(says, Family.SCALE_LAYOUT, scale_layout(name).source, found)
    yield OperandReading("as ones", Family.SCALE_RULE, blocks, _ones)


_OTHERS = ("nvidia_8x4", "cdna4_32", "cdna4_16", "deepgemm_mn_ue8m0")
ROWS = tuple(_rows())
"""Every reading of scales from another place or with another value."""
ROWS_OF_BOTH = (AS_IT_IS, *ROWS[: len(_PLACES)])
"""The readings of the scales of A and B alike."""
