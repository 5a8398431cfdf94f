"""Elements against exact values with a bound each: what lies within it, what beyond, and the rules of what is no number."""

import json
import math

import numpy as np
import pytest

from refsim import compare
from refsim.compare import Mismatch, within_bound
from refsim.errors import RefsimError
from refsim.testing import Bounded, Promise

ONE, NEXT, NAN, OTHER_NAN, INF = 0x3F80, 0x3F81, 0x7FC0, 0xFFC1, 0x7F80  # bf16


def judged(codes, value, bound):
    got = np.array(codes, np.uint16)
    return within_bound(got, np.array(value, np.float64), np.array(bound, np.float64), "bf16", name="y")


@pytest.mark.parametrize(
    ("code", "value", "bound", "agrees"),
    [
        (ONE, 1.0, 0.0, True),
        (NEXT, 1.0, 2.0**-7, True),  # the bound itself is allowed
        (NEXT, 1.0, 2.0**-7 - 2.0**-40, False),
        (ONE, 1.0 + 2.0**-40, 0.0, False),
        (0x8000, 0.0, 0.0, True),
        (NAN, math.nan, 0.0, True),
        (OTHER_NAN, math.nan, 0.0, True),
        (NAN, 1.0, math.inf, False),
        (ONE, math.nan, math.inf, False),
        (INF, math.inf, 0.0, True),
        (INF, -math.inf, 0.0, False),
        (INF, 3.4e38, 1e38, False),
        (ONE, math.inf, 1e300, False),
        (ONE, math.inf, math.inf, True),
        (INF, 1.0, math.inf, True),
        (ONE, 1e30, math.inf, True),
    ],
)
def test_an_element_agrees_within_its_bound_alone(code, value, bound, agrees):
    assert bool(judged([code], [value], [bound])) is not agrees


def test_report_says_the_first_the_worst_and_how_far():
    found = judged([ONE, NEXT, 0x3F90, ONE], [1.0, 1.0, 1.0, 1.0], [0.0, 2.0**-8, 2.0**-8, 1.0])
    assert str(found).splitlines()[:3] == [
        "2 of 4 elements lie beyond their bound (50.0 %), worst 32 times its bound",
        "first   y[1]   got 0x3f81 1.0078125   want 1.0 within 0.00390625   off by +0.00781, 2 times its bound",
        "worst   y[2]   got 0x3f90 1.125   want 1.0 within 0.00390625   off by +0.125, 32 times its bound",
    ]


def test_nan_is_the_worst_of_all():
    found = judged([0x4380, NAN], [1.0, 1.0], [1e-9, 1e-9])
    assert found.worst.index == (1,)
    assert "off by" not in str(found).splitlines()[-1]
    assert found.worst_text == "worst involves NaN"


def test_the_worst_is_the_largest_multiple_of_its_bound_and_a_code_that_does_not_exist_before_all():
    found = judged([0x3F90, 0x4000], [1.0, 1.0], [2.0**-8, 0.5])
    assert (found.worst.index, found.worst_text) == ((0,), "worst 32 times its bound")
    missing = within_bound(np.uint8([0x1F, 0x40]), np.zeros(2), np.array([1e-9, np.inf]), "e2m3", name="y")
    assert (missing.count, missing.worst.index, missing.worst_text) == (2, (1,), "worst no code of the format")


def test_elements_that_agree_are_said_to():
    assert str(judged([ONE, NEXT], [1.0, 1.0], [0.0, 1.0])) == "2 elements of bf16 lie within their bounds"
    assert str(judged([ONE], [1.0], [0.0])) == "1 element of bf16 lies within its bounds"
    assert str(judged([NEXT], [1.0], [0.0])).startswith("1 of 1 element lies beyond its bound (100.0 %)")


def test_mismatch_survives_json():
    for found in (judged([NEXT, INF], [1.0, math.nan], [0.0, 0.5]), judged([ONE], [1.0], [0.0])):
        assert Mismatch.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))).lines() == found.lines()


def test_integers_are_values_too():
    found = compare.within_bound(np.array([3, 9], np.int32), np.array([3.5, 8.0]), np.array([0.5, 0.5]))
    assert (found.count, found.first.index) == (1, (1,))


def test_shapes_must_match():
    with pytest.raises(RefsimError, match="bad-shape"):
        judged([ONE, ONE], [1.0], [0.0])
    for bound in (-1.0, math.nan):
        with pytest.raises(RefsimError, match="bad-bound"):
            judged([ONE], [1.0], [bound])


def test_bounded_takes_one_bound_for_all():
    said = Bounded(np.ones((2, 3)), 0.5)
    assert said.bound.shape == (2, 3)
    for value, bound in (([1.0], [-0.1]), ([1.0], [math.nan]), (["x"], [0.0]), ([1j], [0.0]), ([1.0], [0.1, 0.2])):
        with pytest.raises(RefsimError, match=r"bad-bound|bad-shape"):
            Bounded(value, bound)


def test_bounds_need_a_derivation():
    assert str(Promise.BOUNDED("n * 2^-24")) == "within the bounds of the oracle: n * 2^-24"
    for because in (" ", None, 3):
        with pytest.raises(RefsimError, match="bad-promise"):
            Promise.BOUNDED(because)
        with pytest.raises(RefsimError, match="bad-promise"):
            Promise.WITHIN(2, because)
