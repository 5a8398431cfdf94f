"""add, sub, mul, div, rcp, sqrt: NumPy's nearest result, then one exact step for the directed modes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from refsim.conversions import PTX_ROUNDINGS, round_bits
from refsim.errors import RefsimError, check_named, named
from refsim.formats import format_named
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
    Signs,
    check_rounding,
    flushed,
    flushed_result,
    is_nan,
    kind_of,
    narrow,
    ordered_sum_error,
    product,
    rectified,
    saturated,
    side,
    sign_of,
    stepped,
    sum_error,
    widen,
    with_nan,
)


def check_modifiers(kind: FloatKind, *, ftz: bool, sat: bool, relu: bool = False) -> None:
    """Raise RefsimError for a modifier that the kind's instructions lack."""
    if ftz and kind not in (SINGLE, HALF):
        raise RefsimError("bad-modifier", f"{kind.name} has no .ftz", rule="PTX ISA: .ftz belongs to f32 and f16")
    if sat and kind not in (SINGLE, HALF):
        raise RefsimError("bad-modifier", f"{kind.name} has no .sat", rule="PTX ISA: .sat belongs to f32 and f16")
    if relu and (sat or kind not in (HALF, BRAIN)):
        what = f".relu on {kind.name}, sat={sat}"
        raise RefsimError("bad-modifier", what, rule="PTX ISA, fma: .relu belongs to f16 and bf16, without .sat")


def finished(values: Array, operands: tuple[Array, ...], kind: FloatKind, *, sat: bool, relu: bool = False) -> Array:
    """Return the register's value: saturated, rounded to the kind, NaN as the hardware writes it.

    `operands` are the arrays whose NaN f64 passes on, in rising priority. Saturating before rounding gives equal
    results: 0 and 1 are representable and rounding is monotonic.
    """
    if sat:
        values = saturated(values)
    elif relu:
        values = rectified(values)
    return with_nan(narrow(values, kind), operands, kind)


@dataclass(frozen=True)
class _Operation:
    """Describe one operation: its nearest result, and the facts for directed modes and the NaN of f64.

    `single_excess` and `double_excess` give the sign of exact - nearest. `cancels` says for which signs of the operands
    an exact zero is -0 in rm (None: it has the sign of the nearest result). `priority` orders the operands for
    with_nan.
    """

    nearest: Callable[..., Array]
    single_excess: Callable[..., Signs]
    double_excess: Callable[..., Signs]
    cancels: Callable[[Array, Array], Array] | None = None
    priority: tuple[int, ...] = (0, 1)


def _double(*arrays: Array) -> tuple[Array, ...]:
    return tuple(array.astype(np.float64) for array in arrays)


def _add_excess(a: Array, b: Array, result: Array) -> Signs:
    # Sums of float32 in float64 stay below 2^129, so sum_error is exact.
    a, b, result = _double(a, b, result)
    total = a + b
    return side(total, sum_error(a, b, total), result)


def _add_double_excess(a: Array, b: Array, result: Array) -> Signs:
    return sign_of(ordered_sum_error(a, b, result), np.zeros(1))


def _mul_excess(a: Array, b: Array, result: Array) -> Signs:
    # 24 + 24 bits fit in 53, and exponents from -298 to 256 fit as well: the product in float64 is exact.
    a, b, result = _double(a, b, result)
    return sign_of(a * b, result)


def _mul_double_excess(a: Array, b: Array, result: Array) -> Signs:
    # The fractions are in [1/2, 1); scaling the result by the removed powers of two is exact because it is at least
    # as large as the result itself or the result is near 1 already.
    (x, x_power), (y, y_power) = np.frexp(a), np.frexp(b)
    return side(*product(x, y), np.ldexp(result, -(x_power + y_power)))


def _div_excess(a: Array, b: Array, result: Array) -> Signs:
    # exact - result = (a - result * b) / b, and result * b has at most 48 bits: exact in float64.
    a, b, result = _double(a, b, result)
    return sign_of(a, result * b) * np.where(np.signbit(b), np.int8(-1), np.int8(1))


def _div_double_excess(a: Array, b: Array, result: Array) -> Signs:
    (x, x_power), (y, y_power) = np.frexp(a), np.frexp(b)
    back = product(np.ldexp(result, y_power - x_power), y)
    return -side(*back, x) * np.where(np.signbit(b), np.int8(-1), np.int8(1))


def _sqrt_excess(a: Array, result: Array) -> Signs:
    a, result = _double(a, result)
    return sign_of(a, result * result)


def _sqrt_double_excess(a: Array, result: Array) -> Signs:
    x, power = np.frexp(a)
    odd = power & 1
    scaled = np.ldexp(result, -((power - odd) >> 1))
    return -side(*product(scaled, scaled), np.ldexp(x, odd))


_ADD = _Operation(np.add, _add_excess, _add_double_excess, cancels=np.not_equal)
_SUB = _Operation(
    np.subtract,
    lambda a, b, result: _add_excess(a, -b, result),
    lambda a, b, result: _add_double_excess(a, -b, result),
    cancels=np.equal,
)
_MUL = _Operation(np.multiply, _mul_excess, _mul_double_excess)
_DIV = _Operation(np.divide, _div_excess, _div_double_excess, priority=(1, 0))
_SQRT = _Operation(np.sqrt, _sqrt_excess, _sqrt_double_excess, priority=(0,))


def _rounded(operation: _Operation, operands: tuple[Array, ...], rounding: RoundingModifier, kind: FloatKind) -> Array:
    # f16 and bf16 are computed in float32 and rounded again: 24 bits are at least 2p + 2 for p = 11 and p = 8, which
    # makes the second rounding harmless for sums and products (Figueroa). In the subnormal range of f16 both are exact
    # in float32. In bf16's range sums are exact, and float32 keeps 16 bits more, as many as a product has.
    nearest = operation.nearest(*operands)
    if rounding == NEAREST:
        return nearest
    excess = operation.double_excess if kind is DOUBLE else operation.single_excess
    result = stepped(nearest, excess(*operands, nearest), rounding, kind)
    if rounding != "rm" or operation.cancels is None:
        return result
    cancelled = (result == 0) & operation.cancels(*(np.signbit(operand) for operand in operands))
    return np.where(cancelled, result.dtype.type(-0.0), result)


def _entry(
    operation: _Operation,
    operands: tuple[Array, ...],
    rounding: RoundingModifier,
    *,
    ftz: bool = False,
    sat: bool = False,
) -> Array:
    """Check operands and modifiers, then return the operation's result."""
    kind = kind_of(*operands)
    check_rounding(rounding, kind)
    check_modifiers(kind, ftz=ftz, sat=sat)
    if ftz:
        operands = tuple(flushed(operand, kind) for operand in operands)
    wide = tuple(widen(operand, kind) for operand in operands)
    values = _rounded(operation, wide, rounding, kind)
    result = finished(values, tuple(operands[i] for i in operation.priority), kind, sat=sat)
    if not ftz:
        return result
    # Near the smallest normal number, sums and products are exact in float64, and a quotient of 24-bit numbers that is
    # not a number of 26 bits is 2^-51 away from it, more than its rounding to float64 moves it.
    return flushed_result(result, lambda: operation.nearest(*_double(*wide)), rounding, kind)


@np.errstate(all="ignore")
def add(a: Array, b: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False, sat: bool = False) -> Array:
    """Return a + b, rounded once. In rm an exact zero of operands with different signs is -0.

    Arrays of one dtype (float16, float32, float64, bf16 as uint16 patterns) that broadcast; the result has that dtype.
    `rounding` rn, rz, rm, rp (f16 and bf16: rn). `ftz` (f32, f16) flushes subnormal operands and results, `sat` (f32,
    f16) clamps to [+0, 1] with NaN giving +0. 1.0f + 2^-30 in rp is 0x3f800001. Raises RefsimError for a dtype,
    rounding or modifier that the instruction lacks. Source: PTX ISA, add; IEEE 754 section 6.3.
    """
    return _entry(_ADD, (a, b), rounding, ftz=ftz, sat=sat)


@np.errstate(all="ignore")
def sub(a: Array, b: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False, sat: bool = False) -> Array:
    """Return a - b, rounded once: the sum of a and b with its sign turned. Arguments, errors and source as for add."""
    return _entry(_SUB, (a, b), rounding, ftz=ftz, sat=sat)


@np.errstate(all="ignore")
def mul(a: Array, b: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False, sat: bool = False) -> Array:
    """Return a * b, rounded once: 0x00000001 squared in rp is 0x00000001. Errors as for add; PTX ISA, mul."""
    return _entry(_MUL, (a, b), rounding, ftz=ftz, sat=sat)


@np.errstate(all="ignore")
def div(a: Array, b: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False) -> Array:
    """Return a / b for f32 and f64, rounded once: 1 / 3 in rp is 0x3eaaaaab. Errors as for add; PTX ISA, div."""
    _only_wide("div", a)
    return _entry(_DIV, (a, b), rounding, ftz=ftz)


@np.errstate(all="ignore")
def rcp(a: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False) -> Array:
    """Return 1 / a for f32 and f64, rounded once; -0 gives -infinity. Errors as for add; PTX ISA, rcp with .rnd."""
    _only_wide("rcp", a)
    return _entry(_DIV, (np.ones((), a.dtype), a), rounding, ftz=ftz)


@np.errstate(all="ignore")
def sqrt(a: Array, rounding: RoundingModifier = NEAREST, *, ftz: bool = False) -> Array:
    """Return the square root for f32 and f64, rounded once; -0 stays, below 0 it is NaN. PTX ISA, sqrt with .rnd."""
    _only_wide("sqrt", a)
    return _entry(_SQRT, (a,), rounding, ftz=ftz)


def _only_wide(name: str, a: Array) -> None:
    if kind_of(a) not in (SINGLE, DOUBLE):
        raise RefsimError("bad-dtype", f"{name} does not take {a.dtype}", rule=f"PTX ISA, {name}: f32 and f64")


_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMPARISONS = (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan")


@np.errstate(all="ignore")
def minimum(
    *operands: Array, ftz: bool = False, nan: bool = False, xorsign: bool = False, absolute: bool = False
) -> Array:
    """Return the smallest of two or three operands, -0 below +0; NaN only if all are NaN, or with `nan` if any is.

    Arrays of one dtype as for add. `ftz` (f32, f16) flushes subnormal operands. `absolute` takes magnitudes first
    (.abs). `xorsign` then gives a result other than NaN the exclusive or of the operands' signs (.xorsign.abs, two
    operands). min(-0, +0) is -0. Raises RefsimError for another number of operands. Source: PTX ISA, min.
    """
    kind, terms = _terms(operands, ftz=ftz, xorsign=xorsign, absolute=absolute)
    return _extremum(_SMALLEST, terms, kind, nan=nan, signs=operands if xorsign else ())


@np.errstate(all="ignore")
def maximum(
    *operands: Array, ftz: bool = False, nan: bool = False, xorsign: bool = False, absolute: bool = False
) -> Array:
    """Return the largest of two or three operands, +0 above -0; the rest as for minimum. PTX ISA, max."""
    kind, terms = _terms(operands, ftz=ftz, xorsign=xorsign, absolute=absolute)
    return _extremum(_LARGEST, terms, kind, nan=nan, signs=operands if xorsign else ())


def _terms(
    operands: tuple[Array, ...], *, ftz: bool, xorsign: bool, absolute: bool
) -> tuple[FloatKind, tuple[Array, ...]]:
    """Return the kind of the operands, and the operands flushed and made absolute as the modifiers say."""
    if len(operands) not in (2, 3) or (xorsign and not (absolute and len(operands) == 2)):
        what = f"{len(operands)} operands with xorsign={xorsign}, absolute={absolute}"
        rule = "PTX ISA, min and max: two operands, or three; .xorsign comes with .abs and two operands"
        raise RefsimError("operand-count", what, rule=rule)
    kind = kind_of(*operands)
    check_modifiers(kind, ftz=ftz, sat=False)
    if ftz:
        operands = tuple(flushed(operand, kind) for operand in operands)
    return kind, tuple(_magnitude(operand, kind) for operand in operands) if absolute else operands


@dataclass(frozen=True)
class _Choice:
    """Describe the choice of an instruction: of two floats (a NaN if there is one), and of two zeros by their bits."""

    of_floats: Callable[[Array, Array], Array]
    of_zeros: Callable[[Array, Array], Array]


# NumPy does not order -0 and +0. -0 | +0 is -0, the smaller; -0 & +0 is +0.
_SMALLEST = _Choice(np.minimum, np.bitwise_or)
_LARGEST = _Choice(np.maximum, np.bitwise_and)


def _extremum(
    choice: _Choice, terms: tuple[Array, ...], kind: FloatKind, *, nan: bool, signs: tuple[Array, ...]
) -> Array:
    """Return the extremum of all terms; with `signs` a number gets the exclusive or of their signs."""
    wide = [_as_floats(term, kind) for term in terms]
    chosen = wide[0]
    for term in wide[1:]:
        chosen = _chosen(choice, chosen, term, nan)
    if kind is BRAIN:
        chosen = (chosen.view(np.uint32) >> 16).astype(np.uint16)
    result = with_nan(chosen, terms, kind)
    if not signs:
        return result
    a, b = (operand.view(kind.unsigned) for operand in signs)
    sign = np.where(is_nan(result, kind), 0, (a ^ b) & kind.unsigned.type(kind.sign)).astype(kind.unsigned)
    return np.asarray((result.view(kind.unsigned) | sign).view(kind.dtype))


def _as_floats(a: Array, kind: FloatKind) -> Array:
    return widen(a, kind) if kind is BRAIN else a


def _chosen(choice: _Choice, a: Array, b: Array, nan: bool) -> Array:
    result = choice.of_floats(a, b)
    if not result.all():
        unsigned = f"u{a.dtype.itemsize}"
        zeros: Array = choice.of_zeros(a.view(unsigned), b.view(unsigned)).view(a.dtype)
        result = np.where((a == 0) & (b == 0), zeros, result)
    # numpy.fmin would ignore NaN, but takes a signalling one for a number in some lanes and not in others.
    if nan or not np.isnan(result).any():
        return result
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))


def _magnitude(a: Array, kind: FloatKind) -> Array:
    return np.asarray((a.view(kind.unsigned) & kind.unsigned.type(kind.sign - 1)).view(kind.dtype))


@np.errstate(all="ignore")
def absolute(a: Array, *, ftz: bool = False) -> Array:
    """Return the operand with its sign bit cleared; an f64 NaN keeps its sign, as in arithmetic (measured on an H200).

    `ftz` (f32, f16) flushes a subnormal. -1.0f gives 0x3f800000. Source: PTX ISA, abs.
    """
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    return with_nan(_magnitude(flushed(a, kind) if ftz else a, kind), (a,), kind)


@np.errstate(all="ignore")
def negate(a: Array, *, ftz: bool = False) -> Array:
    """Return the operand with its sign bit turned; an f64 NaN keeps its sign, as in arithmetic (measured on an H200).

    `ftz` (f32, f16) flushes a subnormal. +0.0f gives 0x80000000. Source: PTX ISA, neg.
    """
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    bits = (flushed(a, kind) if ftz else a).view(kind.unsigned) ^ kind.unsigned.type(kind.sign)
    return with_nan(bits.view(kind.dtype), (a,), kind)


@np.errstate(all="ignore")
def compare(comparison: str, a: Array, b: Array, *, ftz: bool = False) -> NDArray[np.bool_]:
    """Return whether the comparison of setp holds, lane by lane.

    eq ne lt le gt ge are false where an operand is NaN; equ neu ltu leu gtu geu are true there; num is true where
    neither is NaN, nan where one is. Arrays of one dtype as for add; -0 equals +0. `ftz` (f32, f16) compares subnormal
    operands as zeros. compare("ne", NaN, 1) is False. Raises RefsimError for another name or dtype.
    Source: PTX ISA, floating point comparisons.
    """
    check_named("comparison", comparison, COMPARISONS)
    kind = kind_of(a, b)
    check_modifiers(kind, ftz=ftz, sat=False)
    if ftz:
        a, b = flushed(a, kind), flushed(b, kind)
    x, y = widen(a, kind), widen(b, kind)
    if comparison in _ORDERED and comparison != "ne":
        return _ORDERED[comparison](x, y)
    unordered: NDArray[np.bool_] = np.isnan(x) | np.isnan(y)
    match comparison:
        case "nan":
            holds = unordered
        case "num":
            holds = ~unordered
        case "ne":
            holds = (x != y) & ~unordered
        case _:
            holds = _ORDERED[comparison[:-1]](x, y) | unordered
    return holds


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
    return np.where(nan, moved, result.view(target.unsigned)).view(target.dtype)


def _moved_nan(a: Array, source: FloatKind, target: FloatKind) -> Array:
    """Return the quiet NaN of `target` with the sign of `a` and the upper bits of its payload."""
    bits = a.view(source.unsigned).astype(np.uint64)
    fraction = (bits & np.uint64((1 << source.mantissa_bits) - 1)) << np.uint64(52 - source.mantissa_bits)
    payload = (fraction | np.uint64(1 << 51)) >> np.uint64(52 - target.mantissa_bits)
    sign = np.where(np.signbit(a), np.uint64(target.sign), np.uint64(0))
    return (sign | np.uint64(target.infinity) | payload).astype(target.unsigned)


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
    return np.where(nan, pattern.view(target), result)


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
