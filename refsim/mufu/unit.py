"""The unit's functions on float32 patterns: the results of MUFU.RCP, RSQ, SQRT, EX2, LG2, SIN, COS and TANH.

A subnormal operand counts as a zero of its sign, a subnormal result becomes one. Every NaN is 0x7fffffff. Recorded over
all 2^32 patterns on an H200 and an H100 (conformance/vectors/h200/special_functions.json).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import coefficients as tables
from refsim.mufu.interpolation import Integers

Words = NDArray[np.uint32]
Case = tuple[NDArray[np.bool_], Integers | int]

_INFINITY, _NAN, _MINUS, _ONE = 0x7F800000, 0x7FFFFFFF, 0x80000000, 0x3F800000
_FRACTION = (1 << 23) - 1


def _fields(words: Words, bits: int = 23) -> tuple[Integers, Integers, Integers]:
    """Return sign bit, exponent field and fraction of each pattern; the fraction has so many bits."""
    wide = words.astype(np.int64)
    return wide & _MINUS, (wide & ~_MINUS) >> bits, wide & (1 << bits) - 1


def chosen(otherwise: Integers, *cases: Case) -> Words:
    """Return the value of the first case that holds, else `otherwise`."""
    found = otherwise
    for condition, value in reversed(cases):
        found = np.where(condition, value, found)
    return found.astype(np.uint32)


def _of_positive(
    fields: tuple[Integers, ...], otherwise: Integers, zero: Integers | int, infinity: int, *cases: Case, top: int = 255
) -> Words:
    """Return a function of numbers above zero, with its results of zero and infinity; it is NaN below zero."""
    sign, field, fraction = fields
    ends = ((field == top) & (fraction > 0), _NAN), (field == 0, zero), (sign > 0, _NAN), (field == top, infinity)
    return chosen(otherwise, *ends, *cases)


def rcp(words: Words, bits: int = 23) -> Words:
    """Return 1 / x: rcp(0x40c00000) = 0x3e2aaaab, which is 1 / 6; with 20 `bits`, of the upper half of a float64."""
    sign, field, fraction = _fields(words, bits)
    top = (1 << 31 - bits) - 1
    found = (top - 3 - field << bits) + (tables.RCP(fraction << 23 - bits) >> 39 - bits)
    is_nan = (field == top) & (fraction > 0)
    return chosen(sign | found, (is_nan, _NAN), (field == 0, sign | top << bits), (found < 1 << bits, sign))


def rsqrt(words: Words, bits: int = 23) -> Words:
    """Return 1 / sqrt(x): rsqrt(0x40800000) = 0x3f000000; with 20 `bits`, of the upper half of a float64.

    An odd exponent selects the second half of the table.
    """
    sign, field, fraction = _fields(words, bits)
    top = (1 << 31 - bits) - 1
    bias = top >> 1
    exponent, odd = (field - bias) >> 1, (field - bias) & 1
    found = (bias - 2 - exponent << bits) + (tables.RSQRT(fraction << 23 - bits | odd << 23) >> 40 - bits)
    exact = (fraction == 0) & (odd == 0), bias - exponent << bits
    return _of_positive((sign, field, fraction), found, sign | top << bits, 0, exact, top=top)


def sqrt(words: Words) -> Words:
    """Return sqrt(x), which has its own table: sqrt(0x40800000) = 0x40000000."""
    sign, field, fraction = _fields(words)
    exponent, odd = (field - 127) >> 1, (field - 127) & 1
    found = (126 + exponent << 23) + (tables.SQRT(fraction | odd << 23) >> 17)
    return _of_positive((sign, field, fraction), found, sign, _INFINITY)


def ex2(words: Words) -> Words:
    """Return 2^x: ex2(0x3f000000) = 0x3fb504f3; x is cut off below 2^-23, and a negative fraction is complemented."""
    sign, field, fraction = _fields(words)
    fixed = _shifted(fraction | 1 << 23, np.clip(field - 127, -25, 8))
    fixed = np.where(sign > 0, np.where(fixed & _FRACTION > 0, ~fixed, -fixed), fixed)
    found = (126 + (fixed >> 23) << 23) + (tables.EX2(fixed & _FRACTION) >> 17)
    return chosen(found, ((field == 255) & (fraction > 0), _NAN), (found >= _INFINITY, _INFINITY), (found < 1 << 23, 0))


def lg2(words: Words) -> Words:
    """Return log2(x): lg2(0x3f800001) = 0x3495f600; the sum has 36 binary places, a negative sum is complemented."""
    sign, field, fraction = _fields(words)
    total = (field - 127 << 36) + (tables.LG2(fraction) >> 2)
    found = np.where(total < 0, _MINUS | _cut_off(~total, 36), _cut_off(total, 36))
    exact = (field == 127) & (fraction == 0), 0
    return _of_positive((sign, field, fraction), found, _MINUS | _INFINITY, _INFINITY, exact)


def quarters(turns: Words) -> tuple[Integers, Integers]:
    """Return the quarter turns of |turns| and the fraction of the last one, 23 bits, complemented in an odd quarter.

    Bits below 2^-25 turns are cut off first: 0.375 turns, 0x3ec00000, are 1 and the complement of 0x400000, 0x3fffff.
    """
    _, field, fraction = _fields(turns)
    fixed = _shifted(fraction | 1 << 23, np.clip(field - 125, -25, 25))
    return fixed >> 23, np.where(fixed >> 23 & 1 > 0, ~fixed, fixed) & _FRACTION


def sin(turns: Words) -> Words:
    """Return the sine of an angle in turns, by a table of one quarter: sin(0x3e000000), an eighth, is 0x3f3504f2."""
    sign, field, _ = _fields(turns)
    quarter, fraction = quarters(turns)
    return chosen((sign ^ (quarter >> 1 & 1) << 31) | _cut_off(tables.SIN(fraction), 37), (field == 255, _NAN))


def cos(turns: Words) -> Words:
    """Return the cosine, the sine a quarter turn further, of |turns|: cos(0x3e000000) = 0x3f3504f3."""
    _, field, _ = _fields(turns)
    quarter, fraction = quarters(turns)
    return chosen((quarter + 1 >> 1 & 1) << 31 | _cut_off(tables.SIN(fraction ^ _FRACTION), 37), (field == 255, _NAN))


_SEGMENTS = np.array([1, 1, 1, 2, 2, 4, 4, 4, 8, 16, 8])
"""The segments of tanh in each binade from 2^-8 to below 8; a segment has 17 bits of x, lower bits are cut off."""
_FIRST_SEGMENT, _BITS_BELOW = np.cumsum(_SEGMENTS) - _SEGMENTS, 6 - np.log2(_SEGMENTS).astype(np.int64)


def segments_of_tanh(words: Words) -> Integers:
    """Return segment and 17 bits of |x| for the table of tanh, 2^-8 <= |x| < 8: 19 << 17 for 1, 0x3f800000."""
    _, field, fraction = _fields(words)
    binade = np.clip(field - 119, 0, len(_SEGMENTS) - 1)
    return np.asarray((_FIRST_SEGMENT[binade] << 17) + (fraction >> _BITS_BELOW[binade]))


def tanh(words: Words) -> Words:
    """Return the hyperbolic tangent: tanh(0x3f800000) = 0x3f42f848; x itself below 2^-8, and 1 from 8 on."""
    sign, field, fraction = _fields(words)
    return chosen(
        sign | _cut_off(tables.TANH(segments_of_tanh(words)), 39),
        ((field == 255) & (fraction > 0), _NAN),
        (field < 119, words.astype(np.int64)),
        (field > 129, sign | _ONE),
    )


def _shifted(significand: Integers, left: Integers) -> Integers:
    """Return `significand` shifted left by `left` bits; negative counts shift right and cut bits off."""
    return np.where(left < 0, significand >> np.maximum(-left, 0), significand << np.maximum(left, 0))


def _cut_off(magnitude: Integers, places: int) -> Integers:
    """Return the float32 pattern of `magnitude` x 2^-places, below 2^53, without the bits below its 24."""
    bits = magnitude.astype(np.float64).view(np.int64)
    return np.where(magnitude > 0, (bits >> 29) - (1023 - 127 + places << 23), 0)


_ALL: tuple[Callable[[Words], Words], ...] = (rcp, rsqrt, sqrt, ex2, lg2, sin, cos, tanh)
FUNCTIONS = {each.__name__: each for each in _ALL}
