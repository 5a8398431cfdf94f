"""How sums that are found are added, scaled and said: chains in one format that meet in another, trees of pairs, both ends."""

import ml_dtypes
import numpy as np
import pytest

from refsim import numerics
from refsim.bringup.order import fingerprint, of_function, of_row_sums
from refsim.formats import BF16, F16, F32, F64
from refsim.numerics import ieee
from tests.bringup.test_order import SERVED, of_numpy, only_order


def chunks(of, meets, length=8):
    """Chains of `length` products in one dtype, added one after the other in another."""

    def multiply(a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)  # no product of the operands here is cut
        total = None
        for at in range(0, a.shape[1], length):
            chain = np.zeros((len(a), b.shape[1]), of)
            for k in range(at, min(at + length, a.shape[1])):
                chain = (chain + (a[:, k, None] * b[None, k]).astype(of)).astype(of)
            chain = chain.astype(meets)
            total = chain if total is None else total + chain
        return total if total.dtype != np.float64 else total.astype(np.float32)

    return multiply


@pytest.mark.parametrize(
    ("operands", "of", "meets", "expected"),
    [
        (F32, np.float64, np.float32, (F64, F32, F32)),
        (F32, np.float32, np.float64, (F32, None, F64)),
        (F16, np.float16, np.float32, (F16, None, F32)),
        (BF16, ml_dtypes.bfloat16, np.float32, (BF16, None, F32)),
        (BF16, np.float32, ml_dtypes.bfloat16, (F32, None, BF16)),
    ],
)
def test_chains_of_one_format_that_meet_in_another_are_told(operands, of, meets, expected):
    asked = of_function(chunks(of, meets), operands, operands, n=8, k=32, rows=(2,))
    order = only_order(fingerprint(asked, seeds=(0,)))
    found = order.arithmetic
    assert (found.sums, found.partial, found.meets) == expected
    assert f"added in {np.dtype(meets)}" in order.lines[-2]


def test_products_behind_a_sum_of_chains_are_no_chains_that_meet():
    """There the format of the sums stays open; of one format alone it is found."""

    def multiply(a, b):
        d = SERVED.four_parts(a[:, :16], b[:16])
        for k in range(16, a.shape[1]):
            d += a[:, k, None] * b[None, k]
        return d

    assert only_order(fingerprint(of_numpy(multiply), seeds=(0,))).arithmetic.meets is None


@pytest.mark.parametrize(
    ("scale", "said"), [(0.125, "the sum times 0.125 is rounded to f32"), (-1, "the sum times -1 is rounded to f32")]
)
def test_a_sum_that_is_scaled_by_a_power_of_two_is_told(scale, said):
    order = only_order(fingerprint(of_numpy(lambda a, b: SERVED.one_chain(a, b) * np.float32(scale)), seeds=(0,)))
    assert order.lines[-1] == said


def test_a_mean_is_its_sum_by_a_power_of_two_and_no_other():
    mean = of_row_sums(lambda x: np.add.accumulate(x, axis=1)[:, -1] / np.float32(x.shape[1]), "f32", k=64, rows=(2,))
    assert only_order(fingerprint(mean, seeds=(0,))).lines[-1] == "the sum times 0.015625 is rounded to f32"
    thirds = of_numpy(lambda a, b: SERVED.one_chain(a, b) / np.float32(3), rows=(2,))
    (found,) = fingerprint(thirds, seeds=(0,)).sizes
    assert found.why.startswith("the product at k 0..31 alone is 0.333333 times itself in D")


def butterfly(steps):
    def multiply(a, b):
        sums = [SERVED.one_chain(a[:, at : at + 2], b[at : at + 2]) for at in range(0, a.shape[1], 2)]
        for apart in steps:
            sums = [sums[at] + sums[at ^ apart] for at in range(len(sums))]
        return sums[0]

    return multiply


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((1, 2, 4, 8), "neighbors first"),
        ((8, 4, 2, 1), "halves first"),
        ((4, 1, 8, 2), "first those that are 4 apart, then 1, 8, 2"),
        ((2, 8, 1, 4), "first those that are 2 apart, then 8, 1, 4"),
    ],
)
def test_a_tree_of_pairs_says_which_meet_first(steps, said):
    order = only_order(fingerprint(of_numpy(butterfly(steps)), seeds=(0,)))
    assert order.lines[0] == f"16 sums added by pairs, {said}"


def test_pairs_of_no_one_distance_are_called_irregular():
    def multiply(a, b):
        one, two, three, four, five, six, seven, eight = (
            SERVED.one_chain(a[:, at : at + 4], b[at : at + 4]) for at in range(0, 32, 4)
        )
        return ((one + two) + (three + four)) + ((five + seven) + (six + eight))

    order = only_order(fingerprint(of_numpy(multiply), seeds=(0,)))
    assert order.lines[0] == "8 sums added by pairs, irregularly"


def test_an_order_that_is_the_same_from_both_ends_is_not_told_from_another():
    """Summands commute: pairs are the same tree with K reversed, so that there is nothing that bits leave open."""
    order = only_order(fingerprint(of_numpy(butterfly((1, 2, 4, 8))), seeds=(0,)))
    assert order.reversed_equal == 0


@pytest.mark.parametrize(("dtype", "meets", "rounding"), [(np.float32, None, "rne-f16"), (np.float16, F16, "rz-f32")])
def test_steps_that_add_in_f16_go_on_in_another_format(dtype, meets, rounding):
    """A tensor core's sums in f16, taken over after each step. Added in f16 they may have had more bits: nothing tells."""

    def multiply(a, b):
        total = np.zeros((len(a), b.shape[1]), dtype)
        for at in range(0, a.shape[1], 16):
            part = [np.ascontiguousarray(each[:, at : at + 16]).view(np.uint16) for each in (a, b.T)]
            step = numerics.mma(*part, unit="mma.sync", a_format="f16", b_format="f16", d_format="f16")
            total = ieee.add(total, step.view(np.float16).astype(dtype))
        return total

    order = only_order(fingerprint(of_function(multiply, F16, F16, n=16, k=64, rows=(2,)), seeds=(0,)))
    assert (order.arithmetic.meets, order.arithmetic.step.rounding.name) == (meets, rounding)
