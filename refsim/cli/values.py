"""Exact values on a command line: decimals, hexadecimal floats, bit patterns of another format."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from refsim.cli.answers.anatomy import exact_value
from refsim.cli.arguments import ARRAY_SUFFIXES, parse_code
from refsim.conversions.rounding import odd_double
from refsim.errors import RefsimError
from refsim.formats import format_named

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
