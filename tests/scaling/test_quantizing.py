"""Quantisation by groups: worked numbers, groups at the edge, every special value, and the slow definition."""

import math
from functools import partial
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import scaling
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.layouts import scale_layout
from refsim.reference.group_quantize import group_quantize
from refsim.reference.operands import special_codes
from refsim.scaling.quantizing import EPS
from refsim.scaling.rows import NAN_RULES, QUOTIENTS, NanRule, Quotient, ScaleKindName

ZERO_SCALE = 0x346FACAD  # fl(1e-4 / 448)
GROUPS = ((1, 128), (128, 128), (1, 3), (2, 5), (3, 1))
EPS_BITS = int(np.float32(EPS).view(np.uint32))


def mn_major(scales: list[list[int]], fill: int) -> list[int]:
    """Return scales in TMA's order: column after column, each padded with `fill` to a multiple of four (16 bytes)."""
    padded = math.ceil(len(scales) / 4) * 4
    return [
        scales[row][column] if row < len(scales) else fill for column in range(len(scales[0])) for row in range(padded)
    ]


def mn_major_words(codes: list[list[int]]) -> list[int]:
    """Return one-byte scales packed as 32-bit words in the order of `mn_major`. A word holds four neighbors of a row,
    the first in its low byte."""
    words = [
        [
            sum((row[first + place] if first + place < len(row) else 0) << 8 * place for place in range(4))
            for first in range(0, len(row), 4)
        ]
        for row in codes
    ]
    return mn_major(words, 0)


def f32(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def bits(values: np.ndarray) -> list[str]:
    return [hex(code) for code in values.view(np.uint32).ravel()]


def test_names_of_the_signature_are_the_rows() -> None:
    assert get_args(ScaleKindName) == tuple(row.name for row in scaling.SCALE_KINDS)
    assert (get_args(Quotient), get_args(NanRule)) == (QUOTIENTS, NAN_RULES)


def test_the_largest_of_a_group_becomes_the_largest_code() -> None:
    found = scaling.quantize(f32([1, -2, 0.5, 896]), group=(1, 2))
    assert found.codes.tolist() == [[0x76, 0xFE, 0x28, 0x7E]]
    assert found.scales.tolist() == [[np.float32(2) / np.float32(448), 2.0]]


def test_a_power_of_two_is_rounded_up() -> None:
    x = f32([448, 1], [448.00003, 1], [449, 1], [896, 1])
    assert scaling.quantize(x, scale="e8m0").scales.tolist() == [[127], [128], [128], [128]]
    assert scaling.quantize(x, scale="f32_power").scales.tolist() == [[1], [2], [2], [2]]
    assert scaling.quantize(x, scale="e8m0").codes.tolist() == [[0x7E, 0x38], [0x76, 0x30], [0x76, 0x30], [0x7E, 0x30]]


@pytest.mark.parametrize(
    ("peak", "code"),
    [(0, 105), (2.0**-140, 105), (448, 127), (450, 128), (3.3895314e38, 247), (np.inf, 254), (np.nan, 254)],
)
def test_scale_codes_of_special_groups_are_deepgemms(peak: float, code: int) -> None:
    assert scaling.quantize(f32([peak, 0]), scale="e8m0").scales.tolist() == [[code]]


def test_a_power_of_two_is_never_below_the_smallest_normal_one() -> None:
    """fl(2^-149 / 448) is 0, whose exponent is that of 2^-127."""
    assert scaling.quantize(f32([0.0]), scale="e8m0", eps=2.0**-149).scales.tolist() == [[1]]
    assert scaling.quantize(f32([0.0]), scale="f32_power", eps=2.0**-149).scales.tolist() == [[2.0**-126]]


def test_a_group_of_zeros_keeps_its_signs() -> None:
    found = scaling.quantize(f32([0.0, -0.0]))
    assert found.codes.tolist() == [[0x00, 0x80]]
    assert bits(found.scales) == [hex(ZERO_SCALE)]
    assert scaling.quantize(f32([0.0, 0.0]), eps=2.0**-149).codes.tolist() == [[0x7F, 0x7F]]  # s is 0: 0 * inf


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_infinity_takes_its_group_with_it_and_no_other(quotient: Quotient) -> None:
    found = scaling.quantize(f32([np.inf, -1, 0, 448], [-np.inf, 1, 1, 448]), group=(1, 3), quotient=quotient)
    assert found.codes.tolist() == [[0x7F, 0x80, 0, 0x7E], [0x7F, 0, 0, 0x7E]]
    assert found.scales.tolist() == [[np.inf, 1], [np.inf, 1]]
    powers = scaling.quantize(f32([np.inf, -1, 0, 448]), group=(1, 3), scale="e8m0", quotient=quotient)
    assert powers.codes.tolist() == [[0x7E, 0x80, 0, 0x7E]]
    assert powers.scales.tolist() == [[254, 127]]


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_nan_spreads_or_is_ignored(quotient: Quotient) -> None:
    x = np.array([[0xFFC00001, 0x43E00000, 0x3F800000]], np.uint32)
    spread = scaling.quantize(x, "f32", quotient=quotient)
    assert (spread.codes.tolist(), bits(spread.scales)) == ([[0x7F, 0x7F, 0x7F]], ["0x7fffffff"])
    ignored = scaling.quantize(x, "f32", quotient=quotient, nan="ignored")
    assert (ignored.codes.tolist(), ignored.scales.tolist()) == ([[0x7F, 0x7E, 0x38]], [[1]])
    powers = scaling.quantize(x, "f32", quotient=quotient, scale="e8m0")
    assert (powers.codes.tolist(), powers.scales.tolist()) == ([[0x7F, 0, 0]], [[254]])


def test_the_reciprocal_rounds_twice() -> None:
    """About one code in two thousand differs, none where the scale is a power of two; 2.4375 / (13 / 448) is a tie, 84."""
    tie = [scaling.quantize(f32([13, 2.4375]), quotient=quotient).codes.tolist() for quotient in QUOTIENTS]
    assert tie == [[[0x7E, 0x6B]], [[0x7E, 0x6A]]]
    x = np.random.default_rng(0).standard_normal((64, 4096)).astype(ml_dtypes.bfloat16)
    both = [scaling.quantize(x, quotient=quotient) for quotient in QUOTIENTS]
    assert 0 < (both[0].codes != both[1].codes).mean() < 2e-3
    np.testing.assert_array_equal(both[0].scales, both[1].scales)
    powers = [scaling.quantize(x, quotient=quotient, scale="e8m0").codes for quotient in QUOTIENTS]
    np.testing.assert_array_equal(*powers)


def test_edges_are_groups_of_their_own() -> None:
    x = np.arange(1, 131 * 300 + 1, dtype=np.float32).reshape(131, 300)
    found = scaling.quantize(x, group=(128, 128))
    corners = [[x[127, 127], x[127, 255], x[127, 299]], [x[130, 127], x[130, 255], x[130, 299]]]
    np.testing.assert_array_equal(found.scales, np.float32(corners) / np.float32(448))
    np.testing.assert_array_equal(scaling.quantize(x).scales, x[:, [127, 255, 299]] / np.float32(448))


def test_leading_dimensions_are_matrices_of_their_own() -> None:
    x = np.random.default_rng(1).standard_normal((3, 5, 200)).astype(np.float32)
    together = scaling.quantize(x, group=(2, 128), to="e5m2")
    assert together.scales.shape == (3, 3, 2)
    for at in range(3):
        np.testing.assert_array_equal(together.codes[at], scaling.quantize(x[at], group=(2, 128), to="e5m2").codes)
    np.testing.assert_array_equal(
        scaling.dequantize(together.codes, together.scales, "e5m2", group=(2, 128))[2],
        scaling.dequantize(together.codes[2], together.scales[2], "e5m2", group=(2, 128)),
    )


def test_dequantising_undoes_it_within_half_a_step() -> None:
    x = np.random.default_rng(2).standard_normal((7, 300)).astype(np.float32)
    found = scaling.quantize(x, dtype="ml_dtypes")
    back = scaling.dequantize(found.codes, found.scales, dtype="ml_dtypes")
    step = np.maximum(np.abs(x) / 16, scaling.spread(found.scales, x.shape) * 2.0**-10)
    assert (np.abs(back - x) <= step * 1.0001).all()
    powers = scaling.quantize(x, scale="e8m0")
    np.testing.assert_array_equal(
        scaling.dequantize(powers.codes, powers.scales, "e4m3"),
        scaling.dequantize(powers.codes, powers.factors, "e4m3"),
    )


def test_nothing_is_quantised_to_nothing() -> None:
    for shape in ((0, 256), (3, 0), (0, 0)):
        found = scaling.quantize(np.zeros(shape, np.float32), group=(128, 128))
        assert found.codes.shape == shape
        assert found.scales.shape == scaling.scale_grid(shape, (128, 128))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("unknown-name", lambda: scaling.quantize(f32([1]), scale="ue8m0")),
        ("unknown-name", lambda: scaling.quantize(f32([1]), quotient="reciprocals")),
        ("unknown-name", lambda: scaling.quantize(f32([1]), nan="spread")),
        ("out-of-range", lambda: scaling.quantize(f32([1]), eps=0.0)),
        ("out-of-range", lambda: scaling.quantize(f32([1]), eps=1e-60)),
        ("out-of-range", lambda: scaling.quantize(f32([1]), eps=float("nan"))),
        *(
            ("out-of-range", partial(scaling.quantize, f32([1]), eps=eps))
            for eps in (True, "1", [1, 2], None, 10**400, 1j)
        ),
        *(
            ("bad-value", partial(scaling.quantize, f32([1]), group=group))
            for group in ((1, True), (1, 2, 3), (1, 1.0), "ab")
        ),
        ("not-an-array", lambda: scaling.quantize(f32([1]), group=([1], 2))),
        ("not-an-array", lambda: scaling.quantize([[1.0], [1.0, 2.0]])),
        ("not-an-array", lambda: scaling.dequantize([[1], [1, 2]], f32([1]), "e4m3")),
        ("not-an-array", lambda: scaling.spread([[1.0], [1.0, 2.0]], (1, 1))),
        ("bad-shape", lambda: scaling.scale_grid((1, 2, 3))),
        ("bad-shape", lambda: scaling.spread(f32([1]), (1,))),
        ("not-whole", lambda: scaling.scale_grid(5)),
        ("not-whole", lambda: scaling.scale_grid((1, True))),
        ("unknown-name", lambda: scaling.quantize(f32([1]), quotient=np.arange(2))),
        ("bad-value", lambda: scaling.quantize(f32([1]), group=(1, 0))),
        ("bad-value", lambda: scaling.quantize(f32([1]), group=128)),
        ("bad-shape", lambda: scaling.quantize(np.float32([1]))),
        ("unsupported-format", lambda: scaling.quantize(f32([1]), to="e2m1")),
        ("format-needed", lambda: scaling.quantize(np.zeros((1, 1), np.uint16))),
        ("bad-shape", lambda: scaling.dequantize(np.zeros((2, 300), np.uint8), np.ones((2, 2), np.float32), "e4m3")),
        ("bad-shape", lambda: scaling.spread(np.ones((2, 1), np.float32), (3, 5))),
        ("bad-dtype", lambda: scaling.dequantize(np.zeros((1, 1), np.uint8), np.ones((1, 1)), "e4m3")),
    ],
)
def test_what_is_refused(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Up to 5 x 17 float32 patterns: random bits, special codes, and magnitudes of one neighbourhood."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 17))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    near = encode(generator.standard_normal(shape) * 2.0 ** draw(st.integers(-130, 120)), "f32")
    kind = generator.integers(0, 12, shape)
    found = np.where(kind == 0, generator.integers(0, 1 << 32, shape, dtype=np.uint32), near)
    specials = np.array(sorted(special_codes("f32")), np.uint32)
    return np.where(kind == draw(st.sampled_from([1, 12])), generator.choice(specials, shape), found).astype(np.uint32)


@given(
    x=matrices(),
    group=st.sampled_from(GROUPS),
    to=st.sampled_from(["e4m3", "e5m2"]),
    kind=st.sampled_from(scaling.SCALE_KINDS),
    quotient=st.sampled_from(QUOTIENTS),
    nan=st.sampled_from(NAN_RULES),
)
def test_quantising_is_the_slow_definition(x, group, to, kind, quotient, nan) -> None:
    found = scaling.quantize(x, "f32", group=group, to=to, scale=kind, quotient=quotient, nan=nan)
    codes, factors = group_quantize(
        x.tolist(),
        group,
        to,
        EPS_BITS,
        divides=quotient == QUOTIENTS[1],
        rounds_up=kind.is_power_of_two,
        ignores_nan=nan == NAN_RULES[1],
    )
    assert found.codes.tolist() == codes
    assert found.factors.view(np.uint32).tolist() == factors


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 5), (4, 4), (9, 2), (130, 7)])
def test_scales_for_tma_are_the_slow_definition(rows: int, blocks: int) -> None:
    codes = np.random.default_rng(rows).integers(0, 256, (rows, blocks)).astype(np.uint8)
    words = scale_layout("deepgemm_mn_ue8m0").shuffle(codes)
    assert words.view("<u4").ravel().tolist() == mn_major_words(codes.tolist())
    scales = decode(codes, "e8m0", np.float32).view(np.uint32)
    aligned = scale_layout("deepgemm_mn_f32").shuffle(scales, fill=0x7FC00000)
    assert aligned.ravel().tolist() == mn_major(scales.tolist(), 0x7FC00000)
    assert aligned.strides[0] % 16 == 0
