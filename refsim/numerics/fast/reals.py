"""Sums in a floating-point type that holds them exactly: powers of two by their bits, and the final roundings."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16, F32
from refsim.numerics.dot.arrays import Codes
from refsim.numerics.roundings import Rounding
from refsim.numerics.rows import Profile

Values = NDArray[Any]


@dataclass(frozen=True)
class Real:
    """Describe a floating-point type and the integer type of its bits."""

    values: type[np.floating[Any]]
    bits: type[np.signedinteger[Any]]
    mantissa: int
    bias: int

    def power(self, exponent: NDArray[Any]) -> Values:
        """Return 2^exponent, for exponents of normal numbers held in `bits`; the argument is overwritten."""
        exponent += self.bits(self.bias)
        exponent <<= self.bits(self.mantissa)
        return exponent.view(self.values)

    def exponent(self, values: Values) -> NDArray[Any]:
        """Return floor(log2 |value|) of normal numbers; -bias for zeros and subnormals, bias + 1 for infinities."""
        field: NDArray[Any] = values.view(self.bits) >> self.bits(self.mantissa)
        field &= self.bits(2 * self.bias + 1)
        field -= self.bits(self.bias)
        return field


REAL_F32, REAL_F64 = Real(np.float32, np.int32, 23, 127), Real(np.float64, np.int64, 52, 1023)


def real_of(profile: Profile) -> Real:
    """Return the type that holds every sum of a step: 32 terms below 2^15 units fit float32, 25 bits need float64."""
    assert profile.fraction is not None
    return REAL_F32 if profile.fraction <= 13 else REAL_F64


def toward_zero(sums: Values, kept: int, real: Real) -> None:
    """Cut normal numbers, in place, to `kept` fraction bits."""
    bits = sums.view(real.bits)
    bits &= real.bits(-(1 << (real.mantissa - kept)))


def in_range(sums: Values, rounding: Rounding) -> None:
    """Give sums that were cut as normal numbers, in place, the subnormals, the +0 and the infinities of f32."""
    smallest = 2.0 ** (1 - F32.bias)
    magnitude = np.abs(sums)
    small = magnitude < smallest
    if small.any():
        unit = smallest * 2.0**-rounding.fraction_bits
        sums[small] = np.trunc(sums[small] / unit) * unit + 0.0
    large = magnitude >= 2.0 ** (F32.bias + 1)
    if large.any():
        sums[large] = np.copysign(np.inf, sums[large])


def to_nearest_half(sums: Values, real: Real) -> None:
    """Round, in place, to the nearest f16, ties to even; a zero becomes +0.

    Adding 1.5 x 2^(e + mantissa - 10) leaves multiples of 2^(e - 10), the last bit of an f16 with exponent e.
    """
    exponent = real.exponent(sums)
    np.clip(exponent, 1 - F16.bias, F16.bias + 1, out=exponent)
    exponent += real.bits(real.mantissa - F16.mantissa_bits)
    anchor = real.power(exponent)
    anchor *= real.values(1.5)
    sums += anchor
    sums -= anchor
    large = np.abs(sums) >= 2.0 ** (F16.bias + 1)
    if large.any():
        sums[large] = np.copysign(np.inf, sums[large])


def values_of(c: Codes, profile: Profile, real: Real) -> tuple[Values, NDArray[np.int8] | None]:
    """Return the values of accumulator codes, NaN and infinities as zeros, and the marks of these or None."""
    values = c.view(profile.d_dtype)
    finite = np.isfinite(values)
    if finite.all():
        return values.astype(real.values), None
    special = np.where(finite, 0, np.where(np.isnan(values), 2, np.sign(values))).astype(np.int8)
    return np.where(finite, values, 0).astype(real.values), special


def codes_of(values: Values, profile: Profile) -> Codes:
    """Return the codes of rounded sums: every sum is a number of the format or infinite."""
    return values.astype(profile.d_dtype, copy=False).view(profile.d_format.code_dtype)
