"""Compare arrays whose elements may stand in any order within a group: the best order, and what is missing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode

Array = NDArray[Any]
LISTED = 4  # groups, and elements of a group, that are named
ALIKE = 256  # most unmatched elements that are paired by the bytes they share


def in_best_order(
    got: Sequence[Array], want: Sequence[Array], axis: int, groups: NDArray[np.int64], formats: Sequence[str] = ()
) -> tuple[list[Array], list[str]]:
    """Return `want` with its elements in the order of `got` where they are equal, and what is missing or extra.

    The arrays share their axes up to `axis`, and their elements move together. `groups` are offsets along the axis;
    each index of the axes before it has these groups for itself. Elements are compared by their bytes. `formats` are
    the formats of the arrays' codes, "" for plain numbers.
    """
    shape = got[0].shape[: axis + 1]
    total, batch = int(np.prod(shape)), int(np.prod(shape[:-1]))
    here, there = (np.hstack([_bytes(each, total) for each in arrays]) for arrays in (got, want))
    group = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    group = (np.arange(batch)[:, None] * (len(groups) - 1) + group).reshape(-1)
    one, other = _keys(here, there, group)
    mine, right = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    one, other = one[mine], other[right]
    at = np.searchsorted(other, one) + np.arange(total) - np.searchsorted(one, one)  # the n-th of equals to the n-th
    is_there = other[np.minimum(at, total - 1)] == one
    is_there &= at < total
    order, is_left = np.full(total, -1), np.ones(total, np.bool_)
    order[mine[is_there]] = right[at[is_there]]
    is_left[right[at[is_there]]] = False
    extra, missing = np.flatnonzero(order < 0), np.flatnonzero(is_left)
    order[extra] = _paired(here, there, extra, missing, group)
    lines, differing = [], np.unique(group[extra]).tolist()
    for number in differing[:LISTED]:
        row, one_of = divmod(number, len(groups) - 1)
        index = "".join(f"[{each}]" for each in np.unravel_index(row, shape[:-1]))
        lost, found = (
            _listed(arrays, formats, places[group[places] == number], shape)
            for arrays, places in ((want, missing), (got, extra))
        )
        where = f"group {one_of}{index and ' of '}{index}, places {groups[one_of]}..{groups[one_of + 1] - 1}"
        lines.append(f"{where}: missing {lost}; extra {found}")
    lines += [f"{len(differing) - LISTED} more groups differ"] if len(differing) > LISTED else []
    return [_reordered(each, order, total) for each in want], lines


def _bytes(array: Array, total: int) -> NDArray[np.uint8]:
    """Return the bytes of each element, shape (total, bytes)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(total, -1)


def _reordered(array: Array, order: NDArray[np.int64], total: int) -> Array:
    return np.ascontiguousarray(array).reshape(total, -1)[order].reshape(array.shape)


def _keys(here: Array, there: Array, group: Array) -> list[Array]:
    """Return a number for each element of both arrays, equal for equal bytes in one group."""
    both = np.ascontiguousarray(np.vstack((here, there)))
    width = both.shape[1]
    whole = both.view(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}").reshape(-1)
    _, number = np.unique(whole, return_inverse=True)
    return np.split(np.tile(group, 2) * (len(both) + 1) + number.reshape(-1), 2)


def _paired(here: Array, there: Array, extra: Array, missing: Array, group: Array) -> Array:
    """Return `missing` in the order of `extra`, within groups; a few elements are paired by the bytes they share."""
    if not 0 < len(extra) <= ALIKE:
        return missing
    score = (here[extra][:, None] == there[missing][None]).sum(2, dtype=np.int64)
    score[group[extra][:, None] != group[missing][None]] = -1
    found = np.empty_like(missing)
    for _ in extra:
        row, column = np.unravel_index(int(score.argmax()), score.shape)
        found[row] = missing[column]
        score[row, :], score[:, column] = -2, -2
    return found


def _listed(arrays: Sequence[Array], formats: Sequence[str], places: Array, shape: tuple[int, ...]) -> str:
    """Return elements as text: their numbers, decoded, as `(3, 0.5)` if arrays move together; rows by their index."""
    columns = []
    for array, format in zip(arrays, formats or [""] * len(arrays), strict=True):
        if array.shape == shape:
            numbers = array.reshape(-1)[places[:LISTED]]
            columns.append((decode(numbers, format) if format and numbers.dtype.kind in "ui" else numbers).tolist())
    texts = [str(row[0] if len(row) == 1 else row) for row in zip(*columns, strict=True)]
    texts = texts or [str([int(at) for at in np.unravel_index(place, shape)]) for place in places[:LISTED]]
    return ", ".join(texts) + (f" and {len(places) - LISTED} more" if len(places) > LISTED else "")
