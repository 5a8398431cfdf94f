"""rsqrt, ex2, lg2, sin, cos and tanh rounded once: by series over fractions, which enclose the value from both sides."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from refsim.conversions.rounding import odd_double
from refsim.errors import RefsimError
from refsim.formats import F16, F32, F64
from refsim.numerics import ieee
from refsim.numerics.ieee.precise import DOUBLES, nearest_code, precise
from refsim.reference.rational_float import GRIDS, ExactNumber

TINY = Fraction(1, 10**50)

NAMES = ("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
TERMS = 60
"""Of a series in a number of at most 1: what is left out is below 10^-38 of the first term."""


def exp(x: Fraction) -> Fraction:
    halved = max(0, math.ceil(abs(x)).bit_length())
    total = term = Fraction(1)
    for number in range(1, TERMS):
        term *= x / 2**halved / number
        total += term
    for _ in range(halved):
        total = Fraction(round(total**2 * 2**300), 2**300) if total < 2**100 else total**2
    return total


def atanh_series(x: Fraction) -> Fraction:
    return sum((x ** (2 * each + 1) / (2 * each + 1) for each in range(TERMS)), Fraction(0))


LN2 = 2 * atanh_series(Fraction(1, 3))


def lg2(x: Fraction) -> Fraction:
    power = math.frexp(float(x))[1]
    fraction = x / Fraction(2) ** power
    return power + 2 * atanh_series((fraction - 1) / (fraction + 1)) / LN2


def sine(x: Fraction, is_cosine: bool = False) -> Fraction:
    """Of a number of any size below 10: the series itself, whose terms grow first."""
    term, number = (Fraction(1), 0) if is_cosine else (x, 1)
    total = Fraction(0)
    for _ in range(TERMS):
        total += term
        term *= -x * x / ((number + 1) * (number + 2))
        number += 2
    return total


def rsqrt(x: Fraction) -> Fraction:
    scale = 1 << 400
    return Fraction(math.isqrt(x.denominator * scale**2 // x.numerator), scale)


def tanh(x: Fraction) -> Fraction:
    power = exp(2 * x)
    return (power - 1) / (power + 1)


SERIES: dict[str, tuple[Callable[[Fraction], Fraction], float, float]] = {
    "rsqrt": (rsqrt, 2.0**-20, 2.0**20),
    "ex2": (lambda x: exp(x * LN2), -30, 30),
    "lg2": (lg2, 2.0**-10, 2.0**10),
    "sin": (sine, -9, 9),
    "cos": (lambda x: sine(x, is_cosine=True), -9, 9),
    "tanh": (tanh, -10, 10),
}


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_rounded_values_of_series(name: str) -> None:
    series, low, high = SERIES[name]
    x = np.random.default_rng(len(name)).uniform(low, high, 60).astype(np.float32)
    found = getattr(ieee, name)(x).view(np.uint32).tolist()
    want = [series(Fraction(each)) for each in x.tolist()]
    assert found == [GRIDS["f32"].encode(ExactNumber(value < 0, abs(value)), "rn") for value in want]
    for each, value in zip(x.tolist(), want, strict=True):
        assert abs(Fraction(precise(name, each)) / value - 1) < Fraction(1, 10**36)


@pytest.mark.parametrize("name", NAMES)
def test_results_that_double_precision_does_not_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever NumPy returns within the promised error, the result is the same: values are moved by that error up and down."""
    low, high = SERIES[name][1:]
    x = np.random.default_rng(7).uniform(low, high, 1 << 16).astype(np.float32)
    x[0] = -150  # 2^-150 is a tie
    found = getattr(ieee, name)(x)
    function = DOUBLES[name]
    for factor in (1 - 2.0**-48, 1 + 2.0**-48):
        with monkeypatch.context() as changed:
            changed.setitem(DOUBLES, name, lambda values, factor=factor: function(values) * factor)
            assert np.array_equal(getattr(ieee, name)(x).view(np.uint32), found.view(np.uint32))


def test_ties_are_decided_by_the_exact_value() -> None:
    """2^-150 lies between 0 and the smallest number, and a little more is the smallest number."""
    x = np.array(
        [-150, np.nextafter(np.float32(-150), np.float32(0)), np.nextafter(np.float32(-150), np.float32(-200))]
    )
    assert ieee.ex2(x.astype(np.float32)).view(np.uint32).tolist() == [0, 1, 0]
    assert ieee.lg2(np.float32([2.0**-149, 2.0**127])).tolist() == [-149, 127]


SPECIAL = {
    "rsqrt": {0x00000000: 0x7F800000, 0x80000000: 0xFF800000, 0xBF800000: 0x7FFFFFFF, 0x7F800000: 0x00000000},
    "ex2": {0x00000000: 0x3F800000, 0xFF800000: 0x00000000, 0x7F800000: 0x7F800000, 0x43000000: 0x7F800000},
    "lg2": {0x00000000: 0xFF800000, 0x80000000: 0xFF800000, 0xBF800000: 0x7FFFFFFF, 0x3F800000: 0x00000000},
    "sin": {0x80000000: 0x80000000, 0x7F800000: 0x7FFFFFFF, 0xFFC12345: 0x7FFFFFFF},
    "cos": {0x80000000: 0x3F800000, 0xFF800000: 0x7FFFFFFF},
    "tanh": {0x80000000: 0x80000000, 0x7F800000: 0x3F800000, 0xFF800000: 0xBF800000, 0x7F812345: 0x7FFFFFFF},
}


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str) -> None:
    x = np.array(list(SPECIAL[name]), np.uint32).view(np.float32)
    assert getattr(ieee, name)(x).view(np.uint32).tolist() == list(SPECIAL[name].values())


def test_ftz_flushes_operands_and_results() -> None:
    tiny = np.array([0x00400000, 0x80400000], np.uint32).view(np.float32)
    assert ieee.sin(tiny, ftz=True).view(np.uint32).tolist() == [0, 0x80000000]
    assert ieee.sin(tiny).view(np.uint32).tolist() == [0x00400000, 0x80400000]
    assert ieee.ex2(np.float32([-127, -126]), ftz=True).view(np.uint32).tolist() == [0, 0x00800000]
    assert ieee.ex2(np.float32([-127])).view(np.uint32).tolist() == [0x00400000]
    assert ieee.lg2(tiny, ftz=True).view(np.uint32).tolist() == [0xFF800000, 0xFF800000]
    assert ieee.lg2(tiny).view(np.uint32).tolist() == [0xC2FE0000, 0x7FFFFFFF]


def test_large_angles_are_reduced_by_all_digits_of_pi() -> None:
    """Of the largest float32 the sine is -0.52187652, of 2^120 0.377820109 (Ng, Argument reduction for huge arguments)."""
    assert float(precise("sin", 2.0**120)) == pytest.approx(0.377820109360752, abs=1e-15)
    assert float(precise("sin", 1e22)) == pytest.approx(-0.8522008497671888, abs=1e-15)
    assert float(precise("cos", 1e22)) == pytest.approx(0.5232147853951389, abs=1e-15)
    assert ieee.sin(np.float32([2.0**120])).tolist() == [float(np.float32(0.377820109360752))]
    assert abs(precise("sin", 2.0**120) - Fraction("0.3778201093607520226555484700569229919605866976512307")) < TINY


def test_fifty_digits_where_others_cancel() -> None:
    """sin(2^120) above is mpmath's; the tanh of a small x begins x - x^3 / 3, that of a large one 1 - 2 exp(-2x)."""
    x = Fraction(1e-30)
    assert abs(precise("tanh", 1e-30) / (x - x**3 / 3) - 1) < TINY
    assert float((1 - precise("tanh", 30.0)) / 2) == pytest.approx(math.exp(-60), rel=1e-12, abs=0)
    assert precise("ex2", -1e30) == Fraction(1, 1 << (1 << 14))
    assert isinstance(precise("lg2", 1.0), float)
    assert nearest_code(-(Fraction(2) ** 2000), F64) == 0xFFF0000000000000


def test_narrow_types_and_those_that_are_refused() -> None:
    assert ieee.ex2(np.array([0x3800], np.uint16).view(np.float16)).view(np.uint16).tolist() == [0x3DA8]
    assert ieee.ex2(np.array([0x3F00], np.uint16)).tolist() == [0x3FB5]
    for wrong in (np.zeros(1), np.zeros(1, np.int32)):
        with pytest.raises(RefsimError, match="bad-dtype"):
            ieee.ex2(wrong)
    with pytest.raises(RefsimError, match="bad-modifier"):
        ieee.ex2(np.zeros(1, np.uint16), ftz=True)
    with pytest.raises(RefsimError, match="unknown-name"):
        precise("exp", 1.0)


def test_exact_values_are_rounded_once_to_every_width() -> None:
    third = Fraction(1, 3)
    assert [nearest_code(third, row) for row in (F16, F32, F64)] == [0x3555, 0x3EAAAAAB, 0x3FD5555555555555]
    assert odd_double(Fraction(1, 10)).hex() == "0x1.9999999999999p-4"
    assert nearest_code(Fraction(2) ** 2000, F64) == 0x7FF0000000000000
    assert precise("div", 1.0, 3.0) == third
    assert precise("div", -1.0, 0.0) == -math.inf
