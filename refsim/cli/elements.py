"""One element of any type that a tensor core takes: read from a word, and shown with its bits."""

import re
import struct
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from refsim.cli.answers.anatomy import as_bits, code_number, exact_value
from refsim.cli.arguments import parse_code
from refsim.cli.values import Value, parse_value, to_double
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.numerics.profiles import F64, INTEGERS
from refsim.render import Bits, Number, number

if TYPE_CHECKING:
    from refsim.formats import Format

WHOLE = {**INTEGERS, "s32": (32, True)}
_PATTERN = re.compile(r"0[xb][0-9a-f_]+", re.IGNORECASE)


def code_of(word: str, name: str) -> int:
    """The code that a word stands for: 0x38 and 0b111000 are codes, anything else is a value that must be exact.

    code_of("1.5", "e4m3") is 0x3c. Raises RefsimError inexact-value (with the two nearest codes), no-such-value,
    bad-number, bad-code and code-out-of-range.
    """
    if name in WHOLE:
        return _whole(word, name)
    if name == F64.name:
        return _double(word)
    row = format_named(name)
    return parse_code(word, row) if _PATTERN.fullmatch(word) else _encoded(parse_value(word), row)


def _encoded(value: Value, row: "Format") -> int:
    if isinstance(value.exact, float) and value.exact != 0:
        kind, code = ("NaN", row.nan_code) if value.is_nan else ("infinity", row.infinity_code)
        if code is None:
            raise RefsimError("no-such-value", f"{row} has no {kind}", where=value.written)
        return code | (row.sign_mask if np.signbit(value.exact) else 0)
    code = int(encode(to_double(value), row))
    if exact_value(code, row) == value.exact:
        return code
    nearest = dict.fromkeys(int(encode(to_double(value), row, rounding)) for rounding in ("down", "up"))
    spelled = " or ".join(f"{as_bits(each, row)} ({code_number(each, row)})" for each in nearest)
    raise RefsimError(
        "inexact-value", f"{value.written} is no value of {row}", rule="operands are exact: nothing is rounded here",
        help=f"give {spelled}",
    )  # fmt: skip


def _whole(word: str, name: str) -> int:
    bits, signed = WHOLE[name]
    lowest = -(1 << (bits - 1)) if signed else 0
    pattern = bool(_PATTERN.fullmatch(word))
    try:
        value = int(word, 0 if pattern else 10)
    except ValueError:
        value = None
    low, high = (0, (1 << bits) - 1) if pattern else (lowest, lowest + (1 << bits) - 1)
    if value is None or not low <= value <= high:
        raise RefsimError(
            "bad-integer", f"{word[:40]!r} is no {name}",
            rule=f"whole numbers from {lowest} to {lowest + (1 << bits) - 1}, or patterns of {bits} bits as 0x7f",
        )  # fmt: skip
    return value % (1 << bits)


def _double(word: str) -> int:
    if _PATTERN.fullmatch(word):
        code = int(word, 0)
        if code >= 1 << 64:
            raise RefsimError("code-out-of-range", f"{word[:40]} is no code of f64", rule="codes of f64 have 64 bits")
        return code
    value = parse_value(word)
    nearest = to_double(value)
    if isinstance(value.exact, Fraction) and Fraction(nearest) != value.exact:
        raise RefsimError(
            "inexact-value", f"{word[:40]} is no value of f64", rule="operands are exact: nothing is rounded here",
            help=f"give {nearest.hex()}",
        )  # fmt: skip
    return int(np.float64(nearest).view(np.uint64))


def bits_of(code: int, name: str) -> Bits:
    """The code in as many digits as its container has."""
    if name in WHOLE:
        return Bits(code % (1 << WHOLE[name][0]), WHOLE[name][0])
    return Bits(code, 64) if name == F64.name else as_bits(code, format_named(name))


def number_of(code: int, name: str) -> Number:
    """The value of a code, spelled exactly or by the fewest digits that lead back to it."""
    if name in WHOLE or name == F64.name:
        return number(value_of(code, name))
    return code_number(code, format_named(name))


def value_of(code: int, name: str) -> Fraction | float:
    """The exact value of a code: a Fraction, or a float for -0, the infinities and NaN."""
    if name in WHOLE:
        bits, signed = WHOLE[name]
        code %= 1 << bits
        return Fraction(code - (1 << bits) if signed and code >> (bits - 1) else code)
    value = (
        struct.unpack("<d", code.to_bytes(8, "little"))[0]
        if name == F64.name
        else exact_value(code, format_named(name))
    )
    return Fraction(value) if np.isfinite(value) and value else value
