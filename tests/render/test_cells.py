"""Spelling of single cells, checked by reading them back."""

import math
import random
from fractions import Fraction

import pytest

from refsim.render import BitFields, Bits, Coded, Interval, number
from refsim.render.cells import plain, printable, rounded, text
from refsim.sources import PTX


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (448.0, "448"),
        (-0.0, "-0"),
        (0.0, "0"),
        (Fraction(0), "0"),
        (0.001953125, "0.001953125"),
        (2.0**-16, "0.0000152587890625"),
        (2.0**-17, "7.62939453125e-6"),
        (2.0**-30, "~9.313225746e-10"),
        (57344.0, "57344"),
        (1e16, "10000000000000000"),
        (2.0**127, "~1.701411835e+38"),
        (Fraction(1, 3), "~0.3333333333"),
        (Fraction(-1, 10), "-0.1"),
        (Fraction(10) ** 400, "1e+400"),
        (Fraction(1, 3) * 10**400, "~3.333333333e+399"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_number_is_spelled(value, spelled):
    assert number(value).text == spelled


def test_spelled_number_is_exact_unless_it_says_so():
    draw = random.Random(1)
    marked = 0
    for _ in range(2000):
        value = Fraction(draw.getrandbits(draw.randint(1, 40)) + 1, 1) * Fraction(2) ** draw.randint(-60, 60)
        spelled = number(value).text
        if spelled.startswith("~"):
            marked += 1
            assert abs(Fraction(spelled[1:]) / value - 1) <= Fraction(1, 10**9)
        else:
            assert Fraction(spelled) == value
    assert 0 < marked < 2000


def test_number_takes_another_approximation():
    assert number(0.1 + 2**-55, approximate="0.1").text.startswith("~0.1")


def test_rounded_has_few_digits():
    assert rounded(Fraction(1, 3), 3) == "0.333"
    assert rounded(Fraction(2.0**127), 4) == "1.701e+38"


def test_text_of_cells():
    assert text(None) == ""
    assert text(True) == "yes"
    assert text(Bits(0x7E, 8)) == "0x7e"
    assert text(Bits(7, 4)) == "0x7"
    assert text(Bits(0, 7)) == "0x00"
    assert text(Coded(Bits(0x7D, 8), number(416.0))) == "416"
    assert text((Coded(Bits(0x7D, 8), number(416.0)), None)) == "416, none"
    assert text(BitFields((("sign", "0"), ("exponent", "1111")))) == "0 1111"
    assert text(PTX["cvt"]) == "PTX ISA 9.0, cvt"
    for closed, spelled in (((True, False), "[1, 2)"), ((False, True), "(1, 2]")):
        assert text(Interval(number(1.0), number(2.0), *closed)) == spelled


def test_plain_cells_are_json_values():
    assert plain(number(math.nan)) == "nan"
    assert plain(number(-math.inf)) == "-inf"
    assert plain(number(Fraction(10) ** 400)) == "inf"
    assert math.copysign(1, plain(number(-0.0))) == -1
    assert plain(Coded(Bits(0x7D, 8), number(416.0))) == {"code": "0x7d", "value": 416.0}
    assert plain((Bits(1, 8), None)) == ["0x01", None]
    assert plain(BitFields((("sign", "0"),))) == {"sign": "0"}
    assert plain(Interval(number(1.0), number(2.0), True, False)) == {
        "low": 1.0,
        "high": 2.0,
        "low_closed": True,
        "high_closed": False,
    }


def test_control_characters_are_shown_not_sent():
    assert printable("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert text("a\tb") == "a\\tb"
