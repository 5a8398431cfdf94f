"""add, sub, mul, div, rcp, sqrt: NumPy's nearest result, then one exact step for the directed modes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refsim.errors import RefsimError
from refsim.numerics.ieee.exact import ordered_sum_error, product, side, sign_of, stepped, sum_error
from refsim.numerics.ieee.patterns import (
    BRAIN,
    DOUBLE,
    HALF,
    NEAREST,
    SINGLE,
    Array,
    FloatKind,
    RoundingModifier,
    Signs,
    check_rounding,
    flushed,
    flushed_result,
    kind_of,
    narrow,
    rectified,
    saturated,
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
    directed: Array = np.where(cancelled, result.dtype.type(-0.0), result)
    return directed


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
