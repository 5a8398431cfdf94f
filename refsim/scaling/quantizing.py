"""Quantization by groups, in the order of operations of DeepGEMM's casts, and its inverse.

Every step is one IEEE float32 operation, rounded to nearest even, subnormals kept. For each group

    amax = max |x|, at least eps        s = fl(amax / MAX), or s rounded up to a power of two
    q = satfinite(fl(x * fl(1 / s)))    or, with quotient="divide", satfinite(fl(x / s))

The product with the reciprocal is rounded twice. Where s is no power of two, some codes therefore differ from the
quotient's. A group at the edge of the matrix is smaller, as if zeros filled it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import convert, decode, round_bits
from refsim.conversions.rounding import default_nan
from refsim.errors import RefsimError, check_named
from refsim.formats import E4M3, F32, Format
from refsim.integers import array_of
from refsim.oracle_calls import reported
from refsim.render.cards import FieldsCard
from refsim.scaling.grids import largest_of_groups, spread
from refsim.scaling.rows import NAN_RULES, QUOTIENTS, NanRule, Quotient, ScaleKind, ScaleKindName, scale_kind
from refsim.scaling.wide import NARROW_FORMATS, WIDE_FORMATS, one_of, wide_values
from refsim.typed_arrays import is_typed, native, typed, with_format

EPS = 1e-4
MAGNITUDE_BITS, FRACTION, FRACTION_BITS = np.uint32(0x7FFFFFFF), np.uint32(0x007FFFFF), np.uint32(23)
INFINITY_BITS = np.uint32(0x7F800000)
SMALLEST_CODE, LARGEST_CODE = 1, 254  # of a rounded-up scale: 2^-127 and NaN do not occur


@dataclass(frozen=True, repr=False)
class Quantized(FieldsCard):
    """Codes in the shape of the quantized matrix, and one scale for each group: float32, or uint8 codes of E8M0.

    `scales` has shape (..., ceil(rows / group rows), ceil(columns / group columns)), K contiguous.
    `layouts.scale_layout("deepgemm_mn_f32").shuffle(scales)` is the MN-major form that TMA reads.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    format: Format
    kind: ScaleKind
    group: tuple[int, int]

    @property
    def factors(self) -> NDArray[np.float32]:
        """Return the scales as float32 values: code 0x69 of E8M0 is 2^-22."""
        return scale_values(self.scales)


@reported("group quantizer")
def quantize(
    codes: ArrayLike,
    format: str | Format | None = None,
    *,
    group: tuple[int, int] = (1, 128),
    to: str | Format = E4M3,
    scale: ScaleKindName | ScaleKind = "f32",
    quotient: Quotient = "reciprocal",
    nan: NanRule = "spreads",
    eps: float = EPS,
    dtype: DTypeLike | None = None,
) -> Quantized:
    """Quantize a matrix (..., rows, columns) to FP8 codes and scales in groups: (1, 128), (128, 128) or any other size.

    `codes`: bf16, f16 or f32 codes with their `format`, or an array of bfloat16, float16 or float32 values. `to`: e4m3
    (MAX 448) or e5m2 (57344). `scale`: "f32", "f32_power" (a float32 power of two, rounded up) or "e8m0" (its code).
    `quotient`: "reciprocal", fl(x * fl(1 / s)), as DeepGEMM; "divide", fl(x / s), as DeepSeek-V3's act_quant. `eps`,
    rounded to float32 and above 0, bounds amax from below.

    A group of zeros has s = fl(1e-4 / 448) = 0x346facad, E8M0 0x69, and codes 0x00 and 0x80. An infinity makes s
    infinite: it becomes 0x7f (inf * 0), numbers become 0; E8M0 has no infinity, s is 2^127 and the code 0x7e. A NaN
    becomes 0x7f. With `nan` "spreads", s of its group is NaN and every code 0x7f (E8M0: 0xfe, numbers become 0); with
    "ignored", the other elements are quantized without it. quantize(np.float32([[448, -1]])).codes is [[0x7e, 0xb8]],
    and the scale is 1.

    Raises RefsimError for unknown names, codes that do not fit `format`, an array without rows and columns, `eps` not
    above 0. Source: DeepGEMM, per_token_cast_to_fp8; PTX ISA, div.rn, rcp.rn, mul.rn, cvt.rn.satfinite.e4m3x2.f32.
    """
    row, kind = one_of(to, NARROW_FORMATS, "to"), scale_kind(scale)
    _known("quotient", quotient, QUOTIENTS)
    _known("NaN rule", nan, NAN_RULES)
    values = wide_values(codes, format)
    if values.ndim < 2:
        raise RefsimError("bad-shape", f"codes have shape {values.shape}", rule="(..., rows, columns)")
    magnitudes = values.view(np.uint32) & MAGNITUDE_BITS
    if nan == NAN_RULES[1]:
        magnitudes = np.where(magnitudes > INFINITY_BITS, np.uint32(0), magnitudes)
    peak = np.maximum(largest_of_groups(magnitudes, group), _bits_of(eps))  # non-negative floats order as their bits
    with np.errstate(all="ignore"):
        factors, scales = scales_of(peak.view(np.float32), row, kind)
        shape = (values.shape[-2], values.shape[-1])
        if quotient == QUOTIENTS[0]:
            scaled = np.multiply(values, spread(np.float32(1) / factors, shape, group), dtype=np.float32)
        else:
            scaled = np.divide(values, spread(factors, shape, group), dtype=np.float32)
    quantized = convert(f"cuda.satfinite.{row.name}.f32", scaled)
    return Quantized(typed(quantized, row, dtype), scales, row, kind, (int(group[0]), int(group[1])))


def scales_of(
    peak: NDArray[np.float32], to: Format, kind: ScaleKind
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    """Return the float32 factors of groups with largest magnitudes `peak`, and the scales as they are stored."""
    factors = _canonical(np.divide(peak, np.float32(to.max_value), dtype=np.float32))
    if not kind.is_power_of_two:
        return factors, factors
    bits = factors.view(np.uint32)
    above = (bits >> FRACTION_BITS) + ((bits & FRACTION) != 0)
    codes = np.clip(above, SMALLEST_CODE, LARGEST_CODE).astype(np.uint32)
    factors = (codes << FRACTION_BITS).view(np.float32)
    return factors, factors if kind.format is F32 else codes.astype(kind.format.code_dtype)


def dequantize(
    codes: ArrayLike,
    scales: ArrayLike,
    format: str | Format | None = None,
    *,
    group: tuple[int, int] = (1, 128),
    to: str | Format = F32,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return codes of round(fl(q * s)) in f32, bf16 or f16: `codes` (..., rows, columns) times the scale of each group.

    `codes`: FP8 codes of `format`, or an ml_dtypes array, whose dtype gives the format. `scales`: float32, or E8M0
    codes as uint8 or ml_dtypes, shape (..., *scale_grid). The product is rounded to float32, then to `to`; every NaN is
    canonical. dequantize(np.uint8([[0x7e]]), np.float32([[0.5]]), "e4m3", to="bf16") is [[0x4360]], 224. Raises
    RefsimError for unknown formats, scales of another shape or type and arrays that are no codes. Source: PTX ISA,
    cvt.rn.f16x2.e4m3x2 (exact), mul.rn.f32, cvt.rn.bf16x2.f32.
    """
    q, held = with_format(codes, format, "codes")
    narrow, wide = one_of(held, NARROW_FORMATS, "format"), one_of(to, WIDE_FORMATS, "to")
    values = decode(q, narrow, np.float32)
    if values.ndim < 2:
        raise RefsimError("bad-shape", f"codes have shape {values.shape}", rule="(..., rows, columns)")
    with np.errstate(all="ignore"):
        factors = spread(scale_values(scales), (values.shape[-2], values.shape[-1]), group)
        return typed(round_bits(np.multiply(values, factors, dtype=np.float32), wide), wide, dtype)


def scale_values(scales: ArrayLike) -> NDArray[np.float32]:
    """Return scales as float32; uint8 and ml_dtypes' float8_e8m0fnu are codes of E8M0, a Python float is rounded."""
    if isinstance(scales, float) and not isinstance(scales, np.generic):
        return np.asarray(scales, np.float32)
    array = native(array_of("scales", scales))
    if array.dtype == np.float32:
        return array
    if array.dtype == np.uint8 or is_typed(array.dtype):
        return decode(array, scale_kind("e8m0").format, np.float32)
    raise RefsimError("bad-dtype", f"scales hold {array.dtype}", rule="float32, or E8M0 codes as uint8")


def _bits_of(eps: float) -> np.uint32:
    """Return the bits of `eps` rounded to float32; raise unless it is a finite number above 0."""
    is_number = isinstance(eps, int | float | np.integer | np.floating) and not isinstance(eps, bool)
    with np.errstate(all="ignore"):
        rounded = np.float32(eps if is_number and abs(eps) <= 1e300 else np.inf)
    if not (rounded > 0 and np.isfinite(rounded)):
        raise RefsimError("out-of-range", f"eps is {eps!r}", rule="eps bounds amax from below: a float32 above 0")
    return np.uint32(rounded.view(np.uint32))


def _canonical(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the values with every NaN replaced by the canonical NaN."""
    bits = np.where(np.isnan(values), np.uint32(default_nan(F32)), values.view(np.uint32))
    return bits.view(np.float32)


def _known(kind: str, name: str, names: tuple[str, ...]) -> None:
    check_named(kind, name, names)
