"""What a stranger planted: scales of a neighbour or of another kind, ranges of K that are not equal, codes of another format."""

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Problem
from refsim import encode
from refsim.causes import DiffOutcome, Family, ProductOperands, explain_diff
from refsim.errors import RefsimError

SHAPE = (10, 16, 384)


def named(found):
    return {str(cause.family) for each in found.named for cause in each.causes}


def of_scales(sa, sb, rows):
    """The operands of a product whose B has one scale for 128 rows, and its sums under scales sa and sb."""
    problem = Problem.drawn(7, rows)
    spread = np.repeat(sb, 128, 0)[: rows[1]]
    return Problem(problem.a, problem.b, sa.astype(np.float32), spread.astype(np.float32)).promoted()


@pytest.mark.parametrize(
    ("change", "family"),
    [
        (lambda sa, sb: (1 / sa, sb), Family.SCALE_RULE),
        (lambda sa, sb: ((sa.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32), sb), Family.SCALE_RULE),
        (lambda sa, sb: (np.roll(sa, 1, 1), sb), Family.SCALE_LAYOUT),
        (lambda sa, sb: (np.roll(sa.reshape(-1), -1).reshape(sa.shape), sb), Family.SCALE_LAYOUT),
        (lambda sa, sb: (sa, sb[[1, 2, 0]]), Family.SCALE_LAYOUT),
        (lambda sa, sb: (sa, np.ascontiguousarray(sb.reshape(2, 3).T)), Family.SCALE_LAYOUT),
    ],
    ids=["inverted", "bf16", "a block around", "a float behind", "128 rows behind", "turned"],
)
def test_scales_of_a_neighbour_or_kept_otherwise_are_named(change, family):
    random = np.random.default_rng(5)
    shape = (6, 272, 256)
    sa, sb = (random.uniform(0.5, 2, (rows, 2)).astype(np.float32) for rows in (6, 3))
    problem = Problem.drawn(7, shape)
    operands = ProductOperands(a=problem.a, b=problem.b, a_format="e4m3", b_format="e4m3", a_scale=sa, b_scale=sb)
    assert explain_diff(of_scales(sa, sb, shape), operands=operands).outcome is DiffOutcome.EQUAL
    assert named(explain_diff(of_scales(*change(sa, sb), shape), operands=operands)) == {str(family)}


def test_ranges_of_k_that_are_not_equal_are_named_where_they_part():
    problem = Problem.drawn(1, SHAPE)
    first, second = (own.hopper(problem.a[:, part], problem.b[:, part]) for part in (slice(96), slice(96, None)))
    found = explain_diff(first + second, operands=problem.operands())
    assert [each.causes[0].says for each in found.named] == ["2 ranges of K that part at column 96, added ascending"]


def test_sums_that_are_added_in_bf16_are_told_from_sums_kept_so():
    problem = Problem.drawn(2, SHAPE)

    def held(values):
        return own.of_bf16(own.bf16(values))

    parts = [held(part) for part in own.chunks(problem.a, problem.b, 128)]
    atomic = held(held(parts[0] + parts[1]) + parts[2])
    for output, words in ((atomic, "kept and added in bf16"), (parts[0] + parts[1] + parts[2], "kept in bf16")):
        found = explain_diff(output, operands=problem.operands())
        assert all(f" {words}, added" in each.causes[0].says for each in found.named)
        assert named(found) == {str(Family.SPLIT_K)}


def test_an_output_in_codes_of_another_format_is_named_from_what_was_rounded():
    x = (
        np.random.default_rng(3).normal(0, 0.02, (16, 32)).astype(np.float32)
    )  # subnormals of the one are normal in the other
    found = explain_diff(encode(x, "e4m3fnuz"), encode(x, "e4m3"), "e4m3", values=x)
    assert [str(each) for each in found.named] == ["FN / FNUZ: e4m3fnuz is written, not e4m3"]


def test_zeros_that_lost_their_sign_are_called_so_first():
    zeros = np.zeros((16, 16), np.float32)
    assert explain_diff(zeros, -zeros).named[0].causes[0].family is Family.ZERO_SIGN


def test_outputs_without_an_axis_are_compared():
    assert explain_diff(np.float32(1), np.float32(2)).outcome is DiffOutcome.TOO_LITTLE
    assert explain_diff(np.float32(1), np.float32(1)).outcome is DiffOutcome.EQUAL


def test_a_transpose_of_another_shape_is_refused_with_a_word():
    with pytest.raises(RefsimError, match="bad-shape") as error:
        explain_diff(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert error.value.help == "a transpose of one has the shape of the other"


def test_an_interval_beyond_k_is_all_of_k():
    problem = Problem.drawn(1, SHAPE)
    whole = own.hopper(problem.a, problem.b)
    assert explain_diff(whole, operands=problem.operands(interval=10**30)).outcome is DiffOutcome.EQUAL
