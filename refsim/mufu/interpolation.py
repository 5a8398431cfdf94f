"""The unit's arithmetic: a quadratic in each segment of a fraction, with a squarer that leaves its low columns out.

    segment = the upper bits of the fraction, x = its lower `width` bits
    total = (C0 << c0_shift) + C1 * x + (C2 * square << c2_shift)

`square` is x * x summed from products of two bits, each pair once and doubled, without the columns below
`lowest_column` and in units of that column. Nothing is rounded before the total is cut off at the result's last place.
Source: Oberman and Siu, A High-Performance Area-Efficient Multifunction Interpolator, ARITH 2005; fitted to an H200.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Quadratics:
    """Hold one table of the unit: coefficients (C0, C1, C2) of consecutive segments."""

    def __init__(
        self, width: int, lowest_column: int, c0_shift: int, c2_shift: int, rows: tuple[tuple[int, int, int], ...]
    ) -> None:
        self.width, self.lowest_column = width, lowest_column
        self.coefficients = np.array(rows, np.int64) << np.array([c0_shift, 0, c2_shift])
        self.coefficients.setflags(write=False)

    def __call__(self, fraction: Integers) -> Integers:
        """Return the total of each fraction; with 128 segments and width 16, fractions have 23 bits."""
        segment, x = fraction >> self.width, fraction & ((1 << self.width) - 1)
        c0, c1, c2 = self.coefficients.T
        total: Integers = c2[segment] * squares(self.width, self.lowest_column)[x]
        total += c1[segment] * x
        total += c0[segment]
        return total


@cache
def squares(width: int, lowest_column: int) -> Integers:
    """Return the square of every x of `width` bits without low columns: for 255, 8 bits and 8 columns 251, not 254."""
    x = np.arange(1 << width, dtype=np.int64)
    bits = [x >> place & 1 for place in range(width)]
    total = np.zeros_like(x)
    for high in range(width):
        if 2 * high >= lowest_column:
            total += bits[high] << (2 * high - lowest_column)
        for low in range(high):
            if high + low + 1 >= lowest_column:
                total += (bits[high] & bits[low]) << (high + low + 1 - lowest_column)
    total.setflags(write=False)
    return total
