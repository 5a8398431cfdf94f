"""The FP8 quantiser's oracle: worked numbers, special values, and a slow second definition over fractions."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.oracles.fp8_quantize import amax, dequantize, quantize

NAN, INF = float("nan"), float("inf")


def bits(value: np.float32) -> int:
    return int(value.view(np.uint32))


def bf16(*values: float) -> NDArray[np.unsignedinteger]:
    return encode(np.array(values), "bf16", overflow="inf")


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([], 0),
        ([NAN], 0),
        ([-0.0], 0),
        ([NAN, -3.0, 2.0], 0x40400000),
        ([1.0, -INF, NAN], 0x7F800000),
        ([2.0**-133], 0x00010000),  # the smallest subnormal of bf16 is kept
    ],
)
def test_amax_ignores_nan_and_signs(values: list[float], want: int) -> None:
    assert amax(bf16(*values), "bf16") == want


def test_amax_ignores_every_nan_pattern() -> None:
    codes = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x80000001], np.uint32)
    assert amax(codes, "f32") == 1


@pytest.mark.parametrize("in_format", ["bf16", "f16", "f32"])
def test_amax_of_every_half_or_a_sample_of_floats(in_format: str) -> None:
    row = format_named(in_format)
    limit = row.infinity_code
    assert limit is not None
    codes = np.arange(0, limit, max(1, limit >> 15), dtype=np.uint64).astype(row.code_dtype)
    assert amax(codes, in_format) == np.float32(decode(codes[-1:], in_format)[0]).view(np.uint32)


def test_quantize_scales_the_largest_magnitude_to_448() -> None:
    codes, scale = quantize(bf16(1.0, -2.0, 0.0, -0.0), "bf16")
    assert codes.tolist() == [0x76, 0xFE, 0x00, 0x80]
    assert bits(scale) == 0x3B924925


def test_stored_scale_is_the_reciprocal_of_the_scale_and_not_amax_over_448() -> None:
    _, scale = quantize(bf16(11.0), "bf16")
    assert bits(scale) == 0x3CC92493
    assert bits(np.float32(11 / 448)) == 0x3CC92492


@pytest.mark.parametrize(("fmt", "want"), [("e4m3", 0x2720D7C5), ("e5m2", 0x23A0D7C5)])
@pytest.mark.parametrize(("values", "codes"), [([], []), ([0.0, -0.0], [0x00, 0x80]), ([NAN], [0x7F])])
def test_nothing_to_scale_by_leaves_eps(values: list[float], codes: list[int], fmt: str, want: int) -> None:
    q, scale = quantize(bf16(*values), "bf16", fmt)
    assert q.tolist() == codes
    assert bits(scale) == want


def test_an_infinity_zeroes_every_number_and_becomes_nan() -> None:
    codes, scale = quantize(bf16(INF, -1.0, NAN, 0.5), "bf16")
    assert codes.tolist() == [0x7F, 0x80, 0x7F, 0x00]
    assert scale == np.float32(INF)
    back = dequantize(codes, scale, "e4m3", "bf16")
    assert back.tolist() == [0x7FFF, 0x7FFF, 0x7FFF, 0x7FFF]  # 0 * inf is NaN as well


def test_nan_of_either_sign_becomes_0x7f() -> None:
    for fmt in ("e4m3", "e5m2"):
        codes, _ = quantize(np.array([0x7FC0, 0xFFC0, 0x3F80], np.uint16), "bf16", fmt)
        assert codes[:2].tolist() == [0x7F, 0x7F]


def test_a_given_maximum_saturates_what_is_above_it() -> None:
    codes, scale = quantize(bf16(1.0, 4.0, -INF), "bf16", amax_bits=0x3F800000)
    assert codes.tolist() == [0x7E, 0x7E, 0xFE]
    assert bits(scale) == 0x3B124925


def test_eps_bounds_the_scale() -> None:
    _, scale = quantize(bf16(2.0**-100), "bf16")
    assert bits(scale) == 0x2720D7C5
    _, exact = quantize(bf16(2.0**-100), "bf16", eps=0.0)
    assert bits(exact) == 0x09124925  # 2^-100 / 448


def test_shape_and_odd_counts_are_kept() -> None:
    codes = bf16(*range(1, 16)).reshape(3, 5)
    q, _ = quantize(codes, "bf16")
    assert q.shape == (3, 5)
    assert q.dtype == np.uint8
    assert dequantize(q, np.float32(1), "e4m3", "f32").shape == (3, 5)


@pytest.mark.parametrize(("in_format", "fmt"), [("bf16", "e4m3"), ("f16", "e5m2"), ("f32", "e4m3")])
def test_quantize_equals_fractions(in_format: str, fmt: str) -> None:
    """The second definition: exact quotients and products, each rounded by the nearest table entry."""
    generator = np.random.default_rng(5)
    codes = encode(generator.standard_normal(300) * 3, in_format)
    values = [Fraction(float(value)) for value in decode(codes, in_format)]
    largest = Fraction(format_named(fmt).max_value)
    scale = to_float32(largest / max(*map(abs, values), to_float32(Fraction(1e-12))))
    want = [nearest_code(to_float32(value * scale), fmt) for value in values]
    q, stored = quantize(codes, in_format, fmt)
    assert q.tolist() == want
    assert Fraction(float(stored)) == to_float32(1 / scale)


def to_float32(exact: Fraction) -> Fraction:
    """`exact`, a normal number, to 24 bits, ties to even."""
    if exact == 0:
        return exact
    exponent = 0
    while abs(exact) / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    while abs(exact) / Fraction(2) ** exponent < 2**23:
        exponent -= 1
    return round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent


def nearest_code(exact: Fraction, fmt: str) -> int:
    """The code whose value is nearest, the even one of two; +0 for a positive and -0 for a negative underflow."""
    table = [(Fraction(value), code) for code, value in enumerate(format_named(fmt).table[:0x80]) if np.isfinite(value)]
    distance = min(abs(abs(exact) - value) for value, _ in table)
    near = [code for value, code in table if abs(abs(exact) - value) == distance]
    return min(near, key=lambda code: code % 2) | (0x80 if exact < 0 else 0)


@pytest.mark.parametrize(
    ("fmt", "out_format", "scale", "code", "want"),
    [
        ("e4m3", "bf16", 0.5, 0x7E, 0x4360),  # 224
        ("e4m3", "f32", 0.5, 0x01, 0x3A800000),  # half the smallest subnormal, 2^-10
        ("e4m3", "f16", 1e3, 0x7E, 0x7C00),  # 448,000 is beyond f16
        ("e5m2", "bf16", 1.0, 0x7C, 0x7F80),  # infinity
        ("e5m2", "f32", 0.0, 0xFC, 0x7FFFFFFF),  # -inf * 0: the canonical NaN has no sign
        ("e4m3", "bf16", 1.0, 0xFF, 0x7FFF),
        ("e4m3", "f16", 1.0, 0x7F, 0x7FFF),
        ("e5m2", "f32", 1.0, 0xFE, 0x7FFFFFFF),
        ("e4m3", "bf16", NAN, 0x80, 0x7FFF),
        ("e4m3", "f16", 2.0**-20, 0x80, 0x8000),
    ],
)
def test_dequantize_worked(fmt: str, out_format: str, scale: float, code: int, want: int) -> None:
    got = dequantize(np.array([code], np.uint8), np.float32(scale), fmt, out_format)
    assert [hex(each) for each in got] == [hex(want)]


def test_dequantize_rounds_twice() -> None:
    """The float32 product falls on a tie of f16, which the exact product is just off: one rounding would go up."""
    scale, code = np.array([0x3F641C72], np.uint32).view(np.float32)[0], 0x39
    exact = decode(np.array([code], np.uint8), "e4m3") * np.float64(scale)
    assert encode(exact, "f16").tolist() == [0x3C03]
    assert dequantize(np.array([code], np.uint8), scale, "e4m3", "f16").tolist() == [0x3C02]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: amax(np.zeros(1, np.uint8), "e4m3"), "unsupported-format"),
        (lambda: amax(np.zeros(1, np.uint16), "bf61"), "unknown-format"),
        (lambda: quantize(np.zeros(1, np.uint16), "bf16", "e2m1"), "unsupported-format"),
        (lambda: quantize(np.zeros(1, np.uint16), "bf16", eps=-1.0), "out-of-range"),
        (lambda: quantize(np.zeros(1, np.uint16), "bf16", eps=NAN), "out-of-range"),
        (lambda: quantize(np.zeros(1, np.uint16), "bf16", amax_bits=-1), "out-of-range"),
        (lambda: dequantize(np.zeros(1, np.uint8), 0.1, "e4m3", "bf16"), "bad-dtype"),
        (lambda: dequantize(np.zeros(1, np.uint8), 1.0, "e4m3", "e5m2"), "unsupported-format"),
    ],
)
def test_user_mistakes_are_named(call: object, code: str) -> None:
    assert callable(call)
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("amax_bits", "eps", "want"),
    [
        (0x7F800001, 1e-12, 0x2720D7C5),  # a signalling NaN gives way to eps
        (0xC0400000, 1e-12, 0x2720D7C5),  # so does a negative number
        (0x80000000, 0.0, 0x00000000),  # the maximum of -0 and +0 is +0: the scale is +inf
        (0x7F7FFFFF, 0.0, 0x7B124924),
        (0xFFFFFFFF, 1e-12, 0x2720D7C5),  # the last pattern there is
    ],
)
def test_any_pattern_may_stand_for_the_maximum(amax_bits: int, eps: float, want: int) -> None:
    _, scale = quantize(bf16(1.0), "bf16", eps=eps, amax_bits=amax_bits)
    assert hex(bits(scale)) == hex(want)
