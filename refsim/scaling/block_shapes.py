"""The place of blocks in a tensor: (1, width) along K, or squares of several rows; errors for arrays that do not
fit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.integers import array_of
from refsim.scaling.block_formats import BLOCK_FORMATS, BlockFormat
from refsim.scaling.grids import Pair, checked_group


def checked_block(block: Pair | None, row: BlockFormat) -> Pair:
    """Return (rows, columns) of a block: one row of `width`, or a square; None means one row."""
    if block is None:
        return 1, row.width
    extent = checked_group(block)
    if extent not in ((1, row.width), (row.width, row.width)):
        raise RefsimError(
            "bad-value",
            f"a block of {extent[0]} x {extent[1]}",
            where=str(row),
            rule=f"(1, {row.width}), or ({row.width}, {row.width}) with one scale for as many rows [{row.source.document.title}]",
        )
    return extent


def by_blocks(array: NDArray[Any], extent: Pair) -> NDArray[Any]:
    """Return an array (..., M, K) as (blocks, elements of a block), blocks in the order of their scales."""
    down, across = extent
    if down == 1:
        return np.ascontiguousarray(array).reshape(-1, across) if array.size else array.reshape(0, across)
    if array.ndim < 2 or array.shape[-2] % down:
        what = f"x has shape {array.shape}: its rows are not a multiple of {down}"
        raise RefsimError("bad-shape", what, rule=f"blocks of {down} x {across}", help="pad rows with zeros")
    cut = array.reshape(*array.shape[:-2], array.shape[-2] // down, down, array.shape[-1] // across, across)
    return np.ascontiguousarray(np.swapaxes(cut, -3, -2)).reshape(array.size // (down * across), down * across)


def by_rows(blocks: NDArray[Any], shape: tuple[int, ...], extent: Pair) -> NDArray[Any]:
    """Return an array (blocks, elements of a block) in the shape (..., M, K): the inverse of `by_blocks`."""
    down, across = extent
    if down == 1:
        return blocks.reshape(shape)
    cut = blocks.reshape(*shape[:-2], shape[-2] // down, shape[-1] // across, down, across)
    return np.ascontiguousarray(np.swapaxes(cut, -3, -2)).reshape(shape)


def tensor_factor(value: Any, row: BlockFormat) -> np.float32 | None:
    """Return the scale of a whole tensor as float32, or None without one; raise for a format of one level."""
    if value is None:
        return None
    if not row.two_levels:
        what = f"{row} has no scale of the tensor"
        raise RefsimError("bad-scale", what, rule=str(row.source), help="leave tensor_scale= out")
    array = array_of("tensor_scale", value)
    if array.shape not in ((), (1,)) or array.dtype.kind not in "fiu":
        what = f"tensor_scale is {array.dtype} of shape {array.shape}"
        raise RefsimError("bad-scale", what, where=str(row), rule="one float32 for the tensor")
    with np.errstate(all="ignore"):
        found = np.float32(array.reshape(()))
    if found < 0 or (np.isinf(found) and np.isfinite(array.astype(np.float64)).all()):
        rule = "one number from 0 on, which float32 holds or rounds"
        raise RefsimError("bad-scale", f"tensor_scale is {value!r}", where=str(row), rule=rule)
    return found


def require_shapes(codes: tuple[int, ...], scales: tuple[int, ...], row: BlockFormat, extent: Pair) -> None:
    """Raise where the codes are not whole blocks, or the number of scales is not one for each block."""
    down, across = extent
    if not codes or codes[-1] % across or (down > 1 and (len(codes) < 2 or codes[-2] % down)):
        what = f"codes of shape {codes} are not in blocks of {down} x {across}"
        raise RefsimError("bad-shape", what, where=str(row), rule=str(row.source))
    wanted = (*codes[:-1], codes[-1] // across)
    wanted = wanted if down == 1 else (*codes[:-2], codes[-2] // down, codes[-1] // across)
    if scales == wanted:
        return
    others = sorted({each.width for each in BLOCK_FORMATS if scales == (*codes[:-1], codes[-1] // each.width)})
    names = ", ".join(each.name for each in BLOCK_FORMATS if each.width in others)
    raise RefsimError(
        "bad-shape",
        f"scales have shape {scales}, codes of shape {codes} need {wanted}",
        where=str(row),
        rule=f"one {row.scale} for {down} x {across} {row.element}",
        help=f"a scale for {others[0]} along K is {names}" if others else "",
    )
