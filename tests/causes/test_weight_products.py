"""Products with narrow weights: scales, zero points, packing and roundings, planted with NumPy alone."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

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
