"""refsim.numerics.ieee by example: values that silicon gave, double-rounding traps, and what is refused."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.numerics import ieee
from refsim.numerics.ieee import arithmetic


def f32(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint32).view(np.float32)


def f64(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint64).view(np.float64)


def f16(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint16).view(np.float16)


def bf16(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint16)


def bits(array: np.ndarray) -> int:
    """The pattern of the only element."""
    return int(array.view(f"u{array.dtype.itemsize}").item())


A, B, C = 0x7FF0000000000001, 0xFFF8000000000005, 0x7FFFFFFFFFFFFFFF
QUIET_A = A | 1 << 51


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda: ieee.add(f64(A), f64(B)), B),
        (lambda: ieee.add(f64(A), f64(0)), QUIET_A),
        (lambda: ieee.sub(f64(0), f64(A)), QUIET_A),
        (lambda: ieee.mul(f64(B), f64(A)), QUIET_A),
        (lambda: ieee.fma(f64(A), f64(B), f64(C)), B),
        (lambda: ieee.fma(f64(A), f64(0), f64(C)), C),
        (lambda: ieee.div(f64(A), f64(B)), QUIET_A),
        (lambda: ieee.minimum(f64(A), f64(B)), B),
        (lambda: ieee.absolute(f64(B)), B),
        (lambda: ieee.negate(f64(A)), QUIET_A),
        (lambda: ieee.sub(f64(0x7FF << 52), f64(0x7FF << 52)), 0xFFF8 << 48),
        (lambda: ieee.sqrt(f64(0xBFF << 52)), 0xFFF8 << 48),
    ],
)
def test_nan_of_f64_is_the_one_that_silicon_passes_on(result: Callable[[], np.ndarray], expected: int) -> None:
    assert bits(result()) == expected


@pytest.mark.parametrize(
    "zeros", [f32(0, 1 << 31), f64(0, 1 << 63), f16(0, 1 << 15)], ids=lambda zeros: zeros.dtype.name
)
def test_the_negative_zero_is_the_smaller_one(zeros: np.ndarray) -> None:
    for a, b in (zeros, zeros[::-1]):
        assert np.signbit(ieee.minimum(a, b))
        assert not np.signbit(ieee.maximum(a, b))


def test_nan_of_narrower_formats_is_canonical() -> None:
    assert bits(ieee.add(f32(0xFF800001), f32(0))) == 0x7FFFFFFF
    assert bits(ieee.absolute(f32(0xFFC00005))) == 0x7FFFFFFF
    assert bits(ieee.negate(f16(0x7C01))) == 0x7FFF
    assert bits(ieee.fma(bf16(0x7F80), bf16(0), bf16(0x3F80), relu=True)) == 0x7FFF


def test_conversion_moves_the_payload_only_from_and_to_f64() -> None:
    assert bits(ieee.float_to_float(f32(0x7F800001), "f32")) == 0x7F800001
    assert bits(ieee.float_to_float(f32(0x7F800001), "f64")) == 0x7FF8000020000000
    assert bits(ieee.float_to_float(f32(0x7F800001), "f64", ftz=True)) == 0x7FFFFFFFE0000000
    assert bits(ieee.float_to_float(f64(0xFFF2B9DC0C4CD683), "f32")) == 0xFFD5CEE0
    assert bits(ieee.float_to_float(f64(0xFFF2B9DC0C4CD683), "f16")) == 0xFEAE
    assert bits(ieee.float_to_float(f64(0xFFF2B9DC0C4CD683), "bf16")) == 0xFFD5
    assert bits(ieee.float_to_float(bf16(0x7F81), "f32")) == 0x7F810000
    assert bits(ieee.float_to_float(bf16(0x7F81), "f32", ftz=True)) == 0x7FFFFFFF
    assert bits(ieee.float_to_float(f32(0xFF800001), "bf16")) == 0x7FFF


def test_flushing_looks_at_the_result_rounded_without_a_lowest_exponent() -> None:
    assert bits(ieee.mul(f32(0x00800000), f32(0x3F7FFFFF))) == 0x00800000
    assert bits(ieee.mul(f32(0x00800000), f32(0x3F7FFFFF), ftz=True)) == 0
    assert bits(ieee.mul(f32(0x3F000200), f32(0x00FFFC00), ftz=True)) == 0x00800000
    assert bits(ieee.div(f32(0x00800000), f32(0xBF800001), "rm", ftz=True)) == 0x80000000
    assert bits(ieee.float_to_float(f64(0x380FFFFFE0000000), "f32", ftz=True)) == 0
    assert bits(ieee.fma(f16(0x0400), f16(0xBBFF), f16(0x83FF), ftz=True)) == 0x8000


def test_flushing_is_ignored_between_f32_and_f16() -> None:
    assert bits(ieee.float_to_float(f32(1), "f16", "rp", ftz=True)) == 1
    assert bits(ieee.float_to_float(f32(1), "bf16", "rp", ftz=True)) == 0


def test_fma_is_rounded_once() -> None:
    third = np.float32(24929) * np.float64(673) + 2.0**-30
    assert np.float32(third) == 16777216
    assert ieee.fma(*(np.array([x], np.float32) for x in (24929, 673, 2.0**-30))).item() == 16777218
    assert ieee.fma(*(np.array([x]) for x in (1 + 2.0**-27, 1 + 2.0**-27, -1 - 2.0**-26))).item() == 2.0**-54
    # 7 * 37 = 259 is a midpoint of bf16 and 2^-100 less is not.
    assert bits(ieee.fma(bf16(0x40E0), bf16(0x4214), bf16(0x8D80))) == 0x4381
    # A product beyond the range of f64 does not beat an infinite addend, and may come back into the range.
    assert ieee.fma(f64(0x7FE << 52), f64(0x7FE << 52), f64(0xFFF << 52)).item() == -np.inf
    huge = np.array([2.0**1023])
    assert ieee.fma(huge, np.array([2.0]), -np.array([np.finfo(np.float64).max])).item() == 2.0**971


def test_integers_are_rounded_once() -> None:
    value = np.array([2**63 + 2**39 + 1], np.uint64)
    assert np.float32(np.float64(value[0])) == 2.0**63
    assert ieee.integer_to_float(value, "f32").item() == 2.0**63 + 2.0**40
    assert ieee.integer_to_float(np.array([-(2**53) - 1]), "f64", "rm").item() == -(2.0**53) - 2
    assert np.isinf(ieee.integer_to_float(np.array([70000]), "f16")).all()
    assert ieee.integer_to_float(np.array([-7, 0, 9], np.int8), "f32", sat=True).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("source", "to", "expected"),
    [(f32(0x7FFFFFFF), "i4", 0), (f32(0x7FFFFFFF), "i8", -(2**63)), (f64(A), "u1", 128), (f16(0x7FFF), "u8", 2**63)],
)
def test_nan_becomes_zero_or_the_top_bit(source: np.ndarray, to: str, expected: int) -> None:
    assert ieee.float_to_integer(source, to, "rzi").item() == expected


def test_extremes_order_zeros_and_ignore_signalling_nan_in_every_lane() -> None:
    nan = np.full(37, 0x7F800001, np.uint32).view(np.float32)
    one = np.full(37, 1, np.float32)
    assert (ieee.minimum(nan, one) == 1).all()
    assert (ieee.maximum(one, nan) == 1).all()
    assert bits(ieee.minimum(f32(0), f32(0x80000000))) == 0x80000000
    assert bits(ieee.maximum(f32(0x80000000), f32(0))) == 0
    assert ieee.maximum(f32(0x3F800000), f32(0xC0000000), xorsign=True, absolute=True).item() == -2
    assert ieee.minimum(f32(0x40000000), f32(0x3F800000), f32(0xC0400000), absolute=True).item() == 1


@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.float32, np.float64])
def test_operands_broadcast_and_keep_their_dtype(dtype: type) -> None:
    pairs = np.arange(6, dtype=dtype).reshape(3, 2)
    for result in (ieee.add(pairs, pairs[:1]), ieee.fma(pairs, pairs[:1, :1], pairs), ieee.minimum(pairs[:1], pairs)):
        assert result.dtype == dtype
        assert result.shape == (3, 2)
    assert ieee.add(np.zeros(0, dtype), np.zeros(1, dtype)).shape == (0,)


@pytest.mark.parametrize("name", ["rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"])
def test_the_result_has_the_shape_of_the_operand(name: str) -> None:
    for shape in ((), (0, 3), (1, 2)):
        assert np.shape(getattr(ieee, name)(np.ones(shape, np.float32))) == shape


def test_no_warning_is_emitted_for_special_values() -> None:
    special = f32(0x7F800001, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x7F7FFFFF)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="raise"):
            for rounding in ieee.ROUNDING_MODIFIERS:
                ieee.fma(special, special[::-1], special, rounding, ftz=True)
                ieee.div(special, special[::-1], rounding)
                ieee.sqrt(f64(1, 0xFFF << 52, A), rounding)
            ieee.float_to_integer(special, np.int8, "rpi")
            ieee.float_to_float(special, "f16")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: ieee.add(f32(0), f64(0)), "bad-dtype"),
        (lambda: ieee.add(np.zeros(1, np.int32), np.zeros(1, np.int32)), "bad-dtype"),
        (lambda: ieee.add(f32(0), 2.0), "bad-dtype"),
        (lambda: ieee.fma(2, f32(0), f32(0)), "bad-dtype"),
        (lambda: ieee.maximum(f32(0), [1.0]), "bad-dtype"),
        (lambda: ieee.compare("lt", f32(0), None), "bad-dtype"),
        (lambda: ieee.rcp(2.0), "bad-dtype"),
        (lambda: ieee.ex2(2.0), "bad-dtype"),
        (lambda: ieee.negate(2.0), "bad-dtype"),
        (lambda: ieee.round_to_integral(2.0, "rni"), "bad-dtype"),
        (lambda: ieee.float_to_float(2.0, "f16"), "bad-dtype"),
        (lambda: ieee.float_to_integer(2.0, "i4", "rni"), "bad-dtype"),
        (lambda: ieee.integer_to_float(2, "f32"), "bad-dtype"),
        (lambda: ieee.add(f32(0), f32(0), "up"), "unknown-rounding"),
        (lambda: ieee.mul(f16(0), f16(0), "rz"), "bad-modifier"),
        (lambda: ieee.add(f64(0), f64(0), ftz=True), "bad-modifier"),
        (lambda: ieee.mul(f64(0), f64(0), sat=True), "bad-modifier"),
        (lambda: ieee.add(bf16(0), bf16(0), sat=True), "bad-modifier"),
        (lambda: ieee.fma(f16(0), f16(0), f16(0), sat=True, relu=True), "bad-modifier"),
        (lambda: ieee.fma(f32(0), f32(0), f32(0), relu=True), "bad-modifier"),
        (lambda: ieee.div(f16(0), f16(0)), "bad-dtype"),
        (lambda: ieee.minimum(f32(0)), "operand-count"),
        (lambda: ieee.maximum(f32(0), f32(0), xorsign=True), "operand-count"),
        (lambda: ieee.compare("lo", f32(0), f32(0)), "unknown-name"),
        (lambda: ieee.float_to_float(f32(0), "tf32"), "unknown-format"),
        (lambda: ieee.float_to_float(f32(0), "f16", "rni"), "unknown-rounding"),
        (lambda: ieee.float_to_integer(f32(0), "f4", "rni"), "bad-dtype"),
        (lambda: ieee.float_to_integer(f32(0), "i4", "rn"), "unknown-rounding"),
        (lambda: ieee.integer_to_float(f32(0), "f32"), "bad-dtype"),
        (lambda: ieee.round_to_integral(f32(0), "rz"), "unknown-rounding"),
    ],
)
def test_what_the_instruction_lacks_is_refused(call: Callable[[], object], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_a_number_without_a_width_is_told_how_to_have_one() -> None:
    with pytest.raises(RefsimError, match=r"no arithmetic on float32, float(.|\n)*np\.float32\(0\.5\)"):
        ieee.mul(f32(0), 0.5)
    assert ieee.mul(f32(0x40400000), np.float32(0.5)).tolist() == [1.5]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_excess_of_a_quotient_is_a_sign(sign: int) -> None:
    """1/3, 2/3 and 3/5 lie above their float64, 1/5 below, 2 on it; a negative divisor turns that round."""
    a, b = np.array([1.0, 2, 1, 3, 6]), sign * np.array([3.0, 3, 5, 5, 3])
    assert arithmetic._div_double_excess(a, b, a / b).tolist() == [sign, sign, -sign, sign, 0]
