"""rsqrt.approx.f64, which no hardware instruction computes: the unit's estimate, and one step of ptxas."""

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import upper_words
from refsim.numerics.ieee.arithmetic import add
from refsim.numerics.ieee.fused import fma

Doubles = NDArray[np.float64]

_NEGATIVE = np.array([0xFFF80000_00000000], np.uint64).view(np.float64)


def rsqrt_approximate(x: Doubles) -> Doubles:
    """Return 1 / sqrt(x) of float64, near the last place: rsqrt_approximate(3) is 0.5773502691896257.

    The bits of this are 0x3fe279a74590331c. A zero gives an infinity of its sign, a negative number 0xfff8000000000000,
    a NaN itself, quiet. Source: the code that ptxas 13.0 generates for rsqrt.approx.f64 on sm_90a; recorded for all
    2^32 upper halves on an H200 and an H100.
    """
    with np.errstate(all="ignore"):
        usual = (x > 0) & np.isfinite(x)
        fraction, power = np.frexp(np.where(usual, x, 1.0))
        half = power >> 1
        found: Doubles = np.ldexp(_stepped(np.ldexp(fraction, power - 2 * half)), -half)
        if usual.all():
            return found
        apart = np.where(x > 0, 0.0, np.where(x == 0, np.copysign(np.inf, x), _NEGATIVE))
        return np.where(usual, found, np.where(np.isnan(x), add(x, x), apart))


def _stepped(x: Doubles) -> Doubles:
    """Return y + y e (1/2 + 3/8 e) with y the estimate and e = 1 - y y x, in five roundings, for x from 1/2 to 2.

    The chip's result for every other x is such a result times a power of two: nothing of the step overflows or loses
    bits below 2^-1022.
    """
    y = upper_words.approximate("rsqrt", x)
    error = fma(-(y * y), x, np.ones(1))
    return fma(fma(error, np.full(1, 0.375), np.full(1, 0.5)), y * error, y)
