"""Error-free operations: the part that a rounded result lost, its sign, and the step of a directed mode.

An exact value is a pair high + low, where high is the value rounded to nearest float64. Rounding to nearest is
monotonic: any float64 other than high lies on one side of both the exact value and high. Only in a tie does the sign of
low decide. A directed mode needs no more: the result rounded to nearest moves by at most one step. One step of the
pattern is one unit in the last place, through zero's neighbor and up to infinity.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics.ieee.patterns import Array, ConversionModifier, FloatKind, Signs

Doubles = NDArray[np.float64]
_SPLITTER = float((1 << 27) + 1)


def sign_of(a: Array, b: Array) -> Signs:
    """Return the sign of a - b as -1, 0, 1; 0 where either is NaN."""
    return (a > b).astype(np.int8) - (a < b).astype(np.int8)


def sum_error(a: Array, b: Array, total: Array) -> Array:
    """Return the part that total = fl(a + b) lost: exact for finite a, b unless an intermediate overflows (TwoSum).

    For float64 operands that stay below 2^1022 (from float32, or guarded) nothing overflows. Source: Knuth.
    """
    part = total - a
    error: Array = (a - (total - part)) + (b - part)
    return error


def ordered_sum_error(a: Array, b: Array, total: Array) -> Array:
    """Return sum_error without overflow for a finite total: the larger operand is subtracted first (Dekker).

    A total that overflowed gives an infinity of the opposite sign, the side on which the exact sum lies.
    """
    swap = np.abs(a) < np.abs(b)
    large, small = np.where(swap, b, a), np.where(swap, a, b)
    error: Array = small - (total - large)
    return error


def product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return high + low = a * b exactly (Dekker, Veltkamp's split in 26 bits).

    Callers keep |a|, |b| within 2^-400 to 2^400, or scaled to about 1: no partial product then leaves the range, and
    the low part, at least 2^-106 of the product, is representable.
    """
    high = a * b
    scaled, other = a * _SPLITTER, b * _SPLITTER
    a_high, b_high = scaled - (scaled - a), other - (other - b)
    a_low, b_low = a - a_high, b - b_high
    return high, a_low * b_low - (((high - a_high * b_high) - a_low * b_high) - a_high * b_low)


def side(high: Array, low: Array | float, result: Array) -> Signs:
    """Return the sign of (high + low) - result, where high is the sum rounded to nearest; 0 if any is NaN."""
    zero = np.float64(0)
    return np.where(high == result, sign_of(np.asarray(low), np.asarray(zero)), sign_of(high, result)).astype(np.int8)


def stepped(nearest: Array, excess: Signs, rounding: ConversionModifier, kind: FloatKind) -> Array:
    """Return the result in a directed mode, from the nearest result and the sign of exact - nearest.

    A nearest result of 0 that is inexact has the sign of the exact value, so its magnitude only ever grows. With 1 +
    2^-30 in f32: nearest 0x3f800000, excess +1, rp gives 0x3f800001, rz and rm leave it.
    """
    negative = np.signbit(nearest)
    if rounding == "rz":
        step = -((excess != 0) & ((excess > 0) == negative)).astype(kind.signed)
    else:
        moves = (excess < 0) if rounding == "rm" else (excess > 0)
        grows = negative if rounding == "rm" else ~negative
        step = np.where(grows, moves.astype(kind.signed), -moves.astype(kind.signed))
    moved: NDArray[Any] = nearest.view(kind.signed) + step
    return moved.view(kind.dtype)
