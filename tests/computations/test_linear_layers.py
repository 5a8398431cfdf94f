"""Mistakes of a linear layer are named by what it computes: fragments, addends, decoders, and the kernel's inputs."""

import numpy as np
import pytest

from refsim import oracles
from refsim.causes.effort import Clock, Limit
from refsim.causes.search import CauseSearch
from refsim.conversions import encode
from refsim.numerics import ieee
from refsim.oracles.linear_layers import ONE_CHAIN, REDUCTIONS, product_of, weight_product_of, weights

SHARED = REDUCTIONS["mirage_2_warps"]
INPUTS = {"a_read": "x", "b_read": "w", "c_read": "r", "accumuland": "r"}
INNER = "B is read with the two inner registers of a matrix load exchanged, 8 rows for 8 columns, input w"
PAIRS = "B is read with each 8 columns exchanged for the next, as if the two registers of B were exchanged, input w"
TURNED = "B is read with each tile of 8 x 8 transposed, input w"


def drawn(seed: int, *shape: int, format: str = "bf16") -> np.ndarray:
    return encode(np.random.default_rng(seed).standard_normal(shape), format)


X, W, R = drawn(1, 12, 150), drawn(2, 40, 150), drawn(3, 12, 40)
NARROW, SCALES = drawn(4, 40, 150, format="e4m3"), drawn(5, 5, 3)


def named(layer, got: np.ndarray) -> list[str]:
    search = CauseSearch(layer, layer.usual, got, Limit(Clock(False), 30.0)).run()
    return [cause.says for each in search.whole for cause in each.causes]


def taken_from(place, codes: np.ndarray) -> np.ndarray:
    """The matrix whose element (row, column) is the one at `place(row, column)`, zero beyond the end."""
    found = np.zeros_like(codes)
    for at in np.ndindex(*codes.shape):
        row, column = place(*at)
        if row < codes.shape[0] and column < codes.shape[1]:
            found[at] = codes[row, column]
    return found


@pytest.mark.parametrize(
    ("says", "place"),
    [
        (INNER, lambda n, k: (n & ~8 | k & 8, k & ~8 | n & 8)),
        (PAIRS, lambda n, k: (n, k ^ 8)),
        (TURNED, lambda n, k: (n & ~7 | k & 7, k & ~7 | n & 7)),
    ],
)
def test_registers_of_weights_are_told_apart(says, place):
    layer = product_of(X, W, R, SHARED, "sm_90a").reading(**INPUTS)
    wrong = oracles.linear(X, taken_from(place, W), R, reduction=SHARED)
    assert [each for each in named(layer, wrong) if each.endswith("input w")] == [says]


@pytest.mark.parametrize(
    ("says", "residual"),
    [
        ("C is left out, input r", None),
        ("C is read so that columns 1 apart are exchanged, input r", taken_from(lambda m, n: (m, n ^ 1), R)),
        ("C is read so that rows 8 apart are exchanged, input r", taken_from(lambda m, n: (m ^ 8, n), R)),
        ("C is read from the next row, input r", R[[*range(1, 12), 11]]),
        ("C is read from the column before, input r", R[:, [0, *range(39)]]),
        ("C is read from the first row for all, input r", R[:1].repeat(12, 0)),
    ],
)
def test_the_place_of_the_residual_is_named(says, residual):
    layer = product_of(X, W, R, SHARED, "sm_90a").reading(**INPUTS)
    assert named(layer, oracles.linear(X, W, residual, reduction=SHARED)) == [says]


def test_the_order_of_the_sums_of_ranges_is_named():
    layer = product_of(X, W, R, REDUCTIONS["mirage_4_warps"], "sm_90a")
    one = named(layer, oracles.linear(X, W, R, reduction=ONE_CHAIN))
    assert "one range of K" in one
    two = named(layer, oracles.linear(X, W, R, reduction=SHARED))
    assert two[0] == "2 sums, each of every 2th tile of 64 columns, kept in bf16, added ascending"


@pytest.mark.parametrize(
    ("says", "made"),
    [
        (
            "decoded by adding 120 to the exponent, input w",
            lambda: weights(NARROW, SCALES, group=(8, 64), decode="mirage"),
        ),
        (
            "a weight is (q - z) * s, rounded, times s again",
            lambda: ieee.mul(
                weights(NARROW, SCALES, group=(8, 64)), np.kron(SCALES, np.ones((8, 64), np.uint16))[:, :150]
            ),
        ),
    ],
    ids=["decoder", "scale twice"],
)
def test_wrong_weights_are_named(says, made):
    layer = weight_product_of(X, NARROW, SCALES, R, (8, 64), "exact", SHARED, "sm_90a").reading(weight_read="w")
    right = oracles.linear_fp8_weight(X, NARROW, SCALES, R, group=(8, 64), reduction=SHARED)
    assert (layer.codes(layer.usual) == right).all()
    wrong = oracles.linear(X, np.asarray(made(), np.uint16), R, reduction=SHARED)
    assert [each for each in named(layer, wrong) if each.endswith(says)]
