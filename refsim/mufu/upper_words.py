"""The unit's functions on float64: MUFU.RCP64H and RSQ64H of the upper 32 bits of an operand, by float32's tables.

The fraction of 20 bits is followed by three zeros, and a total is cut off three places sooner. The lower 32 bits are
not read, so a NaN whose payload is only there counts as an infinity. A subnormal operand counts as a zero of its sign,
a subnormal result becomes one, every NaN is 0x7fffffff. Recorded over all 2^32 upper halves on an H200 and an H100.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import coefficients as tables
from refsim.mufu.interpolation import Integers
from refsim.mufu.unit import Words, chosen

_INFINITY, _NAN, _MINUS = 0x7FF00000, 0x7FFFFFFF, 0x80000000


def _fields(words: Words) -> tuple[Integers, Integers, Integers]:
    """Return sign bit, exponent field and upper fraction of each upper half."""
    wide = words.astype(np.int64)
    return wide & _MINUS, wide >> 20 & 0x7FF, wide & 0xFFFFF


def rcp(words: Words) -> Words:
    """Return the upper half of 1 / x: for 6, 0x40180000, it is 0x3fc55555."""
    sign, field, fraction = _fields(words)
    found = (2044 - field << 20) + (tables.RCP(fraction << 3) >> 19)
    return chosen(
        sign | found, ((field == 2047) & (fraction > 0), _NAN), (field == 0, sign | _INFINITY), (found < 1 << 20, sign)
    )


def rsqrt(words: Words) -> Words:
    """Return the upper half of 1 / sqrt(x), given the upper half of x: for 2, 0x40000000, it is 0x3fe6a09e.

    An odd exponent selects the second half of the table.
    """
    sign, field, fraction = _fields(words)
    exponent, odd = (field - 1023) >> 1, (field - 1023) & 1
    found = (1021 - exponent << 20) + (tables.RSQRT(fraction << 3 | odd << 23) >> 20)
    return chosen(
        found,
        ((field == 2047) & (fraction > 0), _NAN),
        (field == 0, sign | _INFINITY),
        (sign > 0, _NAN),
        (field == 2047, 0),
        ((fraction == 0) & (odd == 0), 1023 - exponent << 20),
    )


FUNCTIONS: dict[str, Callable[[Words], Words]] = {"rcp": rcp, "rsqrt": rsqrt}


def approximate(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rcp.approx.ftz.f64 or rsqrt.approx.ftz.f64: approximate("rcp", [3.0]) is [0.33333301544189453].

    The lower 32 bits of the result are 0.
    """
    upper = FUNCTIONS[name]((values.view(np.uint64) >> np.uint64(32)).astype(np.uint32))
    return (upper.astype(np.uint64) << np.uint64(32)).view(np.float64)
