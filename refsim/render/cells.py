"""The spelling of one cell: for people in text, as plain values in JSON and CSV."""

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from refsim.render.view import BitFields, Bits, Cell, Coded, Interval, Number
from refsim.sources import Source

EXACT_DIGITS = 17  # longer decimals are rounded and marked with ~


def number(value: float | Fraction, approximate: str = "", short: str = "") -> Number:
    """Return the number spelled exactly if that takes at most 17 digits, else rounded and marked with ~.

    `approximate` replaces the rounding to 10 digits. 2^-9 is 0.001953125, 2^-30 is ~9.313225746e-10.
    """
    if isinstance(value, float) and (not math.isfinite(value) or value == 0):
        return Number(value, f"{value:g}", short)
    exact = Fraction(value)
    if exact == 0:
        return Number(value, "0", short)
    decimal = _exact_decimal(exact)
    return Number(value, decimal or f"~{approximate or rounded(exact)}", short)


def _exact_decimal(value: Fraction) -> str:
    """Return the decimal digits of a fraction; "" if they do not end or are too many."""
    rest, places = value.denominator, 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest != 1:
        return ""
    digits = value.numerator * 10**places // value.denominator
    while digits % 10 == 0:
        digits, places = digits // 10, places - 1
    if abs(digits) >= 10**EXACT_DIGITS:
        return ""
    exact = Decimal(digits).scaleb(-places)
    return f"{exact:f}" if -5 <= exact.adjusted() < EXACT_DIGITS else f"{exact:e}"


def rounded(value: Fraction, digits: int = 10) -> str:
    """Return the nearest decimal of at most `digits` digits: 1/3 is 0.3333333333."""
    quotient = Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize():g}"


def text(cell: Cell) -> str:
    """Return the cell as one line of text with control characters escaped; "" for an absent cell."""
    match cell:
        case None:
            return ""
        case bool():
            return "yes" if cell else "no"
        case tuple():
            return ", ".join(text(each) or "none" for each in cell)
        case str():
            return printable(cell)
        case _:
            return printable(str(cell))


def printable(line: str) -> str:
    r"""Return `line` with control characters escaped: a newline in a file name is shown as \n."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)


def plain(cell: Cell) -> Any:
    """Return the cell in JSON's types: codes are hex strings, infinities and NaN words, values the nearest double."""
    match cell:
        case Number():
            return _plain_number(cell.value)
        case Coded():
            return {"code": str(cell.code), "value": plain(cell.value)}
        case Interval():
            ends = {"low": plain(cell.low), "high": plain(cell.high)}
            return {**ends, "low_closed": cell.low_closed, "high_closed": cell.high_closed}
        case BitFields():
            return dict(cell.parts)
        case tuple():
            return [plain(each) for each in cell]
    return str(cell) if isinstance(cell, Bits | Source) else cell


def _plain_number(value: float | Fraction) -> float | str:
    if isinstance(value, int) and abs(value) >= 1 << 53:  # no double may have this value
        return value
    try:
        double = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return double if math.isfinite(double) else f"{double:g}"
