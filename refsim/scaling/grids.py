"""Groups of elements that share a scale: (rows, columns) from the first element on, smaller at the edges."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.integers import array_of, is_whole, whole_numbers

Pair = tuple[int, int]


def scale_grid(shape: Pair, group: Pair = (1, 128)) -> Pair:
    """Return the number of groups each way: (ceil(rows / group rows), ceil(columns / group columns)).

    A group at the edge is smaller, its scale like any other: scale_grid((33, 300)) is (33, 3); in groups of 128 x 128
    the matrix has 1 x 3. Raises RefsimError `bad-value` for a group that is no pair of whole numbers from 1. Source:
    DeepGEMM, per_token_cast_to_fp8 and per_block_cast_to_fp8 (ceil_div).
    """
    rows, columns = checked_group(group)
    extents = whole_numbers("extent", shape)
    if len(extents) != 2:
        raise RefsimError("bad-shape", f"a matrix of shape {extents}", rule="(rows, columns)")
    return -(-extents[0] // rows), -(-extents[1] // columns)


def spread(scales: ArrayLike, shape: Pair, group: Pair = (1, 128)) -> NDArray[Any]:
    """Return the scale of every element: `scales` (..., *scale_grid(shape, group)) becomes (..., *shape) of equal
    dtype.

    spread([[2.0, 3.0]], (1, 3), (1, 2)) is [[2.0, 2.0, 3.0]]. Raises RefsimError `bad-shape` for another number of
    scales. Source: defined here.
    """
    array, wanted = array_of("scales", scales), scale_grid(shape, group)
    if array.shape[-2:] != wanted:
        raise RefsimError(
            "bad-shape",
            f"scales have shape {array.shape}, {shape[0]} x {shape[1]} in groups of {group[0]} x {group[1]} need {wanted}",
            rule="(ceil(rows / group rows), ceil(columns / group columns))",
        )
    down, across = np.arange(shape[0]) // group[0], np.arange(shape[1]) // group[1]
    return np.asarray(array[..., down[:, None], across[None, :]])


def largest_of_groups(magnitudes: NDArray[Any], group: Pair) -> NDArray[Any]:
    """Return the largest of each group, (..., rows, columns) to (..., *scale_grid); edge groups are smaller."""
    rows, columns = checked_group(group)
    if 0 in magnitudes.shape:
        down, across = scale_grid((magnitudes.shape[-2], magnitudes.shape[-1]), group)
        return np.zeros((*magnitudes.shape[:-2], down, across), magnitudes.dtype)
    along = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.shape[-1], columns), axis=-1)
    return np.asarray(np.maximum.reduceat(along, np.arange(0, magnitudes.shape[-2], rows), axis=-2))


def checked_group(group: Pair) -> Pair:
    """Return (rows, columns) of a group; raise unless both are whole numbers from 1."""
    if array_of("group", group).shape != (2,) or not all(is_whole(each, 1) for each in group):
        raise RefsimError("bad-value", f"a group of {group!r}", rule="(rows, columns), both 1 or more")
    return int(group[0]), int(group[1])
