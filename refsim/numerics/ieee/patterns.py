"""The arrays of the arithmetic: one dtype per format, special values and flushing by bit pattern."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, F16, F32, Format
from refsim.sources import IEEE754, PTX, Source

Array = NDArray[Any]
Signs = NDArray[np.int8]

RoundingModifier = Literal["rn", "rz", "rm", "rp"]
ConversionModifier = Literal["rn", "rz", "rm", "rp", "rna"]
IntegralModifier = Literal["rni", "rzi", "rmi", "rpi"]
NEAREST: Final = "rn"
ROUNDING_MODIFIERS: tuple[RoundingModifier, ...] = get_args(RoundingModifier)
CONVERSION_MODIFIERS: tuple[ConversionModifier, ...] = get_args(ConversionModifier)
_QUIET = np.uint64(1 << 51)


@dataclass(frozen=True)
class FloatKind:
    """Describe a float format in NumPy: bf16 as uint16 patterns, the others in their own dtype.

    `nan` is the pattern of the NaN that an instruction writes, `infinity` the pattern of +infinity, `sign` the sign
    bit. 16-bit kinds are computed in float32. For f32: 0x7fffffff, 0x7f800000, 0x80000000.
    """

    name: str
    dtype: np.dtype[Any]
    unsigned: np.dtype[Any]
    signed: np.dtype[Any]
    mantissa_bits: int
    infinity: int
    nan: int
    source: Source

    @property
    def sign(self) -> int:
        """Return the sign bit of a pattern."""
        return 1 << (8 * self.dtype.itemsize - 1)


def _narrow_kind(format: Format, dtype: type, source: Source) -> FloatKind:
    """Return the kind of a format whose array type is `dtype`."""
    width = np.dtype(dtype).itemsize
    infinity, nan = format.infinity_code, format.nan_code
    assert infinity is not None
    assert nan is not None
    words, numbers = np.dtype(f"u{width}"), np.dtype(f"i{width}")
    return FloatKind(format.name, np.dtype(dtype), words, numbers, format.mantissa_bits, infinity, nan, source)


HALF = _narrow_kind(F16, np.float16, PTX["half precision floating point instructions"])
BRAIN = _narrow_kind(BF16, np.uint16, PTX["alternate floating point data formats"])
SINGLE = _narrow_kind(F32, np.float32, PTX["floating point instructions"])
_OF_64_BITS = np.dtype(np.float64), np.dtype(np.uint64), np.dtype(np.int64)
DOUBLE = FloatKind("f64", *_OF_64_BITS, 52, 0x7FF << 52, 0xFFF8 << 48, IEEE754["binary64"])
KINDS = (HALF, BRAIN, SINGLE, DOUBLE)
_BY_DTYPE = {kind.dtype: kind for kind in KINDS}


def kind_of(*operands: Array) -> FloatKind:
    """Return the kind of the operands, which all have one dtype; raise RefsimError for another dtype or a mixture."""
    types: list[Any] = [getattr(operand, "dtype", type(operand).__name__) for operand in operands]
    kind = _BY_DTYPE.get(types[0])
    if kind is None or any(each != kind.dtype for each in types):
        bare = next((each for each in operands if isinstance(each, int | float)), None)
        raise RefsimError(
            "bad-dtype",
            f"no arithmetic on {', '.join(map(str, types))}",
            rule="the operands are all float16, all float32, all float64, or all bf16 patterns in uint16",
            help="view the register's bits as the instruction's type first"
            if bare is None
            else f"a number of Python has no width: np.float32({bare!r}) is one of f32",
        )
    return kind


def check_rounding(rounding: RoundingModifier, kind: FloatKind) -> None:
    """Raise RefsimError unless the kind's arithmetic has this rounding: f16 and bf16 have rn alone."""
    check_named("rounding", rounding, ROUNDING_MODIFIERS)
    if rounding != NEAREST and kind in (HALF, BRAIN):
        raise RefsimError("bad-modifier", f"{kind.name} arithmetic has no .{rounding}", rule="PTX ISA: .rn alone")


def widen(a: Array, kind: FloatKind) -> Array:
    """Return the values to compute with: float32 for f16 and bf16 (exact), the array itself otherwise."""
    if kind is BRAIN:
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float32) if kind is HALF else a


def narrow(values: Array, kind: FloatKind) -> Array:
    """Return the computed values as the kind's own array, rounded to nearest even if it is narrower."""
    if kind is BRAIN:
        return round_bits(values, BF16)
    return round_bits(values, F16).view(np.float16) if kind is HALF else values


def is_nan(a: Array, kind: FloatKind) -> NDArray[np.bool_]:
    """Return where the pattern is a NaN, of either sign and any payload."""
    if kind is BRAIN:
        a = (a.astype(np.uint32) << 16).view(np.float32)
    return np.isnan(a)


def flushed(a: Array, kind: FloatKind) -> Array:
    """Return the numbers with every subnormal replaced by a zero of its sign: 0x80000001 gives 0x80000000."""
    bits = a.view(kind.unsigned)
    exponent = kind.unsigned.type(kind.infinity)
    subnormal = (bits & exponent) == 0
    if not subnormal.any():
        return a
    return np.where(subnormal, bits & kind.unsigned.type(kind.sign), bits).view(kind.dtype)


def flushed_result(result: Array, exact: Callable[[], Array], rounding: ConversionModifier, kind: FloatKind) -> Array:
    """Return results with numbers below the smallest normal number replaced by zeros of their sign, as .ftz does.

    "Below" refers to the result rounded with an unbounded exponent range (measured on an H200). So 2^-126 in f32 stays
    if it is the rounding of 2^-126 (1 - 2^-26). It becomes 0 if it came from 2^-126 (1 - 2^-24), a value with 24 bits
    of its own that only the coarser subnormal unit rounds up. `exact` returns the exact values, or float64 values that
    compare like them with every number of at most 26 bits; it is called only where a result is the smallest normal
    number.
    """
    result = flushed(result, kind)
    bits = result.view(kind.unsigned)
    smallest = (bits & kind.unsigned.type(kind.sign - 1)) == (1 << kind.mantissa_bits)
    if not smallest.any():
        return result
    normal = 2.0 ** (1 - (kind.infinity >> (kind.mantissa_bits + 1)))
    unit = 2.0 ** -(kind.mantissa_bits + 1)
    values = np.abs(exact().astype(np.float64))
    tiny = values < normal * (1 - unit / 2) if rounding == NEAREST else values <= normal * (1 - unit)
    return np.where(smallest & tiny, bits & kind.unsigned.type(kind.sign), bits).view(kind.dtype)


def with_nan(result: Array, operands: tuple[Array, ...], kind: FloatKind) -> Array:
    """Return results with NaN as the hardware writes it: the kind's canonical NaN, or for f64 the NaN of an operand.

    PTX does not specify the NaN of f32, and supports payloads in f64 without saying whose. Measured on an H200: f32
    gives 0x7fffffff, f16 and bf16 0x7fff; f64 gives the NaN operand with its quiet bit set, an invalid operation
    0xfff8000000000000. `operands` come in rising priority: the last NaN wins.
    """
    nan = is_nan(result, kind)
    if not nan.any():
        return result
    pattern: Array = np.full(result.shape, kind.nan, kind.unsigned)
    if kind is DOUBLE:
        for operand in operands:
            pattern = np.where(np.isnan(operand), operand.view(np.uint64) | _QUIET, pattern)
    return np.where(nan, pattern, result.view(kind.unsigned)).view(kind.dtype)


def saturated(values: Array) -> Array:
    """Return values clamped to [+0, 1]: NaN, -0 and negative values give +0."""
    return np.asarray(np.where(values > 0, np.minimum(values, values.dtype.type(1)), values.dtype.type(0)))


def rectified(values: Array) -> Array:
    """Return values with negative values and -0 replaced by +0; NaN stays."""
    return np.where(values <= 0, values.dtype.type(0), values)


Doubles = NDArray[np.float64]
_SPLITTER = float((1 << 27) + 1)


def sign_of(a: Array, b: Array) -> Signs:
    """Return the sign of a - b as -1, 0, 1; 0 where either is NaN."""
    return (a > b).astype(np.int8) - (a < b).astype(np.int8)


def sum_error(a: Array, b: Array, total: Array) -> Array:
    """Return the part that total = fl(a + b) lost: exact for finite a, b unless an intermediate overflows (TwoSum).

    For float64 operands that stay below 2^1022 (from float32, or guarded) nothing overflows. Source: Knuth.
    """
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def ordered_sum_error(a: Array, b: Array, total: Array) -> Array:
    """Return sum_error without overflow for a finite total: the larger operand is subtracted first (Dekker).

    A total that overflowed gives an infinity of the opposite sign, the side on which the exact sum lies.
    """
    swap = np.abs(a) < np.abs(b)
    large, small = np.where(swap, b, a), np.where(swap, a, b)
    return np.asarray(small - (total - large))


def product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return high + low = a * b exactly (Dekker, Veltkamp's split in 26 bits).

    Callers keep |a|, |b| within 2^-400 to 2^400, or scaled to about 1: no partial product then leaves the range, and
    the low part, at least 2^-106 of the product, is representable.
    """
    high = a * b
    scaled, other = a * _SPLITTER, b * _SPLITTER
    a_high, b_high = scaled - (scaled - a), other - (other - b)
    a_low, b_low = a - a_high, b - b_high
    return high, a_low * b_low - (((high - a_high * b_high) - a_low * b_high) - a_high * b_low)


def side(high: Array, low: Array | float, result: Array) -> Signs:
    """Return the sign of (high + low) - result, where high is the sum rounded to nearest; 0 if any is NaN."""
    zero = np.float64(0)
    return np.where(high == result, sign_of(np.asarray(low), np.asarray(zero)), sign_of(high, result)).astype(np.int8)


def stepped(nearest: Array, excess: Signs, rounding: ConversionModifier, kind: FloatKind) -> Array:
    """Return the result in a directed mode, from the nearest result and the sign of exact - nearest.

    A nearest result of 0 that is inexact has the sign of the exact value, so its magnitude only ever grows. With 1 +
    2^-30 in f32: nearest 0x3f800000, excess +1, rp gives 0x3f800001, rz and rm leave it.
    """
    negative = np.signbit(nearest)
    if rounding == "rz":
        step = -((excess != 0) & ((excess > 0) == negative)).astype(kind.signed)
    else:
        moves = (excess < 0) if rounding == "rm" else (excess > 0)
        grows = negative if rounding == "rm" else ~negative
        step = np.where(grows, moves.astype(kind.signed), -moves.astype(kind.signed))
    moved: NDArray[Any] = nearest.view(kind.signed) + step
    return moved.view(kind.dtype)
