"""explain_diff on quantisers that go wrong on one path: some columns, the last tile, special numbers; planted in NumPy alone."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained.quantiser_pairs import drawn
from conformance.explained.quantiser_paths import POISON, held_out_paths, of_paths, of_places, of_reach, of_special
from conformance.explained.trials import asked
from refsim import quantize
from refsim.causes import DiffOutcome, Family, QuantizedFrom, explain_diff
from refsim.computations.in_part import part_of
from refsim.computations.quantised import blanked
from refsim.computations.ways import DoesNotApplyError

SHAPE = (16, 512)
LATER = pytest.mark.ci("others of the same kinds are named in every run")
EVERY_RUN = (
    "mxfp8, 16 x 512: abs forgotten in columns 0 and 1 of 8",
    "1x128, 16 x 512: power above what 2 bits say",
    "1x128, 16 x 512: times 1 / 448",
    "mxfp4, 16 x 512: two of four",
    "mxfp8, 16 x 512: no sign in two of four",
    "11 x 512: the last rows of both",
    "11 x 512: the last columns, packed",
    "11 x 512: no scale for a cut block",
    "13 x 640: words turned",
    "13 x 640: short lines",
    "16 x 512: a NaN dropped by halves",
)
HELD = ("held out: 1x128, 16 x 512, abs forgotten here and there", "held out: mxfp8, 16 x 512, some without a sign")
PLANTED = [pair for pairs in (of_paths, of_reach, of_places, of_special) for pair in pairs(0, SHAPE)]
HELD_OUT = [*held_out_paths(0, SHAPE)]


def some(pairs, names):
    return [pytest.param(pair, id=pair.name, marks=() if pair.name in names else LATER) for pair in pairs]


@pytest.mark.parametrize("pair", some(PLANTED, EVERY_RUN))
def test_the_path_that_went_wrong_is_named(pair):
    row = asked(pair, seconds=1.5)
    assert row["right"], row


@pytest.mark.parametrize("pair", some(HELD_OUT, HELD))
def test_neighbours_of_these_paths_stay_unexplained(pair):
    row = asked(pair, seconds=0.4)
    assert row["right"], row


def test_the_pairs_of_every_run_are_there():
    assert not {*EVERY_RUN, *HELD} - {pair.name for pair in (*PLANTED, *HELD_OUT)}


def test_rows_apart_share_a_factor_in_a_large_tensor():
    """Of 40 x 512 elements eight rows refute most causes, and what they leave is computed in full."""
    [pair] = [each for each in of_paths(1, (40, 512)) if each.name == "mxfp8, 40 x 512: elements by the row 32 above"]
    assert asked(pair, seconds=1.5)["right"]


# ---- parts ---------------------------------------------------------------------------------------------------------------

MADE, WANT = np.ones((24, 24), np.uint8), np.zeros((24, 24), np.uint8)


def made_where(marks):
    return np.where(marks, MADE, WANT)


ROW, COLUMN = np.indices(MADE.shape)
PARTS = [
    (COLUMN % 4 == 1, "columns 1 of each 4 alone"),
    (COLUMN % 8 < 3, "columns 0, 1, 2 of each 8 alone"),
    ((COLUMN % 4 == 0) & (COLUMN < 16), "columns 0 of each 4 alone, none from 16 on"),
    (ROW % 2 == 0, "rows 0 of each 2 alone"),
    (ROW >= 20, "from row 20 on alone"),
    (COLUMN < 12, "before column 12 alone"),
    ((COLUMN % 4 == 0) | (ROW == 3), None),
    ((COLUMN % 4 == 0) & (COLUMN < 16) | (COLUMN == 21), None),
    ((ROW * 5 + COLUMN) % 7 == 0, None),
    ((ROW == 3) & (COLUMN % 8 == 0), None),
]


@pytest.mark.parametrize(("marks", "says"), PARTS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_part_is_said_in_words(marks, says):
    assert part_of(MADE, made_where(marks), WANT, of_columns=True) == says


def test_a_scale_is_not_of_some_columns():
    """What the elements of a block share cannot have gone wrong in every fourth of them."""
    assert part_of(MADE, made_where(COLUMN % 4 == 1), WANT, of_columns=False) is None
    assert part_of(MADE, made_where(ROW % 4 == 1), WANT, of_columns=False) == "rows 1 of each 4 alone"


def test_three_elements_are_no_part():
    """Of one class of columns three elements tell the two apart, of the others many."""
    made = MADE.copy()
    made[3:, 1::4] = 0
    got = made_where(COLUMN % 4 == 1)
    assert part_of(made, np.where(ROW < 3, got, 0).astype(np.uint8), WANT, of_columns=True) is not None
    made[:, 5::4] = 0
    assert part_of(made, np.where(made & got, 1, 0).astype(np.uint8), WANT, of_columns=True) is None


# ---- what nobody wrote -----------------------------------------------------------------------------------------------------


def named(got, want, **given):
    return {cause.family for each in explain_diff(got, want, "e4m3", **given).named for cause in each.causes}


def test_nothing_is_written_where_both_outputs_hold_the_same_byte():
    x = drawn(3, (8, 256))[:, :24]
    right = quantize(np.pad(x, ((0, 0), (0, 8))), "mxfp8", recipe="rceil")
    usual, scales = right.codes[:, :24], right.scales
    given = QuantizedFrom(x=x, to="mxfp8", recipe="rceil", want_scales=scales)
    alone = replace(given, want_scales=None)
    assert (
        explain_diff(scales, format="e8m0", quantized=alone).outcome is DiffOutcome.EQUAL
    )  # one block a row: a column
    filled = {byte: np.full_like(scales, byte) for byte in (POISON, POISON + 1)}
    poison = np.full_like(usual, POISON)
    assert Family.TAIL in named(poison, usual, quantized=replace(given, scales=filled[POISON]), seconds=0.5)
    assert Family.TAIL not in named(poison, usual, quantized=replace(given, scales=filled[POISON + 1]), seconds=0.2)


def test_rows_that_hold_several_codes_were_written():
    codes, marks = np.tile(np.uint8([5, 10]), (4, 3)), np.indices((4, 6))[0] > 2
    assert (blanked(codes, marks) == np.where(marks, 0, codes)).all()
    codes[3, 2] = 6
    with pytest.raises(DoesNotApplyError):
        blanked(codes, marks)


def test_which_half_drops_a_nan_is_said():
    [pair] = [each for each in PLANTED if each.name.endswith("a NaN dropped by halves")]
    [cause] = explain_diff(pair.got, pair.want, pair.format, quantized=pair.quantized, seconds=1.5).named
    assert "one of the halves of each 8 has alone" in str(cause)


def test_a_scale_that_is_nan_multiplies_by_zero():
    """Elements of a block with a NaN are zeros where they should be NaN; its scale is right."""
    x = drawn(5, (8, 256))
    x[2, 40] = x[6, 100] = np.nan
    right = quantize(x, "mxfp8", recipe="rceil")
    wrong = right.codes.copy()
    for row, first in ((2, 32), (6, 96)):
        block = x[row, first : first + 32]
        wrong[row, first : first + 32] = np.where(np.isnan(block), 0x7F, np.where(np.signbit(block), 0x80, 0))
    given = QuantizedFrom(x=x, to="mxfp8", recipe="rceil", scales=right.scales, want_scales=right.scales)
    assert named(wrong, right.codes, quantized=given, seconds=0.5) == {Family.NAN}
