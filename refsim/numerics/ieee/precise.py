"""Functions of one or two doubles to fifty digits, for correctly rounded results and errors in ulp.

NumPy computes zeros, infinities and NaN; Python's decimal arithmetic computes everything else, and rounds exp, ln and
square roots correctly. A result of few bits (a power of two, a quotient) is exact.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.conversions.rounding import odd_double
from refsim.errors import check_named
from refsim.formats import Format

DIGITS = 60  # ten more than `precise` guarantees

DOUBLES: dict[str, Callable[..., NDArray[np.float64]]] = {
    "rcp": lambda x: np.divide(1.0, x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.divide(1.0, np.sqrt(x)),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": np.divide,
}
"""The functions in float64, accurate to some ulp and right for every special operand."""


def precise(function: str, *operands: float) -> Fraction | float:
    """Return the value of a function of doubles, within 10^-50 of itself: precise("ex2", 0.5) begins 1.41421356.

    The result is a float if an operand or the value is zero, infinite or NaN. Raises RefsimError for an unknown name.
    Source: defined here.
    """
    check_named("function", function, DOUBLES)
    with np.errstate(all="ignore"):
        near = float(DOUBLES[function](*np.array(operands, np.float64)[:, None])[0])
    if math.isnan(near) or any(not math.isfinite(each) or each == 0 for each in operands):
        return near
    if function == "div":
        return Fraction(operands[0]) / Fraction(operands[1])
    if function == "lg2" and operands[0] == 1:
        return 0.0
    return _PRECISE[function](operands[0])


def _decimal(extra: int = 0) -> Context:
    """Return a context whose error stays below 10^-50 when `extra` digits cancel; every double fits its range."""
    return Context(prec=DIGITS + extra, Emax=10**17, Emin=-(10**17))


def _rsqrt(x: float) -> Fraction:
    with localcontext(_decimal()):
        return Fraction((1 / Decimal(x)).sqrt())


def _sqrt(x: float) -> Fraction:
    with localcontext(_decimal()):
        return Fraction(Decimal(x).sqrt())


def _ex2(x: float) -> Fraction:
    if abs(x) > 1 << 14:  # far beyond every format, on its side
        x = math.copysign(1 << 14, x)
    if x.is_integer():
        return Fraction(2) ** int(x)
    with localcontext(_decimal()):
        return Fraction((Decimal(x) * Decimal(2).ln()).exp())


def _lg2(x: float) -> Fraction:
    fraction, exponent = math.frexp(x)
    if fraction == 0.5:
        return Fraction(exponent - 1)
    with localcontext(_decimal()):
        return Fraction(Decimal(x).ln() / Decimal(2).ln())


def _tanh(x: float) -> Fraction:
    size = Decimal(x).copy_abs()  # abs would round to 28 digits
    with localcontext(_decimal(max(0, -size.adjusted()))):
        power = (2 * min(size, Decimal(200))).exp()  # tanh(200) is 1 less 10^-173
        return Fraction(((power - 1) / (power + 1)).copy_sign(Decimal(x)))


_PRECISE: dict[str, Callable[[float], Fraction]] = {
    "rcp": lambda x: 1 / Fraction(x),
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "ex2": _ex2,
    "lg2": _lg2,
    "sin": lambda x: _turned(x, 0),
    "cos": lambda x: _turned(x, 1),
    "tanh": _tanh,
}


def _turned(x: float, quarters: int) -> Fraction:
    """Return the sine of x plus so many quarter turns, by the series of the rest of x after whole quarter turns.

    A double is no nearer to a multiple of pi / 2 than some 10^-19 of its unit, so thirty additional digits suffice.
    """
    with localcontext(_decimal(30 + abs(Decimal(x).adjusted()))) as context:
        quarter = _pi(context.prec + 5) / 2
        turns = (Decimal(x) / quarter).to_integral_value()
        rest = Decimal(x) - turns * quarter
        turn = (int(turns) + quarters) % 4
        odd = turn % 2 == 0  # the sine's series has odd powers
        term, number = (rest, 1) if odd else (Decimal(1), 0)
        total = Decimal(0)
        while total + term != total:
            total += term
            term *= -rest * rest / ((number + 1) * (number + 2))
            number += 2
        return Fraction(-total if turn >= 2 else total)


@cache
def _pi(digits: int) -> Decimal:
    """Return pi = 16 atan(1/5) - 4 atan(1/239) (Machin), computed in whole units of 10^-(digits + 5)."""
    unit = 10 ** (digits + 5)

    def atan(inverse: int) -> int:
        total, term, number = 0, unit // inverse, 1
        while term:
            total += term // number if number % 4 == 1 else -(term // number)
            term, number = term // inverse**2, number + 2
        return total

    return Decimal(16 * atan(5) - 4 * atan(239)) / Decimal(unit)


def nearest_code(exact: Fraction | float, row: Format) -> int:
    """Return the code of the number nearest to an exact one, ties to even: 0x3eaaaaab for 1 / 3 in f32."""
    if row.mantissa_bits <= 51:
        return int(encode([odd_double(exact)], row)[0])
    try:
        value = float(exact)
    except OverflowError:
        value = math.inf if exact > 0 else -math.inf
    return int(np.array([value]).view(np.uint64)[0])


def code_value(code: int, row: Format) -> float:
    """Return the double of a code: 1.0 for 0x3f800000 in f32."""
    if row.mantissa_bits <= 51:
        return float(decode(np.array([code], row.code_dtype), row)[0])
    return float(np.array([code], np.uint64).view(np.float64)[0])
