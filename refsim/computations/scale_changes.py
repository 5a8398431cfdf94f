"""Causes in which scale an element gets: of another place, tile or GPU, in memory too; kept in another way, or none."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.reading import OperandReading
from refsim.computations.ways import DoesNotApplyError, Family, beside, rounded_to
from refsim.formats import BF16, E8M0, F16, ElementType
from refsim.layouts import scale_layout
from refsim.sources import CUBLAS, DEEPGEMM, OCP_MX, PTX

Scales = NDArray[Any]
Place = Callable[..., tuple[Any, Any]]
BLOCK = 128  # columns of K that share a float32 scale; rows too where scales are by blocks
TILE_ROWS, TILE_BLOCKS = 128, 4
"""Rows and blocks of K of one tile of shuffled scales."""
TILES = scale_layout("nvidia_128x4")


def _moved(place: Place, axis: int, scales: Scales, format: ElementType) -> Scales:
    """Return at (row, block of K) the scale at `place(rows, blocks, shape)`, which differs along an axis."""
    if scales.shape[axis] < 2:
        raise DoesNotApplyError
    rows, blocks = np.indices(scales.shape)
    return np.ascontiguousarray(scales[place(rows, blocks, scales.shape)])


def _tile_order_turned(scales: Scales, format: ElementType) -> Scales:
    """Return scales of shuffled tiles that are read down the rows but follow each other along K."""
    down, across = -(-scales.shape[0] // TILE_ROWS), -(-scales.shape[1] // TILE_BLOCKS)
    return _other_tiles(scales, lambda tile, of: (tile % across) * down + tile // across)


def _tiles_counted_down(scales: Scales, format: ElementType) -> Scales:
    """Return scales of tiles found by a count along K that omits the last tile, which is not full."""
    across = -(-scales.shape[1] // TILE_BLOCKS)
    whole = scales.shape[1] // TILE_BLOCKS
    if whole in (0, across):
        raise DoesNotApplyError
    return _other_tiles(scales, lambda tile, of: np.minimum(tile // across * whole + tile % across, of - 1))


def _other_tiles(scales: Scales, tile_of: Callable[[Any, int], Any]) -> Scales:
    """Return scales where tile i of the shuffled buffer is read from tile `tile_of(i, count)`."""
    if scales.dtype.itemsize != TILES.element_bytes or len(scales) <= TILE_ROWS:
        raise DoesNotApplyError
    shuffled = TILES.shuffle(scales, fill=0xFF).reshape(-1, TILE_ROWS * TILE_BLOCKS)
    moved = shuffled[tile_of(np.arange(len(shuffled)), len(shuffled))]
    return np.asarray(TILES.unshuffle(moved.reshape(-1), scales.shape))


def _twice(scales: Scales, format: ElementType) -> Scales:
    """Return scales read once from a buffer that was shuffled twice."""
    if scales.dtype.itemsize != TILES.element_bytes:
        raise DoesNotApplyError
    once = TILES.shuffle(scales, fill=0xFF).reshape(TILES.padded(scales.shape))
    return np.asarray(TILES.unshuffle(TILES.shuffle(once).reshape(-1), scales.shape))


def _from_buffer_of(name: str, scales: Scales, format: ElementType) -> Scales:
    """Return scales that layout `name` placed, read as tiles of 128 x 4; reads after its end find padding."""
    if scales.dtype.itemsize != 1:
        raise DoesNotApplyError
    placed = scale_layout(name).shuffle(scales, fill=0xFF).reshape(-1)
    size = TILES.size_bytes(scales.shape)
    held = np.pad(placed.view(np.uint8), (0, max(0, size - placed.nbytes)), constant_values=0xFF)[:size]
    return np.asarray(TILES.unshuffle(held, scales.shape))


def _of_floats(change: Callable[[Scales], Scales], scales: Scales, format: ElementType) -> Scales:
    """Return float32 scales changed; codes do not apply."""
    if scales.dtype != np.float32:
        raise DoesNotApplyError
    with np.errstate(divide="ignore"):
        return np.asarray(change(scales), np.float32)


def _around(by: int, axis: int | None, scales: Scales, format: ElementType | None = None) -> Scales:
    """Return the scales `by` places away along an axis, or in memory (None), around the ends."""
    if (scales.size if axis is None else scales.shape[axis]) < 2:
        raise DoesNotApplyError
    return np.roll(scales, by, axis)


def _of_blocks(change: Callable[[Scales], Scales], scales: Scales, format: ElementType) -> Scales:
    """Return scales whose grid, where one covers 128 rows, is changed; rows with their own scales do not apply."""
    grid = np.ascontiguousarray(scales[::BLOCK])
    rows = np.arange(len(scales)) // BLOCK
    if len(grid) < 2 or len(grid) == len(scales) or (grid[rows] != scales).any():
        raise DoesNotApplyError
    return np.asarray(change(grid)[rows])


_PLACES: tuple[tuple[str, Place], ...] = (
    ("one block of K late", lambda r, t, s: (r, np.maximum(t - 1, 0))),
    ("one block of K early", lambda r, t, s: (r, np.minimum(t + 1, s[1] - 1))),
    ("of the first block of K for all", lambda r, t, s: (r, 0 * t)),
    ("of the first of four blocks for all four", lambda r, t, s: (r, t // TILE_BLOCKS * TILE_BLOCKS)),
    ("of the next block of every four", lambda r, t, s: (r, np.minimum(t // 4 * 4 + (t + 1) % 4, s[1] - 1))),
    ("of the other block of every two", lambda r, t, s: (r, np.minimum(t ^ 1, s[1] - 1))),
    ("of the first 128 rows for all rows", lambda r, t, s: (r % TILE_ROWS, t)),
    ("of the first row for all rows", lambda r, t, s: (0 * r, t)),
    ("of the four blocks of a word turned about", lambda r, t, s: (r, np.minimum(t ^ 3, s[1] - 1))),
)
_ROW_PLACES: tuple[tuple[str, Place], ...] = (
    ("one row late", lambda r, t, s: (np.maximum(r - 1, 0), t)),
    ("one row early", lambda r, t, s: (np.minimum(r + 1, s[0] - 1), t)),
    *((f"of the first of {n} rows for all {n}", lambda r, t, s, n=n: (r // n * n, t)) for n in (2, 4, 8, 16, 32, 64)),
    ("of the upper of two rows 8 apart for both", lambda r, t, s: (r & ~8, t)),
    ("of rows with bits 3 and 4 of their number exchanged", lambda r, t, s: (_crossed(r, s[0]), t)),
    ("of the 128 rows before, where fewer than 128 are left", lambda r, t, s: (np.minimum(r, _whole(s[0]) - 1), t)),
)
"""Scales of other rows, where a block or a lane of rows is confused with another."""
_TILES: tuple[tuple[str, Callable[[Scales, ElementType], Scales]], ...] = (
    ("from tiles in the order of the rows", _tile_order_turned),
    ("from tiles along K that are counted down", _tiles_counted_down),
    ("from a buffer that was shuffled twice", _twice),
)
_OTHERS = ("nvidia_8x4", "cdna4_32", "cdna4_16", "deepgemm_mn_ue8m0")
_VALUES: tuple[tuple[str, Callable[[Scales], Scales]], ...] = (
    ("as their reciprocals", lambda scales: np.float32(1) / scales),
    ("rounded to bf16", lambda scales: rounded_to(scales, BF16)),
    ("rounded to f16", lambda scales: rounded_to(scales, F16)),
)
_GRIDS: tuple[tuple[str, Callable[[Scales], Scales]], ...] = (
    ("of the 128 rows before, around the end", partial(_around, 1, 0)),
    ("of the next 128 rows, around the end", partial(_around, -1, 0)),
    ("of the 128 rows before", partial(beside, -1)),
    ("of the next 128 rows", partial(beside, 1)),
    ("from the last 128 rows on", lambda grid: grid[::-1]),
    ("block by block of 128 rows where they lie row by row", lambda grid: grid.reshape(grid.shape[::-1]).T),
)


def _crossed(rows: Any, count: int) -> Any:
    """Return rows with bits 3 and 4 exchanged, which the lanes of a quad hold."""
    return np.minimum(rows & ~0x18 | (rows & 8) << 1 | (rows & 16) >> 1, count - 1)


def _squared(scales: Scales, format: ElementType) -> Scales:
    """Return float32 scales, or codes of E8M0, applied twice."""
    if format is E8M0 and scales.dtype == np.uint8:
        return np.clip(2 * scales.astype(np.int64) - E8M0.bias, 0, 254).astype(np.uint8)
    return _of_floats(np.square, scales, format)


def _whole(rows: int) -> int:
    """Return the rows in whole blocks of 128. Raises DoesNotApplyError where all rows are, or none."""
    if rows < TILE_ROWS or rows % TILE_ROWS == 0:
        raise DoesNotApplyError
    return rows // TILE_ROWS * TILE_ROWS


def _rows() -> Iterator[OperandReading]:
    """Yield every reading of scales from another place of one tensor or buffer, and as ones."""
    layout, blocks = Family.SCALE_LAYOUT, OCP_MX["section 5.2, scales of blocks"]
    for says, place in _PLACES:
        yield OperandReading(says, layout, blocks, partial(_moved, place, 1))
    for says, place in _ROW_PLACES:
        yield OperandReading(says, layout, blocks, partial(_moved, place, 0), rank=2)
    for says, change in _TILES:
        yield OperandReading(says, layout, PTX["tcgen05, scale factor layouts"], change)
    for name in _OTHERS:
        says = f"in nvidia_128x4 where they lie in {name}"
        yield OperandReading(says, layout, scale_layout(name).source, partial(_from_buffer_of, name))
    yield OperandReading("twice", Family.SCALE_RULE, blocks, _squared)
    yield OperandReading("as ones", Family.SCALE_RULE, blocks, partial(_of_floats, np.ones_like))


def _places() -> Iterator[OperandReading]:
    for by, word in ((1, "before"), (-1, "behind")):
        for axis, line in ((None, "in memory"), (0, "row"), (1, "block of K")):
            says = f"of the {line} {word}, around the end" if axis is not None else f"one float {word} in memory"
            yield OperandReading(says, Family.SCALE_LAYOUT, PTX["ld.global"], partial(_around, by, axis), rank=3)


ROWS = tuple(_rows())
"""Every reading of scales from another place or with another value."""
SCALE_VALUES = tuple(
    OperandReading(says, Family.SCALE_RULE, CUBLAS["scaling modes"], partial(_of_floats, change), rank=2)
    for says, change in _VALUES
)
SCALE_PLACES = tuple(_places())
SCALE_BLOCKS = tuple(
    OperandReading(says, Family.SCALE_LAYOUT, DEEPGEMM["sm90_fp8_gemm_1d2d"], partial(_of_blocks, change), rank=2)
    for says, change in _GRIDS
)
