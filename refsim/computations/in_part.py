"""Find a cause that acted on a part of an output: some columns or rows of each period, or those from a line on."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Codes

Marks = NDArray[np.bool_]
Axes = tuple[tuple[int, str], ...]
PERIODS = (2, 4, 8, 16, 32)
TILE, VECTORS = 4, (1, 4, 8, 16)
LEAST_OF_EACH, LEAST_OF_CLASS = 4, 3
"""Least number of deciding elements on each side, and for each class of a period; with fewer, a fit may be chance."""


def is_mixed(made: Codes, got: Codes, want: Codes) -> bool:
    """Return whether every element equals `made` or `want`, and neither equals all."""
    of_made, of_want = made == got, want == got
    return bool((of_made | of_want).all()) and not of_made.all() and not of_want.all()


def part_of(made: Codes, got: Codes, want: Codes, *, of_columns: bool) -> str | None:
    """Return where a matrix equals `made` while it equals `want` elsewhere, as text; None where no line divides them.

    `of_columns` False: only rows divide them.
    """
    if not is_mixed(made, got, want):
        return None
    is_made, is_want = (made == got) & (want != got), (want == got) & (made != got)
    if min(int(is_made.sum()), int(is_want.sum())) < LEAST_OF_EACH:
        return None
    axes = ((1, "column"), (0, "row")) if of_columns else ((0, "row"),)
    return next(itertools.chain(_periods(is_made, is_want, axes), _ends(is_made, is_want, axes)), None)


def _periods(is_made: Marks, is_want: Marks, axes: Axes) -> Iterator[str]:
    """Yield periods whose classes divide the two; a kernel may treat columns after its last whole vector separately."""
    count = int(is_made.sum() + is_want.sum())
    for period in PERIODS:
        if count < LEAST_OF_CLASS * period:
            return
        for axis, what in axes:
            extent = is_made.shape[axis]
            ends = [extent] if axis == 0 else dict.fromkeys(extent // vector * vector for vector in VECTORS)
            for end in ends:
                lines = [np.asarray(each.any(axis=1 - axis)) for each in (is_made, is_want)]
                one, other = (np.array([each[k:end:period].any() for k in range(period)]) for each in lines)
                if end < 2 * period or (one & other).any() or lines[0][end:].any():
                    continue
                chosen = ", ".join(map(str, np.flatnonzero(one)))
                yield f"{what}s {chosen} of each {period} alone" + (f", none from {end} on" if end < extent else "")


def _ends(is_made: Marks, is_want: Marks, axes: Axes) -> Iterator[str]:
    """Yield the line, at the start of a tile, from which or up to which the matrix equals `made`."""
    for axis, what in axes:
        one, other = (np.flatnonzero(each.any(axis=1 - axis)) for each in (is_made, is_want))
        for first, last, words in ((one, other, "from {} {} on"), (other, one, "before {} {}")):
            begin = int(last[-1]) + 1
            begin = -(-begin // TILE) * TILE
            if begin <= first[0]:
                yield f"{words.format(what, begin)} alone"
