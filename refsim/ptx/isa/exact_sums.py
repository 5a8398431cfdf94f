"""Sums of a few arrays of float64, rounded once: no part of any term is lost before the rounding.

The error of adding two numbers is a number too (Knuth's TwoSum). A sum is therefore `total + rest`, and the part that
does not fit there is `lost`. A `total` that is not the whole sum becomes its neighbor with an odd last bit. Rounding
this neighbor to 51 bits or fewer is rounding the sum. Source: Boldo and Melquiond, Emulation of FMA and correctly
rounded sums, 2008.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType
from refsim.ptx.isa.products import settled

Array = NDArray[Any]
Doubles = NDArray[np.float64]
_LOW = np.int64(1)


def rounded_sum(terms: list[Doubles], row: ElementType) -> tuple[Array, NDArray[np.intp]]:
    """Return the sums of at least two terms, rounded once to nearest even, and the flat indices of undecided sums.

    A sum is undecided if the lost part may change the rounding: 2^-60 and less is left of 2^53 + 2^-60 - 2^53 - 2^-120.
    """
    total, rest = two_sum(terms[0], terms[1])
    lost: Doubles | None = None
    for term in terms[2:]:
        total, error = two_sum(total, term)
        if not error.any():
            continue
        rest, left = two_sum(rest, error)
        if left.any():
            lost = np.abs(left) if lost is None else lost + np.abs(left)
    if lost is None and not rest.any():
        return settled(total, row), np.zeros(0, np.intp)
    if len(terms) > 2:
        total, rest = two_sum(total, np.where(np.isfinite(total), rest, 0.0))
    is_open = np.zeros(0, np.intp)
    if lost is not None:
        is_open = np.flatnonzero(np.isfinite(total) & (lost != 0) & ~(lost < 0.5 * np.abs(rest)))
    return settled(_odd(total, rest), row), is_open


def two_sum(x: Doubles, y: Doubles) -> tuple[Doubles, Doubles]:
    """Return x + y rounded to float64, and the rounding error: their sum is x + y exactly. The error of a non-finite
    sum is NaN."""
    total = x + y
    of_y = total - x
    missing = y - of_y
    np.subtract(total, of_y, out=of_y)
    missing += x - of_y
    return total, missing


def _odd(total: Doubles, rest: Doubles) -> Doubles:
    """Return the sums rounded to odd: the neighbor toward `rest` where there is a rest and the last bit is even."""
    bits = total.view(np.int64)
    even = np.flatnonzero((rest != 0) & (bits & _LOW == 0) & np.isfinite(total))
    if not even.size:
        return total
    grows = (rest.ravel()[even] > 0) == (total.ravel()[even] > 0)
    found = bits.copy()
    found.ravel()[even] += np.where(grows, 1, -1)
    return found.view(np.float64)
