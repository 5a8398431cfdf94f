"""Values and elements on a command line: decimals, hexadecimal floats, codes, bit patterns of another format."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from refsim.cli.answers.anatomy import as_bits, code_number, exact_value
from refsim.cli.arguments import ARRAY_SUFFIXES, parse_code
from refsim.cli.spelled import number_in
from refsim.conversions import encode
from refsim.conversions.rounding import odd_double
from refsim.errors import RefsimError
from refsim.formats import F64, ElementType, Format, Integer, format_named
from refsim.render import Bits, Number, number

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e([+-]?\d+))?", re.IGNORECASE | re.ASCII)
_HEXADECIMAL = re.compile(r"([+-]?)0x([0-9a-f]*)\.?([0-9a-f]*)p([+-]?\d+)", re.IGNORECASE | re.ASCII)
_SPECIAL = re.compile(r"([+-]?)(inf|infinity|nan)", re.IGNORECASE)
_MOST_DIGITS = 4000
_LARGEST_EXPONENT = 4000


@dataclass(frozen=True)
class Value:
    """A value and its spelling; `exact` is a Fraction, or a float for -0, the infinities and NaN."""

    written: str
    exact: Fraction | float

    @property
    def is_nan(self) -> bool:
        """Return whether the value is NaN."""
        return isinstance(self.exact, float) and math.isnan(self.exact)


def parse_value(word: str) -> Value:
    """Return the value of a decimal (0.3, 1e-9), a hexadecimal float (0x1.8p3), nan, inf, or a bit pattern
    (f32:0x3f800000).

    0x1.8p3 is 12. Nothing is rounded here. Raises RefsimError bad-value.
    """
    if ":" in word:
        name, _, pattern = word.partition(":")
        row = format_named(name)
        value = exact_value(parse_code(pattern, row), row)
        return Value(word, Fraction(value) if math.isfinite(value) and value else value)
    if special := _SPECIAL.fullmatch(word):
        return Value(word, float(word) if special[1] != "-" or special[2].lower() != "nan" else -math.nan)
    fraction = _fraction(word)
    return Value(word, -0.0 if fraction == 0 and word.startswith("-") else fraction)


def _fraction(word: str) -> Fraction:
    """Return the exact fraction of a finite number, decimal or hexadecimal with an exponent."""
    if len(word) > _MOST_DIGITS:
        raise _bad_number(f"{word[:37]}...", f"a number has at most {_MOST_DIGITS} characters")
    if found := _HEXADECIMAL.fullmatch(word):
        sign, whole, digits, power = found.groups()
        if (whole or digits) and abs(int(power)) <= _LARGEST_EXPONENT:
            magnitude = Fraction(int(whole + digits, 16)) * Fraction(2) ** (int(power) - 4 * len(digits))
            return -magnitude if sign == "-" else magnitude
    elif (found := _DECIMAL.fullmatch(word)) and abs(int(found[3] or 0)) <= _LARGEST_EXPONENT:
        return Fraction(word)
    if re.fullmatch(r"[+-]?0x[0-9a-f.]+", word, re.IGNORECASE):
        rule = "a hexadecimal value has an exponent, a bit pattern the name of its format"
        help = f"{word}p0 for the value, f32:{word} for the pattern of a float32"
        raise RefsimError("bad-value", f"{word} may be a value or a code", rule=rule, help=help)
    raise _bad_number(word, f"decimal exponents are at most {_LARGEST_EXPONENT}")


def _bad_number(word: str, limit: str) -> RefsimError:
    """Return the error for a word that is not a number: the help depends on what the word may be."""
    way = "write one number, such as 0.3"
    if _DECIMAL.fullmatch(word.replace(",", ".")):
        way = f"{word.replace(',', '.')}, with a decimal point"
    elif word.endswith(ARRAY_SUFFIXES):
        way = "refsim.encode(array, format) in Python takes arrays of any size"
    rule = f"a value is decimal (0.3, 1e-9), hexadecimal (0x1.8p3), nan, inf or a pattern (f32:0x3f800000); {limit}"
    return RefsimError("bad-value", f"{word!r} is not a number", rule=rule, help=way)


def to_double(value: Value) -> float:
    """Return a double that rounds to every format as the exact value does; an inexact value is rounded to odd.

    0.1 becomes 0x1.9999999999999p-4, whose odd last bit stands for all digits below it.
    """
    return odd_double(value.exact)


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
