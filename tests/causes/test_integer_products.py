"""Products of integers: zero points, wrap against saturation, scales and rounding, planted with NumPy's integers alone."""

from dataclasses import replace

import numpy as np
import pytest

from refsim.causes import DiffOutcome, Family, IntegerOperands, explain_diff
from refsim.errors import RefsimError

RANDOM = np.random.default_rng(0)
A, B = (RANDOM.integers(-128, 128, (rows, 96)).astype(np.int8) for rows in (16, 24))
ZA, ZB = 7, RANDOM.integers(-20, 20, 24)
SA, SB = (RANDOM.uniform(0.001, 0.01, rows).astype(np.float32) for rows in (16, 24))
PLAIN = IntegerOperands(a=A, b=B, a_zero=ZA, b_zero=ZB)
SCALED = replace(PLAIN, a_scale=SA, b_scale=SB)


def whole(a=A, b=B, za=ZA, zb=ZB, c=0):
    return (a.astype(np.int64) - za) @ (b.astype(np.int64) - np.reshape(zb, (-1, 1))).T + c


def scaled(total, sa=SA, sb=SB):
    return total.astype(np.float32) * (sa[:, None] * sb)


def s8(values, zero=0):
    return np.clip(np.rint(values) + zero, -128, 127).astype(np.int8)


def families(found):
    return {str(cause.family) for each in found.named for cause in each.causes}


RIGHT = whole().astype(np.int32)
LARGE = SA * np.float32(100)
REQUANTISED = replace(SCALED, a_scale=LARGE, d_zero=3)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (whole(za=0), "the zero point of A is left out"),
        (whole(zb=ZB - 1), "the zero point of B is one too small"),
        (whole() - 96 * ZA * ZB, "what zero points subtract: no K za zb"),
        (whole(A.view(np.uint8)), "A is read as codes of u8, not of s8"),
        (whole(A[:, :80], B[:, :80]), "the last 16 columns of K are left out"),
        ((whole() + (1 << 15)) % (1 << 16) - (1 << 15), "the sum wraps around in 16 bits"),
        (whole().T.reshape(16, 24), "outputs lie as the transpose"),
    ],
    ids=["no za", "zb less", "no K za zb", "u8", "tail", "16 bits", "transpose"],
)
def test_what_became_of_a_sum_of_integers_is_named(output, says):
    found = explain_diff(output.astype(np.int32), operands=PLAIN)
    assert [each.causes[0].says for each in found.named] == [says]
    assert explain_diff(output.astype(np.int32), RIGHT, operands=PLAIN).named[0].causes[0].says == says


def test_a_sum_that_saturates_is_told_from_one_that_wraps():
    near = replace(PLAIN, a_zero=0, b_zero=0, c=np.full((16, 24), (1 << 31) - 1, np.int32))
    exact = whole(za=0, zb=0, c=(1 << 31) - 1)
    assert explain_diff(exact.astype(np.int32), operands=near).outcome is DiffOutcome.EQUAL  # NumPy's conversion wraps
    found = explain_diff(np.clip(exact, -(1 << 31), (1 << 31) - 1).astype(np.int32), operands=near)
    assert [each.causes[0].says for each in found.named] == ["the sum saturates at 32 bits"]


def test_c_is_of_elements_or_of_columns_and_may_be_left_out():
    columns = RANDOM.integers(-(1 << 20), 1 << 20, 24).astype(np.int32)
    for c in (columns, np.broadcast_to(columns, (16, 24))):
        operands = replace(PLAIN, c=c)
        assert explain_diff(whole(c=columns).astype(np.int32), operands=operands).outcome is DiffOutcome.EQUAL
        assert explain_diff(RIGHT, operands=operands).named[0].causes[0].says == "C is left out"


def test_sums_in_float32_begin_with_c():
    c = np.full((16, 24), (1 << 26) + 1, np.int32)
    total = c.astype(np.float32)
    for one, other in zip((A - np.int16(7)).T, (B - ZB[:, None]).T, strict=True):
        total = total + one.astype(np.float32)[:, None] * other.astype(np.float32)
    found = explain_diff(total.astype(np.int32), operands=replace(PLAIN, c=c))
    assert [each.causes[0].says for each in found.named] == ["products are added in float32"]


def test_a_zero_point_of_the_row_before_and_rounding_down_are_named():
    before = whole(zb=ZB[[0, *range(23)]]).astype(np.int32)
    assert (
        explain_diff(before, operands=PLAIN).named[0].causes[0].says == "the zero point of B is that of the row before"
    )
    down = np.clip(np.floor(scaled(whole(), LARGE)) + 3, -128, 127).astype(np.int8)
    found = explain_diff(down, operands=REQUANTISED)
    assert [str(each) for each in found.named] == ["rounding mode: s8 is rounded down"]


def test_pairs_that_saturate_at_16_bits_are_named():
    a = A.view(np.uint8)
    pairs = a.astype(np.int64).reshape(16, 1, 48, 2) * B.astype(np.int64).reshape(1, 24, 48, 2)
    output = np.clip(pairs.sum(3), -(1 << 15), (1 << 15) - 1).sum(2).astype(np.int32)
    found = explain_diff(output, operands=IntegerOperands(a=a, b=B))
    assert [each.causes[0].says for each in found.named] == ["pairs of products saturate at 16 bits"]


@pytest.mark.parametrize(
    ("output", "family"),
    [
        (np.clip(np.trunc(scaled(whole(), LARGE)) + 3, -128, 127), Family.ROUNDING),
        ((np.rint(scaled(whole(), LARGE)).astype(np.int64) + 131) % 256 - 128, Family.SATURATION),
        (np.clip(np.rint(scaled(whole(), LARGE)) + 3, -127, 127), Family.SATURATION),
        (np.clip(np.rint(scaled(whole(), LARGE)), -128, 127), Family.ZERO_POINT),
        (np.clip(np.rint(scaled(whole(), np.ones(16, np.float32))) + 3, -128, 127), Family.SCALE_RULE),
    ],
    ids=["cut", "wraps", "symmetric", "no zero of D", "no scale of A"],
)
def test_what_became_of_a_requantised_sum_is_named(output, family):
    assert families(explain_diff(output.astype(np.int8), operands=REQUANTISED)) == {str(family)}


def test_halves_that_are_rounded_up_are_named():
    a, b, quarter = A // 16, B // 16, np.float32(0.25)
    total = whole(a, b, 0, 0) * quarter
    operands = IntegerOperands(a=a, b=b, a_scale=quarter)
    for output, says in (
        (np.floor(total + 0.5), "floor(x + 0.5)"),
        (np.trunc(total + np.copysign(0.5, total)), "ties away"),
    ):
        found = explain_diff(s8(output), operands=operands)
        assert [says in each.causes[0].says for each in found.named] == [True]


def test_a_float_output_of_integers_is_explained():
    right = scaled(whole())
    assert explain_diff(right, operands=SCALED).outcome is DiffOutcome.EQUAL
    found = explain_diff(whole().astype(np.float32) * SA[:, None] * SB, right, operands=SCALED)
    assert families(found) == {str(Family.PROMOTION_ORDER)}
    inverted = explain_diff(scaled(whole(), np.float32(1) / SA), operands=SCALED)
    assert families(inverted) == {str(Family.SCALE_RULE)}


def test_equal_and_held_out_integers_have_no_cause():
    assert explain_diff(RIGHT, operands=PLAIN).outcome is DiffOutcome.EQUAL
    assert explain_diff(s8(scaled(whole(), LARGE), 3), operands=REQUANTISED).outcome is DiffOutcome.EQUAL
    noise = (RIGHT + RANDOM.integers(-3, 4, RIGHT.shape)).astype(np.int32)
    assert not explain_diff(noise, RIGHT, operands=PLAIN, seconds=0.5).named
    [shape] = explain_diff(noise, noise[::-1], operands=PLAIN, seconds=0.5).named
    assert str(shape) == "elements in other places: A holds B's rows reversed"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"b": B[:, :32]}, "bad-shape"),
        ({"b": B[:4]}, "bad-shape"),
        ({"a": A.astype(np.float32)}, "bad-dtype"),
        ({"a": A, "a_format": "e4m3"}, "bad-dtype"),
        ({"a": A.astype(np.int16)}, "bad-dtype"),
        ({"a_zero": 0.5}, "bad-shape"),
        ({"b_zero": ZB[:3]}, "bad-shape"),
        ({"a_scale": SA}, "usage"),
        ({"c": RIGHT.astype(np.float32)}, "bad-shape"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_operands_of_integers_that_do_not_fit_are_refused(wrong, code):
    with pytest.raises(RefsimError) as error:
        explain_diff(RIGHT, operands=replace(PLAIN, **wrong))
    assert error.value.code == code


def test_an_output_in_s8_needs_scales_and_uint8_a_format():
    for output, more in ((RIGHT.astype(np.int8), {}), (RIGHT.astype(np.uint8), {})):
        with pytest.raises(RefsimError):
            explain_diff(output, operands=PLAIN, **more)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (whole(za=ZA + 128, zb=ZB + 128), "the zero points of A and B: each is 128 too large"),
        (whole(za=-ZA, zb=-ZB), "the zero points of A and B: each is added"),
        (whole(A.view(np.uint8), B.view(np.uint8)), "A and B are read as codes of u8, not of s8"),
        (whole(zb=ZB + 128), "the zero point of B is 128 too large"),
    ],
)
def test_one_mistake_in_both_integers_is_one_cause(output, says):
    found = explain_diff(output.astype(np.int32), operands=PLAIN)
    assert [str(each.causes[0].says) for each in found.named] == [says]
