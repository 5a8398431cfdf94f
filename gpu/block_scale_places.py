"""Mistakes in where scales lie, and in what pads them: what a kernel that makes one would write, beside the right codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.layouts import ScaleLayout, scale_layout
from refsim.scaling.mx_recipes import mx_scale_codes
from refsim.scaling.nvfp4_recipes import nvfp4_scale_codes

LAYOUT = scale_layout("nvidia_128x4")
Bytes = NDArray[np.uint8]
Written = tuple[Bytes, Bytes]


def of(made: Any) -> Written:
    """The codes and shuffled scales of blocks."""
    return made.codes, LAYOUT.shuffle(made.scales)


def right(given: Any) -> Written:
    """Where a mistake cannot be made."""
    return of(given.made)


def pads_of(fill: int | None, given: Any) -> Written:
    """Pads that hold `fill`; None: the scale of a block of zeros."""
    nothing = np.zeros(1, np.float32)
    recipe = given.made.recipe
    code = nvfp4_scale_codes(nothing, recipe, given.kept) if given.row.two_levels else None
    code = mx_scale_codes(nothing, recipe, given.row.element) if code is None else code
    return given.made.codes, LAYOUT.shuffle(given.made.scales, fill=int(code[0]) if fill is None else fill)


def padded(scales: Bytes) -> Bytes:
    rows, blocks = LAYOUT.padded(scales.shape)
    return np.pad(scales, ((0, rows - scales.shape[0]), (0, blocks - scales.shape[1])))


def not_shuffled(given: Any) -> Written:
    """Scales padded and row-major, as they are before the interleave."""
    return given.made.codes, padded(given.made.scales).reshape(-1)


def shuffled_twice(given: Any) -> Written:
    once = LAYOUT.shuffle(given.made.scales).reshape(LAYOUT.padded(given.made.scales.shape))
    return given.made.codes, LAYOUT.shuffle(once)


def rows_alone(given: Any) -> Written:
    """Rows r, r + 32, r + 64 and r + 96 stand together, but whole rows: the second step is forgotten."""
    whole = padded(given.made.scales)
    return given.made.codes, np.ascontiguousarray(whole.reshape(-1, 4, 32, whole.shape[1]).swapaxes(1, 2)).reshape(-1)


def grid_transposed(given: Any) -> Written:
    """Tiles of scales follow each other down, not along K."""
    rows, blocks = LAYOUT.padded(given.made.scales.shape)
    tiles = LAYOUT.shuffle(given.made.scales).reshape(rows // LAYOUT.tile[0], blocks // LAYOUT.tile[1], -1)
    return given.made.codes, np.ascontiguousarray(tiles.swapaxes(0, 1)).reshape(-1)


def laid_out(layout: ScaleLayout, given: Any) -> Written:
    """The order of another chip or library, in a buffer of this one's size."""
    rows, blocks = given.made.scales.shape
    try:
        found = layout.shuffle(given.made.scales).reshape(-1)
    except RefsimError:  # tiles that the matrix does not fill
        return right(given)
    size = LAYOUT.size_bytes((rows, blocks))
    return given.made.codes, np.pad(found, (0, max(0, size - found.size)))[:size]


def tail_without_a_scale(given: Any) -> Written:
    """The scale of a block that the end of a row cuts is left out."""
    scales = given.made.scales.copy()
    if given.columns % given.row.width:
        scales[:, -1] = 0
    return given.made.codes, LAYOUT.shuffle(scales)
