"""The anatomy of one code: its fields, exact value, class, neighbors, and the numbers that round to it."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from refsim.conversions import decode
from refsim.formats import Format
from refsim.render import BitFields, Bits, Coded, Interval, Number, number
from refsim.render.cells import rounded

_LONG_MANTISSA = 10  # from here on trailing zeros of a mantissa are not shown
_FEWEST_DIGITS, _MOST_DIGITS = 4, 10  # nine identify a float32


@dataclass(frozen=True)
class Anatomy:
    """One code of a format, taken apart. `interval` is None for infinity and NaN.

    E4M3 0x7e: fields 0 1111 110, value 448 = 1.110b x 2^8, largest finite, neighbors 416 and nan. Under nearest-even
    the reals in [432, 464] become it, before any overflow policy.
    """

    format: Format
    code: Bits
    fields: BitFields
    value: Number
    expression: str | None
    kind: str
    below: Coded | None
    above: Coded | None
    interval: Interval | None


@lru_cache(maxsize=1 << 12)
def anatomy(code: int, row: Format) -> Anatomy:
    """Return the anatomy of a legal code; padding bits (tf32) are shown and otherwise ignored."""
    value = exact_value(code, row)
    finite = math.isfinite(value)
    below, above = (None, None) if math.isnan(value) else neighbours(code, row)
    return Anatomy(
        format=row,
        code=as_bits(code, row),
        fields=_fields(code, row),
        value=code_number(code, row),
        expression=_expression(code, row) if finite and value != 0 else None,
        kind=kind_of(code, row, value),
        below=None if below is None else coded(below, row),
        above=None if above is None else coded(above, row),
        interval=nearest_even_interval(code, row) if finite else None,
    )


def as_bits(code: int, row: Format) -> Bits:
    """Return the code in as many digits as its container has."""
    return Bits(code, row.bits + row.padding_bits)


def coded(code: int, row: Format) -> Coded:
    """Return a code with its value."""
    return Coded(as_bits(code, row), code_number(code, row))


def exact_value(code: int, row: Format) -> float:
    """Return the value as a double, which holds every value of every format."""
    return float(decode(np.array([code], row.code_dtype), row)[0])


def code_number(code: int, row: Format) -> Number:
    """Return the value of a code. A value with too many digits is spelled with the fewest that identify the code."""
    value = exact_value(code, row)
    if not math.isfinite(value) or value == 0:
        return number(value)
    exact = number(value)
    return exact if not exact.text.startswith("~") else number(value, approximate=_shortest(code, row, value))


def _shortest(code: int, row: Format, value: float) -> str:
    """Return the fewest digits within half a step of the value, so that no other value of the format is nearer."""
    interval = nearest_even_interval(code, row)
    low, high = Fraction(interval.low.value), Fraction(interval.high.value)
    spelled = (rounded(Fraction(value), digits) for digits in range(_FEWEST_DIGITS, _MOST_DIGITS))
    return next((each for each in spelled if low < Fraction(each) < high), rounded(Fraction(value)))


def magnitude_of(code: int, row: Format) -> tuple[int, bool]:
    """Return the code without sign and padding, and whether it is negative; absolute integers for two's complement."""
    negative = bool(code & row.sign_mask)
    if row.twos_complement:
        return (row.code_limit - code if negative else code), negative
    return (code & ~row.sign_mask) >> row.padding_bits, negative


def code_of(magnitude: int, negative: bool, row: Format) -> int | None:
    """Return the code of a magnitude and sign, or None without one. 0 has the positive code unless -0 exists."""
    if row.twos_complement:
        limit = row.magnitude_limit + int(negative)
        return None if magnitude >= limit else (row.code_limit - magnitude if negative and magnitude else magnitude)
    if magnitude >= row.magnitude_limit or (negative and not row.signed):
        return None
    if magnitude == 0 and not row.has_negative_zero:
        negative = False
    return (magnitude << row.padding_bits) | (row.sign_mask if negative else 0)


def neighbours(code: int, row: Format) -> tuple[int | None, int | None]:
    """Return the codes of the next lower and next higher value; the code after the largest value counts as higher."""
    magnitude, negative = magnitude_of(code, row)
    outward = code_of(magnitude + 1, negative, row)
    if magnitude == 0 and row.has_zero:
        return code_of(1, True, row), code_of(1, False, row)
    inward = code_of(magnitude - 1, negative, row) if magnitude else None
    return (outward, inward) if negative else (inward, outward)


def nearest_even_interval(code: int, row: Format) -> Interval:
    """Return the interval of reals that round to a finite code under nearest-even, before any overflow policy.

    An end is closed where the tie goes to this code, whose last bit then is 0. For 448 in E4M3 the upper end is
    464, halfway to the 480 that would follow.
    """
    magnitude, negative = magnitude_of(code, row)
    even = magnitude % 2 == 0
    high = _halfway(magnitude, row)
    if magnitude:
        low = _halfway(magnitude - 1, row)
        low_closed = even
    elif row.has_zero and not row.has_negative_zero:
        low, low_closed = -high, True
    else:
        low, low_closed = Fraction(0), True
    if negative:
        return Interval(number(-high), number(-low if low else -0.0), even, low_closed)
    return Interval(number(low), number(high), low_closed, even)


def _halfway(magnitude: int, row: Format) -> Fraction:
    return (Fraction(row.magnitude_value(magnitude)) + Fraction(row.magnitude_value(magnitude + 1))) / 2


def step(code: int, row: Format) -> Fraction:
    """Return the distance from a code to the next larger magnitude: one ulp."""
    magnitude, _ = magnitude_of(code, row)
    return Fraction(row.magnitude_value(magnitude + 1)) - Fraction(row.magnitude_value(magnitude))


def _fields(code: int, row: Format) -> BitFields:
    """Return the binary digits of a code, split into sign, exponent, mantissa and padding."""
    if row.twos_complement:
        return BitFields((("integer", f"{code:0{row.bits}b}"),))
    digits = f"{code:0{row.bits + row.padding_bits}b}"
    parts, start = [], 0
    widths = {
        "sign": int(row.signed),
        "exponent": row.exponent_bits,
        "mantissa": row.mantissa_bits,
        "padding": row.padding_bits,
    }
    for name, width in widths.items():
        if width:
            parts.append((name, digits[start : start + width]))
        start += width
    return BitFields(tuple(parts))


def _expression(code: int, row: Format) -> str:
    magnitude, negative = magnitude_of(code, row)
    sign = "-" if negative else ""
    if row.twos_complement:
        return f"{sign}{magnitude} x 2^{1 - row.bias - row.mantissa_bits}"
    exponent, mantissa = magnitude >> row.mantissa_bits, magnitude & ((1 << row.mantissa_bits) - 1)
    subnormal = exponent == 0 and not row.binades_from_zero
    power = (1 if subnormal else exponent) - row.bias
    if row.mantissa_bits == 0:
        return f"{sign}2^{power}"
    digits = f"{mantissa:0{row.mantissa_bits}b}"
    if row.mantissa_bits > _LONG_MANTISSA:
        digits = digits.rstrip("0") or "0"
    return f"{sign}{int(not subnormal)}.{digits}b x 2^{power}"


def kind_of(code: int, row: Format, value: float) -> str:
    """Return the kind of a code with that value: 0x08 of e4m3 is its smallest normal."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "infinity"
    magnitude, negative = magnitude_of(code, row)
    largest = row.max_code >> row.padding_bits
    if value == 0:
        return "negative zero" if negative else "zero"
    if magnitude >= largest:
        return "lowest" if magnitude > largest else "largest finite"
    if row.twos_complement:
        return "smallest" if magnitude == 1 else "fixed point"
    if row.binades_from_zero:
        return "power of two" if magnitude else "smallest"
    return _kind_of_magnitude(magnitude, row)


def _kind_of_magnitude(magnitude: int, row: Format) -> str:
    first_normal = 1 << row.mantissa_bits
    if magnitude >= first_normal:
        return "smallest normal" if magnitude == first_normal else "normal"
    ends = [name for name, end in (("smallest", 1), ("largest", first_normal - 1)) if magnitude == end]
    return "the only subnormal" if len(ends) == 2 else " ".join([*ends, "subnormal"])
