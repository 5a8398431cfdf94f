"""One element of any type that a tensor core takes: read from the command line, and shown with its bits."""

import re
from fractions import Fraction

import numpy as np

from refsim.cli.answers.anatomy import as_bits, code_number, exact_value
from refsim.cli.arguments import parse_code
from refsim.cli.spelled import number_in
from refsim.cli.values import Value, parse_value, to_double
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.formats import F64, ElementType, Format, Integer
from refsim.render import Bits, Number, number

_PATTERN = re.compile(r"0[xb][0-9a-f_]+", re.IGNORECASE)


def code_of(word: str, element: ElementType) -> int:
    """Return the code that a word stands for: 0x38 and 0b111000 are codes, any other word is a value that must be
    exact.

    code_of("1.5", E4M3) is 0x3c. Raises RefsimError inexact-value (with the two nearest codes), no-such-value,
    bad-value and out-of-range.
    """
    if isinstance(element, Integer):
        return _whole(word, element)
    if element is F64:
        return _double(word)
    return parse_code(word, element) if _PATTERN.fullmatch(word) else _encoded(parse_value(word), element)


def _encoded(value: Value, row: Format) -> int:
    """Return the code of a value. Raises RefsimError where the format does not hold it exactly."""
    if isinstance(value.exact, float) and value.exact != 0:
        kind, code = ("NaN", row.nan_code) if value.is_nan else ("infinity", row.infinity_code)
        if code is None:
            raise RefsimError("no-such-value", f"{row} has no {kind}", where=value.written)
        return code | (row.sign_mask if np.signbit(value.exact) else 0)
    code = int(encode(to_double(value), row))
    if exact_value(code, row) == value.exact:
        return code
    nearest = dict.fromkeys(int(encode(to_double(value), row, rounding, "saturate")) for rounding in ("down", "up"))
    spelled = " or ".join(f"{as_bits(each, row)} ({code_number(each, row)})" for each in nearest)
    what = f"{value.written} is not a value of {row}"
    raise RefsimError("inexact-value", what, rule="operands are exact: nothing is rounded here", help=f"give {spelled}")


def _whole(word: str, element: Integer) -> int:
    lowest, largest = element.limits
    pattern = bool(_PATTERN.fullmatch(word))
    value = number_in(word)
    low, high = (0, element.code_limit - 1) if pattern else element.limits
    if value is None or not low <= value <= high:
        rule = f"whole numbers from {lowest} to {largest}, or patterns of {element.bits} bits as 0x7f"
        raise RefsimError("bad-value", f"{word[:40]!r} is no {element}", rule=rule)
    return value % element.code_limit


def _double(word: str) -> int:
    """Return the 64 bits of a double: a pattern as it stands, or a value that a double holds exactly."""
    if _PATTERN.fullmatch(word):
        code = number_in(word)
        if code is None or code >= 1 << 64:
            raise RefsimError("out-of-range", f"{word[:40]} is not a code of f64", rule="codes of f64 have 64 bits")
        return code
    value = parse_value(word)
    nearest = to_double(value)
    if isinstance(value.exact, Fraction) and Fraction(nearest) != value.exact:
        what, rule = f"{word[:40]} is not a value of f64", "operands are exact: nothing is rounded here"
        raise RefsimError("inexact-value", what, rule=rule, help=f"give {nearest.hex()}")
    return int(np.float64(nearest).view(np.uint64))


def bits_of(code: int, element: ElementType) -> Bits:
    """Return the code in as many digits as its container has."""
    return Bits(code % element.code_limit, element.code_bits)


def number_of(code: int, element: ElementType) -> Number:
    """Return the value of a code, spelled exactly or with the fewest digits that identify it."""
    if isinstance(element, Integer) or element is F64:
        return number(value_of(code, element))
    return code_number(code, element)


def value_of(code: int, element: ElementType) -> Fraction | float:
    """Return the exact value of a code: a Fraction, or a float for -0, the infinities and NaN."""
    value = element.value(code)
    return Fraction(value) if element.is_integer or (np.isfinite(value) and value) else value
