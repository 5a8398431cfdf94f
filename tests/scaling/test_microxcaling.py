"""microxcaling and DeepGEMM's FP4: rows against what their functions compute, step by step in float32."""

import numpy as np
import pytest

import refsim
from refsim.conversions import decode
from refsim.formats import format_named

# Bits of the exponent, of the mantissa with its sign and leading one, the power of the largest, the largest value.
PARAMETERS = {
    "mxfp8": (4, 5, 8, 448.0),
    "mxfp8_e5m2": (5, 4, 15, 57344.0),
    "mxfp6_e2m3": (2, 5, 2, 7.5),
    "mxfp6_e3m2": (3, 4, 4, 28.0),
    "mxfp4": (2, 3, 2, 6.0),
}
RULES = {
    "microxcaling": lambda x: np.floor(x + np.float32(0.5)),
    "microxcaling_even": lambda x: np.floor(x + np.float32(0.5)) - ((x - np.float32(0.5)) % 2 == 0),
    "microxcaling_floor": np.floor,
}


def shared_exponents(x: np.ndarray, power: int) -> np.ndarray:
    """floor(log2 amax) - the power of the largest element, -127 at least, NaN beyond 127."""
    peak = np.abs(x).max(axis=-1, keepdims=True)
    logarithm = np.log2(np.where(peak == 0, np.float32(2.0**-126), peak).astype(np.float64)).astype(np.float32)
    shared = np.floor(logarithm) - power
    return np.where(shared > 127, np.nan, np.maximum(shared, -127)).astype(np.float64)


def quantised(x: np.ndarray, format: str, recipe: str) -> tuple[np.ndarray, np.ndarray]:
    """The exponents of blocks, and the values that `_quantize_mx` returns."""
    exponent_bits, bits, power, largest = PARAMETERS[format]
    with np.errstate(all="ignore"):
        shared = shared_exponents(x, power)
        scaled = (x / np.exp2(shared)).astype(np.float32)
        private = np.floor(np.log2(np.abs(scaled.astype(np.float64)) + (scaled == 0)))
        private = np.maximum(private, 2 - 2 ** (exponent_bits - 1))
        whole = np.abs(scaled / np.exp2(private) * 2 ** (bits - 2)).astype(np.float32)
        rounded = np.sign(scaled) * RULES[recipe](whole) * np.exp2(private) / 2 ** (bits - 2)
        return shared[..., 0], np.clip(rounded, -largest, largest) * np.exp2(shared)


@pytest.fixture
def x() -> np.ndarray:
    random = np.random.default_rng(13)
    found = random.standard_normal((40, 64)) * np.exp2(random.integers(-20, 20, (40, 1)))
    found[1, ::5] = 0
    found[2] = np.round(found[2] * 8) / 8
    found[3] = 2.0 ** -random.integers(120, 149, 64)
    found[4] = 2.0**127
    found[5, 3] = np.inf
    found[6, 40] = np.nan
    found[7] = 0
    found[8:16] = np.exp2(np.arange(8, 16))[:, None] * random.choice(
        [0.25, 0.375, 0.4375, 0.75, 1, 1.25, 1.75], (8, 64)
    )
    return found.astype(np.float32)


@pytest.mark.parametrize("recipe", RULES)
@pytest.mark.parametrize("format", PARAMETERS)
def test_a_row_computes_what_the_library_does(x: np.ndarray, format: str, recipe: str) -> None:
    found = refsim.quantize(x, format, recipe=recipe)
    shared, values = quantised(x.reshape(40, 2, 32), format, recipe)
    wanted = np.where(np.isnan(shared), 255, shared + 127)
    np.testing.assert_array_equal(found.scales, wanted.astype(np.uint8))
    np.testing.assert_array_equal(found.dequantize(np.float64), values.reshape(x.shape))
    zeros = found.codes == format_named(found.format.element).sign_mask
    assert not (zeros & (x == 0)).any()  # -0 loses its sign, a small negative number keeps it


def test_a_logarithm_in_float32_is_one_up_below_large_powers_of_two() -> None:
    """log2 of the number before 2^10 is 10 in float32: the block gets twice the scale that its bits say."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = np.nextafter(np.float32(1024), np.float32(0))
    assert refsim.quantize(x, "mxfp8", recipe="microxcaling").scales[0, 0] == 127 + 10 - 8
    assert refsim.quantize(x, "mxfp8", recipe="floor").scales[0, 0] == 127 + 9 - 8


def test_blocks_of_subnormals_are_flushed_where_that_is_asked_for() -> None:
    x = np.zeros((3, 32), np.float32)
    x[0, :2] = 2.0**-127, -(2.0**-128)
    x[1, :2] = 2.0**-126, 2.0**-127
    kept, flushed = (refsim.quantize(x, "mxfp4", recipe=name) for name in ("microxcaling", "microxcaling_flush"))
    assert kept.codes[0, :2].tolist() == [2, 9]
    assert flushed.codes[0].tolist() == [0] * 32
    np.testing.assert_array_equal(flushed.codes[1:], kept.codes[1:])
    np.testing.assert_array_equal(flushed.scales, kept.scales)


def test_fp4_of_deepgemm() -> None:
    """What per_token_cast_to_fp4 compares with: a code is how many boundaries lie below |x|."""
    boundaries = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x = np.zeros((9, 32), np.float32)
    x[0, :16] = [6, *boundaries, *-boundaries, -0.0]
    x[1, :3] = 6, -0.1, -0.2500001
    x[2, :2] = 448, -3
    x[3:] = np.random.default_rng(2).standard_normal((6, 32)) * np.exp2(np.arange(-8, 10, 3))[:, None]
    found = refsim.quantize(x, "mxfp4", recipe="deepgemm")
    scales = np.maximum(np.abs(x).max(axis=1), np.float32(1e-4)) / np.float32(6)
    powers = np.ceil(np.log2(scales.astype(np.float64)))
    np.testing.assert_array_equal(found.scales[:, 0], powers + 127)
    scaled = x / np.exp2(powers)[:, None]
    codes = np.searchsorted(boundaries, np.abs(scaled))
    np.testing.assert_array_equal(found.codes, codes + 8 * ((scaled < 0) & (codes > 0)))
    special = np.zeros((3, 32), np.float32)
    special[1:, 0] = np.nan, np.inf
    again = refsim.quantize(special, "mxfp4", recipe="deepgemm")
    assert again.scales[:, 0].tolist() == [112, 254, 254]
    assert decode(again.codes[0], "e2m1").tolist() == [0.0] * 32
    assert again.codes[1, 0] == 0
