"""Numbers as a tensor core holds them: a magnitude and an exponent, never renormalized; and a sum rounded once."""

from dataclasses import dataclass, replace
from fractions import Fraction

from refsim.formats import Format, Specials
from refsim.numerics.roundings import Rounding

FINITE, INFINITE, IS_NAN = "finite", "infinite", "nan"


@dataclass(frozen=True)
class Term:
    """Describe the number (-1)^negative x magnitude x 2^(exponent - fraction_bits).

    The datapath aligns by this exponent, the exponent of the format's field: a subnormal E4M3 has -6. It is None for a
    zero, which takes part with the zero exponent of its profile. E4M3 0x01 is 1 x 2^(-6 - 3).
    """

    negative: bool
    magnitude: int
    exponent: int | None
    fraction_bits: int
    kind: str = FINITE

    @property
    def significand(self) -> int:
        """Return the magnitude with its sign."""
        return -self.magnitude if self.negative else self.magnitude

    @property
    def value(self) -> Fraction:
        """Return the exact value of a finite term."""
        return (
            Fraction(0)
            if self.exponent is None
            else self.significand * Fraction(2) ** (self.exponent - self.fraction_bits)
        )

    def scaled(self, exponent: int) -> "Term":
        """Return the term with a power of two multiplied into its exponent; a zero stays a zero."""
        return self if self.exponent is None else replace(self, exponent=self.exponent + exponent)


def decoded(code: int, format: Format) -> Term:
    """Return the term of one code, without padding bits (tf32): a NaN with payload only there becomes infinite."""
    code >>= format.padding_bits
    negative = format.signed and bool(code >> (format.bits - 1))
    magnitude = code & (format.magnitude_limit - 1)
    field, mantissa = magnitude >> format.mantissa_bits, magnitude & ((1 << format.mantissa_bits) - 1)
    kind = _kind(format, negative, field, mantissa)
    if kind is not FINITE:
        return Term(negative, 0, None, format.mantissa_bits, kind)
    if format.binades_from_zero:
        return Term(False, 1, field - format.bias, 0)
    significand = mantissa if field == 0 else mantissa | 1 << format.mantissa_bits
    return Term(negative, significand, max(field, 1) - format.bias if significand else None, format.mantissa_bits)


def _kind(format: Format, negative: bool, field: int, mantissa: int) -> str:
    all_ones = field == (1 << format.exponent_bits) - 1
    match format.specials:
        case Specials.IEEE if all_ones:
            return IS_NAN if mantissa else INFINITE
        case Specials.NAN_ALL_ONES if all_ones and mantissa == (1 << format.mantissa_bits) - 1:
            return IS_NAN
        case Specials.NAN_NEGATIVE_ZERO if negative and field == 0 and mantissa == 0:
            return IS_NAN
        case _:
            return FINITE


def multiplied(a: Term, b: Term) -> Term:
    """Return the product: magnitudes multiply, exponents add, nothing is normalized. 1.5 x 1.5 is 2.25, exponent 0."""
    negative, bits = a.negative != b.negative, a.fraction_bits + b.fraction_bits
    zero = any(term.kind is FINITE and term.exponent is None for term in (a, b))
    if IS_NAN in (a.kind, b.kind) or (INFINITE in (a.kind, b.kind) and zero):
        return Term(negative, 0, None, bits, IS_NAN)
    if INFINITE in (a.kind, b.kind):
        return Term(negative, 0, None, bits, INFINITE)
    exponent = None if a.exponent is None or b.exponent is None else a.exponent + b.exponent
    return Term(negative, a.magnitude * b.magnitude, exponent, bits)


def shifted(significand: int, places: int) -> int:
    """Return significand x 2^places with the lost bits of the magnitude cut: shifted(-7, -1) is -3."""
    magnitude = abs(significand) << places if places >= 0 else abs(significand) >> -places
    return -magnitude if significand < 0 else magnitude


def rounded(total: int, quantum: int, rounding: Rounding) -> int:
    """Return the code of total x 2^quantum, rounded once. A finite sum beyond the range is infinite in every rounding.

    rounded(5, -1, RZ_F32) is 0x40200000, 2.5.
    """
    format, magnitude = rounding.format, abs(total)
    unit = max(magnitude.bit_length() - 1 + quantum, 1 - format.bias) - rounding.fraction_bits
    kept = shifted(magnitude, quantum - unit)
    if rounding.nearest and quantum < unit:
        rest, half = magnitude - (kept << (unit - quantum)), 1 << (unit - quantum - 1)
        kept += rest > half or (rest == half and kept & 1)
    dropped = format.mantissa_bits - rounding.fraction_bits
    lowest = 1 - format.bias - rounding.fraction_bits
    code = (kept << dropped) + ((unit - lowest) << format.mantissa_bits) if kept else 0
    keeps_sign = total < 0 and (kept != 0 or rounding.signed_zero)
    return min(code, rounding.infinity) | (rounding.sign if keeps_sign else 0)
