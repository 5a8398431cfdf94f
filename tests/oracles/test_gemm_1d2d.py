"""The GEMM with block scales: worked numbers, the slow definition, order of splits, groups, samples, and what may not matter."""

from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import oracles, scaling
from refsim.computations.accumulating import PROMOTIONS
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.numerics import mma
from refsim.oracles.gemm_1d2d import Promotion
from refsim.reference import gemm_1d2d as slow

Codes = NDArray[np.uint8]
MIRRORED = {"scale_product": "scale_product", "a_then_b": "b_then_a", "b_then_a": "a_then_b"}
gemm = oracles.fp8_gemm_1d2d


def operands(seed: int, m: int, n: int, k: int) -> tuple[Codes, Codes, NDArray[np.float32], NDArray[np.float32]]:
    """Codes of every magnitude but NaN, and scales of both signs, none a power of two, no two alike."""
    generator = np.random.default_rng(seed)
    a, b = (generator.integers(0, 256, shape).astype(np.uint8) for shape in ((m, k), (n, k)))
    a[a & 0x7F == 0x7F], b[b & 0x7F == 0x7F] = 0x35, 0xB1
    blocks = -(-k // 128)
    scales = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, blocks), (-(-n // 128), blocks)))
    return a, b, *scales


def test_names_of_promotions_are_the_rows() -> None:
    assert get_args(Promotion) == tuple(PROMOTIONS)
    assert tuple(PROMOTIONS) == tuple(slow.ORDERS_OF_PROMOTION)


@pytest.mark.parametrize("promotion", PROMOTIONS)
@pytest.mark.parametrize(
    ("m", "n", "k", "splits"), [(1, 8, 1, 1), (5, 136, 300, 1), (130, 16, 129, 1), (3, 24, 640, 3), (2, 8, 400, 9)]
)
def test_every_output_is_the_slow_definition(m: int, n: int, k: int, splits: int, promotion: Promotion) -> None:
    a, b, sa, sb = operands(k, m, n, k)
    total = gemm(a, b, sa, sb, promotion=promotion, splits=splits, out="f32").view(np.uint32)
    d = gemm(a, b, sa, sb, promotion=promotion, splits=splits)
    assert (d.dtype, d.shape) == (np.uint16, (m, n))
    for row in {0, m // 2, m - 1}:
        for column in {0, n // 2, n - 1}:
            factors = sa.view(np.uint32)[row].tolist(), sb.view(np.uint32)[column // 128].tolist()
            want = slow.output(a[row].tolist(), b[column].tolist(), *factors, promotion, splits)
            assert (total[row, column], d[row, column]) == want, (row, column)


def test_promotions_differ_and_powers_of_two_hide_it() -> None:
    a, b, sa, sb = operands(0, 16, 16, 1024)
    found = [gemm(a, b, sa, sb, promotion=name, out="f32") for name in PROMOTIONS]
    assert (found[0] != found[1]).mean() > 0.2
    assert (found[1] != found[2]).mean() > 0.2
    powers = [2.0 ** np.random.default_rng(1).integers(-9, 9, each.shape).astype(np.float32) for each in (sa, sb)]
    alike = [gemm(a, b, *powers, promotion=name, out="f32") for name in PROMOTIONS]
    np.testing.assert_array_equal(alike[0], alike[1])
    np.testing.assert_array_equal(alike[0], alike[2])


def test_one_block_without_scales_is_the_tensor_core_itself() -> None:
    a, b, sa, sb = operands(1, 9, 16, 128)
    ones = [np.ones_like(each) for each in (sa, sb)]
    np.testing.assert_array_equal(gemm(a, b, *ones, out="f32"), mma(a, b))


def test_columns_take_the_scale_of_their_block() -> None:
    a, b = np.full((1, 128), 0x38, np.uint8), np.full((392, 128), 0x38, np.uint8)
    d = gemm(a, b, np.float32([[0.5]]), np.float32([[1], [2], [3], [5]]), out="f32")[0]
    assert [d[at] for at in (0, 127, 128, 255, 256, 383, 384, 391)] == [64, 64, 128, 128, 192, 192, 320, 320]


def test_columns_beyond_k_add_nothing() -> None:
    a, b, sa, sb = operands(2, 6, 24, 200)
    padded = [np.pad(each, ((0, 0), (0, 56))) for each in (a, b)]
    np.testing.assert_array_equal(gemm(a, b, sa, sb), gemm(*padded, sa, sb))


def test_no_other_row_and_no_other_column_change_a_bit() -> None:
    a, b, sa, sb = operands(3, 140, 264, 260)
    whole = gemm(a, b, sa, sb)
    rows, cols = np.array([139, 0, 77, 77]), np.array([263, 127, 128, 5])
    np.testing.assert_array_equal(gemm(a, b, sa, sb, rows=rows, cols=cols), whole[rows][:, cols])
    np.testing.assert_array_equal(gemm(a[77:78], b, sa[77:78], sb), whole[77:78])
    np.testing.assert_array_equal(gemm(a, b, sa, sb, rows=[]), whole[:0])


@pytest.mark.parametrize("promotion", PROMOTIONS)
@pytest.mark.parametrize("splits", [1, 2])
def test_exchanging_a_and_b_changes_no_bit(promotion: Promotion, splits: int) -> None:
    a, b, sa, sb = operands(4, 200, 136, 384)
    d = gemm(a, b, sa, sb, promotion=promotion, splits=splits)
    exchanged = gemm(b, a, sb, sa, promotion=MIRRORED[promotion], splits=splits)
    np.testing.assert_array_equal(d, exchanged.T)


def test_scales_may_both_be_by_row_and_be_powers_of_two() -> None:
    a, b, sa, _ = operands(5, 5, 8, 256)
    _, _, sb, _ = operands(6, 8, 5, 256)
    d = gemm(a, b, sa, sb, out="f32")
    for column in range(8):
        alone = gemm(a, b[column : column + 1], sa, sb[column : column + 1], out="f32")
        np.testing.assert_array_equal(d[:, column], alone[:, 0])
    codes = np.random.default_rng(0).integers(100, 150, sa.shape).astype(np.uint8)
    typed = codes.view(ml_dtypes.float8_e8m0fnu)
    np.testing.assert_array_equal(gemm(a, b, codes, sb), gemm(a, b, decode(codes, "e8m0", np.float32), sb))
    np.testing.assert_array_equal(gemm(a, b, codes, sb), gemm(a.view(ml_dtypes.float8_e4m3fn), b, typed, sb))


def test_quantised_values_come_near_the_product() -> None:
    generator = np.random.default_rng(7)
    x, w = generator.standard_normal((40, 512)), generator.standard_normal((200, 512))
    a = scaling.quantize(x.astype(np.float32))
    b = scaling.quantize(w.astype(np.float32), group=(128, 128), scale="e8m0")
    d = decode(gemm(a.codes, b.codes, a.scales, b.scales), "bf16")
    assert np.abs(d - x @ w.T).mean() / np.abs(x @ w.T).mean() < 0.05


# Special values


def test_nan_stays_in_its_row_or_column() -> None:
    a, b, sa, sb = operands(8, 9, 136, 256)
    a[2, 7], b[130, 200], sa[5, 1], sb[1, 0] = 0xFF, 0x7F, np.nan, np.nan
    d = gemm(a, b, sa, sb)
    wanted = np.zeros(d.shape, bool)
    wanted[2], wanted[5], wanted[:, 128:] = True, True, True
    np.testing.assert_array_equal(d == 0x7FFF, wanted)
    assert set(gemm(a, b, sa, sb, out="f32").view(np.uint32)[wanted]) == {0x7FFFFFFF}


def test_infinite_scales_and_zero_blocks() -> None:
    one, zero = np.uint8([[0x38]]), np.uint8([[0x00]])
    assert gemm(one, one, np.float32([[np.inf]]), np.float32([[-2]]))[0, 0] == 0xFF80
    assert gemm(zero, one, np.float32([[np.inf]]), np.float32([[1]]))[0, 0] == 0x7FFF  # inf * 0
    assert gemm(zero, one, np.float32([[-1]]), np.float32([[1]]))[0, 0] == 0  # fma(-1, +0, +0)
    assert gemm(np.uint8([[0xB0]]), one, np.float32([[2.0**-75]]), np.float32([[2.0**-74]]))[0, 0] == 0x8000  # a tie


def test_products_of_scales_may_overflow_where_the_result_need_not() -> None:
    small, big = np.uint8([[0x01]]), np.float32([[2.0**127]])
    assert [hex(gemm(small, small, big, np.float32([[4]]), promotion=name)[0, 0]) for name in PROMOTIONS] == [
        "0x7f80",
        "0x7700",
        "0x7700",
    ]


# Splits


def test_splits_are_added_from_the_first() -> None:
    values = np.float32([2.0**24, 1, 1, -(2.0**24)])
    a = np.zeros((1, 512), np.uint8)
    a[0, ::128] = encode(np.ones(4), "e4m3")
    b = a.copy()
    one, scales = np.ones((1, 4), np.float32), values[None]
    found = {s: float(gemm(a, b, scales, one, splits=s, out="f32")[0, 0]) for s in (1, 2, 3, 4, 100)}
    # two: 2^24 + 1 is a tie, 1 - 2^24 exact; three has ranges of two blocks too
    assert found == {1: 0.0, 2: 1.0, 3: 1.0, 4: 0.0, 100: 0.0}
    turned = np.ascontiguousarray(scales[:, ::-1])
    assert [float(gemm(a, b, turned, one, splits=s, out="f32")[0, 0]) for s in (1, 2, 4)] == [2.0, 1.0, 2.0]


def test_a_range_without_a_block_is_not_added() -> None:
    """-0 + +0 would be +0."""
    a, b = np.uint8([[0xB0]]), np.uint8([[0x38]])
    scales = np.float32([[2.0**-75]]), np.float32([[2.0**-74]])
    assert gemm(a, b, *scales, splits=4, out="f32").view(np.uint32)[0, 0] == 0x80000000


# Groups


def test_a_row_of_a_group_is_the_row_of_its_experts_gemm() -> None:
    generator = np.random.default_rng(9)
    a, _, sa, _ = operands(9, 320, 8, 200)
    experts = [operands(at, 8, 136, 200)[1::2] for at in range(3)]
    b, sb = (np.stack([each[at] for each in experts]) for at in range(2))
    owner = np.repeat([2, 0, -1, 2, -1], [128, 60, 68, 1, 63])
    d = gemm(a, b, sa, sb, groups=owner)
    free = oracles.open_rows(owner)
    assert free.sum() == 131
    for row in generator.choice(np.flatnonzero(~free), 7, replace=False):
        expert = owner[row]
        np.testing.assert_array_equal(d[row], gemm(a[row : row + 1], b[expert], sa[row : row + 1], sb[expert])[0])
    assert not d[free].any()
    rows, cols = np.array([256, 3, 200]), np.array([135, 1])
    np.testing.assert_array_equal(gemm(a, b, sa, sb, groups=owner, rows=rows, cols=cols), d[rows][:, cols])


def test_experts_have_a_format_for_each_side() -> None:
    """0x3c is 1 in E5M2 and 1.5 in E4M3."""
    a, b, scale = np.full((1, 128), 0x3C, np.uint8), np.full((1, 8, 128), 0x3C, np.uint8), np.ones((1, 1), np.float32)
    for sides, want in ((("e5m2", "e4m3"), 1.5), (("e4m3", "e5m2"), 1.5), (("e4m3", "e4m3"), 2.25)):
        given = dict(zip(("a_format", "b_format"), sides, strict=True))
        found = gemm(a, b, scale, scale[None], groups=[0], out="f32", **given)
        assert (found == 128 * want).all()


def test_masked_rows_beyond_the_count_are_open() -> None:
    sides = [operands(20 + at, 6, 24, 130) for at in range(3)]
    a, b, sa, sb = (np.stack([each[at] for each in sides]) for at in range(4))
    d = gemm(a, b, sa, sb, groups=[6, 0, 2], splits=2)
    for expert, count in enumerate([6, 0, 2]):
        want = gemm(a[expert], b[expert], sa[expert], sb[expert], splits=2)
        np.testing.assert_array_equal(d[expert, :count], want[:count])
        assert not d[expert, count:].any()
    assert oracles.open_rows([6, 0, 2], 6).sum(axis=1).tolist() == [0, 6, 4]
    some = gemm(a, b, sa, sb, groups=[6, 0, 2], rows=[5, 1], cols=[23], splits=2)
    np.testing.assert_array_equal(some, d[:, [5, 1]][:, :, [23]])


ONE, SCALE = np.full((2, 128), 0x38, np.uint8), np.ones((2, 1), np.float32)
EXPERTS = np.stack([ONE, ONE]), np.ones((2, 1, 1), np.float32)
MASKED = EXPERTS[0], EXPERTS[0], np.stack([SCALE, SCALE]), EXPERTS[1]
THREE = np.stack([ONE] * 3), EXPERTS[0], np.stack([SCALE] * 3), EXPERTS[1]


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("unknown-name", lambda: gemm(ONE, ONE, SCALE, SCALE, promotion="product")),
        ("out-of-range", lambda: gemm(ONE, ONE, SCALE, SCALE, splits=0)),
        ("unsupported-format", lambda: gemm(ONE, ONE, SCALE, SCALE, out="f16")),
        ("bad-shape", lambda: gemm(ONE, ONE, SCALE[:, :0], SCALE)),
        ("bad-shape", lambda: gemm(ONE, ONE, np.ones((3, 1), np.float32), SCALE)),
        ("bad-dtype", lambda: gemm(ONE, ONE, np.ones((2, 1)), SCALE)),
        ("bad-shape", lambda: gemm(ONE, np.zeros((2, 300), np.uint8), SCALE, np.ones((2, 3), np.float32))),
        ("bad-shape", lambda: gemm(ONE, ONE[:, :100], SCALE, SCALE)),  # as many blocks of K
        ("bad-shape", lambda: gemm(ONE, EXPERTS[0][:, :, :100], SCALE, EXPERTS[1], groups=[0, 0])),
        ("bad-shape", lambda: gemm(ONE[:, :0], ONE, SCALE, SCALE)),
        ("not-an-array", lambda: gemm([[1], [1, 2]], ONE, SCALE, SCALE)),
        ("not-an-array", lambda: gemm(ONE, ONE, [[1.0], [1.0, 2.0]], SCALE)),
        ("unknown-format", lambda: gemm(ONE, ONE, SCALE, SCALE, a_format="")),
        ("out-of-range", lambda: gemm(ONE, ONE, SCALE, SCALE, splits=True)),
        ("bad-shape", lambda: gemm(ONE, ONE, SCALE, SCALE, rows=[[0]])),
        ("out-of-range", lambda: gemm(ONE, ONE, SCALE, SCALE, rows=[2])),
        ("bad-dtype", lambda: gemm(ONE, ONE, SCALE, SCALE, a_format="bf16")),
        ("format-needed", lambda: gemm(ONE.astype(np.uint16), ONE, SCALE, SCALE)),
        ("bad-shape", lambda: gemm(ONE, ONE, SCALE, SCALE, groups=[0, 0])),
        ("group-layout", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[0, 1])),
        ("group-layout", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[-1, 1])),
        ("group-layout", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[0, 2])),
        ("group-layout", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[0])),
        ("group-layout", lambda: gemm(EXPERTS[0], EXPERTS[0], np.stack([SCALE, SCALE]), EXPERTS[1], groups=[1, 3])),
        ("group-layout", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[0, 0], group_rows=1 << 63)),
        ("group-layout", lambda: gemm(*MASKED, groups=[1, 2], group_rows="all")),
        ("group-layout", lambda: gemm(*MASKED, groups=[[1, 2]])),
        ("group-layout", lambda: gemm(*THREE, groups=[1, 1])),
        ("bad-shape", lambda: gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1][:1], groups=[0, 0])),
        ("bad-shape", lambda: gemm(*MASKED[:2], MASKED[2][:1], MASKED[3], groups=[1, 0])),
        ("bad-dtype", lambda: gemm(ONE, ONE, SCALE, SCALE, a_format="e2m1")),  # a byte too, of 4 bits
        ("group-layout", lambda: oracles.open_rows([0.5])),
        ("group-layout", lambda: oracles.open_rows([1, 0], 1 << 63)),
        ("group-layout", lambda: oracles.open_rows([1, 0], 1.5)),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_a_block_of_rows_may_be_smaller() -> None:
    found = gemm(ONE, EXPERTS[0], SCALE, EXPERTS[1], groups=[0, 1], group_rows=1)
    np.testing.assert_array_equal(found, gemm(ONE, ONE, SCALE, SCALE))


def test_scales_may_have_the_other_byte_order() -> None:
    a, b, sa, sb = operands(31, 3, 8, 130)
    np.testing.assert_array_equal(gemm(a, b, sa.astype(">f4"), sb), gemm(a, b, sa, sb))
