"""What kernels do that take a neighbour's scale, lose a range or a tile, or leave C out; and what says too little."""

import numpy as np
import pytest

from refsim import decode, encode
from refsim.causes import DiffOutcome, Family, ProductOperands, explain_diff
from refsim.numerics import ieee, mma
from refsim.oracles import fp8_gemm_1d2d

M, N, K = 16, 160, 512
DRAW = np.random.default_rng(5)
A, B = (encode(DRAW.normal(0, 1, (rows, K)), "e4m3") for rows in (M, N))
SA = DRAW.uniform(0.5, 2, (M, 4)).astype(np.float32)
SB = DRAW.uniform(0.5, 2, (2, 4)).astype(np.float32)
GIVEN = ProductOperands(a=A, b=B, a_format="e4m3", b_format="e4m3", a_scale=SA, b_scale=SB)


def product(first: int = 0, end: int = K, *, sa=SA, sb=SB, scales_from: tuple[int, int] | None = None):
    """The sum of some columns of K, whole blocks of 128; `scales_from`: the first block of A's scales and of B's."""
    blocks = [slice(at, at + (end - first) // 128) for at in scales_from or (first // 128, first // 128)]
    scales = (np.ascontiguousarray(each[:, of]) for each, of in zip((sa, sb), blocks, strict=True))
    return fp8_gemm_1d2d(A[:, first:end], B[:, first:end], *scales, out="f32")


RIGHT, IN_TWO = product(), ieee.add(product(0, 256), product(256))
OTHERS = {
    "the scales of A are read of the first of 2 rows for all 2": (product(sa=np.repeat(SA[::2], 2, 0)), RIGHT),
    "the scales of A are read one row late": (product(sa=SA[[0, *range(M - 1)]]), RIGHT),
    "the scales of B are read of the 128 rows before, where fewer than 128 are left": (product(sb=SB[[0, 0]]), RIGHT),
    "the scales of A and B are read one block of K late": (
        product(sa=SA[:, [0, 0, 1, 2]], sb=SB[:, [0, 0, 1, 2]]),
        RIGHT,
    ),
    "blocks of B's scales are counted from the beginning of each range of K": (
        ieee.add(product(0, 256), product(256, scales_from=(2, 0))),
        IN_TWO,
    ),
    "the last range of K alone counts": (product(256), IN_TWO),
}


LATER = pytest.mark.ci("others of the same kinds are named in every run")
EVERY_RUN = [
    says if "row late" in says or "alone counts" in says else pytest.param(says, marks=LATER) for says in OTHERS
]


@pytest.mark.parametrize("says", EVERY_RUN)
def test_what_a_neighbour_has_is_named(says):
    got, want = OTHERS[says]
    named = [cause for each in explain_diff(got, want, "f32", operands=GIVEN).named for cause in each.causes]
    assert says in [cause.says for cause in named]
    assert Family.SPLIT_K in {cause.family for cause in named} or {cause.family for cause in named} == {
        Family.SCALE_LAYOUT
    }


@LATER
def test_ranges_that_no_bit_shows_are_found_by_what_is_wrong_in_them():
    """In bf16 two ranges of K are one sum in every element; where the second one has the first one's scales they are not."""
    rows = 4
    whole, halves = (encode(each[:rows], "bf16") for each in (RIGHT, OTHERS[list(OTHERS)[4]][0]))
    given = ProductOperands(a=A[:rows], b=B, a_format="e4m3", b_format="e4m3", a_scale=SA[:rows], b_scale=SB)
    found = explain_diff(halves, whole, "bf16", operands=given, seconds=20)
    assert any("each range of K" in str(each) and Family.SPLIT_K in str(each) for each in found.named), str(found)


def test_c_that_is_left_out_is_named():
    c = DRAW.normal(0, 4, (M, N)).astype(np.float32)
    plain = ProductOperands(a=A, b=B, a_format="e4m3", b_format="e4m3", c=c)
    got = mma(A, B, unit="wgmma", target="sm_90a")
    [named] = explain_diff(got, None, "f32", operands=plain).named
    assert str(named) == "where C enters: C is left out"


@pytest.mark.parametrize(("code", "is_named"), [(0.0, True), (np.nan, False)])
def test_a_tile_that_nobody_wrote_is_named_unless_it_may_be_anything(code, is_named):
    got = RIGHT.copy()
    got[8:, 64:128] = code
    named = [str(each) for each in explain_diff(got, RIGHT, "f32").named]
    assert any(each.startswith("tail: 1 of 6 tiles of 8 x 64 hold") for each in named) == is_named
    assert any(each.startswith("tail") for each in named) == is_named


def test_some_zeros_are_no_tile():
    got = RIGHT.copy()
    got[8:12, 64:128] = 0
    assert not explain_diff(got, RIGHT, "f32").named


def test_operands_say_where_a_nan_belongs():
    """NaN in one row, of operands that have none, comes from elsewhere; one code for every NaN is what was made of NaN."""
    poisoned = RIGHT.copy()
    poisoned[3] = np.nan
    assert not explain_diff(poisoned, RIGHT, "f32", operands=GIVEN, seconds=0.5).named
    a = A.copy()
    a[3] = 0x7F
    of_nan = ProductOperands(a=a, b=B, a_format="e4m3", b_format="e4m3", a_scale=SA, b_scale=SB)
    want = fp8_gemm_1d2d(a, B, SA, SB, out="f32")
    got = np.where(np.isnan(want), np.float32(-0.0), want)
    named = explain_diff(got, want, "f32", operands=of_nan, seconds=0.5).named
    assert {cause.family for each in named for cause in each.causes} == {Family.NAN}


def test_an_output_of_nan_alone_says_too_little():
    found = explain_diff(np.full_like(RIGHT, np.nan), RIGHT, "f32", operands=GIVEN, seconds=0.5)
    assert (found.named, found.outcome is DiffOutcome.EXPLAINED) == ((), False)


def test_one_row_is_not_said_to_be_its_neighbour():
    got, want = RIGHT[:2], RIGHT[1:3]
    assert {cause.family for each in explain_diff(got, want, "f32").named for cause in each.causes} == {Family.SHIFTED}
    assert not explain_diff(got[:1], want[:1], "f32").named


def test_weights_whose_fp8_subnormals_were_flushed_before_they_were_widened_are_named():
    x, w = DRAW.normal(0, 1, (8, 64)), decode(DRAW.integers(0, 0x78, (16, 64)).astype(np.uint8), "e4m3")
    a, b, flushed = (encode(each, "bf16") for each in (x, w, np.where(np.abs(w) < 2.0**-6, 0, w)))
    got, want = (
        mma(a, each, unit="mma.sync", target="sm_90a", a_format="bf16", b_format="bf16") for each in (flushed, b)
    )
    given = ProductOperands(a=a, b=b, a_format="bf16", b_format="bf16", unit="mma.sync")
    [named] = explain_diff(got, want, "f32", operands=given).named
    assert str(named) == "flushed subnormals: B is read with subnormals of e4m3 as zeros, numbers below 0.015625"
