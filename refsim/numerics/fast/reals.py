"""Sums in a floating-point type that holds them exactly: powers of two by their bits, and the final roundings."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16, F32, float_named
from refsim.numerics.dot.chains import Codes
from refsim.numerics.methods import Rounding
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


# ---- profiles --------------------------------------------------------------------------------------------------------

MOST_BITS = 29
"""Fraction bits of a truncated profile: a product below 2^(F + 2) units has to fit int32."""
GROUPED_BITS, GROUPED_ZERO = 35, -139
_NARROW_FIELD = 5  # exponent bits of an operand whose products float32 always holds


def covers(profile: Profile) -> bool:
    """Return whether `refsim.numerics.fast` returns the bits of the definition for every operand of this profile.

    A covered truncated profile keeps at most 29 bits. If it rounds to nearest, it keeps at least the bits of its
    result, and the result is f16. Its sums fit the type that holds them. Its zero exponent is below every normal number
    of the result and every narrow product. Every entry of `refsim.numerics.profiles` is covered; F = 30 is not. Other
    profiles are safe to try: the definition computes profiles that are not covered.
    """
    fraction, zero = profile.fraction, profile.zero_exponent
    fused = profile.method.parametrised or profile.method.groups
    if fraction is None or zero is None or not fused:
        return False
    rounding = profile.rounding
    if rounding.nearest and rounding.format is not F16:
        return False
    if profile.method.groups:
        return (fraction, zero) == (GROUPED_BITS, GROUPED_ZERO)
    if zero > 1 - rounding.format.bias or (rounding.format is not F16 and zero >= LOWEST_PRODUCT):
        return False
    if real_of(profile) is REAL_F32 and not _always_narrow(profile):
        return False
    cuts_more = rounding.fraction_bits < rounding.format.mantissa_bits
    if cuts_more and real_of(profile) is not REAL_F32:
        return False  # a subnormal C alone is cut by its bits, but in float64 it has the bits of a normal number
    carried = fraction + 3 + profile.length.bit_length()  # bits of a sum of that many products and C
    least = rounding.fraction_bits if rounding.nearest else 1
    return least <= fraction <= MOST_BITS and carried <= real_of(profile).mantissa + 1


def _always_narrow(profile: Profile) -> bool:
    """Return whether float32 holds the products of all operands of a profile."""
    formats = [float_named(format) for format in (*profile.a_formats, *profile.b_formats)]
    return not profile.scales and all(format.exponent_bits <= _NARROW_FIELD for format in formats)


def int32_products(profile: Profile, length: int) -> int:
    """Return how many products of a step add up to less than 2^31 units: 16 where F = 25."""
    assert profile.fraction is not None
    return min(length, 1 << (MOST_BITS - profile.fraction))


# ---- exponents: where products are narrow, that is float32 products, int32 sums and int8 exponents are exact ---------

WIDEST_RANGE, ZERO_OFFSET = 63, -64
"""Offsets of two operands add up within int8; the offset of a zero is below every product, alone and in a sum."""
LOWEST, HIGHEST = -110, 120
LOWEST_PRODUCT, HIGHEST_PRODUCT = -100, 95
"""A sum never leaves the normal float32 numbers: one unit of a step is at least 2^102 with C near the largest f32, and a
product's last kept bit is at least 2^-125 with C small."""


def narrow_operand(low: int, high: int) -> bool:
    """Return whether an operand with these least and largest exponents may have narrow products.

    `operand_of` then stores its exponents as int8 offsets; `narrow_products` checks a pair of operands.
    """
    return high - low <= WIDEST_RANGE and low >= LOWEST and high <= HIGHEST


def narrow_products(low: int, high: int) -> bool:
    """Return whether products with these least and largest exponents are narrow; both operands must be."""
    return low >= LOWEST_PRODUCT and high <= HIGHEST_PRODUCT
