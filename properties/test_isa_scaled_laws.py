"""Laws of exact sums with scales by block: by float64 and its errors as by the definition over Python integers."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refsim import numerics
from refsim.formats import F16, F32, float_named
from refsim.numerics.dot.definition import rounded
from refsim.numerics.methods import RNE_F16, RNE_F32, Rounding
from refsim.ptx.isa import products
from refsim.ptx.isa.products import scaled_kind

SHAPES = [
    # kind, A, B, K, blocks, scales
    ("mxf8f6f4", "e4m3", "e4m3", 32, 1, "e8m0"),
    ("mxf8f6f4", "e5m2", "e5m2", 32, 1, "e8m0"),
    ("mxf8f6f4", "e5m2", "e2m1", 32, 1, "e8m0"),
    ("mxf4", "e2m1", "e2m1", 64, 2, "e8m0"),
    ("mxf4nvf4", "e2m1", "e2m1", 64, 4, "ue4m3"),
    ("mxf4nvf4", "e2m1", "e2m1", 64, 4, "e8m0"),
]
SCALES = {"any": (0, 256), "large": (0, 255), "middle": (120, 136), "one": (127, 128)}
LINKS = 2  # instructions of a chain


def codes_of(name: str, shape: tuple[int, ...], draw: np.random.Generator, spread: str) -> np.ndarray:
    """Codes of every kind, those of numbers, those of numbers around one, or mostly zeros."""
    format = float_named(name)
    codes = draw.integers(0, format.code_limit, shape).astype(np.uint8)
    if spread == "any":
        return codes
    finite = (format.magnitude_limit - 1) & ~((1 << format.mantissa_bits) * (format.has_infinity + 0)) & ~1
    codes &= np.uint8(finite | format.sign_mask)
    return np.where(draw.random(shape) < (0.8 if spread == "sparse" else 0.1), 0, codes).astype(np.uint8)


@pytest.mark.parametrize(("kind", "a", "b", "k", "blocks", "stored"), SHAPES)
@given(
    seed=st.integers(0, 1 << 32),
    spread=st.sampled_from(["any", "finite", "sparse", "cancelling"]),
    scales=st.sampled_from(sorted(SCALES)),
    addend=st.sampled_from(["any", "small", "zeros"]),
)
@example(seed=5, spread="cancelling", scales="one", addend="zeros")
def test_exact_sums_with_scales_are_rounded_once(
    kind: str, a: str, b: str, k: int, blocks: int, stored: str, seed: int, spread: str, scales: str, addend: str
) -> None:
    """A chain of two instructions, bit for bit; scales far apart put terms where float64 no longer holds their sum."""
    draw, length = np.random.default_rng(seed), LINKS * k
    left, right = codes_of(a, (2, 16, length), draw, spread), codes_of(b, (2, 8, length), draw, spread)
    if spread == "cancelling":  # one product is left of each row and column
        half = k // 2
        for codes, sign in ((left, 0), (right, float_named(b).sign_mask)):
            codes[..., half:k] = codes[..., :half] ^ np.uint8(sign)
            codes[..., k:] = codes[..., :k]
        left[..., [k - 1, -1]] = 0
    low, high = (min(each, float_named(stored).code_limit) for each in SCALES[scales])
    held = [draw.integers(min(low, high - 1), high, (2, rows, LINKS * blocks)).astype(np.uint8) for rows in (16, 8)]
    c = draw.integers(0, 1 << 32, (2, 16, 8), dtype=np.uint32).view(np.float32)
    c = {"any": c, "small": draw.standard_normal(c.shape, np.float32), "zeros": np.zeros_like(c)}[
        "zeros" if spread == "cancelling" else addend
    ]
    want = c
    for link in range(LINKS):
        some, own = slice(link * k, (link + 1) * k), slice(link * blocks, (link + 1) * blocks)
        want = numerics.exact_product(
            left[..., some],
            right[..., some],
            want,
            a_format=a,
            b_format=b,
            d_format="f32",
            a_scale=held[0][..., own],
            b_scale=held[1][..., own],
            scale_format=stored,
        )
    given_scales = products.Scales(*held, float_named(stored))
    with np.errstate(all="ignore"):
        got = products.exact_scaled(left, right, c, given_scales, scaled_kind(kind, a, b), k)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("rounding", [RNE_F32, RNE_F16], ids=lambda row: row.format.name)
@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 6), spread=st.sampled_from([0, 3, 12, 30, 60, 150]))
def test_a_sum_of_numbers_is_rounded_once(rounding: Rounding, seed: int, count: int, spread: int) -> None:
    """Terms that meet ties and cancel, as integers on one grid; none is left open where two numbers hold every sum."""
    draw, quantum = np.random.default_rng(seed), -4
    terms = [draw.integers(-4, 5, 64) * np.exp2(draw.integers(quantum, quantum + spread + 1, 64)) for _ in range(count)]
    with np.errstate(all="ignore"):
        got, is_open = products.rounded_sum(terms, rounding.format)
    totals = [sum(int(each[place] * 2**-quantum) for each in terms) for place in range(64)]
    want = np.array([rounded(total, quantum, rounding) for total in totals], rounding.format.code_dtype)
    known = np.setdiff1d(np.arange(64), is_open)
    np.testing.assert_array_equal(got.view(want.dtype)[known], want[known])
    assert spread > 60 or not is_open.size


def test_what_two_numbers_do_not_hold_is_left_open_where_it_decides() -> None:
    """1 + 2^-24 is a tie: the last term decides, and is known by its sign or not at all."""
    one, half, small, least = (np.full(1, 2.0**exponent) for exponent in (0, -24, -80, -140))
    up = np.float32(1 + 2.0**-23)
    for terms, want in [
        ([one, half], 1),
        ([one, half, small], up),
        ([one, half, -small, least], 1),
        ([one, half, least], up),
        ([-one, -half, -least], -up),
        ([one, half, small, least], up),
    ]:
        got, is_open = products.rounded_sum(terms, F32)
        assert got[0] == want
        assert not is_open.size
    for terms in ([one, half, small, least, -small], [small, least, one, -small, half]):
        _, is_open = products.rounded_sum(terms, F32)
        assert is_open.tolist() == [0]


def test_a_sum_of_nothing_but_negative_zeros_is_positive_zero() -> None:
    """As tensor cores write it, whichever way the sum is taken."""
    zeros = [np.full(3, -0.0)] * 3
    for row in (F32, F16):
        got, is_open = products.rounded_sum(zeros, row)
        assert not got.view(row.code_dtype).any()
        assert not is_open.size


def test_what_is_left_open_is_settled_by_the_definition() -> None:
    """1 + 2^-80 + 2^-140 + 2^-24 - 2^-80 from four blocks and C: above the tie, though two numbers hold no more than it."""
    one = 2  # of e2m1
    codes = np.zeros((1, 1, 64), np.uint8)
    codes[..., ::16] = one
    scales = 127 - np.array([[[0, 40, 70, 12]]], np.uint8)  # each is met by its like
    held = products.Scales(scales, scales, float_named("e8m0"))
    c = np.full((1, 1, 1), -(2.0**-80), np.float32)
    with np.errstate(all="ignore"):
        got = products.exact_scaled(codes, codes, c, held, scaled_kind("mxf4nvf4", "e2m1", "e2m1"), 64)
    assert got == np.float32(1 + 2.0**-23)
