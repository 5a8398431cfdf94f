"""The definition of the fused dot product, on cases small enough to follow by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsim.conversions import encode
from refsim.formats import E4M3, E8M0, F32, TF32, format_named
from refsim.numerics import mma
from refsim.numerics.dot.definition import (
    INFINITE,
    IS_NAN,
    DotProduct,
    Term,
    decoded,
    dot_product,
    multiplied,
    rounded,
    shifted,
)
from refsim.numerics.methods import RNE_F16, RNE_F32, RZ_E8M13, RZ_F32
from refsim.numerics.profiles import profile

LIMITS = {"e4m3": "saturate", "bf16": "inf"}


def word(value: float) -> int:
    return int(encode(value, "f32"))


def dot(
    a: list[float], b: list[float], c: int, types: str = "e4m3", unit: str = "wgmma", target: str = "sm_90"
) -> DotProduct:
    """One instruction, operands by value, padded with zeros; C and the result are f32 words."""
    row = profile(target, unit, types, types, "f32")
    k = max(row.k)
    x, y = (
        [int(encode(v, types, overflow=LIMITS[types])) for v in values + [0.0] * (k - len(values))] for values in (a, b)
    )
    return dot_product(x, y, c, row, k, a_format=types, b_format=types)


def test_a_subnormal_keeps_the_exponent_of_its_field() -> None:
    term = decoded(0x01, E4M3)
    assert (term.magnitude, term.exponent, term.fraction_bits) == (1, -6, 3)
    assert term.value == Fraction(1, 512)
    assert decoded(0x80, E4M3).exponent is None
    assert decoded(0x7F, E4M3).kind == IS_NAN
    assert decoded(0, E8M0).value == Fraction(1, 1 << 127)


def test_tf32_drops_low_bits_before_it_looks_for_nan() -> None:
    assert decoded(0x7F800001, TF32).kind == INFINITE
    assert decoded(0x7FC00000, TF32).kind == IS_NAN


def test_a_product_is_never_renormalised() -> None:
    one_and_a_half = decoded(int(encode(1.5, "e4m3")), E4M3)
    term = multiplied(one_and_a_half, one_and_a_half)
    assert (term.magnitude, term.exponent, term.fraction_bits) == (144, 0, 6)
    assert term.value == Fraction(9, 4)


def test_infinity_times_zero_is_nan() -> None:
    infinity, zero, nan = (decoded(code, F32) for code in (0xFF800000, 0, 0x7F800001))
    assert multiplied(infinity, zero).kind == IS_NAN
    assert multiplied(infinity, nan).kind == IS_NAN
    product = multiplied(infinity, decoded(word(-2.0), F32))
    assert (product.kind, product.negative) == (INFINITE, False)


def test_truncation_cuts_the_magnitude() -> None:
    assert [shifted(7, -1), shifted(-7, -1), shifted(-1, -1), shifted(3, 2)] == [3, -3, 0, 12]


@pytest.mark.parametrize(
    ("total", "quantum", "rounding", "code"),
    [
        (5, -1, RZ_F32, 0x40200000),
        ((1 << 25) - 1, 0, RZ_F32, 0x4BFFFFFF),
        ((1 << 25) - 1, 0, RNE_F32, 0x4C000000),
        (-((1 << 25) - 1), 0, RZ_E8M13, 0xCBFFFC00),
        (1, 128, RZ_F32, 0x7F800000),
        (-1, 128, RZ_E8M13, 0xFF800000),
        (3, -150, RZ_F32, 0x00000001),
        (-1, -150, RZ_F32, 0x00000000),
        (-1, -150, RNE_F32, 0x80000000),
        (3, -150, RNE_F32, 0x00000002),
        (2049, 0, RNE_F16, 0x6800),
        (2051, 0, RNE_F16, 0x6802),
        (65519, 0, RNE_F16, 0x7BFF),
        (65520, 0, RNE_F16, 0x7C00),
        (1, -25, RNE_F16, 0x0000),
        (3, -25, RNE_F16, 0x0002),
        (0, -700, RZ_F32, 0),
    ],
)
def test_sums_are_rounded_once(total: int, quantum: int, rounding: str, code: int) -> None:
    assert rounded(total, quantum, rounding) == code


@pytest.mark.parametrize(
    ("c", "d"),
    [
        (0x3F8003FF, 0x3F800000),
        (0xC0FFFFFF, 0xC0FFFC00),
        (0x80000000, 0),
        (0x00000400, 0x00000400),
        (0x007FFFFF, 0x007FFC00),
        (0x000003FF, 0),
        (0x800003FF, 0),
        (0x7F800000, 0x7F800000),
        (0xFF800000, 0xFF800000),
        (0x7F800001, 0x7FFFFFFF),
        (0xFFC00000, 0x7FFFFFFF),
    ],
)
def test_without_products_hopper_fp8_keeps_thirteen_bits_of_c(c: int, d: int) -> None:
    assert dot([], [], c).result == d


def test_a_term_fourteen_bits_below_the_largest_is_lost() -> None:
    kept, lost = 2.0**-6, 2.0**-7
    assert dot([1.0, -1.0, kept], [1.0, 1.0, lost], 0).result == word(2.0**-13)
    assert dot([1.0, -1.0, lost], [1.0, 1.0, lost], 0).result == 0


def test_the_sum_is_cut_below_its_own_leading_bit() -> None:
    assert dot([1.0] * 17, [1.0] * 16 + [2.0**-9], 0).result == word(16.0 + 2.0**-9)
    assert dot([1.0] * 16 + [2.0**-6], [1.0] * 16 + [2.0**-4], 0).result == word(16.0)


def test_the_zero_exponent_bounds_what_tiny_products_keep() -> None:
    """2^-149 less a product of 2^-157: Hopper holds units of 2^-158, Ampere of 2^-156."""
    a, b = [2.0**-70, -(2.0**-70)], [2.0**-79, 2.0**-87]
    assert dot(a, b, 0, "bf16").result == 0
    assert dot(a, b, 0, "bf16", "mma.sync", "sm_80").result == 1


def test_a_step_keeps_what_it_went_through() -> None:
    product = dot([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], word(2.0**23), "bf16")
    (step,) = product.steps
    assert step.exponent == 23
    assert (step.aligned[:4], step.aligned[-1]) == ((-(1 << 25), -2, -1, 0), 1 << 25)
    assert step.total == -3
    assert step.result == product.result == word(-0.75)


def test_opposite_infinities_make_nan_and_one_stands() -> None:
    infinity = float("inf")
    assert dot([infinity], [1.0], 0, "bf16").result == 0x7F800000
    assert dot([infinity, infinity], [1.0, -1.0], 0, "bf16").result == 0x7FFFFFFF
    assert dot([infinity], [-1.0], 0x7F800000, "bf16").result == 0x7FFFFFFF
    assert dot([infinity], [0.0], 0, "bf16").result == 0x7FFFFFFF


F64_ONE, QUIET64 = 0x3FF0 << 48, 0x7FF8 << 48


@pytest.mark.parametrize(
    ("a", "b", "c", "d"),
    [
        ((0x7FF0 << 48) + 1, (0xFFF0 << 48) + 2, (0x7FF0 << 48) + 3, (0xFFF8 << 48) + 2),
        ((0x7FF0 << 48) + 1, F64_ONE, (0x7FF0 << 48) + 3, QUIET64 + 3),
        ((0x7FF0 << 48) + 1, F64_ONE, F64_ONE, QUIET64 + 1),
    ],
)
def test_of_several_f64_nans_that_of_b_stays_then_that_of_c(a: int, b: int, c: int, d: int) -> None:
    """Made quiet, as an H200 returns them: conformance/vectors/h200/numerics.json."""
    row = profile("sm_90", "mma.sync", "f64", "f64", "f64")
    operands = [0] * 3 + [a], [F64_ONE] * 3 + [b]  # the last of four: D of the chain is C until then
    assert dot_product(*operands, c, row, 4, a_format="f64", b_format="f64").result == d
    x, y, z = (np.array([codes], np.uint64) for codes in (*operands, [c]))
    types = {"a_format": "f64", "b_format": "f64", "d_format": "f64"}
    found = mma(x, y, z.view(np.float64), unit="mma.sync", target="sm_90", k=4, **types)
    assert found.view(np.uint64).item() == d


@pytest.mark.parametrize(("c", "d"), [(0x80000000, 0x80000000), (0, 0)])
def test_a_fused_sum_of_negative_zeros_is_one(c: int, d: int) -> None:
    """IEEE 754 section 6.3: x + x keeps its sign, the sum of zeros of both signs is +0."""
    row = profile("gfx908", "mfma", "f32", "f32", "f32")
    found = dot_product([0x80000000] * 4, [0x3F800000] * 4, c, row, 4, a_format="f32", b_format="f32")
    assert found.result == d


@pytest.mark.parametrize(("c", "d"), [(-(2.0**-25), 1 - 2.0**-24), (-(2.0**-26), 1.0)])
def test_cdna3_fp8_loses_a_c_two_places_below_its_last_bit(c: float, d: float) -> None:
    """C is rounded down in units of 2^-24 beside a product of 1; from 2^-26 on it is lost before that."""
    row = profile("gfx942", "mfma", "e4m3fnuz", "e4m3fnuz", "f32")
    one = int(encode(1.0, "e4m3fnuz"))
    codes = [one] + [0] * 31
    types = {"a_format": "e4m3fnuz", "b_format": "e4m3fnuz"}
    assert dot_product(codes, codes, word(c), row, 32, **types).result == word(d)
    a, accumulator = np.array([codes], np.uint8), np.array([[c]], np.float32)
    assert mma(a, a, accumulator, unit="mfma", target="gfx942", k=32, **types).view(np.uint32).item() == word(d)


def test_a_group_that_cancels_keeps_the_exponent_of_its_scales() -> None:
    """Two scales of 2^127 on products that cancel push a C of 1 below the window; on zero products they do not."""
    row = profile("sm_100", "tcgen05.mxf4", "e2m1", "e2m1", "f32")
    one, minus = 0x2, 0xA
    scales = {
        "a_scale": [254, 127],
        "b_scale": [254, 127],
        "scale_format": "e8m0",
        "a_format": "e2m1",
        "b_format": "e2m1",
    }
    cancels = dot_product([one, minus] + [0] * 62, [one, one] + [0] * 62, word(1.0), row, 64, **scales)
    zero = dot_product([0] * 64, [one] * 64, word(1.0), row, 64, **scales)
    assert (cancels.result, zero.result) == (0, word(1.0))


def test_an_infinite_product_is_the_term_that_an_infinity_is() -> None:
    """0x7c of E5M2: no magnitude, no exponent; 1.5 of its terms has 4 fraction bits where it is a product."""
    e5m2 = format_named("e5m2")
    infinity, half_more = decoded(0x7C, e5m2), decoded(0xBE, e5m2)
    assert infinity == Term(False, 0, None, 2, INFINITE)
    assert multiplied(infinity, half_more) == multiplied(half_more, infinity) == Term(True, 0, None, 4, INFINITE)


def test_decoded_terms_have_the_values_of_the_format_tables() -> None:
    for name in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "ue4m3", "e4m3fnuz", "e5m2fnuz"):
        format = format_named(name)
        for code in range(format.code_limit):
            term, value = decoded(code, format), float(format.table[code])
            if math.isfinite(value):
                assert term.value == Fraction(value)
            else:
                assert term.kind == (IS_NAN if math.isnan(value) else INFINITE)
