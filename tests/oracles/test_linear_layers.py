"""The oracles of the linear layers: worked numbers, every rounding on its own, NaN and -0, and a slow definition."""

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import oracles
from refsim.computations.accumulating import Reduction
from refsim.conversions import CONVERSIONS, decode, encode
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3
from refsim.layouts import fragment, scale_layout
from refsim.numerics import UnverifiedProfileWarning, mma
from refsim.oracles.linear_layers import ONE_CHAIN, REDUCTIONS, ReductionName, WeightDecoder, weights
from refsim.sources import PTX

Codes = NDArray[np.unsignedinteger]
NAN, ONE, TWO = 0x7FFF, 0x3F80, 0x4000
HOW = PTX["mma"]


def bf16(values: object) -> Codes:
    return encode(np.asarray(values, float), "bf16", overflow="inf")


def drawn(seed: int, batch: int, output: int, k: int) -> tuple[Codes, Codes, Codes]:
    generator = np.random.default_rng(seed)
    return tuple(bf16(generator.standard_normal(shape)) for shape in ((batch, k), (output, k), (batch, output)))


def hexes(codes: Codes) -> list[str]:
    return [hex(code) for code in codes.ravel()]


def test_linear_is_a_product_and_a_residual() -> None:
    x, w = bf16([[1, 2], [3, 4]]), bf16([[1, 0], [0, 1], [1, -1]])
    assert decode(oracles.linear(x, w), "bf16").tolist() == [[1, 2, -1], [3, 4, -1]]
    r = bf16([[0.5, 0, 0], [0, 0, 1]])
    assert decode(oracles.linear(x, w, r), "bf16").tolist() == [[1.5, 2, -1], [3, 4, 0]]


def test_a_chip_without_published_arithmetic_is_warned_of() -> None:
    with pytest.warns(UnverifiedProfileWarning, match=r"sm_103 mma\.sync"):
        assert oracles.linear(bf16([[1]]), bf16([[2]]), target="sm_103a")[0, 0] == TWO


def test_residual_meets_a_sum_that_is_rounded_already() -> None:
    x, w = bf16([[1, 2**-8, 2**-20]]), bf16([[1, 1, 1]])
    assert hexes(oracles.linear(x, w)) == ["0x3f81"]
    assert hexes(oracles.linear(x, w, bf16([[2**-8]]))) == ["0x3f82"]
    assert hexes(bf16(1 + 2**-8 + 2**-20 + 2**-8)) == ["0x3f81"]  # one rounding


@pytest.mark.parametrize(
    ("value", "residual", "want"),
    [(-(2.0**-140), None, 0x8000), (-(2.0**-140), 0x8000, 0x8000), (-(2.0**-140), 0x0000, 0x0000), (0.0, 0x8000, 0)],
)
def test_minus_zero_survives_only_without_a_positive_zero(value: float, residual: int | None, want: int) -> None:
    """-2^-140 is an accumulator of f32 that bf16 rounds to -0."""
    x = bf16([[value * 2.0**70]])
    r = None if residual is None else np.array([[residual]], np.uint16)
    assert oracles.linear(x, bf16([[2.0**-70]]), r)[0, 0] == want


def test_minus_zero_products_sum_to_plus_zero() -> None:
    assert oracles.linear(np.full((1, 5), 0x8000, np.uint16), bf16([[1, 1, 1, 1, 1]]))[0, 0] == 0


@pytest.mark.parametrize("code", [0x7F81, 0xFFFF, 0x7FC0])
def test_nan_stays_in_its_row_and_column_and_is_canonical(code: int) -> None:
    x, w, r = drawn(1, 3, 20, 40)
    x[1, 7], w[17, 3], r[0, 2] = code, code, code
    y = oracles.linear(x, w, r)
    found = np.zeros(y.shape, bool)
    found[1], found[:, 17], found[0, 2] = True, True, True
    np.testing.assert_array_equal(y == NAN, found)
    assert np.isfinite(decode(y[~found], "bf16")).all()


def test_infinity_minus_infinity_and_infinity_times_zero_are_nan() -> None:
    x = bf16([[np.inf, -np.inf], [np.inf, 1], [np.inf, 0], [3e38, 3e38]])
    w = bf16([[1, 1], [0, 1]])
    y = oracles.linear(x, w)
    assert hexes(y) == ["0x7fff", "0x7fff", "0x7f80", "0x7fff", "0x7f80", "0x7fff", "0x7f80", "0x7f62"]
    assert hexes(oracles.linear(x[1:2], w[:1], bf16([[-np.inf]]))) == ["0x7fff"]


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("batch", "output", "k"), [(1, 1, 1), (2, 3, 15), (16, 9, 16), (5, 17, 33), (3, 8, 130)])
def test_tails_equal_a_chain_of_single_instructions(target: str, batch: int, output: int, k: int) -> None:
    """Full 16 x 8 x 16 instructions on zero-padded tiles, and Fractions for both roundings."""
    x, w, r = drawn(k, batch, output, k)
    x[0, 0] = bf16(2.0**100)  # the alignment inside an mma shows
    y = oracles.linear(x, w, r, target=target)
    assert y.shape == (batch, output)
    for row, column in {(0, 0), (batch - 1, output - 1), (batch // 2, output // 2)}:
        acc = np.zeros((16, 8), np.float32)
        for begin in range(0, k, 16):
            a, b = np.zeros((16, 16), np.uint16), np.zeros((8, 16), np.uint16)
            width = min(16, k - begin)
            a[row, :width] = x[row, begin : begin + width]
            b[column % 8, :width] = w[column, begin : begin + width]
            acc = mma(a, b, acc, unit="mma.sync", a_format="bf16", b_format="bf16", target=target, k=16)
        first = nearest_bf16(Fraction(float(acc[row, column % 8])))
        want = nearest_bf16(first + Fraction(float(decode(r[row, column], "bf16"))))
        assert Fraction(float(decode(y[row, column], "bf16"))) == want


def nearest_bf16(exact: Fraction) -> Fraction:
    """`exact`, no subnormal, to 8 bits, ties to even."""
    if exact == 0:
        return exact
    ulp = Fraction(1)
    while abs(exact) / ulp >= 256:
        ulp *= 2
    while abs(exact) / ulp < 128:
        ulp /= 2
    return round(exact / ulp) * ulp


def test_a_batch_beyond_one_row_changes_no_bit_of_the_others() -> None:
    x, w, r = drawn(3, 16, 24, 96)
    together = oracles.linear(x, w, r)
    alone = [oracles.linear(x[row : row + 1], w, r[row : row + 1])[0] for row in range(16)]
    np.testing.assert_array_equal(together, np.array(alone))


# Splits of K


def summed(values: list[float], order: str, rounding: str) -> str:
    """Chains of 16 columns whose sums are `values`, met as a row says."""
    x, w = np.zeros((2, 1, 16 * len(values)))
    for place, value in enumerate(values):  # a value that bf16 does not have is a product of two
        power = 2.0**-70 if abs(value) < 2.0**-100 else 1.0
        x[0, 16 * place], w[0, 16 * place] = value / power, power
    row = Reduction("mine", len(values), 16, HOW, partial_format=rounding, order=order)
    return hex(oracles.linear(bf16(x), bf16(w), reduction=row)[0, 0])


def test_orders_of_summation_differ() -> None:
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]  # 2^24 + 1 is a tie, and 2^24 is even
    orders = ("from-zero", "ascending", "pairwise")
    assert [summed(values, order, "f32") for order in orders] == ["0x0", "0x0", "0x3f80"]
    assert summed([2.0**24, -(2.0**24), 1.0], "pairwise", "f32") == "0x3f80"


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([2.0**24, -(2.0**24), 2.0**24, -(2.0**24), 1.0], "0x3f80"),  # the fifth waits for two levels: (0 + 0) + 1
        ([1.0, 0.0, 0.0, 2.0**24, -(2.0**24)], "0x0"),  # it is not first: (1 + 2^24) is 2^24
        ([2.0**24, 1.0, 1.0, 0.0, 1.0, -(2.0**24)], "0x3f80"),  # the third pair waits: (2^24 - (2^24 - 1)) + 1 were 2
        ([2.0**24, 0.0, -(2.0**24), 0.0, 1.0, 0.0, 1.0], "0x4000"),  # (p0123) + ((p4 + p5) + p6)
    ],
)
def test_what_is_left_of_a_level_of_pairs_is_added_last(values: list[float], want: str) -> None:
    assert summed(values, "pairwise", "f32") == want


def test_partials_in_bf16_lose_what_f32_keeps() -> None:
    x = bf16([[1.0, 2**-8] + [0] * 14 + [2**-8] + [0] * 15])
    w = bf16(np.ones((1, 32)))
    rows = [Reduction("two", 2, 16, HOW, partial_format=rounding) for rounding in ("f32", "bf16")]
    assert [hexes(oracles.linear(x, w, reduction=row)) for row in rows] == [["0x3f81"], ["0x3f80"]]  # a tie, twice


def test_minus_zero_partials_need_the_order_to_be_said() -> None:
    tiny = [-(2.0**-140), -(2.0**-140)]
    orders = ("from-zero", "ascending", "pairwise")
    assert [summed(tiny, order, "bf16") for order in orders] == ["0x0", "0x8000", "0x8000"]


def test_tiles_are_shared_out_in_ranges_or_in_turn() -> None:
    firsts = slice(None, None, 16)
    assert Reduction("ranges", 2, 32, HOW).chain_of(130)[firsts].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert Reduction("turns", 2, 32, HOW, in_turn=True).chain_of(130)[firsts].tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert set(Reduction("more than tiles", 4, 16, HOW).chain_of(32)) == {0, 1}
    assert set(Reduction("last ones empty", 4, 16, HOW).chain_of(80)) == {0, 1, 2}  # 2 tiles, 2, 1, none
    assert not ONE_CHAIN.chain_of(100).any()


def test_a_split_without_a_tile_still_adds_plus_zero() -> None:
    """-0 + 0 is +0: an empty chain is seen."""
    x, w = bf16(np.full((1, 16), 0.0)), bf16(np.full((1, 16), 2.0**-70))
    x[0, 0] = bf16(-(2.0**-70))
    rows = [Reduction("mine", splits, 16, HOW, partial_format="bf16") for splits in (1, 2)]
    assert [hexes(oracles.linear(x, w, reduction=row)) for row in rows] == [["0x8000"], ["0x0"]]


@pytest.mark.parametrize("name", list(REDUCTIONS))
def test_every_row_agrees_with_the_others_where_sums_are_exact(name: str) -> None:
    generator = np.random.default_rng(4)
    x, w = (bf16(generator.integers(-3, 4, shape)) for shape in ((4, 200), (10, 200)))
    exact = decode(x, "bf16") @ decode(w, "bf16").T
    np.testing.assert_array_equal(oracles.linear(x, w, reduction=name), bf16(exact))


# FP8 weights


def test_scales_belong_to_groups_of_any_size() -> None:
    w = np.full((5, 7), 0x38, np.uint8)  # 1.0
    scales = bf16(np.arange(1, 10).reshape(3, 3))
    v = decode(weights(w, scales, group=(2, 3)), "bf16")
    assert v.tolist() == [[1 + 3 * (n // 2) + k // 3 for k in range(7)] for n in range(5)]
    x = np.zeros((1, 7), np.uint16)
    x[0, 6] = ONE
    y = oracles.linear_fp8_weight(x, w, scales, bf16([[0, 0, 0, 0, 0.5]]), group=(2, 3))
    assert decode(y, "bf16").tolist() == [[3, 3, 6, 6, 9.5]]


def test_a_group_may_be_larger_than_any_array() -> None:
    w = np.full((2, 3), 0x38, np.uint8)
    assert (weights(w, bf16([[2]]), group=(1 << 70, 1 << 70)) == TWO).all()


def test_scaled_weight_is_rounded_to_bf16() -> None:
    third = bf16([[1 / 3]])
    v = weights(np.array([[0x3F]], np.uint8), third)  # 1.875
    assert Fraction(float(decode(v, "bf16")[0, 0])) == nearest_bf16(
        Fraction(15, 8) * Fraction(float(decode(third, "bf16")[0, 0]))
    )
    assert Fraction(float(decode(v, "bf16")[0, 0])) != Fraction(15, 8) * Fraction(float(decode(third, "bf16")[0, 0]))


@pytest.mark.parametrize(
    ("policy", "code", "want"),
    [
        ("exact", 0x00, 0x0000),
        ("exact", 0x80, 0x8000),
        ("exact", 0x01, 0x3B00),
        ("exact", 0xFF, NAN),
        ("mirage", 0x00, 0x3C00),
        ("mirage", 0x80, 0xBC00),
        ("mirage", 0x07, 0x3C70),
        ("mirage", 0x7F, 0x43F0),
        ("marlin", 0x00, 0x0000),
        ("marlin", 0x01, 0x3B00),
        ("marlin", 0xFF, 0xC3F0),
        ("mirage", 0x7E, 0x43E0),
    ],
)
def test_decoders_are_named(policy: str, code: int, want: int) -> None:
    assert weights(np.array([[code]], np.uint8), bf16([[1]]), decode=policy)[0, 0] == want


def test_zero_weights_are_no_zero_under_the_trick() -> None:
    """A column of zero weights adds 2^-7 * scale * sum(x)."""
    x, zeros = bf16([[1.0] * 64]), np.zeros((2, 64), np.uint8)
    y = oracles.linear_fp8_weight(x, zeros, bf16([[2.0]]), decode="mirage")
    assert decode(y, "bf16").tolist() == [[1.0, 1.0]]
    assert not oracles.linear_fp8_weight(x, zeros, bf16([[2.0]])).any()


def test_nan_scale_is_seen_in_its_group_alone() -> None:
    w, scales = np.full((4, 64), 0x38, np.uint8), bf16(np.ones((2, 2)))
    scales[1, 0] = 0xFF90
    y = oracles.linear_fp8_weight(bf16(np.ones((2, 64))), w, scales, group=(2, 32))
    assert (y == [[0x4280, 0x4280, NAN, NAN]] * 2).all()
    scales[1, 0] = 0x7F80
    w[2:, :32] = 0
    assert oracles.linear_fp8_weight(bf16(np.ones((1, 64))), w, scales, group=(2, 32))[0, 2] == NAN  # 0 * inf


def test_shuffled_weights_put_a_lane_s_fragments_into_eight_bytes() -> None:
    """Lane 4g + a reads 8 bytes from k = 8 (a % 2) of n = 2g + a // 2: its B fragments of n = 0..7 and n = 8..15."""
    b = fragment("mma.m16n8k16.bf16.b")
    numbered = np.arange(256, dtype=np.uint8).reshape(16, 16)  # (n, k)
    shuffled = scale_layout("mirage_fp8_16x16").shuffle(numbered)
    for lane in range(32):
        g, a = divmod(lane, 4)
        k, n = b.coord(np.full(4, lane), np.arange(4))
        eight = shuffled[2 * g + a // 2, 8 * (a % 2) : 8 * (a % 2) + 8]
        assert eight.tolist() == [*numbered[n, k], *numbered[n + 8, k]]
    np.testing.assert_array_equal(scale_layout("mirage_fp8_16x16").unshuffle(shuffled, (16, 16)), numbered)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"x": np.zeros((17, 4), np.uint16)}, "bad-shape"),
        ({"x": np.zeros((1, 5), np.uint16)}, "bad-shape"),
        ({"x": np.zeros(4, np.uint16)}, "bad-shape"),
        ({"x": np.zeros((0, 4), np.uint16)}, "bad-shape"),
        ({"x": np.zeros((1, 4), np.float32)}, "bad-dtype"),
        ({"w": np.zeros((2, 4), np.uint8)}, "bad-dtype"),
        ({"residual": np.zeros((2, 1), np.uint16)}, "bad-shape"),
        ({"reduction": "one_chian"}, "unknown-name"),
        ({"target": "sm_70"}, "unknown-arithmetic"),
        ({"target": None}, "unknown-target"),
        ({"reduction": ["one_chain"]}, "unknown-name"),
        ({"x": [[1], [2, 3]]}, "bad-shape"),
    ],
)
def test_user_mistakes_are_named(arguments: dict[str, object], code: str) -> None:
    given = {"x": np.zeros((1, 4), np.uint16), "w": np.zeros((2, 4), np.uint16)} | arguments
    with pytest.raises(RefsimError) as caught:
        oracles.linear(**given)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"scales": np.zeros((1, 2), np.uint16)}, "bad-shape"),
        ({"scales": np.zeros((1, 1), np.float16)}, "bad-dtype"),
        ({"group": (0, 128)}, "bad-value"),
        ({"group": (2.0, 128)}, "bad-value"),
        ({"group": ("2", "128")}, "bad-value"),
        ({"group": (128,)}, "bad-value"),
        ({"group": 128}, "bad-value"),
        ({"decode": "torch"}, "unknown-name"),
    ],
)
def test_mistakes_about_scales_are_named(arguments: dict[str, object], code: str) -> None:
    given = {"scales": np.zeros((1, 1), np.uint16)} | arguments
    with pytest.raises(RefsimError) as caught:
        oracles.linear_fp8_weight(np.zeros((1, 4), np.uint16), np.zeros((2, 4), np.uint8), **given)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "wrong",
    [
        {"splits": 0},
        {"splits": 1.5},
        {"splits": "2"},
        {"splits": True},
        {"tile": 24},
        {"tile": 0},
        {"tile": None},
        {"partial_format": "f16"},
        {"partial_format": None},
        {"order": "descending"},
        {"order": ["ascending"]},
    ],
)
def test_a_row_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RefsimError):
        Reduction(**({"name": "mine", "splits": 2, "tile": 16, "source": HOW} | wrong))


def test_the_names_that_a_type_checker_knows_are_those_that_are_taken() -> None:
    assert set(get_args(ReductionName)) == set(REDUCTIONS)
    decoders = {row.policy for row in CONVERSIONS.values() if row.policy and row.reads is E4M3 and row.to is BF16}
    assert set(get_args(WeightDecoder)) == decoders
