"""Floating-point arithmetic a second time, over fractions: slow, without NumPy, and sharing no line with
refsim.numerics.

A number is a sign and a magnitude: a Fraction, math.inf or math.nan. Every operation is exact; rounding happens once,
when a number becomes a pattern of a format.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

Magnitude = Fraction | float


class ExactNumber(NamedTuple):
    """A signed number, exact: zero has a sign, infinity and NaN are floats."""

    negative: bool
    magnitude: Magnitude

    @property
    def is_nan(self) -> bool:
        """Return whether the number is NaN."""
        return isinstance(self.magnitude, float) and math.isnan(self.magnitude)

    @property
    def is_infinite(self) -> bool:
        """Return whether the number is an infinity."""
        return isinstance(self.magnitude, float) and math.isinf(self.magnitude)

    @property
    def signed(self) -> Magnitude:
        """Return the magnitude with its sign; the sign of zero is lost."""
        return -self.magnitude if self.negative else self.magnitude


NOT_A_NUMBER, ONE = ExactNumber(False, math.nan), ExactNumber(False, Fraction(1))
PLUS_ZERO = ExactNumber(False, Fraction(0))


def whole(exact: Fraction, mode: str, negative: bool) -> int:
    """Return a magnitude rounded to an integer: 5/2 is 2 in rn, 3 in rp, 2 in rp where the number is negative."""
    floor, rest = exact.numerator // exact.denominator, exact - exact.numerator // exact.denominator
    half = Fraction(1, 2)
    upward = mode == ("rm" if negative else "rp") or (
        mode in ("rn", "rna") and (rest > half or (rest == half and (mode == "rna" or floor % 2 == 1)))
    )
    return floor + (rest > 0 and upward)


@dataclass(frozen=True)
class Binary:
    """The patterns of a binary format: decode and encode, from the field widths alone."""

    exponent_bits: int
    mantissa_bits: int
    nan: int

    @property
    def sign(self) -> int:
        """Return the sign bit."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def infinity(self) -> int:
        """Return the pattern of +infinity."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def lowest(self) -> int:
        """Return the exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    def decode(self, pattern: int, *, ftz: bool = False) -> ExactNumber:
        """Return the number of a pattern; 0x3f800000 of f32 is 1. ftz reads subnormal numbers as zero."""
        negative, magnitude = bool(pattern & self.sign), pattern & (self.sign - 1)
        if magnitude >= self.infinity:
            return ExactNumber(negative, math.nan if magnitude > self.infinity else math.inf)
        field, fraction = magnitude >> self.mantissa_bits, magnitude % (1 << self.mantissa_bits)
        if field == 0:
            return ExactNumber(negative, Fraction(0) if ftz else fraction * power(self.lowest - self.mantissa_bits))
        integer = fraction + (1 << self.mantissa_bits)
        return ExactNumber(negative, integer * power(field - 1 + self.lowest - self.mantissa_bits))

    def number(self, pattern: int) -> float:
        """Return the number of a pattern as a float: 0x8000 of bf16 is -0.0."""
        negative, magnitude = self.decode(pattern)
        return -float(magnitude) if negative else float(magnitude)

    def encode(self, number: ExactNumber, mode: str = "rn", *, ftz: bool = False, sat: bool = False) -> int:
        """Return the pattern of a number, rounded once; NaN is canonical. ftz gives zero for numbers that stay below
        2^lowest once rounded to the format's digits, whatever the exponent. sat clamps to [+0, 1], NaN to +0."""
        if sat and (number.is_nan or number.negative):
            return 0
        if number.is_nan:
            return self.nan
        sign = self.sign if number.negative else 0
        if number.magnitude == 0 or isinstance(number.magnitude, float):
            pattern = self.infinity if number.magnitude else 0
        else:
            pattern = self._rounded(number.magnitude, mode, number.negative, ftz=ftz)
        one = ((1 << (self.exponent_bits - 1)) - 1) << self.mantissa_bits
        return min(pattern, one) if sat else sign | pattern

    def _rounded(self, magnitude: Fraction, mode: str, negative: bool, *, ftz: bool) -> int:
        """Return the pattern of a positive magnitude, rounded in the mode of the signed number."""
        exponent = leading(magnitude)
        if ftz:
            unit = power(exponent - self.mantissa_bits)
            if whole(magnitude / unit, mode, negative) * unit < power(self.lowest):
                return 0
        at = max(exponent, self.lowest)
        count = whole(magnitude / power(at - self.mantissa_bits), mode, negative)
        pattern = ((at - self.lowest) << self.mantissa_bits) + count
        if pattern < self.infinity:
            return pattern
        inward = mode in ("rz", "rp" if negative else "rm")
        return self.infinity - inward


GRIDS = {
    "f16": Binary(5, 10, 0x7FFF),
    "bf16": Binary(8, 7, 0x7FFF),
    "f32": Binary(8, 23, 0x7FFFFFFF),
    "f64": Binary(11, 52, 0xFFF8 << 48),
}


def power(exponent: int) -> Fraction:
    """Return 2^exponent."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def leading(value: Fraction) -> int:
    """Return the exponent of the leading bit of a nonzero value."""
    magnitude = abs(value)
    found = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return found if magnitude >= power(found) else found - 1


def rounded(number: ExactNumber) -> ExactNumber:
    """Return the number rounded to float32, to nearest even."""
    return GRIDS["f32"].decode(GRIDS["f32"].encode(number))


def negated(x: ExactNumber) -> ExactNumber:
    """Return -x."""
    return ExactNumber(not x.negative, x.magnitude)


def add(x: ExactNumber, y: ExactNumber, mode: str = "rn") -> ExactNumber:
    """Return x + y; a zero sum of different signs is +0, in rm -0."""
    if x.is_nan or y.is_nan or (x.is_infinite and y.is_infinite and x.negative != y.negative):
        return NOT_A_NUMBER
    if x.is_infinite or y.is_infinite:
        return x if x.is_infinite else y
    total = Fraction(x.signed) + Fraction(y.signed)
    return ExactNumber(total < 0 if total else x.negative if x.negative == y.negative else mode == "rm", abs(total))


def mul(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return x * y, exact."""
    negative = x.negative != y.negative
    if x.is_nan or y.is_nan or (x.is_infinite and y.magnitude == 0) or (y.is_infinite and x.magnitude == 0):
        return NOT_A_NUMBER
    product: Magnitude = math.inf if x.is_infinite or y.is_infinite else x.magnitude * y.magnitude
    return ExactNumber(negative, product)


def fma(x: ExactNumber, y: ExactNumber, z: ExactNumber, mode: str = "rn") -> ExactNumber:
    """Return x * y + z, exact."""
    return add(mul(x, y), z, mode)


def div(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return x / y, exact."""
    negative = x.negative != y.negative
    if x.is_nan or y.is_nan or (x.is_infinite and y.is_infinite) or (x.magnitude == 0 and y.magnitude == 0):
        return NOT_A_NUMBER
    if x.is_infinite or y.magnitude == 0:
        return ExactNumber(negative, math.inf)
    return ExactNumber(negative, Fraction(0) if y.is_infinite else x.magnitude / y.magnitude)


def sqrt(x: ExactNumber) -> ExactNumber:
    """Return the square root truncated to 1400 binary places, with one more odd place where it is inexact."""
    if x.is_nan or x.magnitude == 0:
        return x
    if x.negative:
        return NOT_A_NUMBER
    if isinstance(x.magnitude, float):
        return x
    scaled = x.magnitude * power(2 * 1400)
    root = math.isqrt(scaled.numerator // scaled.denominator)
    return ExactNumber(False, Fraction(2 * root + (root * root != scaled), 2) * power(-1400))


def extremum(numbers: list[ExactNumber], largest: bool, *, nan: bool = False) -> ExactNumber:
    """Return the smallest or largest number, -0 below +0; a NaN counts only with `nan`, or where all are NaN."""
    present = [number for number in numbers if not number.is_nan]
    if not present or (nan and len(present) < len(numbers)):
        return NOT_A_NUMBER
    return (max if largest else min)(present, key=lambda number: (number.signed, not number.negative))
