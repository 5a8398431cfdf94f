"""The two sums of one element, side by side: of batches, experts, integers, narrow weights and attention."""

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from conformance.explained.attention_pairs import of_attention
from conformance.explained.group_pairs import BEHIND, Batches, Experts, of_groups
from conformance.explained.integer_pairs import Integers, of_integers
from conformance.explained.row_pairs import Rows, operands_of
from conformance.explained.weight_pairs import Weights, of_weights
from refsim.causes import DiffExplanation, ProductOperands, explain_diff
from refsim.errors import RefsimError


def asked(pairs, name, at=None):
    [pair] = [each for each in pairs if each.name == name]
    return explain_diff(pair.got, pair.want, pair.format, operands=pair.operands, at=at), pair


def sums(found: DiffExplanation, held=np.float32):
    """(place in K, sum of A, sum of B) of each line."""
    codes = np.array([[each.code_a, each.code_b] for each in found.stages], np.uint32).view(held)
    return [(each.end, *pair) for each, pair in zip(found.stages, codes.tolist(), strict=True)]


def test_an_element_of_a_batch_has_the_sums_of_both_matrices():
    found, pair = asked(of_groups(1), "batches: B of the batch behind", (2, 3, 5))
    p = Batches.drawn(1)
    assert found.element == (2, 3, 5)
    for end, one, other in sums(found):
        a, b = p.a[2, 3:4, :end], p.b[[BEHIND[2], 2], 5, :end]
        assert [one, other] == own.hopper(a, b)[0].tolist()
    assert sums(found)[-1] == (256, pair.got[2, 3, 5], pair.want[2, 3, 5])


def test_the_first_element_that_differs_is_said_by_its_batch():
    found, pair = asked(of_groups(1), "batches: B of two exchanged")
    assert found.element == tuple(np.argwhere(pair.got != pair.want)[0])
    assert found.element[0] == 1


def test_rows_of_experts_are_counted_as_the_output_has_them():
    p = Experts.drawn(1)
    row = int(np.flatnonzero(p.index == 2)[3])
    found, pair = asked(of_groups(1), "experts: the expert behind", (row, 7))
    assert (p.index[:row] == -1).any()
    assert (found.element, sums(found)[-1]) == ((row, 7), (256, pair.got[row, 7], pair.want[row, 7]))
    nobody = int(np.flatnonzero(p.index == -1)[0])
    with pytest.raises(RefsimError, match="has no expert"):
        asked(of_groups(1), "experts: the expert behind", (nobody, 7))


def test_sums_of_integers_are_integers():
    p = Integers.drawn(1)
    found, _ = asked(of_integers(1), "integers to s8: no zero point of D", (4, 9))
    for end, one, other in sums(found, np.int32):
        assert one == other == p.whole(p.a[:, :end], p.b[:, :end])[4, 9]
    left_out, _ = asked(of_integers(1), "integers: no zero point of A", (4, 9))
    assert [each[1] for each in sums(left_out, np.int32)] == [
        p.whole(p.a[:, :end], p.b[:, :end], za=0)[4, 9] for end in (32, 64, 96, 128, 160)
    ]


def test_sums_of_weights_are_those_of_weights_as_they_were_made():
    p = Weights.drawn(1, "bf16")
    found, pair = asked(of_weights(1), "u4 weights in bf16: no zero points", (6, 2))
    picked = int(p.picked[6])
    for end, one, other in sums(found):
        assert [one, other] == ([pair.got[6, 2], pair.want[6, 2]] if picked < end else [0, 0])


def test_attention_shows_what_the_first_keys_give():
    found, pair = asked(of_attention(1), "attention: 2^x", (1, 5, 3))
    assert found.element == (1, 5, 3)
    assert {each.over for each in found.stages} == {"keys"}
    (end, one, other), lines = sums(found)[-1], len(found.stages)
    assert (end, one, other) == (150, pair.got[1, 5, 3], pair.want[1, 5, 3])
    q, k, v = (own.of_bf16(each).astype(np.float64) for each in (pair.operands.q, pair.operands.k, pair.operands.v))
    for end, _, other in sums(found)[: lines - 1]:
        p = np.exp(k[0, :end] @ q[1, 5] * 32**-0.5)
        assert abs(other - p @ v[0, :end, 3] / p.sum()) < 2**-8  # weights are rounded to bf16, by 2^-9 of them


@pytest.mark.parametrize(
    ("operands", "at", "code"),
    [
        (operands_of(Rows.drawn(0, (4, 32)), "softmax"), (0, 0), "usage"),
        (None, (0, 0), "usage"),
        (operands_of(Rows.drawn(0, (4, 32)), "softmax"), (0, 0, 0), "out-of-range"),
        (operands_of(Rows.drawn(0, (4, 32)), "softmax"), (4, 0), "out-of-range"),
    ],
)
def test_an_element_of_what_is_no_sum_is_refused(operands, at, code):
    got, want = np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)
    with pytest.raises(RefsimError) as error:
        explain_diff(got, want, operands=operands, at=at)
    assert error.value.code == code


def test_a_block_scaled_product_shows_no_sums():
    codes, scales = np.full((32, 32), 0x38, np.uint8), np.full((32, 1), 127, np.uint8)
    given = ProductOperands(
        a=codes, b=codes, a_format="e4m3", b_format="e4m3", a_scale=scales, b_scale=scales, scale_format="e8m0"
    )
    with pytest.raises(RefsimError, match="no sum"):
        explain_diff(np.zeros((32, 32), np.float32), operands=given, at=(0, 0))
