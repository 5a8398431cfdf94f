"""Compare arrays whose elements may stand in any order within a group: the best order, and what is missing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LISTED = 4  # groups, and elements of a group, that are named
ALIKE = 256  # most unmatched elements that are paired by the bytes they share


def in_best_order(
    got: Sequence[Array], want: Sequence[Array], axis: int, groups: NDArray[np.int64]
) -> tuple[list[Array], list[str]]:
    """Return `want` with its elements in the order of `got` where they are equal, and what is missing or extra.

    The arrays share their axes up to `axis`, and their elements move together. `groups` are offsets along the axis;
    each index of the axes before it has these groups for itself. Elements are compared by their bytes.
    """
    shape = got[0].shape[: axis + 1]
    total, batch = int(np.prod(shape)), int(np.prod(shape[:-1]))
    here, there = (np.hstack([_bytes(each, total) for each in arrays]) for arrays in (got, want))
    group = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    group = (np.arange(batch)[:, None] * (len(groups) - 1) + group).reshape(-1)
    one, other = _places(here, there, group)
    _, matched, source = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    order = np.full(total, -1)
    order[matched] = source
    extra, missing = np.flatnonzero(order < 0), np.setdiff1d(np.arange(total), source)
    order[extra] = _paired(here, there, extra, missing, group)
    lines = []
    for number in dict.fromkeys(group[extra].tolist()):
        row, at = divmod(int(number), len(groups) - 1)
        index = "".join(f"[{each}]" for each in np.unravel_index(row, shape[:-1]))
        lost, found = (
            _listed(arrays[0], places[group[places] == number], shape)
            for arrays, places in ((want, missing), (got, extra))
        )
        where = f"group {at}{index and ' of '}{index}, places {groups[at]}..{groups[at + 1] - 1}"
        lines.append(f"{where}: missing {lost}; extra {found}")
    more = [f"{len(lines) - LISTED} more groups differ"] if len(lines) > LISTED else []
    return [_reordered(each, order, total) for each in want], [*lines[:LISTED], *more]


def _bytes(array: Array, total: int) -> NDArray[np.uint8]:
    """Return the bytes of each element, shape (total, bytes)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(total, -1)


def _reordered(array: Array, order: NDArray[np.int64], total: int) -> Array:
    return np.ascontiguousarray(array).reshape(total, -1)[order].reshape(array.shape)


def _places(here: Array, there: Array, group: Array) -> tuple[Array, Array]:
    """Return a number for each element of both arrays: equal for equal bytes in one group, distinct in one array."""
    both = np.ascontiguousarray(np.vstack((here, there)))
    width = both.shape[1]
    whole = both.view(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}").reshape(-1)
    _, number = np.unique(whole, return_inverse=True)
    _, key = np.unique(np.tile(group, 2) * (len(both) + 1) + number.reshape(-1), return_inverse=True)
    found = []
    for keys in np.split(key.reshape(-1), 2):
        order = np.argsort(keys, kind="stable")
        first = np.searchsorted(keys[order], keys[order])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(keys)) - first
        found.append(keys * (len(both) + 1) + rank)
    return found[0], found[1]


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


def _listed(array: Array, places: Array, shape: tuple[int, ...]) -> str:
    """Return elements as text: a single number by its value, and otherwise the index of the element."""
    if array.shape == shape:
        texts = [str(each) for each in array.reshape(-1)[places[:LISTED]].tolist()]
    else:
        texts = [str([int(at) for at in np.unravel_index(place, shape)]) for place in places[:LISTED]]
    return ", ".join(texts) + (f" and {len(places) - LISTED} more" if len(places) > LISTED else "")
