"""Steps of AMD's matrix cores on whole matrices: late accumulation (CDNA3) and flushed float32 trees (CDNA2)."""

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F32
from refsim.numerics.dot.arrays import ABSENT, Codes, Fields, Integers, fields, pair, rounded, specials, with_specials
from refsim.numerics.dot.definition import FLOOR_BITS, NO_PRODUCT
from refsim.numerics.roundings import RNE_F32
from refsim.numerics.rows import Profile

_WIDEST_SHIFT = 63


def late_step(a: Fields, b: Fields, c: Codes, profile: Profile) -> Codes:
    """Return a step of CDNA3, codes (batch, M, N): products are summed first, then C is added.

    The sum of products and C are rounded down at the larger of two exponents, added, and rounded to nearest.
    """
    assert profile.fraction is not None
    rounding, fraction = profile.rounding, profile.fraction
    accumulator = fields(c, rounding.format)
    exponent = np.add(*pair(a.exponent, b.exponent))
    magnitude = np.multiply(*pair(a.magnitude, b.magnitude))
    bits = a.fraction_bits + b.fraction_bits
    beyond = (exponent >= 128) | ((exponent == 127) & (magnitude >= 2 << bits))
    signed = magnitude * np.multiply(*pair(a.sign, b.sign))
    if profile.method.halves:
        halves = [_summed(signed[..., part], exponent[..., part], bits, fraction) for part in (np.s_[::2], np.s_[1::2])]
        dot_exponent = np.maximum(halves[0][1], halves[1][1])
        dot = sum((_floored(total, top - dot_exponent) for total, top in halves), np.zeros_like(dot_exponent))
    else:
        dot, dot_exponent = _summed(signed, exponent, bits, fraction)
    own = np.where(accumulator.magnitude == 0, 1 - F32.bias, accumulator.exponent)
    top = np.maximum(dot_exponent, own)
    unit = top - FLOOR_BITS - 1
    added = _floored(accumulator.sign * accumulator.magnitude, own - accumulator.fraction_bits - top + fraction)
    if profile.method.halves:
        added = np.where(own < top - fraction - 1, 0, added)
    total = _floored(dot, dot_exponent - fraction - unit) + (added << (FLOOR_BITS + 1 - fraction))
    leading = np.frexp(np.abs(total).astype(np.float64))[1].astype(np.int64) - 1 + unit
    lowest = np.maximum(np.maximum(leading, 1 - F32.bias) - FLOOR_BITS, unit)
    codes = rounded(_floored(total, unit - lowest), lowest, rounding)
    return with_specials(codes, specials(a, b, accumulator, rounding, beyond if beyond.any() else None))


def _summed(signed: Integers, exponent: Integers, bits: int, fraction: int) -> tuple[Integers, Integers]:
    """Return the truncated sum of products alone, in units of 2^(exponent - fraction), and that exponent."""
    top = exponent.max(-1)
    top = np.where(top < ABSENT // 2, NO_PRODUCT, top)
    cut = (np.abs(signed) << (fraction - bits)) >> np.clip(top[..., None] - exponent, 0, _WIDEST_SHIFT)
    return (cut * np.sign(signed)).sum(-1), top


def _floored(total: Integers, places: Integers) -> Integers:
    """Return total x 2^places rounded down; left shifts stay within 63 bits."""
    result: Integers = (total << np.clip(places, 0, _WIDEST_SHIFT)) >> np.clip(-places, 0, _WIDEST_SHIFT)
    return result


def flushed(values: NDArray[np.float32], *, keep_sign: bool, smallest: float) -> NDArray[np.float32]:
    """Return the values with subnormal values, below `smallest`, replaced by zeros."""
    zero = np.copysign(np.float32(0), values) if keep_sign else np.float32(0)
    result: NDArray[np.float32] = np.where(np.abs(values) < np.float32(smallest), zero, values)
    return result


@np.errstate(all="ignore")
def flushed_tree(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a step of CDNA2: products of flushed operands, their sum by pairs, then C.

    Each operation rounds and flushes. `a` (batch, M, L), `b` (batch, N, L), `c` (batch, M, N) without subnormals; L is
    a power of two. NaN is written as 0x7fffffff.
    """
    level = _flushed_result(a[:, :, None, :] * b[:, None, :, :])
    while level.shape[-1] > 1:
        level = _flushed_result(level[..., ::2] + level[..., 1::2])
    total = _flushed_result(c + level[..., 0])
    total.view(np.uint32)[np.isnan(total)] = RNE_F32.nan
    return total


def _flushed_result(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return flushed(values, keep_sign=True, smallest=F32.min_normal)
