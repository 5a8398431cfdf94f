"""explain_diff on values times scales: which scale an element got, planted in NumPy alone."""

import numpy as np
import pytest

from refsim.causes import DiffExplanation, DiffOutcome, Family, explain_diff
from refsim.errors import RefsimError
from refsim.testing.explained import leave_out_chance

RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 24, 160
X = RANDOM.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32)
OF_ROWS = RANDOM.uniform(0.5, 2, ROWS).astype(np.float32)
PADDED = np.full((ROWS, 8), np.nan, np.float32)
PADDED[:, :5] = RANDOM.uniform(0.5, 2, (ROWS, 5))
ROW, BLOCK = np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :] // 32
WIDE = RANDOM.normal(0, 1, (1, 704)).astype(np.float32)
OF_WIDE = RANDOM.uniform(0.5, 2, 6).astype(np.float32)
TILE = np.arange(704) // 176 * 176


def bits(x):
    words = np.asarray(x, np.float32).view(np.uint32)
    return np.where(np.isnan(np.asarray(x, np.float32)), np.uint32(0x7FFFFFFF), words)


PLANTED = {
    "rows of eight": (X, OF_ROWS, OF_ROWS[ROW % 8], Family.SCALE_LAYOUT),
    "the row before": (X, OF_ROWS, OF_ROWS[np.maximum(ROW - 1, 0)], Family.SCALE_LAYOUT),
    "lines that are not padded": (X, PADDED, PADDED.reshape(-1)[ROW * 5 + BLOCK], Family.SCALE_LAYOUT),
    "the first of four blocks": (X, PADDED, PADDED[ROW, BLOCK // 4 * 4], Family.SCALE_LAYOUT),
    "a turned grid": (X, PADDED, PADDED.reshape(-1)[BLOCK * ROWS + ROW], Family.SCALE_LAYOUT),
    "two blocks of a tile": (
        WIDE,
        OF_WIDE,
        OF_WIDE[TILE // 128 + (np.arange(704) >= (TILE // 128 + 1) * 128)],
        Family.SCALE_LAYOUT,
    ),
    "inverted": (X, OF_ROWS, (np.float32(1) / OF_ROWS)[ROW], Family.SCALE_RULE),
    "through f16": (X, OF_ROWS, OF_ROWS.astype(np.float16).astype(np.float32)[ROW], Family.DOUBLE_ROUNDING),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_scale_that_an_element_got_is_named(name):
    x, scales, used, family = PLANTED[name]
    found = explain_diff(bits(x * used), format="f32", values=x, scales=scales, seconds=2)
    assert {cause.family for each in found.named for cause in each.causes} == {family}


def test_matrices_of_a_batch_have_lines_of_their_own():
    x, scales = X.reshape(2, 12, COLUMNS), np.full((2, 128), np.nan, np.float32)
    scales[:, :12] = OF_ROWS.reshape(2, 12)
    right = bits(x * OF_ROWS.reshape(2, 12, 1))
    assert explain_diff(right, format="f32", values=x, scales=scales).outcome is DiffOutcome.EQUAL
    shifted = bits(x * scales.reshape(-1)[np.arange(2)[:, None] * 12 + np.arange(12)][:, :, None])
    found = explain_diff(shifted, right, "f32", values=x, scales=scales, seconds=2)
    assert "lines that are not padded" in str(found.named[0])


def test_scales_of_rows_in_any_order_are_factors_of_rows():
    used = OF_ROWS[np.random.default_rng(1).permutation(ROWS)][:, None]
    [named] = explain_diff(bits(X * used), format="f32", values=X, scales=OF_ROWS, seconds=0.5).named
    assert str(named).startswith("another factor: one factor for each row, within one rounding")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"scales": OF_ROWS}, "usage"),
        ({"values": X, "scales": OF_ROWS[:7]}, "bad-shape"),
        ({"values": X, "scales": OF_ROWS.astype(np.float64)}, "bad-shape"),
        ({"values": X, "scales": np.ones((3, 3, 3), np.float32)}, "bad-shape"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_scales_that_multiply_nothing_are_refused(given, code):
    with pytest.raises(RefsimError) as error:
        explain_diff(bits(X), bits(X * 2), "f32", **given)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("size", "other", "is_kept"), [(13, "unexplained", False), (4096, "unexplained", True), (13, "equal", True)]
)
def test_a_factor_of_few_elements_is_chance_beside_an_output_that_stays_open(size, other, is_kept):
    named = explain_diff(bits(X * 2), bits(X), "f32").named
    found = {
        "scales": DiffExplanation(DiffOutcome.EXPLAINED, size, size, size, named),
        "q": DiffExplanation(DiffOutcome(other), 9, 416, 416),
    }
    leave_out_chance(found)
    assert bool(found["scales"].named) == is_kept
