"""NVFP4: every library row against what the library gave, squares of 16 x 16, random bits and the Hadamard transform."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsim
from refsim import scaling
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.reference.two_level_quantize import TWO_LEVELS, two_level_quantize
from refsim.scaling.hadamard import SIGNS, hadamard
from refsim.scaling.nvfp4_recipes import NVFP4_RECIPES

RECORDED = np.load(Path(__file__).parent / "recorded_blocks.npz")
TENSORS = [name.removeprefix("nvfp4.") for name in RECORDED.files if name.startswith("nvfp4.")]
LIBRARIES = ("torchao", "torchao_single", "modelopt", "compressed_tensors", "te_reference")
NAMES = [each.name for each in NVFP4_RECIPES]


def tensor(*blocks: float) -> np.ndarray:
    """A row of blocks, each with this number and zeros."""
    x = np.zeros((1, 16 * len(blocks)), np.float32)
    x[0, ::16] = blocks
    return x


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_recorded_tensor_of_a_library(name: str, tensor: str) -> None:
    """Without the signs of NaN scales, which UE4M3 has no bit for; e2m1 of a NaN is payload in torchao, whoever made it."""
    x, key = RECORDED[f"nvfp4.{tensor}"], f"{tensor}.{name}.nvfp4"
    found = refsim.quantize(x, "nvfp4", recipe=name)
    np.testing.assert_array_equal(found.scales, RECORDED[f"{key}.scales"][: len(x)] & 0x7F)
    known = np.repeat(found.scales != 0x7F, 16, axis=1) if name.startswith("torchao") else np.ones(x.shape, bool)
    np.testing.assert_array_equal(found.codes[known], RECORDED[f"{key}.codes"][: len(x)][known])
    if name != "te_reference":  # which keeps amax
        np.testing.assert_array_equal(found.tensor_scale, RECORDED[f"{key}.kept"])


@pytest.mark.parametrize("tensor", TENSORS)
def test_squares_are_those_of_transformer_engine(tensor: str) -> None:
    x = np.zeros((32, 64), np.float32)
    x[:24] = RECORDED[f"nvfp4.{tensor}"]
    found = refsim.quantize(x, "nvfp4", recipe="te_reference", block=(16, 16))
    assert found.scales.shape == (2, 4)
    np.testing.assert_array_equal(found.row_scales, RECORDED[f"{tensor}.te_reference_2d.nvfp4.scales"] & 0x7F)
    np.testing.assert_array_equal(found.codes, RECORDED[f"{tensor}.te_reference_2d.nvfp4.codes"])


def test_worked_numbers() -> None:
    x = tensor(2688, 6, -3)
    found = refsim.quantize(x, "nvfp4")
    assert found.tensor_scale == 1
    assert found.scales.tolist() == [[0x7E, 0x38, 0x30]]
    assert found.codes[0, ::16].tolist() == [7, 7, 15]
    np.testing.assert_array_equal(found.dequantize(), x)
    half = refsim.quantize(x / 2, "nvfp4")
    assert (half.tensor_scale, half.factor) == (2, 0.5)
    np.testing.assert_array_equal(half.dequantize(), x / 2)


# Scale bytes of a zero block and of one whose scale underflows, and what its 1e-6 becomes; the library's, measured.
UNDERFLOW = {
    "te": (0x00, 0x00, 7),
    "te_reference": (0x00, 0x00, 7),
    "te_cpp": (0x00, 0x00, 0),
    "te_cpp_2d": (0x00, 0x00, 0),
    "vllm": (0x00, 0x00, 0),
    "flashinfer": (0x00, 0x00, 7),
    "vllm_reference": (0x00, 0x00, 0),
    "vllm_emulation": (0x00, 0x00, 0),
    "torchao": (0x08, 0x08, 0),
    "modelopt": (0x38, 0x01, 0),
    "compressed_tensors": (0x20, 0x20, 0),
}


@pytest.mark.parametrize("name", UNDERFLOW)
def test_blocks_of_zeros_and_scales_that_underflow(name: str) -> None:
    found = refsim.quantize(tensor(2688, 0, 1e-6), "nvfp4", recipe=name)
    assert (*found.scales[0, 1:].tolist(), int(found.codes[0, 32])) == UNDERFLOW[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_quantised_comes_back(name: str) -> None:
    """Within half a step of e2m1 of what a scale rounded to three bits leaves: x / 6 at most, and the scale's 1 / 16."""
    x = np.random.default_rng(5).standard_normal((8, 64)).astype(ml_dtypes.bfloat16)
    found = refsim.quantize(x, "nvfp4", recipe=name)
    values = x.astype(np.float32)
    peak = np.abs(values).reshape(8, 4, 16).max(axis=-1).repeat(16, axis=1)
    assert (np.abs(found.dequantize() - values) <= peak * (1 / 6 + 1 / 12)).all()


@given(
    seed=st.integers(0, 2**32 - 1),
    power=st.integers(-40, 40),
    name=st.sampled_from(list(TWO_LEVELS)),
)
def test_quantising_is_the_slow_definition(seed: int, power: int, name: str) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((2, 16)) * np.exp2(power - random.integers(0, 6, (2, 1)))).astype(np.float32)
    x[1] = (random.integers(-24, 25, 16) * np.float32(2.0 ** (power - 4))).astype(np.float32)
    x[1, 3] = np.float32(6 * 2.0 ** (power - 1))
    found = refsim.quantize(x, "nvfp4", recipe=name)
    amax = float(np.abs(x).max())
    for row, codes, scale in zip(x.tolist(), found.codes, found.scales, strict=True):
        wanted, code = two_level_quantize(row, amax, name)
        if scaling.recipe_named(name, "nvfp4").policy != "cuda.satfinite":  # which lose the sign of -0
            wanted = [0 if value == 0 and each == 8 else each for value, each in zip(row, wanted, strict=True)]
        assert (codes.tolist(), int(scale[0])) == (wanted, code)


@pytest.mark.parametrize("tensor", TENSORS)
def test_kernels_of_vllm_have_the_scales_of_their_reference(tensor: str) -> None:
    """rcp.approx.ftz(6) is 1 / 6 rounded, so only the multiplier of elements is another; where no NaN stands."""
    x = RECORDED[f"nvfp4.{tensor}"]
    x = x[np.isfinite(x).all(axis=1)]
    wanted = refsim.quantize(x, "nvfp4", recipe="vllm_reference").scales
    for name in ("vllm", "flashinfer"):
        np.testing.assert_array_equal(refsim.quantize(x, "nvfp4", recipe=name).scales, wanted)


def test_an_element_between_two_codes_shows_the_approximate_reciprocal() -> None:
    """rcp.approx.ftz(0x3fece141) is 0x3f0a54ea, 1 / x rounded 0x3f0a54eb."""
    kept = np.float32(1)
    found = {}
    for name in ("vllm", "flashinfer", "vllm_reference"):
        recipe = scaling.recipe_named(name, "nvfp4")
        scale = np.uint32([[0x3FECE141]]).view(np.float32)
        found[name] = int(recipe.scaled(np.float32([[1]]), scale, np.float32([[6]]), kept).view(np.uint32)[0, 0])
    assert found == {"vllm": 0x3F0A54EA, "flashinfer": 0x3F0A54EA, "vllm_reference": 0x3F0A54EB}


@pytest.mark.parametrize("pattern", [0x3F8C, 0x3FFC])
def test_the_order_of_operations_is_that_of_the_row(pattern: int) -> None:
    """Of magnitudes whose scales depend on it: S (amax / 6), (S / 6) amax and (amax (1 / 6)) S are three numbers."""
    values = (np.arange(pattern - 1024, pattern + 1, dtype=np.uint32) << 16).view(np.float32)
    factor, sixth = np.float32(2688) / values[-1], np.float32(1) / np.float32(6)
    made = [
        refsim.encode(each, "ue4m3")
        for each in (values / 6 * factor, values * (factor * sixth), values * sixth * factor)
    ]
    apart = values[(made[0] != made[1]) | (made[1] != made[2])]
    assert len(apart) >= 8
    x = np.zeros((len(apart) + 1, 16), np.float32)
    x[:, 0] = [*apart, values[-1]]
    for name in TWO_LEVELS:
        found = refsim.quantize(x, "nvfp4", recipe=name).scales[:, 0].tolist()
        assert found == [two_level_quantize(row, float(values[-1]), name)[1] for row in x.tolist()], name


def test_an_infinity_leaves_the_factor_of_te_at_one() -> None:
    found = refsim.quantize(tensor(np.inf, 1), "nvfp4", recipe="te")
    assert (float(found.factor), found.scales.tolist()) == (1, [[0x7E, 0x23]])


def test_a_tensor_scale_that_was_calibrated() -> None:
    x = np.random.default_rng(6).standard_normal((4, 32)).astype(np.float32)
    own = refsim.quantize(x, "nvfp4", recipe="torchao")
    given = refsim.quantize(x[:1], "nvfp4", recipe="torchao", tensor_scale=own.tensor_scale)
    np.testing.assert_array_equal(given.codes, own.codes[:1])
    np.testing.assert_array_equal(given.scales, own.scales[:1])
    assert scaling.Blocks(own.codes, own.scales, "nvfp4", tensor_scale=2.0).factor == 2


@pytest.mark.parametrize("given", ["1", True, -1.0, 1e300, 1j, object()])
def test_a_tensor_scale_that_is_no_factor_is_refused(given: Any) -> None:
    with pytest.raises(RefsimError) as caught:
        refsim.quantize(np.ones((1, 16), np.float32), "nvfp4", tensor_scale=given)
    assert caught.value.code == "bad-scale"


def test_a_tensor_scale_may_be_of_any_width() -> None:
    x = np.ones((1, 16), np.float32)
    for factor in (2, np.float64(2), np.float16(2), np.float32([2])):
        assert refsim.quantize(x, "nvfp4", tensor_scale=factor).tensor_scale == 2


def test_random_bits_round_up_as_often_as_they_say() -> None:
    """A value k / 256 of the way to the next code goes there for k of 256 patterns of 8 bits."""
    x = np.full((256, 16), 1 + 0.5 * 77 / 256, np.float32)
    x[:, 0] = 6
    random = np.arange(256, dtype=np.uint8)[:, None].repeat(16, axis=1)
    found = refsim.quantize(x, "nvfp4", tensor_scale=1.0, random=random)
    assert found.scales.tolist() == [[0x38]] * 256
    np.testing.assert_array_equal(found.codes[:, 1], 2 + (np.arange(256) + 77 >= 256))
    nearest = refsim.quantize(x, "nvfp4", tensor_scale=1.0)
    assert set(nearest.codes[:, 1].tolist()) == {2}


def test_random_bits_leave_what_is_exact() -> None:
    values = decode(np.arange(16, dtype=np.uint8), "e2m1", np.float32)
    x = np.tile(values, (4, 2))
    bits = np.random.default_rng(7).integers(0, 1 << 16, x.shape).astype(np.uint16)
    np.testing.assert_array_equal(refsim.quantize(x, "mxfp4", random=bits).codes[0], [*range(16)] * 2)


def test_the_random_hadamard_transform() -> None:
    matrix = hadamard(16)
    np.testing.assert_array_equal(matrix @ matrix, 16 * np.eye(16))
    x = np.random.default_rng(8).standard_normal((3, 64)).astype(ml_dtypes.bfloat16)
    mixed = scaling.random_hadamard(x)
    exact = [sum(float(x[0, j]) * SIGNS[j] * matrix[j, k] for j in range(16)) / 4 for k in range(16)]
    assert mixed[0, :16].tolist() == exact
    np.testing.assert_array_equal(scaling.random_hadamard(mixed, inverse=True), x.astype(np.float64))
    outlier = np.zeros((1, 16), np.float32)
    outlier[0, 5] = 96
    assert np.abs(scaling.random_hadamard(outlier)).max() == 24


def test_mixed_and_rounded_at_random_a_gradient_comes_back() -> None:
    rng = np.random.default_rng(1)
    gradient = rng.standard_normal((64, 256)).astype(np.float32)
    mixed = scaling.random_hadamard(gradient).astype(np.float32)
    blocks = refsim.quantize(mixed, "nvfp4", random=rng.integers(0, 256, mixed.shape, np.uint8))
    back = scaling.random_hadamard(blocks.dequantize(), inverse=True)
    assert np.abs(back - gradient).mean() < 0.2


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("bad-scale", lambda: refsim.quantize(np.zeros((1, 32), np.float32), "mxfp4", tensor_scale=1.0)),
        ("bad-scale", lambda: refsim.quantize(tensor(1), "nvfp4", tensor_scale=np.ones(2, np.float32))),
        ("bad-value", lambda: refsim.quantize(tensor(1), "nvfp4", block=(1, 32))),
        ("bad-shape", lambda: refsim.quantize(np.zeros((8, 16), np.float32), "nvfp4", block=(16, 16))),
        ("bad-shape", lambda: refsim.quantize(np.zeros(16, np.float32), "nvfp4", block=(16, 16))),
        ("random-bits", lambda: refsim.quantize(tensor(1), "nvfp4", random=np.zeros((1, 16)))),
        ("random-bits", lambda: refsim.quantize(tensor(1), "nvfp4", random=np.zeros((2, 16), np.uint8))),
        ("bad-shape", lambda: scaling.Blocks(np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.uint8), "nvfp4")),
        ("out-of-range", lambda: scaling.Blocks(np.zeros((1, 16), np.uint8), np.uint8([[0x80]]), "nvfp4")),
        ("bad-value", lambda: scaling.random_hadamard(np.zeros(16), [1, 0] * 8)),
        ("bad-value", lambda: scaling.random_hadamard(np.zeros(12), [1] * 12)),
        ("bad-shape", lambda: scaling.random_hadamard(np.zeros(24))),
        ("bad-dtype", lambda: scaling.random_hadamard("x" * 16)),
        ("bad-dtype", lambda: scaling.random_hadamard(np.zeros(16, complex))),
        ("not-an-array", lambda: scaling.random_hadamard([[1], [1, 2]])),
        ("bad-value", lambda: scaling.random_hadamard(np.zeros(16), "1" * 16)),
    ],
)
def test_what_is_refused(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code
