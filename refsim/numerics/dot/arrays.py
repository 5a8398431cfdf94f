"""The dot product of `definition` on whole matrices: int64 arithmetic on arrays of shape (batch, M, N, products)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.formats import F16, Format, Specials
from refsim.numerics import ieee
from refsim.numerics.dot.definition import GROUP
from refsim.numerics.roundings import Rounding
from refsim.numerics.rows import Profile

Integers = NDArray[np.int64]
Codes = NDArray[np.unsignedinteger[Any]]

ABSENT = -(1 << 20)  # exponent of a zero: below the exponent of any number, also when added to one
_WIDEST_SHIFT = 63
_FINITE, _INFINITE, _NAN = 0, 1, 2


@dataclass(frozen=True)
class Fields:
    """Describe the terms of an array of codes: sign +1 or -1, magnitude, exponent and kind, arrays of one shape.

    Zeros have the exponent `ABSENT`. NaN and infinity have magnitude 0, so that they do not disturb the other sums of a
    block.
    """

    sign: Integers
    magnitude: Integers
    exponent: Integers
    kind: NDArray[np.uint8]
    fraction_bits: int

    def take(self, places: list[int] | slice) -> "Fields":
        """Return the terms at some places of the last axis."""
        return Fields(
            self.sign[..., places],
            self.magnitude[..., places],
            self.exponent[..., places],
            self.kind[..., places],
            self.fraction_bits,
        )

    def part(self, place: tuple[slice, ...]) -> "Fields":
        """Return the terms of some batches, or of some rows of them."""
        return Fields(
            self.sign[place], self.magnitude[place], self.exponent[place], self.kind[place], self.fraction_bits
        )

    @property
    def nonzero(self) -> NDArray[np.bool_]:
        """Return where a term is not zero; NaN and infinity count as not zero."""
        present: NDArray[np.bool_] = (self.magnitude != 0) | (self.kind != _FINITE)
        return present


def fields(codes: Codes, format: Format) -> Fields:
    """Return the terms of an array of codes, as `refsim.numerics.dot.terms.decoded` returns them one by one."""
    wide = codes.astype(np.int64) >> format.padding_bits
    negative = (wide >> (format.bits - 1)).astype(np.bool_) if format.signed else np.zeros(wide.shape, np.bool_)
    magnitude = wide & (format.magnitude_limit - 1)
    field, mantissa = magnitude >> format.mantissa_bits, magnitude & ((1 << format.mantissa_bits) - 1)
    kind = _kinds(format, negative, field, mantissa)
    if format.binades_from_zero:
        significand, exponent = np.ones_like(field), field - format.bias
    else:
        significand = mantissa | ((field != 0).astype(np.int64) << format.mantissa_bits)
        exponent = np.maximum(field, 1) - format.bias
    significand[kind != _FINITE] = 0
    exponent[significand == 0] = ABSENT
    return Fields(1 - 2 * negative.astype(np.int64), significand, exponent, kind, format.mantissa_bits)


def _kinds(format: Format, negative: NDArray[np.bool_], field: Integers, mantissa: Integers) -> NDArray[np.uint8]:
    all_ones = field == (1 << format.exponent_bits) - 1
    kind = np.zeros(field.shape, np.uint8)
    match format.specials:
        case Specials.IEEE:
            kind[all_ones & (mantissa == 0)], kind[all_ones & (mantissa != 0)] = _INFINITE, _NAN
        case Specials.NAN_ALL_ONES:
            kind[all_ones & (mantissa == (1 << format.mantissa_bits) - 1)] = _NAN
        case Specials.NAN_NEGATIVE_ZERO:
            kind[negative & (field == 0) & (mantissa == 0)] = _NAN
        case _:
            pass
    return kind


def operand_fields(codes: Codes, format: Format, profile: Profile) -> Fields:
    """Return the terms of an operand, after the conversion that the profile makes first (FP8 to f16 is exact)."""
    if profile.operands is F16:
        return fields(encode(decode(codes, format), F16, overflow="inf"), F16)
    return fields(codes, format)


def scaled(operand: Fields, scales: Codes, format: Format) -> Fields:
    """Return a block-scaled operand: exponents add, significands multiply, a NaN scale makes NaN."""
    factor = fields(scales, format)
    block = operand.magnitude.shape[-1] // scales.shape[-1]
    return Fields(
        operand.sign,
        operand.magnitude * np.repeat(factor.magnitude, block, axis=-1),
        operand.exponent + np.repeat(factor.exponent, block, axis=-1),
        np.maximum(operand.kind, np.repeat(factor.kind, block, axis=-1)),
        operand.fraction_bits + factor.fraction_bits,
    )


def pair(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (batch, M, L) and (batch, N, L) as views that broadcast to (batch, M, N, L)."""
    return a[:, :, None, :], b[:, None, :, :]


def shifted(magnitude: Integers, places: Integers | int) -> Integers:
    """Return magnitude x 2^places with the lost bits cut; magnitude >= 0, and left shifts stay within 63 bits."""
    left = np.clip(places, 0, _WIDEST_SHIFT)
    right = np.clip(np.negative(places), 0, _WIDEST_SHIFT)
    result: Integers = (magnitude << left) >> right
    return result


def _cut(magnitude: Integers, below: Integers, more: int) -> None:
    """Cut magnitudes, in place, to units of a step: `more` bits are appended, bits `below` its exponent are cut."""
    magnitude <<= max(more, 0)
    magnitude >>= np.minimum(below - min(more, 0), _WIDEST_SHIFT)


def truncated_step(a: Fields, b: Fields, c: Codes, profile: Profile) -> Codes:
    """Return one fused step for every (m, n): align to the largest exponent, cut, sum, round."""
    assert profile.fraction is not None
    assert profile.zero_exponent is not None
    rounding = profile.rounding
    accumulator = fields(c, rounding.format)
    exponent = np.add(*pair(a.exponent, b.exponent))
    top = _top(exponent, accumulator, profile.zero_exponent)
    products = np.multiply(*pair(a.magnitude, b.magnitude))
    _cut(products, top[..., None] - exponent, profile.fraction - a.fraction_bits - b.fraction_bits)
    products *= np.multiply(*pair(a.sign, b.sign))
    return finished(products.sum(-1), top, accumulator, profile, specials(a, b, accumulator, rounding))


def _top(exponent: Integers, accumulator: Fields, zero_exponent: int) -> Integers:
    """Return the exponent that a step aligns to; where any term is zero it is at least the zero exponent."""
    zero = (exponent.min(-1) < ABSENT // 2) | (accumulator.magnitude == 0)
    top = np.maximum(exponent.max(-1), accumulator.exponent)
    result: Integers = np.where(zero, np.maximum(top, zero_exponent), top)
    return result


def finished(total: Integers, top: Integers, accumulator: Fields, profile: Profile, special: Codes | None) -> Codes:
    """Return the rounded sum of `total` and C, which is cut first; `special` codes replace it where they are not 0."""
    assert profile.fraction is not None
    rounding = profile.rounding
    places = accumulator.exponent - accumulator.fraction_bits - top + profile.fraction
    total = total + accumulator.sign * shifted(accumulator.magnitude, places)
    return with_specials(rounded(total, top - profile.fraction, rounding), special)


def with_specials(codes: Codes, special: Codes | None) -> Codes:
    """Return the codes with `special` in their place where it is not 0; None changes nothing."""
    return codes if special is None else np.where(special != 0, special, codes)


def grouped_step(
    a: Fields, b: Fields, scales: tuple[Codes, Codes], format: Format, c: Codes, profile: Profile
) -> Codes:
    """Return one step of FP4: groups of 16 products, each one term with the exponent of its scales.

    `scales`: codes of shape (batch, M or N, blocks of this step).
    """
    assert profile.fraction is not None
    assert profile.zero_exponent is not None
    accumulator = fields(c, profile.rounding.format)
    groups = a.magnitude.shape[-1] // GROUP
    factors = [fields(np.repeat(s, groups // s.shape[-1], axis=-1), format) for s in scales]
    exponent = np.add(*pair(factors[0].exponent, factors[1].exponent))
    weight = np.multiply(*pair(factors[0].magnitude, factors[1].magnitude))
    sums, present = _group_sums(a, b, groups)
    exponent = np.where(present & (weight != 0), exponent, 2 * ABSENT)
    top = _top(exponent, accumulator, profile.zero_exponent)
    bits = a.fraction_bits + b.fraction_bits + factors[0].fraction_bits + factors[1].fraction_bits
    magnitude = np.abs(sums) * weight
    _cut(magnitude, top[..., None] - exponent, profile.fraction - bits)
    kinds = [np.repeat(factor.kind, GROUP, axis=-1) for factor in factors]
    special = specials(replace(a, kind=kinds[0]), replace(b, kind=kinds[1]), accumulator, profile.rounding)
    return finished((magnitude * np.sign(sums)).sum(-1), top, accumulator, profile, special)


def _group_sums(a: Fields, b: Fields, groups: int) -> tuple[Integers, NDArray[np.bool_]]:
    """Return exact sums of the products of each group in units of the smallest, and whether any product is not zero."""
    parts = [slice(GROUP * g, GROUP * (g + 1)) for g in range(groups)]
    numbers = [x.sign * (x.magnitude << np.maximum(x.exponent, 0)) for x in (a, b)]
    sums = [_matmul(numbers[0][..., part], numbers[1][..., part]) for part in parts]
    present = [_matmul(np.abs(numbers[0][..., part]), np.abs(numbers[1][..., part])) != 0 for part in parts]
    return np.stack(sums, -1), np.stack(present, -1)


def _matmul(a: Integers, b: Integers) -> Integers:
    """Return A times B transposed over the last axis by a float64 product; exact while the sums stay below 2^53."""
    return (a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)).astype(np.int64)


def specials(
    a: Fields, b: Fields, c: Fields, rounding: Rounding, beyond: NDArray[np.bool_] | None = None
) -> Codes | None:
    """Return the code of every output that a NaN or an infinity decides, 0 elsewhere; None if there is no such output.

    `beyond` marks finite products, shape (batch, M, N, L), that count as infinite.
    """
    if not (a.kind.any() or b.kind.any() or c.kind.any() or beyond is not None):
        return None
    infinite = np.multiply(*pair(a.kind == _INFINITE, b.nonzero)) | np.multiply(*pair(a.nonzero, b.kind == _INFINITE))
    if beyond is not None:
        infinite |= beyond
    negative = np.multiply(*pair(a.sign, b.sign)) < 0
    nan = (
        np.multiply(*pair(a.kind == _INFINITE, ~b.nonzero)) | np.multiply(*pair(~a.nonzero, b.kind == _INFINITE))
    ).any(-1)
    nan |= (a.kind == _NAN).any(-1)[:, :, None] | (b.kind == _NAN).any(-1)[:, None, :] | (c.kind == _NAN)
    plus = (infinite & ~negative).any(-1) | ((c.kind == _INFINITE) & (c.sign > 0))
    minus = (infinite & negative).any(-1) | ((c.kind == _INFINITE) & (c.sign < 0))
    codes = np.where(plus, rounding.infinity, np.where(minus, rounding.infinity | rounding.sign, 0))
    return np.where(nan | (plus & minus), rounding.nan, codes).astype(rounding.format.code_dtype)


def rounded(total: Integers, quantum: Integers, rounding: Rounding) -> Codes:
    """Return the code of every total x 2^quantum, as `refsim.numerics.dot.terms.rounded`; |total| < 2^53."""
    format, magnitude = rounding.format, np.abs(total)
    leading = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1 + quantum
    unit = np.maximum(leading, 1 - format.bias) - rounding.fraction_bits
    kept = shifted(magnitude, quantum - unit)
    if rounding.nearest:
        places = np.clip(unit - quantum, 0, _WIDEST_SHIFT - 1)
        rest, half = magnitude - (kept << places), (np.int64(1) << places) >> 1
        kept = kept + ((half != 0) & ((rest > half) | ((rest == half) & (kept & 1 != 0))))
    dropped = format.mantissa_bits - rounding.fraction_bits
    lowest = 1 - format.bias - rounding.fraction_bits
    codes = np.where(kept != 0, (kept << dropped) + ((unit - lowest) << format.mantissa_bits), 0)
    codes = np.minimum(codes, rounding.infinity)
    negative = (total < 0) & ((kept != 0) | rounding.signed_zero)
    return (codes | np.where(negative, rounding.sign, 0)).astype(format.code_dtype)


def added(d: Codes, c: Codes, format: Format) -> Codes:
    """Return the IEEE sum of `d` and C at the end of an instruction, to nearest even."""
    assert format.array_dtype is not None
    result: Codes = ieee.add(d.view(format.array_dtype), c.view(format.array_dtype)).view(format.code_dtype)
    return result
