"""Attention forward: worked numbers, the slow definition of sampled rows, what rows may not see, what is refused."""

import numpy as np
import pytest

from refsim import oracles
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.oracles.attention_forward import LOG2_E
from refsim.reference import attention_forward as slow
from refsim.testing.matrices import Values

DEPTH = 32
attention = oracles.attention


def operands(type: str, fill: str, queries: int, keys: int, heads: int = 1, kv_heads: int = 1):
    """Codes of q, k and v, gaussian where `fill` is not that of all."""
    shapes = (heads, queries), (kv_heads, keys), (kv_heads, keys)
    made = [
        Values(fill, seed).codes(type, count * length, DEPTH).reshape(count, length, DEPTH)
        for seed, (count, length) in enumerate(shapes)
    ]
    return [each.astype(np.uint16 if type == "bf16" else np.uint8) for each in made]


SAMPLED = [
    # type, fill, queries, keys, causal, the row that is looked at
    ("bf16", "gaussian", 3, 70, False, 1),
    ("bf16", "gaussian", 66, 67, True, 65),
    ("bf16", "bits", 2, 20, False, 0),
    ("bf16", "log-uniform", 2, 20, False, 1),
    ("e4m3", "gaussian", 3, 70, False, 1),
    ("e4m3", "gaussian", 66, 67, True, 2),
    ("e4m3", "subnormals", 2, 20, False, 0),
    ("e4m3", "bits", 2, 20, True, 1),
]


@pytest.mark.parametrize(("type", "fill", "queries", "keys", "causal", "row"), SAMPLED)
def test_a_row_is_the_slow_definition(type, fill, queries, keys, causal, row) -> None:
    q, k, v = operands(type, fill, queries, keys, heads=2, kv_heads=1)
    of_q, of_k, of_v = np.float32([0.75, 1.25]), np.float32([1.5]), np.float32([0.3])
    scales = (of_q, of_k, of_v) if type == "e4m3" else None
    found = attention(q, k, v, 0.3, causal=causal, format=type, scales=scales)
    factor = np.float32(0.3) * LOG2_E
    if scales:
        factor = np.float32(factor * of_q[1]) * of_k[0]
    last = min(row // 64 * 64 + 64, queries) + keys - queries if causal else keys
    seen = max(row + 1 + keys - queries, 0) if causal else keys
    v_scale = int(of_v.view(np.uint32)[0]) if scales else None
    asked = slow.Row(type, seen, -(-last // 64), int(np.float32(factor).view(np.uint32)), v_scale)
    columns = (0, 27)
    o, lse = slow.row_of_attention(
        q[1, row].tolist(), k[0].tolist(), [v[0, :, column].tolist() for column in columns], asked
    )
    assert found.o[1, row, list(columns)].tolist() == o
    assert int(found.lse.view(np.uint32)[1, row]) == lse


def test_a_row_without_weights_has_no_logarithm_where_its_largest_score_overflows() -> None:
    """3e38 times log2(e) is infinite, weights are 2^-infinity; infinity less infinity is no number. What is not seen is none."""
    q, k = np.full((1, 1, DEPTH), 0, np.uint16), np.full((1, 2, DEPTH), 0x3F80, np.uint16)
    q[0, 0, 0] = 0x7F62
    found = attention(q, k, k, 1.0)
    asked = slow.Row("bf16", 2, 1, int(LOG2_E.view(np.uint32)))
    keys = [*k[0].tolist(), *[[0] * DEPTH] * 62]
    column = k[0, :, 0].tolist()
    assert slow.row_of_attention(q[0, 0].tolist(), keys, [column], asked) == ([0], 0x7FFFFFFF)
    assert (found.o[0, 0, 0], found.lse.view(np.uint32)[0, 0]) == (0, 0x7FFFFFFF)
    unseen = slow.Row("bf16", 0, 1, int(LOG2_E.view(np.uint32)))
    assert slow.row_of_attention(q[0, 0].tolist(), keys, [column], unseen) == ([0], 0xFF800000)


def test_the_order_of_sums_shows_in_their_logarithms() -> None:
    """Eight rows whose weights are near one another: which lane has which columns changes a last bit of some."""
    q, k, v = (Values("gaussian", seed).codes("bf16", n, 16).reshape(1, n, 16) for seed, n in enumerate((8, 64, 64)))
    found = attention(q, k, v, 0.0625).lse.view(np.uint32)[0].tolist()
    asked = slow.Row("bf16", 64, 1, int((np.float32(0.0625) * LOG2_E).view(np.uint32)))
    assert found == [slow.row_of_attention(row.tolist(), k[0].tolist(), [], asked)[1] for row in q[0]]


@pytest.mark.parametrize("type", ["bf16", "e4m3"])
@pytest.mark.parametrize("causal", [False, True])
def test_results_are_near_those_of_float64(type: str, causal: bool) -> None:
    """A different order of operations and no narrow weights, so a wide bound: 2^-3 of the largest value."""
    q, k, v = operands(type, "gaussian", 100, 130)
    scales = tuple(np.float32([1]) for _ in range(3)) if type == "e4m3" else None
    found = attention(q, k, v, 0.125, causal=causal, format=type, scales=scales)
    values = [decode(each, type)[0] for each in (q, k, v)]
    scores = values[0] @ values[1].T * 0.125
    if causal:
        scores[np.triu_indices(100, 31, 130)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact = weights @ values[2] / weights.sum(axis=1, keepdims=True)
    assert np.abs(decode(found.o, "bf16")[0] - exact).max() < 0.125
    lse = np.log(weights.sum(axis=1)) + scores.max(axis=1)
    np.testing.assert_allclose(found.lse[0], lse, atol=0.02)


def test_one_key_has_the_weight_one() -> None:
    q, _, v = operands("bf16", "gaussian", 3, 1)
    found = attention(q, np.zeros_like(v), v, 1.0)
    np.testing.assert_array_equal(found.o[0], np.repeat(v[0], 3, axis=0))
    assert found.lse.tolist() == [[0, 0, 0]]


def test_rows_before_the_first_key_see_nothing() -> None:
    """Three rows, one key: the last row sees it."""
    q, k, v = operands("bf16", "gaussian", 3, 1)
    found = attention(q, k, v, 1.0, causal=True)
    assert not found.o[0, :2].any()
    assert found.lse[0, :2].tolist() == [-np.inf, -np.inf]
    np.testing.assert_array_equal(found.o[0, 2], v[0, 0])


def test_keys_that_nobody_sees_change_no_bit_unless_a_value_is_no_number() -> None:
    """A weight of zero times NaN is NaN within a tile that is taken; tiles beyond are not looked at."""
    q, k, v = operands("bf16", "gaussian", 130, 130)
    whole = attention(q, k, v, 0.125, causal=True)
    k[0, 100:] = encode(3.0, "bf16")
    np.testing.assert_array_equal(attention(q, k, v, 0.125, causal=True).o[0, :100], whole.o[0, :100])
    v[0, 100] = 0x7FFF
    again = attention(q, k, v, 0.125, causal=True)
    np.testing.assert_array_equal(again.o[0, :64], whole.o[0, :64])
    assert (again.o[0, 64:] == 0x7FFF).all()


def test_heads_share_keys_in_groups() -> None:
    q, k, v = operands("bf16", "gaussian", 5, 70, heads=4, kv_heads=2)
    found = attention(q, k, v, 0.125)
    for head in range(4):
        alone = attention(q[head : head + 1], k[head // 2][None], v[head // 2][None], 0.125)
        np.testing.assert_array_equal(found.o[head], alone.o[0])


ZERO, ONE = np.zeros((1, 2, 64), np.uint16), np.float32([1])
CODES = np.zeros((1, 2, 64), np.uint8)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: attention(ZERO, ZERO, ZERO, 1.0, format="f16"), "unknown-format"),
        (lambda: attention(ZERO, ZERO, CODES, 1.0), "bad-dtype"),
        (lambda: attention(ZERO[0], ZERO, ZERO, 1.0), "bad-shape"),
        (lambda: attention(ZERO, ZERO, ZERO[:, :1], 1.0), "bad-shape"),
        (
            lambda: attention(np.repeat(ZERO, 3, axis=0), np.repeat(ZERO, 2, axis=0), np.repeat(ZERO, 2, axis=0), 1.0),
            "bad-shape",
        ),
        (lambda: attention(ZERO, ZERO, ZERO, 1.0, scales=(ONE, ONE, ONE)), "bad-scale"),
        (lambda: attention(CODES, CODES, CODES, 1.0, format="e4m3"), "bad-scale"),
        (
            lambda: attention(CODES, CODES, CODES, 1.0, format="e4m3", scales=(ONE, ONE, np.float32([1, 1]))),
            "bad-shape",
        ),
    ],
)
def test_what_does_not_fit_is_one_error(call, code) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code
