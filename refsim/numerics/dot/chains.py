"""Whole matrix products: the steps of a profile chained over K, in tiles of bounded memory.

AMD's matrix cores have steps of their own: late accumulation (CDNA3) and flushed float32 trees (CDNA2).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.formats import F16, F32, F64, ElementType, Format, Specials, float_named
from refsim.numerics import ieee, methods
from refsim.numerics.dot.definition import FLOOR_BITS, NO_PRODUCT
from refsim.numerics.dot.definition import rounded as rounded_once
from refsim.numerics.ieee.fused import fma_to_nearest
from refsim.numerics.methods import GROUP, RNE_F32, Method, Rounding
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
        return self.part((..., places))

    def part(self, place: tuple[Any, ...]) -> "Fields":
        """Return the terms of some batches, or of some rows of them."""
        kind = self.kind[place]
        return Fields(self.sign[place], self.magnitude[place], self.exponent[place], kind, self.fraction_bits)

    @property
    def nonzero(self) -> NDArray[np.bool_]:
        """Return where a term is not zero; NaN and infinity count as not zero."""
        return np.asarray((self.magnitude != 0) | (self.kind != _FINITE))


def fields(codes: Codes, format: Format) -> Fields:
    """Return the terms of an array of codes, as `refsim.numerics.dot.definition.decoded` returns them one by one."""
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
    return np.asarray((magnitude << left) >> right)


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
    return np.asarray(np.where(zero, np.maximum(top, zero_exponent), top))


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
    """Return the code of every total x 2^quantum, as `refsim.numerics.dot.definition.rounded`; |total| < 2^53."""
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
    return ieee.add(d.view(format.array_dtype), c.view(format.array_dtype)).view(format.code_dtype)


def on_grid(operand: Fields) -> tuple[NDArray[Any], int]:
    """Return the terms as Python integers of units 2^quantum, and that quantum: the smallest that all of them need."""
    present = operand.magnitude != 0
    lowest = int(operand.exponent[present].min()) if present.any() else 0
    places = np.where(present, operand.exponent - lowest, 0).astype(object)
    integers: NDArray[Any] = (operand.sign * operand.magnitude).astype(object) << places
    return integers, lowest - operand.fraction_bits


def exact_sums(a: Fields, b: Fields, c: Fields) -> tuple[NDArray[Any], int]:
    """Return c + A B^T exactly, as Python integers of units 2^quantum, shape (batch, M, N); special operands count as zero."""
    (x, x_quantum), (y, y_quantum), (z, z_quantum) = on_grid(a), on_grid(b), on_grid(c)
    quantum = min(x_quantum + y_quantum, z_quantum)
    products: NDArray[Any] = np.matmul(x, y.swapaxes(-1, -2)) << (x_quantum + y_quantum - quantum)
    return products + (z << (z_quantum - quantum)), quantum


def rounded_sums(totals: NDArray[Any], quantum: int, rounding: Rounding) -> Codes:
    """Return the code of every total x 2^quantum."""
    coded = np.frompyfunc(lambda total: rounded_once(total, quantum, rounding), 1, 1)
    return np.asarray(coded(totals).astype(rounding.format.code_dtype))


def exact_step(a: Fields, b: Fields, c: Codes, profile: Profile) -> Codes:
    """Return the exact sum of products and C, rounded once, for every (m, n); an exact zero is +0."""
    rounding = profile.rounding
    accumulator = fields(c, rounding.format)
    codes = rounded_sums(*exact_sums(a, b, accumulator), rounding)
    return with_specials(codes, specials(a, b, accumulator, rounding))


_TILE = 1 << 19  # products computed at once: about 4 MiB an intermediate array


@dataclass(frozen=True)
class Operands:
    """Describe the codes of one product: a (batch, M, K), b (batch, N, K), their formats, and scale codes if any."""

    a: Codes
    b: Codes
    a_format: ElementType
    b_format: ElementType
    a_scale: Codes | None = None
    b_scale: Codes | None = None
    scale_format: Format | None = None

    def parts(self, of_a: Callable[[Codes], Codes], of_b: Callable[[Codes], Codes]) -> "Operands":
        """Return parts of the operands, each with the same part of its scales."""
        a_scale = None if self.a_scale is None else of_a(self.a_scale)
        b_scale = None if self.b_scale is None else of_b(self.b_scale)
        return replace(self, a=of_a(self.a), b=of_b(self.b), a_scale=a_scale, b_scale=b_scale)

    def tile(self, batch: slice, rows: slice) -> "Operands":
        """Return the operands of a tile of outputs: some of the batch, some rows of A."""
        return self.parts(lambda codes: codes[batch, rows], lambda codes: codes[batch])

    def chunk(self, start: int, k: int) -> "Operands":
        """Return the part of K that one instruction takes, with its scales."""

        def some(codes: Codes) -> Codes:
            block = self.a.shape[-1] // codes.shape[-1]
            return codes[..., start // block : (start + k) // block]

        return self.parts(some, some)


def matrix_product(operands: Operands, c: NDArray[Any], profile: Profile, k: int) -> NDArray[Any]:
    """Return d (batch, M, N): C and result are codes of the accumulator's format, int32 for integers."""
    return _PRODUCTS.get(profile.method, _fused_chain)(operands, c, profile, k)


def _fused_chain(operands: Operands, c: Codes, profile: Profile, k: int) -> Codes:
    late = profile.adds_c_last
    for start in range(0, operands.a.shape[-1], k):
        part = operands.chunk(start, k)
        a, b = _fields(part, profile)
        d = np.zeros_like(c) if late else c
        for places in profile.steps(k):
            chosen = _contiguous(places)
            d = _tiled_step(part, a.take(chosen), b.take(chosen), d, profile)
        c = added(d, c, profile.rounding.format) if late else d
    return c


def _tiled_step(operands: Operands, a: Fields, b: Fields, d: Codes, profile: Profile) -> Codes:
    """Compute one step for all outputs, some batches or rows at a time: about _TILE products at once."""
    result = np.empty_like(d)
    batch, m, n = d.shape
    length = max(n * a.magnitude.shape[-1], 1)
    rows = max(1, min(m, _TILE // length))
    parts = max(1, _TILE // (length * rows)) if rows == m else 1
    for start in range(0, batch, parts):
        some = slice(start, start + parts)
        for row in range(0, m, rows):
            place = (some, slice(row, row + rows))
            result[place] = _step(operands.tile(*place), a.part(place), b.part((some,)), d[place], profile)
    return result


def _contiguous(places: list[int]) -> list[int] | slice:
    run = slice(places[0], places[-1] + 1)
    return run if len(places) == run.stop - run.start else places


def _fields(operands: Operands, profile: Profile) -> tuple[Fields, Fields]:
    a = operand_fields(operands.a, float_named(operands.a_format), profile)
    b = operand_fields(operands.b, float_named(operands.b_format), profile)
    if profile.scales and not profile.method.groups:
        assert operands.a_scale is not None
        assert operands.b_scale is not None
        assert operands.scale_format is not None
        return scaled(a, operands.a_scale, operands.scale_format), scaled(b, operands.b_scale, operands.scale_format)
    return a, b


def _step(operands: Operands, a: Fields, b: Fields, d: Codes, profile: Profile) -> Codes:
    if not profile.method.groups:
        return _STEPS[profile.method](a, b, d, profile)
    assert operands.a_scale is not None
    assert operands.b_scale is not None
    assert operands.scale_format is not None
    return grouped_step(a, b, (operands.a_scale, operands.b_scale), operands.scale_format, d, profile)


def floats(codes: Codes, format: ElementType) -> NDArray[Any]:
    """Return the exact values of floating-point codes: float64 for f64, float32 otherwise."""
    row = float_named(format)
    return codes.view(np.float64) if row is F64 else decode(codes, row, np.float32)


def _fma_chain(operands: Operands, c: Codes, profile: Profile, k: int) -> Codes:
    a, b = floats(operands.a, operands.a_format), floats(operands.b, operands.b_format)
    d = c.view(a.dtype)
    if profile.scales:
        a, b = (_times_scales(x, scale, operands) for x, scale in ((a, operands.a_scale), (b, operands.b_scale)))
    for i in range(a.shape[-1]):
        x, y = a[:, :, None, i], b[:, None, :, i]
        with np.errstate(all="ignore"):
            d = fma_to_nearest(x, y, d) if profile.scales else ieee.fma(x, y, d)
    canonical = np.isnan(d) & (not profile.keeps_nan)
    return np.where(canonical, c.dtype.type(profile.rounding.nan), d.view(c.dtype))


def _times_scales(values: NDArray[Any], scale: Codes | None, operands: Operands) -> NDArray[np.float64]:
    """Return operands times their scales: exact in float64, as are the products of two such operands."""
    assert scale is not None
    assert operands.scale_format is not None
    factors = decode(scale, operands.scale_format)
    with np.errstate(invalid="ignore"):
        return values * np.repeat(factors, values.shape[-1] // scale.shape[-1], axis=-1)


def _flushed_chain(operands: Operands, c: Codes, profile: Profile, k: int) -> Codes:
    a, b = (
        flushed(decode(codes, row, np.float32), keep_sign=False, smallest=row.min_normal)
        for codes, row in ((operands.a, float_named(operands.a_format)), (operands.b, float_named(operands.b_format)))
    )
    d = c.view(np.float32)
    for start in range(0, a.shape[-1], profile.length):
        part = slice(start, start + profile.length)
        if start % k == 0:  # C is flushed to +0 at the start of an instruction; the -0 of a step is not
            d = flushed(d, keep_sign=False, smallest=F32.min_normal)
        d = flushed_tree(a[..., part], b[..., part], d)
    return d.view(np.uint32)


def _integer(operands: Operands, c: NDArray[Any], profile: Profile, k: int) -> NDArray[Any]:
    """Return the exact sum: a product is below 2^16, so 2^37 of them fit float64; the sum wraps to 32 bits."""
    sides = (operands.a, operands.a_format), (operands.b, operands.b_format)
    a, b = (codes.view(format.array_dtype or codes.dtype).astype(np.float64) for codes, format in sides)
    return (c + (a @ b.swapaxes(-1, -2)).astype(np.int64)).astype(np.int32)


def accumulator(profile: Profile) -> Format | None:
    """Return the format of C and D; None for integers."""
    return profile.d_format if isinstance(profile.d_format, Format) else None


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
    return (total << np.clip(places, 0, _WIDEST_SHIFT)) >> np.clip(-places, 0, _WIDEST_SHIFT)


def flushed(values: NDArray[np.float32], *, keep_sign: bool, smallest: float) -> NDArray[np.float32]:
    """Return the values with subnormal values, below `smallest`, replaced by zeros."""
    zero = np.copysign(np.float32(0), values) if keep_sign else np.float32(0)
    return np.where(np.abs(values) < np.float32(smallest), zero, values)


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


# Methods whose steps are not fused sums of `Fields`.
_PRODUCTS: dict[Method, Callable[[Operands, NDArray[Any], Profile, int], NDArray[Any]]] = {
    methods.INTEGER: _integer,
    methods.FMA_CHAIN: _fma_chain,
    methods.FLUSHED_TREE: _flushed_chain,
}
_STEPS: dict[Method, Callable[[Fields, Fields, Codes, Profile], Codes]] = {
    methods.TRUNCATED: truncated_step,
    methods.EXACT: exact_step,
    methods.LATE_TRUNCATED: late_step,
    methods.LATE_EVEN_ODD: late_step,
}
