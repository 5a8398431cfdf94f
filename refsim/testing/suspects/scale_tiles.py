"""Orders of scales in tiles: layouts that a kernel may expect, or may not expect."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.testing.suspects.feeding import Array

Listed = tuple[str, str, Callable[[Array], Array | None]]
"""The name of a candidate cause, its words, and the order in which the kernel takes an input."""


def tiles(size: int, extents: set[int]) -> Iterator[Listed]:
    """Yield the scale layouts that a kernel may expect, or may not expect, of `size` codes."""
    for layout in SCALE_LAYOUTS:
        high, wide = layout.tile
        if layout.element_bytes != 1 or size % (high * wide):
            continue
        for rows in sorted({-(-extent // high) * high for extent in extents if extent}):
            if size % (rows * wide) == 0:
                plain, tiled = _orders(layout, (rows, size // rows))
                of = f"the layout {layout.name} of {rows} x {size // rows}"
                yield "scale layout", f"{of} is read as row-major", partial(_taken, tiled, plain)
                yield "scale layout", f"row-major is read as {of}", partial(_taken, plain, tiled)
                if rows % 32 == 0:
                    crossed = _rows_crossed(layout, (rows, size // rows))
                    yield (
                        "scale layout",
                        f"{of} is read with bits 3 and 4 of the row exchanged",
                        partial(_taken, tiled, crossed),
                    )
                for split, how in ((1, "ascending"), (4, f"as 4 x {high // 4}")):
                    reads = _in_order(rows, size // rows, (high, wide), split)
                    says = f"{of} is read with the rows of a tile {how}"
                    yield "scale layout", says, partial(_taken, tiled, reads)


@cache
def _orders(layout: ScaleLayout, shape: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the scales' numbers in row-major order, and as the layout places them."""
    plain = np.arange(shape[0] * shape[1])
    octets = [layout.shuffle((plain >> shift & 0xFF).astype(np.uint8).reshape(shape)) for shift in (0, 8, 16)]
    tiled = sum(np.asarray(each).reshape(-1).astype(np.int64) << 8 * at for at, each in enumerate(octets))
    return plain, np.asarray(tiled)


def _rows_crossed(layout: ScaleLayout, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the scales' numbers as the layout places them, with bits 3 and 4 of the row exchanged."""
    plain, tiled = _orders(layout, shape)
    rows = np.arange(shape[0])
    crossed = rows & ~0x18 | (rows & 8) << 1 | (rows & 16) >> 1
    return np.asarray(plain.reshape(shape)[crossed].reshape(-1)[tiled])


def _in_order(rows: int, blocks: int, tile: tuple[int, int], split: int) -> NDArray[np.int64]:
    """Return the scales' numbers in tiles whose rows ascend, or are divided by the remainder of `split`."""
    plain = np.arange(rows * blocks).reshape(-1, tile[0] // split, split, blocks // tile[1], tile[1])
    return plain.transpose(0, 3, 2, 1, 4).reshape(-1)


def _taken(has: NDArray[np.int64], reads: NDArray[np.int64], array: Array) -> Array | None:
    """Return the array in the order that the kernel reads, from the order that it has."""
    if has.size != array.size or reads.size != array.size:
        return None
    return np.asarray(array.reshape(-1)[np.argsort(has)[reads]])
