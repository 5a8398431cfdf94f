"""Block-scaled products a second time: one output over fractions, sharing no line with the model.

A term is a value and its exponent in the alignment, which is the exponent of its fields: a subnormal operand is not
normalized. A step truncates every term to a multiple of 2^(E - F), with E the largest exponent; a zero has a constant
exponent. The exact sum is truncated to the 24 bits of float32.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from refsim.reference.rational_float import GRIDS, PLUS_ZERO, ExactNumber, add, leading, mul, power, rounded

SCALED_FIELDS = {
    "e4m3": (4, 3, 7),
    "e5m2": (5, 2, 15),
    "e2m3": (2, 3, 1),
    "e3m2": (3, 2, 3),
    "e2m1": (2, 1, 1),
    "bf16": (8, 7, 127),
    "f16": (5, 10, 15),
    "tf32": (8, 10, 127),
    "ue4m3": (4, 3, 7),
    "ue5m3": (5, 3, 15),
    "e4m3fnuz": (4, 3, 8),
    "e5m2fnuz": (5, 2, 16),
}
"""Bits of the exponent and the mantissa, and the bias."""
UNDEFINED, NAN_WORD, LOWEST = math.nan, 0x7FFFFFFF, -126
Value = Fraction | float


class AlignedNumber(NamedTuple):
    """A value and its exponent; None for a zero, which takes the step's exponent of zeros."""

    value: Value
    exponent: int | None


class Alignment(NamedTuple):
    """The arithmetic of a step: its number of terms, the bits kept below the largest exponent, the exponent of a zero.
    With `groups`, each 16 products are one term. The sum is truncated to `digits` bits after its first; if it is `half`,
    it is rounded to f16 instead."""

    length: int
    fraction: int
    zero: int
    groups: bool = False
    digits: int = 23
    half: bool = False


BLACKWELL, BLACKWELL_FP4 = Alignment(32, 25, -133), Alignment(64, 35, -139, groups=True)
HOPPER_BF16, AMPERE_BF16 = Alignment(16, 25, -133), Alignment(8, 24, -132)
HOPPER_E4M3 = Alignment(32, 13, -133, digits=13)


def term(code: int, format: str) -> AlignedNumber:
    """Return the number of a code and the exponent of its fields; subnormals have the least exponent."""
    exponent_bits, mantissa_bits, bias = SCALED_FIELDS[format]
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    field, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    top = field == (1 << exponent_bits) - 1
    if format.endswith("fnuz") and code == 0x80:
        return AlignedNumber(UNDEFINED, 0)
    if top and (format in ("e5m2", "bf16", "f16", "tf32") or (format in ("e4m3", "ue4m3", "ue5m3") and mantissa == 7)):
        return AlignedNumber(UNDEFINED if mantissa else sign * math.inf, 0)
    exponent = max(field, 1) - bias
    return AlignedNumber(
        sign * (mantissa + (1 << mantissa_bits if field else 0)) * power(exponent - mantissa_bits), exponent
    )


def factor(code: int, kind: str) -> AlignedNumber:
    """Return the number of a scale's code, without its sign."""
    if kind == "e8m0":
        return AlignedNumber(UNDEFINED if code == 255 else power(code - 127), code - 127)
    return term(code & 0x7F, "e4m3")


def times(x: Value, y: Value) -> Value:
    """Return the product of numbers, infinities and NaN."""
    if isinstance(x, float) or isinstance(y, float):
        zero = x == 0 or y == 0
        return UNDEFINED if zero else math.copysign(1, x) * math.copysign(1, y) * abs(float_of(x)) * abs(float_of(y))
    return x * y


def float_of(x: Value) -> float:
    """Return an infinity or NaN unchanged, and 1.0 for a number."""
    return x if isinstance(x, float) else 1.0


def multiplied(*terms: AlignedNumber) -> AlignedNumber:
    """Return the product of terms; their exponents are added."""
    value: Value = Fraction(1)
    for each in terms:
        value = times(value, each.value)
    return AlignedNumber(value, sum(each.exponent or 0 for each in terms) if value else None)


def special(values: Sequence[Value]) -> float | None:
    """Return NaN for a NaN or infinities of both signs, else an infinity of the values, else None."""
    odd = {value for value in values if isinstance(value, float)}
    if not odd:
        return None
    return UNDEFINED if len(odd) > 1 or any(math.isnan(value) for value in odd) else odd.pop()


def cut(value: Fraction, quantum: Fraction) -> Fraction:
    """Return the value truncated toward zero to a multiple of `quantum`."""
    count = abs(value) // quantum
    return (count if value >= 0 else -count) * quantum


def fused(terms: Sequence[AlignedNumber], c: Value, step: Alignment) -> Value:
    """Return C plus the products of one step."""
    stands = special([c, *(each.value for each in terms)])
    if stands is not None or isinstance(c, float):
        return UNDEFINED if stands is None else stands
    lowest = GRIDS["f16"].lowest if step.half else LOWEST
    present = [*terms, AlignedNumber(c, max(leading(c), lowest) if c else None)]
    quantum = power(max(step.zero if each.exponent is None else each.exponent for each in present) - step.fraction)
    total = sum((cut(Fraction(each.value), quantum) for each in present), Fraction(0))
    if not total:
        return total
    if step.half:
        return GRIDS["f16"].decode(GRIDS["f16"].encode(exact(total))).signed
    kept = cut(total, power(max(leading(total), LOWEST) - step.digits))
    return kept if abs(kept) < power(128) else math.copysign(math.inf, total)


def chain_of_products(a: Sequence[int], b: Sequence[int], format: str, c: Value) -> Value:
    """Return C plus the products of two rows of bf16 or e4m3, one step of Hopper's tensor core after another."""
    step = HOPPER_E4M3 if format == "e4m3" else HOPPER_BF16
    for at in range(0, len(a), step.length):
        pairs = zip(a[at : at + step.length], b[at : at + step.length], strict=True)
        c = fused([multiplied(term(x, format), term(y, format)) for x, y in pairs], c, step)
    return c


def exact(value: Value) -> ExactNumber:
    """Return the number to be rounded; its zero is +0."""
    return ExactNumber(value < 0, -value if value < 0 else value)


def pattern(value: Value) -> int:
    """Return the float32 pattern of a sum; zero is +0."""
    if isinstance(value, float) and math.isnan(value):
        return NAN_WORD
    return GRIDS["f32"].encode(exact(value))


def scaled_terms(
    codes: tuple[Sequence[int], Sequence[int]],
    formats: tuple[str, str],
    scales: tuple[Sequence[int], Sequence[int]],
    kind: str,
    step: Alignment,
) -> Iterator[list[AlignedNumber]]:
    """Yield the terms of each step of a unit with block scales."""
    block = len(codes[0]) // len(scales[0])
    for start in range(0, len(codes[0]), step.length):
        products = []
        for i in range(start, min(start + step.length, len(codes[0]))):
            data = multiplied(term(codes[0][i], formats[0]), term(codes[1][i], formats[1]))
            both = multiplied(factor(scales[0][i // block], kind), factor(scales[1][i // block], kind))
            products.append((data, both))
        yield grouped(products) if step.groups else [multiplied(data, both) for data, both in products]


def grouped(products: Sequence[tuple[AlignedNumber, AlignedNumber]]) -> list[AlignedNumber]:
    """Return one term for each 16 products and their scales, with the scales' exponent; a zero if all products are
    zero."""
    found = []
    for start in range(0, len(products), 16):
        group, both = products[start : start + 16], products[start][1]
        total = times(sum((Fraction(data.value) for data, _ in group), Fraction(0)), both.value)
        empty = all(not data.value for data, _ in group) or both.value == 0
        found.append(AlignedNumber(total, None if empty else both.exponent))
    return found


def in_bf16(codes: Sequence[int], format: str, scales: Sequence[int], kind: str, zero_code: Fraction) -> list[int]:
    """Return the bf16 codes of codes times scales; E5M2's infinities and NaN are read as one more exponent."""
    block, found = len(codes) // len(scales), []
    for i, code in enumerate(codes):
        value = term(code, format).value
        if format == "e5m2" and isinstance(value, float):
            value = (-1 if code & 0x80 else 1) * (1 + Fraction(code & 3, 4)) * power(16)
        scale = scales[i // block]
        by = zero_code if kind == "e8m0" and scale == 0 else factor(scale, kind).value
        if kind == "ue4m3" and scale & 0x80:
            by = -by
        product = times(value, by)
        found.append(GRIDS["bf16"].encode(exact(product)))
    return found


def steps_of_lanes(k: int, k_width: int, length: int) -> list[list[int]]:
    """Return the k of each step of an mma.sync of bf16. Lane q of a row holds k_width consecutive k from q * k_width
    and from (4 + q) * k_width. An instruction takes two k of the first run of every lane, then two of the second."""
    found = []
    for tile in range(0, k, 8 * k_width):
        for pair in range(0, k_width, 2):
            firsts = [tile + (4 * half + lane) * k_width + pair for half in (0, 1) for lane in range(4)]
            places = [first + more for first in firsts for more in (0, 1)]
            found += [places[start : start + length] for start in range(0, 16, length)]
    return found


def native(
    codes: tuple[Sequence[int], Sequence[int]],
    formats: tuple[str, str],
    scales: tuple[Sequence[int], Sequence[int]],
    kind: str,
    step: Alignment,
    c: Value = Fraction(0),
) -> int:
    """Return the float32 pattern of one output of a unit with block scales."""
    for terms in scaled_terms(codes, formats, scales, kind, step):
        c = fused(terms, c, step)
    return pattern(c)


def wide(
    a: Sequence[int], b: Sequence[int], places: Sequence[Sequence[int]], step: Alignment, c: Value = Fraction(0)
) -> int:
    """Return the float32 pattern of one output of bf16 products, one step for each list of k, zeros beyond the
    operands."""
    for some in places:
        terms = [multiplied(term(a[i], "bf16"), term(b[i], "bf16")) for i in some if i < len(a)]
        terms += [AlignedNumber(Fraction(0), None)] * (len(some) - len(terms))
        c = fused(terms, c, step)
    return pattern(c)


def chained(
    codes: tuple[Sequence[int], Sequence[int]], formats: tuple[str, str], scales: tuple[Sequence[int], Sequence[int]]
) -> int:
    """Return the float32 pattern of a chain of FMAs of the scaled numbers from +0, rounded after each k."""
    block, d = len(codes[0]) // len(scales[0]), PLUS_ZERO
    for i, pair in enumerate(zip(*codes, strict=True)):
        numbers = [signed(code, format) for code, format in zip(pair, formats, strict=True)]
        numbers += [ExactNumber(False, factor(each[i // block], "e8m0").value) for each in scales]
        d = rounded(add(reduce(mul, numbers), d))
    return GRIDS["f32"].encode(d)


def signed(code: int, format: str) -> ExactNumber:
    """Return the number of a code with the sign of its zero."""
    return exact(term(code, format).value)._replace(negative=bool(code >> sum(SCALED_FIELDS[format][:2]) & 1))
