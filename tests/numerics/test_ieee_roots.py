"""rsqrt.approx.f64: five roundings over fractions, at the operand's own exponent."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsim.mufu import upper_words
from refsim.numerics.ieee.roots import rsqrt_approximate


def stepped(x: float) -> float:
    """As the machine code has it: a subnormal is scaled by 2^54, its result by 2^27; every sum of a product is rounded once."""
    tiny = x < 2.0**-1022
    x = x * 2.0**54 if tiny else x
    y = float(upper_words.approximate("rsqrt", np.array([x]))[0])
    error = float(1 - Fraction(y * y) * Fraction(x))
    factor = float(Fraction(error) * Fraction(3, 8) + Fraction(1, 2))
    found = float(Fraction(factor) * Fraction(y * error) + Fraction(y))
    return found * 2.0**27 if tiny else found


@pytest.mark.parametrize("exponent", [-1073, -1050, -1023, -1022, -1021, -537, -1, 0, 1, 2, 537, 1022, 1023])
def test_results_are_those_of_five_roundings(exponent: int) -> None:
    x = np.ldexp(np.random.default_rng(exponent + 2000).random(40) + 1, exponent)
    assert [found.hex() for found in rsqrt_approximate(x).tolist()] == [stepped(each).hex() for each in x.tolist()]


def test_worked_numbers() -> None:
    found = rsqrt_approximate(np.array([3.0, 4.0, 2.0**-1074, 2.0**1023]))
    assert found.tolist() == [0.5773502691896257, 0.5, 2.0**537, math.sqrt(0.5) * 2.0**-511]


def test_zeros_infinities_negative_numbers_and_nans() -> None:
    nan = np.array([0x7FF00000_00000005, 0xFFF81234_00000000], np.uint64).view(np.float64)
    x = np.array([0.0, -0.0, math.inf, -math.inf, -1.0, -(2.0**-1074), *nan])
    minus = 0xFFF80000_00000000
    expected = [0x7FF << 52, 0xFFF << 52, 0, minus, minus, minus, 0x7FF80000_00000005, 0xFFF81234_00000000]
    assert rsqrt_approximate(x).view(np.uint64).tolist() == expected
