"""The unit's functions on float32 words: what MUFU.RCP, RSQ, SQRT, EX2 and LG2 return for every word.

A subnormal operand counts as a zero of its sign, a subnormal result becomes one. Every NaN is 0x7fffffff. Recorded over all
2^32 words on an H200 and an H100 (conformance/vectors/h200/special_functions.json).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import coefficients as tables
from refsim.mufu.interpolation import Integers

Words = NDArray[np.uint32]

_INFINITY, _NAN, _MINUS = 0x7F800000, 0x7FFFFFFF, 0x80000000
_FRACTION = (1 << 23) - 1


def _fields(words: Words) -> tuple[Integers, Integers, Integers]:
    """Sign word, exponent field and fraction of each word."""
    wide = words.astype(np.int64)
    return wide & _MINUS, wide >> 23 & 0xFF, wide & _FRACTION


def chosen(otherwise: Integers, *cases: tuple[NDArray[np.bool_], Integers | int]) -> Words:
    """The first case that holds, else `otherwise`."""
    found = otherwise
    for condition, value in reversed(cases):
        found = np.where(condition, value, found)
    return found.astype(np.uint32)


def rcp(words: Words) -> Words:
    """1 / x: rcp(0x40c00000) = 0x3e2aaaab, which is 1 / 6."""
    sign, field, fraction = _fields(words)
    y = tables.RCP(fraction) >> 16
    found = (252 - field << 23) + y
    return chosen(
        sign | found,
        ((field == 255) & (fraction > 0), _NAN),
        (field == 0, sign | _INFINITY),
        (found < 1 << 23, sign),
    )


def rsqrt(words: Words) -> Words:
    """1 / sqrt(x): rsqrt(0x40800000) = 0x3f000000."""
    sign, field, fraction = _fields(words)
    exponent, odd = (field - 127) >> 1, (field - 127) & 1
    found = (125 - exponent << 23) + (tables.RSQRT(fraction | odd << 23) >> 17)
    return chosen(
        found,
        ((field == 255) & (fraction > 0), _NAN),
        (field == 0, sign | _INFINITY),
        (sign > 0, _NAN),
        (field == 255, 0),
        ((fraction == 0) & (odd == 0), 127 - exponent << 23),
    )


def sqrt(words: Words) -> Words:
    """sqrt(x), of a table of its own: sqrt(0x40800000) = 0x40000000."""
    sign, field, fraction = _fields(words)
    exponent, odd = (field - 127) >> 1, (field - 127) & 1
    found = (126 + exponent << 23) + (tables.SQRT(fraction | odd << 23) >> 17)
    return chosen(
        found,
        ((field == 255) & (fraction > 0), _NAN),
        (field == 0, sign),
        (sign > 0, _NAN),
        (field == 255, _INFINITY),
    )


def ex2(words: Words) -> Words:
    """2^x: ex2(0x3f000000) = 0x3fb504f3; x is cut off below 2^-23, and negated by complement unless it is an integer."""
    sign, field, fraction = _fields(words)
    shift = np.clip(field - 127, -25, 8)
    significand = fraction | 1 << 23
    fixed = np.where(shift < 0, significand >> np.maximum(-shift, 0), significand << np.maximum(shift, 0))
    fixed = np.where(sign > 0, np.where(fixed & _FRACTION > 0, ~fixed, -fixed), fixed)
    found = (126 + (fixed >> 23) << 23) + (tables.EX2(fixed & _FRACTION) >> 17)
    return chosen(
        found,
        ((field == 255) & (fraction > 0), _NAN),
        (found >= _INFINITY, _INFINITY),
        (found < 1 << 23, 0),
    )


def lg2(words: Words) -> Words:
    """log2(x): lg2(0x3f800001) = 0x3495f600; a sum of 36 binary places, negated by complement; 0 of 1 alone."""
    sign, field, fraction = _fields(words)
    total = (field - 127 << 36) + (tables.LG2(fraction) >> 2)
    found = np.where(total < 0, _MINUS | _cut_off(~total, 36), _cut_off(total, 36))
    return chosen(
        found,
        ((field == 255) & (fraction > 0), _NAN),
        (field == 0, _MINUS | _INFINITY),
        (sign > 0, _NAN),
        (field == 255, _INFINITY),
        ((field == 127) & (fraction == 0), 0),
    )


def _cut_off(magnitude: Integers, places: int) -> Integers:
    """The word of a number of so many places, below 2^53, without what falls below its 24 bits."""
    bits = magnitude.astype(np.float64).view(np.int64)
    return np.where(magnitude > 0, (bits >> 29) - (1023 - 127 + places << 23), 0)


FUNCTIONS: dict[str, Callable[[Words], Words]] = {"rcp": rcp, "rsqrt": rsqrt, "sqrt": sqrt, "ex2": ex2, "lg2": lg2}
