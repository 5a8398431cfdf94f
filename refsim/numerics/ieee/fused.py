"""fma: one rounding of a * b + c, by error-free operations where they are exact, by integers elsewhere."""

import math

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import round_to_odd
from refsim.conversions.rounding import float32_to_odd
from refsim.numerics.ieee.arithmetic import check_modifiers, finished
from refsim.numerics.ieee.patterns import (
    DOUBLE,
    NEAREST,
    SINGLE,
    Array,
    Doubles,
    RoundingModifier,
    check_rounding,
    flushed,
    flushed_result,
    kind_of,
    product,
    side,
    stepped,
    sum_error,
    widen,
)

_MAGNITUDE, _SMALLEST_NORMAL = np.uint32(0x7FFFFFFF), np.uint32(0x00800000)


@np.errstate(all="ignore")
def fma(
    a: Array,
    b: Array,
    c: Array,
    rounding: RoundingModifier = NEAREST,
    *,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> Array:
    """Return a * b + c, rounded once.

    Arrays of one dtype (float16, float32, float64, bf16 as uint16 patterns) that broadcast; the result has that dtype.
    `rounding` rn, rz, rm, rp (f16 and bf16: rn). `ftz` and `sat` (f32, f16) as for add; `relu` (f16, bf16) turns
    negative results and -0 into +0. In f32, (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, where two roundings give 0. Raises
    RefsimError for a dtype, rounding or modifier that the instruction lacks. Source: PTX ISA, fma.
    """
    kind = kind_of(a, b, c)
    check_rounding(rounding, kind)
    check_modifiers(kind, ftz=ftz, sat=sat, relu=relu)
    if ftz:
        a, b, c = flushed(a, kind), flushed(b, kind), flushed(c, kind)
    if kind is DOUBLE:
        return finished(_fma_double(*_three(a, b, c), rounding), (a, c, b), kind, sat=sat, relu=relu)
    x, y, z = (widen(operand, kind).astype(np.float64) for operand in (a, b, c))
    values = _fma_single(x, y, z, rounding) if kind is SINGLE else float32_to_odd(_odd_sum(x, y, z))
    result = finished(values, (a, c, b), kind, sat=sat, relu=relu)
    return flushed_result(result, lambda: _odd_sum(x, y, z), rounding, kind) if ftz else result


def fma_to_nearest(a: Array, b: Array, c: Array) -> Array:
    """Return `fma` of float32 without modifiers, except that a NaN is NumPy's own."""
    return _fma_single(a.astype(np.float64), b.astype(np.float64), c.astype(np.float64), NEAREST)


def _three(a: Doubles, b: Doubles, c: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    x, y, z = np.broadcast_arrays(a, b, c)
    return x, y, z


def _odd_sum(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Return a * b + c rounded to odd, for operands of at most 24 bits that come from float32.

    The product is exact. 53 bits keep a sticky bit for every narrower format: a further rounding to odd in float32 and
    a rounding to f16 or bf16 (24 bits are at least 11 + 2) give the rounding of the exact sum.
    """
    exact = a * b
    total = exact + c
    error = sum_error(exact, c, total)
    return round_to_odd(total, error) if error.any() else total


def _fma_single(a: Doubles, b: Doubles, c: Doubles, rounding: RoundingModifier) -> NDArray[np.float32]:
    # 24 + 24 bits fit in 53 and the exponents of float32 products fit, so the product is exact. Only the rounding of
    # the sum to float64 loses bits; sum_error recovers them, because nothing passes 2^257.
    exact = a * b
    total = exact + c
    result: NDArray[np.float32] = total.astype(np.float32)
    if rounding == NEAREST:
        return _without_double_rounding(result, exact, c, total)
    result = stepped(result, side(total, sum_error(exact, c, total), result.astype(np.float64)), rounding, SINGLE)
    if rounding == "rm":
        # total is 0 only where the exact sum is, float64 having no underflow here.
        return np.where((total == 0) & (np.signbit(exact) != np.signbit(c)), np.float32(-0.0), result)
    return result


def _without_double_rounding(
    result: NDArray[np.float32], exact: Doubles, c: Doubles, total: Doubles
) -> NDArray[np.float32]:
    """Return exact + c rounded once to float32; `total` is the sum in float64 and `result` the cast of `total`."""
    # The cast of `total` differs from the rounding of the exact sum only where `total` is a midpoint of two float32:
    # midpoints are float64 numbers, so rounding to float64 never carries a sum across one. A midpoint of normal
    # float32 has its low 29 bits 1 0...0; lanes up to the smallest normal result, where the unit no longer shrinks, are
    # all rounded again. 53 bits rounded to odd are at least 24 + 2: that rounding is then the only one (Boldo,
    # Melquiond).
    low = total.view(np.uint64) & np.uint64(0x1FFFFFFF)
    again = (low == 0x10000000) | ((result.view(np.uint32) & _MAGNITUDE) <= _SMALLEST_NORMAL)
    if not again.any():
        return result
    again &= total != 0  # a zero is exact: nothing underflows in float64
    if not again.any():
        return result
    exact, c = (each if each.shape == again.shape else np.broadcast_to(each, again.shape) for each in (exact, c))
    exact, c, total = exact[again], c[again], total[again]
    error = sum_error(exact, c, total)
    if error.any():  # else the sums are exact, and the cast was their only rounding
        result[again] = round_to_odd(total, error).astype(np.float32)
    return result


def _fma_double(a: Doubles, b: Doubles, c: Doubles, rounding: RoundingModifier) -> Doubles:
    """Return a * b + c in float64, rounded once: `_fma_pieces` for nearest in a safe range, else integers."""
    result = _with_special_operands(a, b, c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    rest = finite & ((a != 0) & (b != 0))
    if rounding == NEAREST:
        # |ab| within 2^-800 to 2^800 leaves an error of the product of at least 2^-906, and a nonzero sum is a
        # multiple of 2^-1005 at least: no piece and no result is subnormal or overflows.
        safe = rest & _within(a, 400) & _within(b, 400) & ((c == 0) | _within(c, 900))
        if safe.all():
            return _fma_pieces(a, b, c)
        result[safe] = _fma_pieces(a[safe], b[safe], c[safe])
        rest &= ~safe
    elif rounding == "rm":
        exact_zero = finite & ~rest & (result == 0)
        result[exact_zero & (np.signbit(a) ^ np.signbit(b) != np.signbit(c))] = -0.0
    for index in np.argwhere(rest):
        lane = tuple(index)
        result[lane] = fma_by_integers(float(a[lane]), float(b[lane]), float(c[lane]), rounding)
    return result


def _with_special_operands(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Return the result for an operand that is not finite or a zero factor; an infinite c wins over an overflow."""
    overflowed = np.isfinite(a) & np.isfinite(b) & np.isinf(c)
    return np.where(overflowed, c, a * b + c)


def _within(a: Doubles, power: int) -> NDArray[np.bool_]:
    magnitude = np.abs(a)
    return (magnitude >= math.ldexp(1.0, -power)) & (magnitude <= math.ldexp(1.0, power))


def _fma_pieces(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Return the nearest result by Boldo and Melquiond: three exact parts, the two small ones added to odd."""
    high, low = product(a, b)
    inner = c + low
    inner_error = sum_error(c, low, inner)
    outer = high + inner
    outer_error = sum_error(high, inner, outer)
    small = inner_error + outer_error
    return outer + round_to_odd(small, sum_error(inner_error, outer_error, small))


def fma_by_integers(a: float, b: float, c: float, rounding: RoundingModifier) -> float:
    """Return a * b + c for finite float64 as an integer times a power of two, rounded once.

    `rounding` rn, rz, rm, rp; a product or sum that is exactly zero takes its sign from IEEE 754 section 6.3. (1 +
    2^-52)^2 - 1 is 2^-51 + 2^-104, rounded 2^-51.
    """
    (x, x_power), (y, y_power), (z, z_power) = _integer(a), _integer(b), _integer(c)
    power = min(x_power + y_power, z_power)
    total = (x * y << (x_power + y_power - power)) + (z << (z_power - power))
    if total == 0:
        product_negative = math.copysign(1.0, a) * math.copysign(1.0, b) < 0
        if product_negative == (math.copysign(1.0, c) < 0):
            return -0.0 if product_negative else 0.0
        return -0.0 if rounding == "rm" else 0.0
    return _rounded_integer(total, power, rounding)


def _integer(a: float) -> tuple[int, int]:
    fraction, power = math.frexp(a)
    return int(math.ldexp(fraction, 53)), power - 53


def _rounded_integer(value: int, power: int, rounding: RoundingModifier) -> float:
    """Return value * 2^power as float64: 53 bits, the last of them never below 2^-1074."""
    sign, magnitude = (-1.0, -value) if value < 0 else (1.0, value)
    unit = max(magnitude.bit_length() + power - 53, -1074)
    shift = max(unit - power, 0)
    kept, rest = magnitude >> shift, magnitude & ((1 << shift) - 1)
    outward = rounding == ("rm" if value < 0 else "rp")
    half = 1 << shift >> 1
    if rest and (outward or (rounding == NEAREST and (rest > half or (rest == half and kept & 1)))):
        kept += 1
    unit = power + shift
    if kept.bit_length() + unit > 1024:
        return sign * (math.inf if outward or rounding == NEAREST else np.finfo(np.float64).max.item())
    return sign * math.ldexp(float(kept), unit)
