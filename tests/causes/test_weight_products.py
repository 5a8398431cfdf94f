"""Products with narrow weights: scales, zero points, packing and roundings, planted with NumPy alone."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from refsim import decode
from refsim.causes import DiffOutcome, Family, WeightOperands, explain_diff
from refsim.errors import RefsimError
from refsim.numerics import mma

RANDOM = np.random.default_rng(0)
BF16 = ml_dtypes.bfloat16
M, N, K, GROUP = 12, 24, 128, 32
A = RANDOM.normal(0, 1, (M, K)).astype(BF16)
CODES = RANDOM.integers(0, 16, (N, K)).astype(np.uint8)
SCALES = RANDOM.uniform(0.01, 0.1, (N, K // GROUP)).astype(np.float32)
ZEROS = RANDOM.integers(5, 11, (N, K // GROUP))
OPERANDS = WeightOperands(a=A, b=CODES, b_format="u4", b_scale=SCALES, b_zero=ZEROS)


def spread(grid):
    return np.repeat(grid, GROUP, 1).astype(np.float32)


def weights(codes=CODES, scales=SCALES, zeros=ZEROS):
    return ((codes.astype(np.float32) - spread(zeros)) * spread(scales)).astype(BF16)


def product(w, a=A):
    """What wgmma returns: refsim is asked for the chip's sums alone."""
    return mma(a.view(np.uint16), w.view(np.uint16), a_format="bf16", b_format="bf16")


def behind():
    total = np.zeros((M, N), np.float32)
    for at in range(K // GROUP):
        part = slice(GROUP * at, GROUP * at + GROUP)
        exact = (CODES[:, part].astype(np.float32) - ZEROS[:, at, None]).astype(BF16)
        sums = product(exact, A[:, part]).astype(np.float64)
        total = (sums * SCALES[:, at] + total).astype(np.float32)
    return total


RIGHT = product(weights())
TWO = CODES.reshape(N, -1, 2)[:, :, ::-1].reshape(N, K)


@pytest.mark.parametrize(
    ("output", "family"),
    [
        (product(weights(zeros=0 * ZEROS)), Family.ZERO_POINT),
        (product(weights(zeros=ZEROS + 1)), Family.ZERO_POINT),
        (product(weights(codes=CODES ^ 8)), Family.ZERO_POINT),
        (product(weights(scales=np.roll(SCALES, 1, 1))), Family.SCALE_LAYOUT),
        (product(weights(scales=np.float32(1) / SCALES)), Family.SCALE_RULE),
        (product(weights(scales=SCALES.astype(BF16).astype(np.float32))), Family.SCALE_RULE),
        (product(weights(codes=TWO)), Family.PACKING),
        (product(weights(codes=CODES.reshape(N, -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(N, K))), Family.PACKING),
        (
            product((CODES * spread(SCALES)).astype(BF16) - (spread(ZEROS) * spread(SCALES)).astype(BF16)),
            Family.DOUBLE_ROUNDING,
        ),
        (behind(), Family.PROMOTION_ORDER),
        (product((CODES - spread(ZEROS) * spread(SCALES)).astype(BF16)), Family.SCALE_RULE),
    ],
    ids=[
        "no zero",
        "zero + 1",
        "offset",
        "a group late",
        "inverted",
        "bf16 scales",
        "nibbles",
        "eights",
        "z s",
        "behind",
        "q - z s",
    ],
)
def test_what_became_of_weights_is_named(output, family):
    found = explain_diff(output, operands=OPERANDS)
    assert {str(cause.family) for each in found.named for cause in each.causes} == {str(family)}


def test_weights_of_fp8_with_a_scale_a_row():
    w = RANDOM.normal(0, 1, (N, K)).astype(ml_dtypes.float8_e4m3fn)
    scale = RANDOM.uniform(0.5, 2, N).astype(np.float32)
    operands = WeightOperands(a=A, b=w.view(np.uint8), b_format="e4m3", b_scale=scale)
    before = product((w.astype(np.float32) * scale[:, None]).astype(BF16))
    assert explain_diff(before, operands=operands).outcome is DiffOutcome.EQUAL
    found = explain_diff(product(w.astype(BF16)) * scale, before, operands=operands)
    assert [each.causes[0].family for each in found.named][:1] == [Family.PROMOTION_ORDER]


def test_equal_and_held_out_weights_have_no_cause():
    assert explain_diff(RIGHT, operands=OPERANDS).outcome is DiffOutcome.EQUAL
    noise = RIGHT * RANDOM.uniform(0.9, 1.1, RIGHT.shape).astype(np.float32)
    assert not explain_diff(noise, operands=OPERANDS, seconds=0.5).named


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"b": CODES[:, :64]}, "bad-shape"),
        ({"b": CODES[:8], "b_scale": 1, "b_zero": 0}, "bad-shape"),
        ({"b_scale": SCALES[:5]}, "bad-shape"),
        ({"b_scale": SCALES[:, :3]}, "bad-shape"),
        ({"b_zero": ZEROS + 0.5}, "bad-shape"),
        ({"a": A.view(np.uint16).astype(np.uint8), "a_format": "e4m3"}, "bad-dtype"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_operands_of_weights_that_do_not_fit_are_refused(wrong, code):
    with pytest.raises(RefsimError) as error:
        explain_diff(RIGHT, operands=replace(OPERANDS, **wrong))
    assert error.value.code == code


WIDE_ZEROS = np.concatenate([np.arange(16), RANDOM.integers(0, 16, N * (K // GROUP) - 16)]).reshape(N, K // GROUP)
EIGHTS = [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize(
    ("zeros", "says"),
    [
        (WIDE_ZEROS + 8, "is 8 too large"),
        (WIDE_ZEROS - 5, "is 5 too small"),
        (WIDE_ZEROS + 128, "is 128 too large"),
        (np.where(WIDE_ZEROS == 0, 15, WIDE_ZEROS), "0 became 15"),
        (np.where(WIDE_ZEROS == 0, 16, WIDE_ZEROS), "0 became 16"),
        (np.where(WIDE_ZEROS == 15, 0, WIDE_ZEROS), "15 became 0"),
        ((WIDE_ZEROS - 1) % 16, "is 1 smaller, in 4 bits, where it wraps around"),
        ((WIDE_ZEROS + 3) % 16, "is 3 larger, in 4 bits, where it wraps around"),
        (np.minimum(WIDE_ZEROS + 2, 15), "is 2 larger, in 4 bits, where it saturates"),
        (np.where(WIDE_ZEROS > 7, WIDE_ZEROS - 16, WIDE_ZEROS), "is taken for a signed number of 4 bits"),
        (WIDE_ZEROS % 4, "is taken for an unsigned number of 2 bits"),
        (WIDE_ZEROS.reshape(-1, 8, K // GROUP)[:, EIGHTS].reshape(WIDE_ZEROS.shape), "rows 0, 2, 4, 6, 1, 3, 5, 7"),
        (np.roll(WIDE_ZEROS, 1, 1), "of the block of K before, around the end"),
    ],
)
def test_zero_points_of_another_offset_width_or_place_are_named(zeros, says):
    operands = replace(OPERANDS, b_zero=WIDE_ZEROS)
    found = explain_diff(product(weights(zeros=zeros)), operands=operands)
    assert {cause.family for each in found.named for cause in each.causes} == {Family.ZERO_POINT}
    assert any(says in cause.says for each in found.named for cause in each.causes), str(found)


def test_zero_points_that_do_not_exist_may_be_subtracted():
    operands = replace(OPERANDS, b_zero=0)
    found = explain_diff(product(weights(zeros=0 * ZEROS + 8)), operands=operands)
    assert [cause.says for each in found.named for cause in each.causes] == ["the zero point is 8 too large"]


def test_drawn_zero_points_are_no_cause():
    zeros = np.where(RANDOM.random(WIDE_ZEROS.shape) < 0.5, RANDOM.integers(0, 16, WIDE_ZEROS.shape), WIDE_ZEROS)
    assert not explain_diff(product(weights(zeros=zeros)), operands=replace(OPERANDS, b_zero=WIDE_ZEROS)).named


MX_CODES = RANDOM.integers(0, 16, (N, K)).astype(np.uint8)
MX_SCALES = RANDOM.integers(122, 130, (N, K // 32)).astype(np.uint8)


def halves(codes, run):
    return codes.reshape(N, -1, 2, run // 2).swapaxes(2, 3).reshape(codes.shape)


@pytest.mark.parametrize(
    ("format", "codes", "scales", "family"),
    [
        ("e2m1", lambda codes: halves(codes, 32), MX_SCALES, Family.PACKING),
        ("e2m1", lambda codes: halves(codes, 16), MX_SCALES, Family.PACKING),
        ("e2m1", lambda codes: halves(codes, K), MX_SCALES, Family.PACKING),
        ("e2m1", lambda codes: codes.reshape(N, -1, 2)[:, :, ::-1].reshape(codes.shape), MX_SCALES, Family.PACKING),
        ("e2m1", lambda codes: codes.reshape(N, -1, 8)[:, :, ::-1].reshape(codes.shape), MX_SCALES, Family.PACKING),
        ("e2m1", lambda codes: codes, MX_SCALES + 1, Family.SCALE_RULE),
        ("e3m2", lambda codes: codes, MX_SCALES - 1, Family.SCALE_RULE),
        ("e4m3", lambda codes: codes, 254 - MX_SCALES, Family.SCALE_RULE),
        ("e2m3", lambda codes: codes, np.roll(MX_SCALES, 1, 1), Family.SCALE_LAYOUT),
    ],
)
def test_mistakes_in_weights_with_e8m0_scales_are_named(format, codes, scales, family):
    operands = WeightOperands(a=A, b=MX_CODES, b_format=format, b_scale=MX_SCALES, scale_format="e8m0")
    wide = decode(codes(MX_CODES), format, np.float32) * spread(np.exp2(scales.astype(np.float64) - 127))
    found = explain_diff(product(wide.astype(BF16)), operands=operands)
    assert family in {cause.family for each in found.named for cause in each.causes}, str(found)


def test_scales_of_weights_may_be_codes_of_ue4m3():
    codes = RANDOM.integers(40, 70, (N, K // GROUP)).astype(np.uint8)
    operands = replace(OPERANDS, b_scale=codes, scale_format="ue4m3")
    right = product(weights(scales=decode(codes, "ue4m3", np.float32)))
    assert explain_diff(right, operands=operands).outcome is DiffOutcome.EQUAL
