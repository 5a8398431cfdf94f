"""Softmax and RMSNorm of rows: worked numbers, the slow definition, special rows, what is refused."""

import numpy as np
import pytest

from refsim import oracles
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.mufu.instructions import approximate, divided
from refsim.reference import row_functions as slow
from refsim.reference import special_functions as functions
from refsim.reference.rational_float import GRIDS
from refsim.testing.matrices import Values

FORMATS = ("bf16", "f16", "f32")
SINGLES = GRIDS["f32"]


def words(count: int, seed: int) -> list[int]:
    """Patterns of every exponent, and those at which functions change."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 32, count).tolist()
    near = [0x3F7FFFFF, 0x3F800000, 0x40800000, 0x42FC0000, 0xC2FC0000, 0xC2FC0001, 0x7E800001, 0x007FFFFF, 0x00800000]
    ends = [0, 0x80000000, 1, 0x80000001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    return [*drawn, *near, *(word ^ 0x80000000 for word in near), *ends]


@pytest.mark.parametrize(
    ("name", "ftz", "second"),
    [
        ("rcp", True, functions.reciprocal),
        ("rsqrt", False, functions.inverse_root),
        ("ex2", True, functions.ex2_flushed),
        ("ex2", False, functions.ex2),
        ("lg2", True, functions.lg2_flushed),
    ],
)
def test_a_special_function_is_the_slow_definition(name, ftz, second) -> None:
    asked = words(60, 1)
    if name == "ex2":
        asked += SINGLES_NEAR_ZERO
    found = approximate(name, np.array(asked, np.uint32), ftz=ftz).tolist()
    assert found == [SINGLES.encode(second(SINGLES.decode(word, ftz=ftz))) for word in asked]


SINGLES_NEAR_ZERO = np.random.default_rng(2).uniform(-150, 130, 60).astype(np.float32).view(np.uint32).tolist()


def test_a_quotient_is_the_slow_definition() -> None:
    x, y = words(60, 3), words(60, 4)
    found = divided(np.array(x, np.uint32), np.array(y, np.uint32), ftz=False, full=True).tolist()
    assert found == [SINGLES.encode(functions.quotient(*map(SINGLES.decode, pair))) for pair in zip(x, y, strict=True)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("columns", "fill"), [(140, "gaussian"), (33, "bits"), (40, "specials"), (7, "log-uniform")])
def test_rows_are_the_slow_definition(format: str, columns: int, fill: str) -> None:
    scale, eps = np.float32([0.18033688, 1e-5]).view(np.uint32).tolist()
    x, z = Values(fill, 1).codes(format, 2, columns), Values(fill, 2).codes(format, 2, columns)
    w = Values("gaussian", 3).codes(format, 1, columns)[0]
    found = oracles.softmax(x, 0.18033688, format=format)[1].tolist()
    assert found == slow.softmax(x[1].tolist(), scale, format)
    plain, gated = (oracles.rms_norm(x, w, 1e-5, gate=gate, format=format)[1].tolist() for gate in (None, z))
    assert plain == slow.rms_norm(x[1].tolist(), w.tolist(), eps, format)
    assert gated == slow.rms_norm(x[1].tolist(), w.tolist(), eps, format, z[1].tolist())


def test_the_order_of_sums_shows_in_f32() -> None:
    x = Values("gaussian", 13).codes("f32", 3, 128)
    one = np.full(128, 0x3F800000, np.uint32)
    weights, normed = oracles.softmax(x, 1.0, format="f32"), oracles.rms_norm(x, one, 0.0, format="f32")
    for row in range(3):
        assert weights[row].tolist() == slow.softmax(x[row].tolist(), 0x3F800000, "f32")
        assert normed[row].tolist() == slow.rms_norm(x[row].tolist(), one.tolist(), 0, "f32")


def test_squares_are_added_unrounded() -> None:
    """Three columns of one thread, whose sum is another where squares are rounded first; the others are zeros."""
    x = np.zeros((1, 384), np.uint32)
    x[0, [0, 128, 256]] = 0xBFB3A7FF, 0xBF93AC99, 0xBF06CB95
    one = np.full(384, 0x3F800000, np.uint32)
    assert oracles.rms_norm(x, one, 1e-6, format="f32")[0].tolist() == slow.rms_norm(
        x[0].tolist(), one.tolist(), int(np.float32(1e-6).view(np.uint32)), "f32"
    )


def test_worked_numbers() -> None:
    assert oracles.softmax(np.uint16([[0x3F80, 0x3F80]])).tolist() == [[0x3F00, 0x3F00]]
    w = np.uint16([0x3F80, 0x4000])
    assert oracles.rms_norm(np.uint16([[0x4000, 0x4000]]), w, 0).tolist() == [[0x3F80, 0x4000]]
    zero = np.zeros((1, 2), np.uint16)
    assert oracles.rms_norm(np.uint16([[0x4000, 0x4000]]), w, 0, gate=zero).tolist() == [[0, 0]]


def test_a_root_of_a_subnormal_mean_is_no_infinity() -> None:
    """x^2 and eps are subnormal: their root is taken, not that of zero."""
    x, one = np.uint32([[0x1B800000]]), np.uint32([0x3F800000])  # 2^-72, whose square is 2^-144
    found = oracles.rms_norm(x, one, 1e-44, format="f32")[0].tolist()
    assert found == slow.rms_norm([0x1B800000], [0x3F800000], 7, "f32")
    assert 0x3F000000 < found[0] < 0x3F800000


@pytest.mark.parametrize("format", FORMATS)
def test_results_are_near_those_of_float64(format: str) -> None:
    """A different order of operations, so a bound, and a wide one: 2 % of a probability."""
    x = Values("gaussian", 5).codes(format, 4, 200)
    values = decode(x, format)
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        decode(oracles.softmax(x, format=format), format), weights / weights.sum(axis=1, keepdims=True), rtol=0.02
    )
    normed = values / np.sqrt((values**2).mean(axis=1, keepdims=True) + 1e-6)
    ones = encode(np.ones(200), format)
    np.testing.assert_allclose(decode(oracles.rms_norm(x, ones, format=format), format), normed, rtol=0.02)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_infinity_and_nan(format: str) -> None:
    low, high, nan, one = (int(encode(value, format)) for value in (-np.inf, np.inf, np.nan, 1.0))
    x = np.array([[low] * 3, [low, one, low], [low, high, one], [one, nan, low]], encode(1.0, format).dtype)
    found = decode(oracles.softmax(x, format=format), format)
    assert found[0].tolist() == [0, 0, 0]
    assert found[1].tolist() == [0, 1, 0]
    assert np.isnan(found[2:]).sum() == 6


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: oracles.softmax(np.zeros((2, 2), np.uint8), format="e4m3"), "unknown-format"),
        (lambda: oracles.softmax(np.zeros((2, 2), np.uint8)), "bad-dtype"),
        (lambda: oracles.softmax(np.zeros((2, 0), np.uint16)), "bad-shape"),
        (lambda: oracles.softmax(np.zeros(2, np.uint16)), "bad-shape"),
        (lambda: oracles.rms_norm(np.zeros((2, 2), np.uint16), np.zeros(3, np.uint16)), "bad-shape"),
        (
            lambda: oracles.rms_norm(
                np.zeros((2, 2), np.uint16), np.zeros(2, np.uint16), gate=np.zeros((2, 3), np.uint16)
            ),
            "bad-shape",
        ),
    ],
)
def test_what_does_not_fit_is_one_error(call, code) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code
