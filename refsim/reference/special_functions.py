"""The special functions of Hopper a second time: one number after another over integers and fractions.

Only the tables of `refsim.mufu` are used. A segment's total c0 + c1 * x + c2 * square(x) is truncated at the last place
of the result; `square` is summed from products of two bits.
"""

import math
from fractions import Fraction

from refsim.mufu import coefficients as tables
from refsim.mufu.interpolation import Quadratics
from refsim.reference.rational_float import (
    GRIDS,
    NOT_A_NUMBER,
    ONE,
    PLUS_ZERO,
    ExactNumber,
    add,
    leading,
    mul,
    power,
    rounded,
)

SINGLES = GRIDS["f32"]
PLUS_INFINITY = ExactNumber(False, math.inf)
NORMAL, LARGE, PLACES, LOGARITHM_PLACES = power(-126), power(126), 23, 36


def scaled(number: ExactNumber, exponent: int) -> ExactNumber:
    """Return the number times 2^exponent, rounded to float32."""
    return rounded(mul(number, ExactNumber(False, power(exponent))))


def total_of(table: Quadratics, fraction: int) -> int:
    """Return the quadratic of a fraction before truncation."""
    c0, c1, c2 = (int(each) for each in table.coefficients[fraction >> table.width])
    x = fraction % (1 << table.width)
    places = [place for place in range(table.width) if x >> place & 1]
    columns = [i + j + (i != j) for i in places for j in places if j <= i]
    square = sum(1 << column - table.lowest_column for column in columns if column >= table.lowest_column)
    return c0 + c1 * x + c2 * square


def parts(number: ExactNumber) -> tuple[int, int]:
    """Return the exponent and the 23-bit fraction of a normal number."""
    magnitude = Fraction(number.magnitude)
    exponent = leading(magnitude)
    return exponent, int((magnitude / power(exponent) - 1) * (1 << PLACES))


def is_small(number: ExactNumber) -> bool:
    """Return whether the number is zero or subnormal."""
    return not isinstance(number.magnitude, float) and number.magnitude < NORMAL


def flushed(number: ExactNumber) -> ExactNumber:
    """Return zero for a zero or subnormal number, else the number."""
    return ExactNumber(number.negative, Fraction(0)) if is_small(number) else number


def reciprocal(number: ExactNumber) -> ExactNumber:
    """Return rcp.approx.ftz: 2 for 0.5."""
    if number.is_nan:
        return NOT_A_NUMBER
    if number.is_infinite:
        return ExactNumber(number.negative, Fraction(0))
    if is_small(number):
        return ExactNumber(number.negative, math.inf)
    exponent, fraction = parts(number)
    return flushed(ExactNumber(number.negative, (total_of(tables.RCP, fraction) >> 16) * power(-1 - exponent - PLACES)))


def inverse_root(number: ExactNumber) -> ExactNumber:
    """Return rsqrt.approx: 0.5 for 4. A subnormal is scaled by 2^24 before, its result by 2^12 after."""
    if number.is_nan or (number.negative and number.magnitude):
        return NOT_A_NUMBER
    if not number.magnitude:
        return ExactNumber(number.negative, math.inf)
    if number.is_infinite:
        return PLUS_ZERO
    if is_small(number):
        return scaled(inverse_root(scaled(number, 24)), 12)
    exponent, fraction = parts(number)
    half, odd = exponent // 2, exponent % 2
    if not fraction and not odd:
        return ExactNumber(False, power(-half))
    return ExactNumber(False, (total_of(tables.RSQRT, fraction + (odd << PLACES)) >> 17) * power(-1 - half - PLACES))


def ex2_flushed(number: ExactNumber) -> ExactNumber:
    """Return ex2.approx.ftz: 0.5 for -1. The input is truncated below 2^-23; a negative non-integer is complemented."""
    if number.is_nan:
        return NOT_A_NUMBER
    if number.is_infinite:
        return PLUS_ZERO if number.negative else PLUS_INFINITY
    fixed = min(int(number.magnitude * (1 << PLACES)), 1 << 40)
    if number.negative:
        fixed = -fixed - (fixed % (1 << PLACES) > 0)
    exponent, fraction = fixed >> PLACES, fixed % (1 << PLACES)
    if exponent > 127 or exponent < -126:
        return PLUS_INFINITY if exponent > 0 else PLUS_ZERO
    return ExactNumber(False, (total_of(tables.EX2, fraction) >> 17) * power(exponent - PLACES))


def ex2(number: ExactNumber) -> ExactNumber:
    """Return ex2.approx; below -126 it is the square of ex2 of half the number."""
    if not number.negative or number.is_nan or number.magnitude <= 126:
        return ex2_flushed(number)
    root = ex2_flushed(scaled(number, -1))
    return rounded(mul(root, root))


def lg2_flushed(number: ExactNumber) -> ExactNumber:
    """Return lg2.approx.ftz: 3 for 8. Exponent and table are added with 36 places, a negative sum is complemented, and
    the result truncated to 24 bits."""
    if number.is_nan or (number.negative and not is_small(number)):
        return NOT_A_NUMBER
    if is_small(number):
        return ExactNumber(True, math.inf)
    if number.is_infinite or (number.magnitude == ONE.magnitude and not number.negative):
        return PLUS_INFINITY if number.is_infinite else PLUS_ZERO
    exponent, fraction = parts(number)
    places = (exponent << LOGARITHM_PLACES) + (total_of(tables.LG2, fraction) >> 2)
    magnitude = ~places if places < 0 else places
    excess = max(magnitude.bit_length() - 24, 0)
    return ExactNumber(places < 0, (magnitude >> excess << excess) * power(-LOGARITHM_PLACES))


def quotient(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return div.full: 3 for 6 / 2. Both numbers are scaled where the divisor is subnormal or above 2^126; then x is
    multiplied by the reciprocal."""
    exponent = 0
    if not isinstance(y.magnitude, float):
        exponent = 24 if y.magnitude < NORMAL else -2 if y.magnitude > LARGE else 0
    elif y.is_infinite:
        exponent = -2
    return rounded(mul(scaled(x, exponent), reciprocal(scaled(y, exponent))))


def silu(z: ExactNumber) -> ExactNumber:
    """Return z / (1 + 2^(-z * log2(e))), each step rounded."""
    minus_log2e = SINGLES.decode(0xBFB8AA3B)
    return quotient(z, rounded(add(ONE, ex2(rounded(mul(z, minus_log2e))))))
