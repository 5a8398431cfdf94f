"""Per-tensor FP8 quantization in the steps of gpu/kernels/fp8_quantize.cu: largest magnitude, cast, inverse.

Every step is one IEEE float32 operation, rounded to nearest even, subnormals kept:
scale = fl(MAX / max(amax, eps)), q = satfinite(fl(x * scale)), stored scale = fl(1 / scale), y = round(fl(q * stored)).
The stored scale is rounded twice, so it is not fl(amax / MAX): for amax 11 in E4M3 it is 0x3cc92493, not 0x3cc92492.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import convert, decode, round_bits
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, Format
from refsim.numerics.ieee import maximum
from refsim.oracle_calls import reported
from refsim.scaling.wide import NARROW_FORMATS, WIDE_FORMATS, one_of, wide_values
from refsim.typed_arrays import typed, with_format

__all__ = ["EPS", "amax", "dequantize", "quantize"]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


EPS = 1e-12

Codes = NDArray[np.unsignedinteger]


@reported("largest magnitude")
def amax(codes: ArrayLike, format: str | Format | None = None) -> np.uint32:
    """Return the float32 bits of the largest magnitude; NaN is ignored, and an empty array gives 0.

    `codes`: bf16, f16 or f32 codes of any shape, or bfloat16, float16 or float32 values. Infinity is a magnitude like
    any other: amax(np.float32([-np.inf, 1])) is 0x7f800000, amax(np.float32([np.nan, -3])) is 0x40400000; an array of
    only NaN gives 0. Raises RefsimError for another format or for arrays that are not its codes. Source: PTX ISA, max
    (a NaN operand gives the other one) and the order of non-negative floats as integers.
    """
    magnitudes = wide_values(codes, format).view(np.uint32) & np.uint32(0x7FFFFFFF)
    numbers = magnitudes[magnitudes <= 0x7F800000]
    return np.uint32(numbers.max(initial=0))


@reported("FP8 quantizer")
def quantize(
    codes: ArrayLike,
    format: str | Format | None = None,
    to: str | Format = E4M3,
    eps: float = EPS,
    amax_bits: int | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> tuple[NDArray[Any], np.float32]:
    """Return the FP8 codes, in the shape of `codes`, and the float32 scale that dequantizes them.

    `codes` and `format` as in amax; dtype="ml_dtypes" returns codes of the ml_dtypes type. `to` is e4m3 (MAX 448) or
    e5m2 (MAX 57344). `amax_bits` is the float32 pattern of the first launch; by default it is computed from these
    codes. `eps`, rounded to float32, bounds the divisor from below. A NaN of either sign becomes 0x7f. An infinity
    makes the scale 0: every number becomes 0 with its sign, the infinity 0x7f (inf * 0), and the stored scale is
    infinite. For zeros only, or an empty array, the stored scale is fl(1 / fl(448 / 1e-12)) = 0x2720d7c5 for E4M3.
    quantize(np.float32([1, -2]))[0] is [0x76, 0xfe], and the scale 2/448 = 0x3b924925.

    Raises RefsimError for unknown formats, for codes that do not fit `format`, for a negative or NaN `eps`. Source: PTX
    ISA, div.rn, rcp.rn, mul.rn and cvt.rn.satfinite.e4m3x2.f32.
    """
    row = one_of(to, NARROW_FORMATS, "to")
    values = wide_values(codes, format)
    if amax_bits is not None and not 0 <= amax_bits <= 0xFFFFFFFF:
        raise RefsimError("out-of-range", f"amax_bits is {amax_bits!r}", rule="a float32 pattern, 0 to 0xffffffff")
    bits = amax(codes, format) if amax_bits is None else np.uint32(amax_bits)
    with np.errstate(all="ignore"):
        scale = _scale(bits, row, eps)
        scaled = np.multiply(values.reshape(-1), scale, dtype=np.float32)
        stored = np.float32(np.float32(1) / scale)
    pairs = np.concatenate([scaled, np.zeros(scaled.size % 2, np.float32)])
    registers = convert(f"cvt.rn.satfinite.{row.name}x2.f32", pairs[1::2], pairs[0::2])
    quantized = registers.astype("<u2").view(np.uint8)[: scaled.size].reshape(values.shape)
    return typed(quantized, row, dtype), stored


@reported("FP8 dequantizer")
def dequantize(
    q: ArrayLike,
    scale: float | np.float32,
    format: str | Format | None = None,
    to: str | Format = BF16,
    *,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the codes of round(fl(q * scale)) in bf16, f16 or f32, in the shape of `q`.

    `q`: codes of `format`, or an array of ml_dtypes, whose dtype gives the format; dtype="ml_dtypes" returns values of
    the ml_dtypes type (float16 and float32 for f16 and f32). The product is rounded to float32 and then to `to`, to
    nearest even, overflow to infinity. Every NaN, from a NaN code, from inf * 0 or from a NaN scale, is the canonical
    one: 0x7fff, 0x7fff, 0x7fffffff. dequantize(np.uint8([0x7e]), 0.5, "e4m3", "bf16") is [0x4360], 224. Raises
    RefsimError for unknown formats, a scale that is not float32 and for codes that are not 8 bits. Source: PTX ISA,
    cvt.rn.f16x2.e4m3x2 (exact), mul.rn.f32 and cvt.rn.bf16x2.f32 (NaN results are canonical).
    """
    q, held = with_format(q, format, "q")
    narrow, wide = one_of(held, NARROW_FORMATS, "format"), one_of(to, WIDE_FORMATS, "to")
    with np.errstate(all="ignore"):
        factor = np.float32(scale)
        if not isinstance(scale, np.float32) and not np.isnan(factor) and float(factor) != float(scale):
            raise RefsimError("bad-dtype", f"scale {scale!r} is not a float32", help=f"nearest: {float(factor)!r}")
        product = np.multiply(decode(q, narrow, np.float32), factor, dtype=np.float32)
        return typed(round_bits(product, wide), wide, dtype)


def _scale(amax_bits: np.uint32, to: Format, eps: float) -> np.float32:
    """Return fl(MAX / max(amax, eps)); the maximum of a NaN and a number is the number, of -0 and +0 it is +0."""
    if not eps >= 0 or np.signbit(eps):
        raise RefsimError("out-of-range", f"eps is {eps!r}", rule="eps bounds a magnitude from below: 0 or more")
    magnitude = np.array([amax_bits], np.uint32).view(np.float32)
    return np.float32(np.float32(to.max_value) / maximum(magnitude, np.array([eps], np.float32))[0])
