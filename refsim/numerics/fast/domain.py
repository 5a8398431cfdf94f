"""Where the fast steps are exact: which profiles, and which exponents in float32. Properties test these limits.

A step with largest exponent E counts in units of 2^(E - F): its last kept bit. A product is below 2^(F + 2) units.
"""

from refsim.formats import F16, float_named
from refsim.numerics.fast.reals import REAL_F32, real_of
from refsim.numerics.rows import Profile

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
