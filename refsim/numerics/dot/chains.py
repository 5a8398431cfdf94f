"""Whole matrix products: the steps of a profile chained over K, in tiles of bounded memory.

AMD's matrix cores have steps of their own: late accumulation (CDNA3) and flushed float32 trees (CDNA2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.formats import F32, F64, ElementType, Format, float_named
from refsim.numerics import ieee
from refsim.numerics.dot.arrays import (
    ABSENT,
    Codes,
    Fields,
    Integers,
    added,
    fields,
    grouped_step,
    operand_fields,
    pair,
    rounded,
    scaled,
    specials,
    truncated_step,
    with_specials,
)
from refsim.numerics.dot.definition import FLOOR_BITS, NO_PRODUCT
from refsim.numerics.dot.exact import exact_step
from refsim.numerics.ieee.fused import fma_to_nearest
from refsim.numerics.methods import (
    EXACT,
    FLUSHED_TREE,
    FMA_CHAIN,
    INTEGER,
    LATE_EVEN_ODD,
    LATE_TRUNCATED,
    TRUNCATED,
    Method,
)
from refsim.numerics.roundings import RNE_F32
from refsim.numerics.rows import Profile

_TILE = 1 << 19  # products computed at once: about 4 MiB an intermediate array
_WIDEST_SHIFT = 63


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

    def tile(self, batch: slice, rows: slice) -> "Operands":
        """Return the operands of a tile of outputs: some of the batch, some rows of A."""
        a_scale = None if self.a_scale is None else self.a_scale[batch, rows]
        b_scale = None if self.b_scale is None else self.b_scale[batch]
        return Operands(
            self.a[batch, rows], self.b[batch], self.a_format, self.b_format, a_scale, b_scale, self.scale_format
        )

    def chunk(self, start: int, k: int) -> "Operands":
        """Return the part of K that one instruction takes, with its scales."""
        part = slice(start, start + k)

        def of(scale: Codes | None) -> Codes | None:
            if scale is None:
                return None
            block = self.a.shape[-1] // scale.shape[-1]
            return scale[..., start // block : (start + k) // block]

        return Operands(
            self.a[..., part],
            self.b[..., part],
            self.a_format,
            self.b_format,
            of(self.a_scale),
            of(self.b_scale),
            self.scale_format,
        )


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
    result: Codes = np.where(canonical, c.dtype.type(profile.rounding.nan), d.view(c.dtype))
    return result


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
    a, b = (
        codes.view(format.array_dtype or codes.dtype).astype(np.float64)
        for codes, format in ((operands.a, operands.a_format), (operands.b, operands.b_format))
    )
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
    result: Integers = (total << np.clip(places, 0, _WIDEST_SHIFT)) >> np.clip(-places, 0, _WIDEST_SHIFT)
    return result


def flushed(values: NDArray[np.float32], *, keep_sign: bool, smallest: float) -> NDArray[np.float32]:
    """Return the values with subnormal values, below `smallest`, replaced by zeros."""
    zero = np.copysign(np.float32(0), values) if keep_sign else np.float32(0)
    result: NDArray[np.float32] = np.where(np.abs(values) < np.float32(smallest), zero, values)
    return result


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
    INTEGER: _integer,
    FMA_CHAIN: _fma_chain,
    FLUSHED_TREE: _flushed_chain,
}
_STEPS: dict[Method, Callable[[Fields, Fields, Codes, Profile], Codes]] = {
    TRUNCATED: truncated_step,
    EXACT: exact_step,
    LATE_TRUNCATED: late_step,
    LATE_EVEN_ODD: late_step,
}
