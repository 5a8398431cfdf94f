"""The unit's functions on float64: MUFU.RCP64H and RSQ64H of the upper 32 bits of an operand, by float32's tables.

The fraction of 20 bits is followed by three zeros, and a total is cut off three places sooner. The lower 32 bits are
not read, so a NaN whose payload is only there counts as an infinity. A subnormal operand counts as a zero of its sign,
a subnormal result becomes one, every NaN is 0x7fffffff. Recorded over all 2^32 upper halves on an H200 and an H100.
"""

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import unit

_WIDTH = 20
"""Bits of the fraction in the upper half of a float64."""


def rcp(words: unit.Words) -> unit.Words:
    """Return the upper half of 1 / x: for 6, 0x40180000, it is 0x3fc55555."""
    return unit.rcp(words, _WIDTH)


def rsqrt(words: unit.Words) -> unit.Words:
    """Return the upper half of 1 / sqrt(x), given the upper half of x: for 2, 0x40000000, it is 0x3fe6a09e."""
    return unit.rsqrt(words, _WIDTH)


FUNCTIONS = {"rcp": rcp, "rsqrt": rsqrt}


def approximate(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rcp.approx.ftz.f64 or rsqrt.approx.ftz.f64: approximate("rcp", [3.0]) is [0.33333301544189453].

    The lower 32 bits of the result are 0.
    """
    upper = FUNCTIONS[name]((values.view(np.uint64) >> np.uint64(32)).astype(np.uint32))
    return (upper.astype(np.uint64) << np.uint64(32)).view(np.float64)
