"""Values as written, without a rounding before the one that counts."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsim.cli.values import parse_value, to_double
from refsim.conversions import encode
from refsim.errors import RefsimError


@pytest.mark.parametrize(
    ("word", "exact"),
    [
        ("0.1", Fraction(1, 10)),
        ("-1e-3", Fraction(-1, 1000)),
        ("+.5", Fraction(1, 2)),
        ("3.", Fraction(3)),
        ("0x1.8p3", Fraction(12)),
        ("-0x.1p-4", Fraction(-1, 256)),
        ("0x10p0", Fraction(16)),
        ("f32:0x3f800001", 1 + Fraction(1, 2**23)),
        ("e4m3:0x7e", Fraction(448)),
        ("1e400", Fraction(10) ** 400),
    ],
)
def test_value_is_exact(word, exact):
    assert parse_value(word).exact == exact


def test_special_values_keep_their_sign():
    assert math.copysign(1, parse_value("-0").exact) == -1
    assert math.copysign(1, parse_value("-0x0p0").exact) == -1
    assert math.copysign(1, parse_value("-nan").exact) == -1
    assert parse_value("-inf").exact == -math.inf
    assert math.copysign(1, parse_value("e4m3:0x80").exact) == -1
    assert parse_value("e4m3:0x7f").is_nan


@pytest.mark.parametrize(
    "word", ["", "abc", "1.2.3", "0x", "0xp1", "1e", "--1", "0x1.8", "1e99999999", "1" * 5000, "1/3"]
)
def test_what_is_no_number_is_refused(word):
    with pytest.raises(RefsimError) as caught:
        parse_value(word)
    assert caught.value.code == "bad-value"


def test_double_stands_for_every_digit():
    """464 is the tie between 448 and the missing 480: a digit far behind it decides, which a float would lose."""
    above, below = "464." + "0" * 40 + "1", "463." + "9" * 60
    codes = encode([to_double(parse_value(word)) for word in ("464", above, below)], "e4m3", overflow="nan")
    assert codes.tolist() == [0x7E, 0x7F, 0x7E]
    assert to_double(parse_value("0x1.00000000000008p0")) == math.nextafter(1, 2)
    assert to_double(parse_value("-0x1.00000000000018p0")) == -math.nextafter(1, 2)


def test_double_of_the_unreachable():
    assert encode([to_double(parse_value("1e400"))], "f32", overflow="inf").tolist() == [0x7F800000]
    assert encode([to_double(parse_value("1e400"))], "f32", "toward-zero", "inf").tolist() == [0x7F7FFFFF]
    assert encode([to_double(parse_value("-1e-400"))], "f32", "down").tolist() == [0x80000001]
    assert np.signbit(to_double(parse_value("-1e-400")))
