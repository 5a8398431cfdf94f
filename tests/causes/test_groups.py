"""Batches and experts: whose operands rows get, where batches lie; planted with NumPy alone."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from refsim.causes import DiffOutcome, Family, ProductOperands, explain_diff
from refsim.errors import RefsimError

BATCHES, ROWS, COLUMNS, K = 4, 5, 16, 64


def drawn(*shape, seed=0):
    codes = own.e4m3(np.random.default_rng(seed).normal(0, 1, shape).reshape(-1, shape[-1])).reshape(shape)
    return np.where(codes == 0x80, 0, codes).astype(np.uint8)


A, B = drawn(BATCHES, ROWS, K), drawn(BATCHES, COLUMNS, K, seed=1)
SCALES = np.random.default_rng(2).uniform(0.5, 2, (BATCHES, ROWS)).astype(np.float32)
OPERANDS = ProductOperands(a=A, b=B, a_format="e4m3", b_format="e4m3")


def products(a, b):
    return np.stack([own.hopper(one, other) for one, other in zip(a, b, strict=True)])


RIGHT = products(A, B)


def said(found):
    return [str(each) for each in found.named]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (products(A, B[[1, 2, 3, 0]]), "B: they are those of the next group, around the end"),
        (products(A[[0, 0, 1, 2]], B), "A: they are those of the group before"),
        (products(A, B[[2, 1, 0, 3]]), "B: they are exchanged between group 0 and group 2"),
        (products(A, B[[0, 0, 0, 0]]), "B: they are those of the first group for all"),
        (RIGHT[[3, 0, 1, 2]], "outputs lie one batch behind their own, around the end"),
        (RIGHT.swapaxes(0, 1).reshape(RIGHT.shape), "outputs lie as (M, B, N), rows before batches"),
    ],
    ids=["B rolled", "A clamped", "B exchanged", "B of the first", "outputs rolled", "rows first"],
)
def test_a_batch_of_another_is_named(output, words):
    assert said(explain_diff(output, operands=OPERANDS)) == [f"another batch or expert: {words}"]
    assert said(explain_diff(output, RIGHT, operands=OPERANDS)) == [f"another batch or expert: {words}"]


def test_batches_that_are_right_have_no_cause():
    assert explain_diff(RIGHT, operands=OPERANDS).outcome is DiffOutcome.EQUAL
    noise = RIGHT * np.random.default_rng(0).uniform(0.9, 1.1, RIGHT.shape).astype(np.float32)
    assert not explain_diff(noise, operands=OPERANDS, seconds=0.5).named


def test_what_a_product_does_otherwise_is_named_in_every_batch():
    ada = np.stack([own.ada(one, other) for one, other in zip(A, B, strict=True)])
    [named] = explain_diff(ada, operands=OPERANDS).named
    assert named.causes[0].family is Family.ACCUMULATOR


def test_scales_of_another_batch_and_one_b_for_all():
    operands = ProductOperands(a=A, b=B[0], a_format="e4m3", b_format="e4m3", a_scale=SCALES)
    sums = products(A, B[[0, 0, 0, 0]])
    assert explain_diff(sums * SCALES[:, :, None], operands=operands).outcome is DiffOutcome.EQUAL
    found = explain_diff(sums * SCALES[[1, 2, 3, 0], :, None], operands=operands)
    assert "the scales of A: they are those of the next group, around the end" in said(found)[0]


@pytest.mark.parametrize(
    "scale", [SCALES[:, 0], SCALES[:, :1], SCALES[:, :, None]], ids=["(B,)", "(B, 1)", "(B, M, 1)"]
)
def test_scales_of_batches_in_every_shape(scale):
    operands = ProductOperands(a=A, b=B, a_format="e4m3", b_format="e4m3", a_scale=scale)
    spread = scale.reshape(BATCHES, -1, 1)
    assert explain_diff(RIGHT * spread, operands=operands).outcome is DiffOutcome.EQUAL


def test_two_outputs_of_batches_alone():
    turned = explain_diff(RIGHT[::-1], RIGHT)
    assert said(turned) == ["another batch or expert: outputs lie from the last batch on"]


INDEX = np.array([0] * 30 + [-1] * 2 + [1] * 40 + [-1] * 24 + [2] * 32, np.int32)


TOKENS = drawn(128, K, seed=3)


def of_experts(index):
    """D of a kernel whose row r has the expert index[r]; rows of none hold what lay there."""
    output = np.full((len(index), COLUMNS), 7, np.float32)
    for expert in range(3):
        mine = index == expert
        output[mine] = own.hopper(TOKENS[mine], B[expert])
    return output


EXPERTS = ProductOperands(a=TOKENS, b=B[:3], a_format="e4m3", b_format="e4m3", m_indices=INDEX)


def test_rows_of_no_expert_are_not_looked_at():
    output = of_experts(INDEX)
    output[INDEX == -1] = np.nan
    assert explain_diff(output, operands=EXPERTS).outcome is DiffOutcome.EQUAL
    assert explain_diff(output, of_experts(INDEX), operands=EXPERTS).outcome is DiffOutcome.EQUAL


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.where(INDEX >= 0, (INDEX + 1) % 3, -1), "are those of the next group, around the end"),
        (np.where(INDEX >= 0, 0, -1), "are those of the first group for all"),
    ],
    ids=["behind", "first"],
)
def test_an_expert_of_another_is_named(index, words):
    assert said(explain_diff(of_experts(index), operands=EXPERTS)) == [f"another batch or expert: B: they {words}"]


def test_the_expert_of_a_tile_is_that_of_its_first_row():
    index = np.sort(np.random.default_rng(4).integers(0, 3, 128)).astype(np.int32)
    operands = ProductOperands(a=TOKENS, b=B[:3], a_format="e4m3", b_format="e4m3", m_indices=index)
    wrong = np.repeat(index[::64], 64)
    assert "the first of 64 rows for all 64" in said(explain_diff(of_experts(wrong), operands=operands))[0]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"b": B[:2]}, "bad-shape"),
        ({"b_scale": SCALES[:3]}, "bad-shape"),
        ({"a_scale": SCALES[:3]}, "bad-shape"),
        ({"c": np.zeros((ROWS, COLUMNS), np.float32)}, "bad-shape"),
        ({"scale_format": "e8m0"}, "usage"),
        ({"m_indices": INDEX}, "bad-shape"),
        ({"a": A[0], "b": B, "m_indices": np.full(ROWS, 4)}, "out-of-range"),
        ({"a": A[0], "b": B, "m_indices": np.zeros(ROWS)}, "bad-shape"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_operands_of_groups_that_do_not_fit_are_refused(wrong, code):
    with pytest.raises(RefsimError) as error:
        explain_diff(RIGHT, operands=replace(OPERANDS, **wrong))
    assert error.value.code == code
