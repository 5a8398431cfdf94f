"""NaN and infinities: the outputs that they decide, written after finite arithmetic."""

import numpy as np
from numpy.typing import NDArray

from refsim.numerics.dot.arrays import Codes
from refsim.numerics.fast.reals import Values
from refsim.numerics.fast.terms import NAN_TERM
from refsim.numerics.roundings import Rounding

Marks = NDArray[np.int8]  # +1 and -1 infinities, 2 NaN, 0 finite numbers


def decided(
    values: tuple[Values, Values], marks: tuple[Marks | None, Marks | None], c: Marks | None, shape: tuple[int, ...]
) -> Marks | None:
    """Return the mark of every output (batch, M, N) that its terms make infinite or NaN; None if nothing is marked.

    `values` and `marks` of A and B are (K, batch, rows), a marked value is 0. NaN terms, infinity times zero and
    infinities of both signs give NaN.
    """
    if marks[0] is None and marks[1] is None and c is None:
        return None
    own = np.zeros(shape, np.int8) if c is None else c
    plus, minus, nan = own == 1, own == -1, own == NAN_TERM
    for mark, axis in zip(marks, (2, 1), strict=True):
        if mark is not None:
            nan |= np.expand_dims((mark == NAN_TERM).any(0), axis)
    infinite = [np.zeros(1, np.bool_) if mark is None else (mark % NAN_TERM != 0).any((1, 2)) for mark in marks]
    places = np.flatnonzero(infinite[0] | infinite[1])
    if places.size:
        x = _indicators(values[0][places], marks[0], places)
        y = [part.swapaxes(1, 2) for part in _indicators(values[1][places], marks[1], places)]
        for left, right in ((0, 1), (1, 0)):
            count, difference = np.abs(x[left]) @ np.abs(y[right]), x[left] @ y[right]
            plus |= count + difference > 0
            minus |= count - difference > 0
        nan |= np.abs(x[0]) @ (y[1] == 0) + (x[1] == 0) @ np.abs(y[0]) > 0
    return np.where(nan | (plus & minus), NAN_TERM, plus.astype(np.int8) - minus).astype(np.int8)


def _indicators(values: Values, marks: Marks | None, places: NDArray[np.intp]) -> tuple[Values, Values]:
    """Return the signs of the infinities and of all numbers at some places of K, float32 (batch, rows, places)."""
    mark = np.zeros(values.shape, np.int8) if marks is None else marks[places]
    infinities = np.where(mark == NAN_TERM, 0, mark)
    signs = np.sign(values).astype(np.int8) + infinities
    first, second = (part.astype(np.float32).transpose(1, 2, 0) for part in (infinities, signs))
    return first, second


def put(codes: Codes, marks: Marks, rounding: Rounding) -> None:
    """Write the NaN and the infinities of a rounding where `marks` has them."""
    codes[marks == NAN_TERM] = rounding.nan
    codes[marks == 1] = rounding.infinity
    codes[marks == -1] = rounding.infinity | rounding.sign
