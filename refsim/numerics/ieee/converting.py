"""The scalar forms of cvt: between floats, to integers, from integers, and to integral values."""

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from refsim.conversions import PTX_ROUNDINGS, round_bits
from refsim.errors import RefsimError, check_named, named
from refsim.formats import format_named
from refsim.numerics.ieee.exact import side, stepped
from refsim.numerics.ieee.patterns import (
    BRAIN,
    CONVERSION_MODIFIERS,
    DOUBLE,
    HALF,
    KINDS,
    NEAREST,
    ROUNDING_MODIFIERS,
    SINGLE,
    Array,
    ConversionModifier,
    FloatKind,
    IntegralModifier,
    RoundingModifier,
    flushed,
    flushed_result,
    is_nan,
    kind_of,
    narrow,
    rectified,
    saturated,
    widen,
    with_nan,
)

INTEGRAL: dict[IntegralModifier, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_TARGETS = {kind.name: kind for kind in KINDS}
_MOVES = ((SINGLE, SINGLE), (DOUBLE, DOUBLE), (BRAIN, SINGLE))


@np.errstate(all="ignore")
def float_to_float(
    a: Array,
    to: str,
    rounding: ConversionModifier = NEAREST,
    *,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
    satfinite: bool = False,
) -> Array:
    """Return each value as a number of the format `to`, rounded once; widening is exact.

    `a` is float16, float32, float64 or bf16 patterns in uint16; `to` is f16, bf16, f32 or f64, whose results have those
    dtypes. `rounding` rn, rz, rm, rp, rna. Overflow gives infinity (in rz, and in the mode that points to zero, the
    largest value); `satfinite` the largest value. `sat` clamps to [+0, 1], `relu` gives +0 for negative values, `ftz`
    flushes a subnormal f32 source or result. NaN gives the canonical NaN; from and to f64 it keeps its sign and upper
    payload and becomes quiet; bf16 to f32, and a format to itself for f32 and f64, only move bits (measured on an
    H200). 65520.0f to f16 is infinity in rn and 0x7bff in rz. Raises RefsimError for an unknown name. Source: PTX ISA,
    cvt; tf32 and the narrow formats are in refsim.conversions.
    """
    check_named("rounding", rounding, CONVERSION_MODIFIERS)
    source, target = kind_of(a), _target(to)
    if (source, target) in _MOVES and not (ftz or sat or relu):
        return widen(a, source)
    # Hardware ignores .ftz from f32 to f16: 0x00000001 in rp gives 0x0001 on an H200.
    flush = ftz and source is SINGLE and target is not HALF
    values = widen(with_nan(flushed(a, source), (), source) if flush else a, source)
    if sat:
        values = saturated(values)
    elif relu:
        values = rectified(values)
    result = _as_kind(values, target, rounding, satfinite=satfinite)
    return flushed_result(result, lambda: values, rounding, SINGLE) if ftz and target is SINGLE else result


def _target(to: str) -> FloatKind:
    """Return the kind of a target format by its name; raise RefsimError for an unknown name."""
    return named("target format", to, _TARGETS)


def _as_kind(values: Array, target: FloatKind, rounding: ConversionModifier, *, satfinite: bool = False) -> Array:
    """Return float32 or float64 values rounded to `target`; a NaN from or to f64 keeps its sign and upper payload."""
    wide = values.dtype == np.float64
    if target is DOUBLE:
        result: Array = values.astype(np.float64)
    else:
        result = round_bits(values, format_named(target.name), PTX_ROUNDINGS[rounding], satfinite=satfinite).view(
            target.dtype
        )
    nan = np.isnan(values) if wide or target is DOUBLE else None
    if nan is None or not nan.any():
        return result
    moved = _moved_nan(values, DOUBLE if wide else SINGLE, target)
    kept: Array = np.where(nan, moved, result.view(target.unsigned)).view(target.dtype)
    return kept


def _moved_nan(a: Array, source: FloatKind, target: FloatKind) -> Array:
    """Return the quiet NaN of `target` with the sign of `a` and the upper bits of its payload."""
    bits = a.view(source.unsigned).astype(np.uint64)
    fraction = (bits & np.uint64((1 << source.mantissa_bits) - 1)) << np.uint64(52 - source.mantissa_bits)
    payload = (fraction | np.uint64(1 << 51)) >> np.uint64(52 - target.mantissa_bits)
    sign = np.where(np.signbit(a), np.uint64(target.sign), np.uint64(0))
    moved: Array = (sign | np.uint64(target.infinity) | payload).astype(target.unsigned)
    return moved


@np.errstate(all="ignore")
def round_to_integral(a: Array, rounding: IntegralModifier, *, ftz: bool = False, sat: bool = False) -> Array:
    """Return the nearest integer as a float of equal format: rni (ties to even), rzi, rmi, rpi; a zero keeps its sign.

    Dtypes as for add; `ftz` (f32) flushes a subnormal operand, `sat` clamps to [+0, 1]. -0.5 in rzi is -0. Raises
    RefsimError for an unknown rounding. Source: PTX ISA, cvt with an integer rounding modifier.
    """
    integral = _integral(rounding)
    kind = kind_of(a)
    values = integral(widen(flushed(a, kind) if ftz and kind is SINGLE else a, kind))
    return with_nan(narrow(saturated(values) if sat else values, kind), (a,), kind)


@np.errstate(all="ignore")
def float_to_integer(a: Array, to: DTypeLike, rounding: IntegralModifier, *, ftz: bool = False) -> Array:
    """Return the value rounded to an integer and clamped to the range of the integer dtype `to`.

    Dtypes of `a` as for add. `rounding` rni (ties to even), rzi, rmi, rpi; `ftz` (f32) flushes a subnormal operand. NaN
    gives 0; from f64, and to 64 bits from any format, it gives the pattern with the top bit alone. 300.5f in rzi to
    uint8 is 255. Raises RefsimError for an unknown rounding or a dtype that is no integer. Source: PTX ISA, cvt.
    """
    target = np.dtype(to)
    if target.kind not in "iu":
        raise RefsimError("bad-dtype", f"{target} is not an integer type", rule="PTX ISA, cvt to .u8 to .s64")
    kind = kind_of(a)
    integral = _integral(rounding)
    exact: NDArray[np.float64] = widen(flushed(a, kind) if ftz and kind is SINGLE else a, kind).astype(np.float64)
    values = integral(exact)
    limits = np.iinfo(target)
    # float64 does not hold the largest 64-bit integers, but holds them plus one; below that the cast is exact.
    above, below = values >= float(limits.max) + (target.itemsize < 8), values < float(limits.min)
    inside = np.where(above | below | np.isnan(values), 0.0, values).astype(target)
    result: Array = np.where(above, target.type(limits.max), np.where(below, target.type(limits.min), inside))
    nan = is_nan(a, kind)
    if not nan.any():
        return result
    top_bit = kind is DOUBLE or target.itemsize == 8
    pattern = np.array([1 << (8 * target.itemsize - 1) if top_bit else 0], f"u{target.itemsize}")
    replaced: Array = np.where(nan, pattern.view(target), result)
    return replaced


@np.errstate(all="ignore")
def integer_to_float(a: Array, to: str, rounding: RoundingModifier = NEAREST, *, sat: bool = False) -> Array:
    """Return each integer as a number of the format `to`, rounded once.

    `a` has an integer dtype of 8 to 64 bits; `to` is f16, bf16, f32 or f64, whose results are float16, uint16 patterns,
    float32 and float64. `rounding` rn, rz, rm, rp; `sat` clamps to [+0, 1]. 2^63 + 2^39 + 1 to f32 in rn is 2^63 +
    2^40, where a detour over float64 gives 2^63. Raises RefsimError for an unknown name. Source: PTX ISA, cvt.
    """
    check_named("rounding", rounding, ROUNDING_MODIFIERS)
    target = _target(to)
    kind = getattr(a, "dtype", None)
    if kind is None or kind.kind not in "iu":
        what = f"{kind or type(a).__name__} is not a type of integers"
        raise RefsimError("bad-dtype", what, rule="PTX ISA, cvt from .u8 to .s64")
    if sat:
        a = np.clip(a, 0, 1)
    if target is not DOUBLE:
        return round_bits(a, format_named(to), PTX_ROUNDINGS[rounding]).view(target.dtype)
    nearest = a.astype(np.float64)
    if rounding == NEAREST or a.dtype.itemsize < 8:
        return nearest
    # float64 holds both halves and the part that the rounding of their sum loses: |low| < 2^32 <= |high|, or high is 0.
    high = (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return stepped(nearest, side(nearest, low - (nearest - high), nearest), rounding, DOUBLE)


def _integral(rounding: IntegralModifier) -> Callable[[Array], Array]:
    return named("integer rounding", rounding, INTEGRAL)
