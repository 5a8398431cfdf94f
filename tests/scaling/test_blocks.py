"""MX blocks: every rule of a scale against its meaning over fractions, every library row against what the library gave."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsim
from refsim import scaling
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.reference.block_quantize import BLOCK_ELEMENTS, block_quantize
from refsim.scaling import block_pass
from refsim.scaling.block_formats import MX_FORMATS
from refsim.scaling.mx_recipes import MX_RECIPES

RECORDED = np.load(Path(__file__).parent / "recorded_blocks.npz")
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
RULES = ("floor", "rceil", "even", "ceil")
PAIRS = [(recipe.name, format) for recipe in MX_RECIPES for format in recipe.formats]


def block(*first: float) -> np.ndarray:
    return np.array([[*first, *(0.0,) * (32 - len(first))]], np.float32)


def test_the_largest_of_a_block_decides() -> None:
    found = refsim.quantize(block(448, -1, 0.3), "mxfp8")
    assert found.scales.tolist() == [[127]]
    assert found.codes[0, :4].tolist() == [0x7E, 0xB8, 0x2A, 0]
    assert found.dequantize()[0, :3].tolist() == [448, -1, 0.3125]
    half = refsim.quantize(block(224, 3), "mxfp8")
    assert (half.scales.tolist(), half.codes[0, 0]) == ([[126]], 0x7E)
    assert half.dequantize(np.float64)[0, :2].tolist() == [224, 3]


@pytest.mark.parametrize("format", ["mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"])
def test_what_is_above_the_smallest_scale_gets_the_next(format: str) -> None:
    """amax / MAX is 2^-127 and one last place of it around, where float32 has subnormals alone."""
    largest = np.float32(scaling.block_format(format).element.max_value)
    patterns = (largest * np.float32(2.0**-127)).view(np.uint32) + np.arange(9, dtype=np.uint32) - np.uint32(4)
    quotients = (patterns.view(np.float32) * (np.float32(1) / largest)).view(np.uint32)
    assert {0x3FFFFF, 0x400000, 0x400001} <= set(quotients.tolist())
    x = np.zeros((9, 32), np.float32)
    x[:, 0] = patterns.view(np.float32)
    np.testing.assert_array_equal(refsim.quantize(x, format).scales[:, 0], quotients > 0x400000)


# Measured with the libraries, amax 0, subnormal, 448, 450, largest bf16, infinity, NaN; e4m3.
SPECIALS = {
    "floor": (0, 0, 127, 127, 246, 255, 255),
    "rceil": (0, 0, 127, 128, 247, 254, 255),
    "even": (0, 0, 127, 127, 255, 255, 255),
    "ceil": (0, 0, 128, 128, 247, 255, 255),
    "te": (0, 0, 127, 128, 247, 254, 0),
    "torchao_floor": (0, 0, 127, 127, 246, 247, 255),
    "torchao_rceil": (0, 0, 127, 128, 247, 254, 255),
    "torchao_even": (0, 0, 127, 127, 247, 247, 255),
    "torchao_ceil": (0, 0, 128, 128, 247, 247, 255),
    "triton": (0, 1, 127, 128, 247, 255, 0),
    "aiter": (0, 1, 127, 128, 247, 255, 255),
    "compressed_tensors": (0, 0, 128, 128, 255, 255, 255),
    "deepgemm": (105, 105, 127, 128, 247, 254, 254),
}


@pytest.mark.parametrize("name", SPECIALS)
def test_scales_of_special_blocks(name: str) -> None:
    peaks = (0, 2.0**-126 * 0.75, 448, 450, 3.3895314e38, np.inf, np.nan)
    scales = refsim.quantize(np.concatenate([block(peak) for peak in peaks]), "mxfp8", recipe=name).scales
    assert tuple(scales[:, 0].tolist()) == SPECIALS[name]


@pytest.mark.parametrize("format", MX_FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_block_of_a_library(kind: str, format: str) -> None:
    """torchao agrees in every bit. In the others infinities and NaN become uint8 by a cast that C leaves open."""
    x = RECORDED["x"].astype(KINDS[kind])
    with np.errstate(all="ignore"):
        peaks = np.abs(x.astype(np.float32)).max(axis=1)
    compared = 0
    for name in {recipe for recipe, of in PAIRS if of == format and f"{kind}.{recipe}.{of}.scales" in RECORDED.files}:
        found, key = refsim.quantize(x, format, recipe=name), f"{kind}.{name}.{format}"
        rows = np.isfinite(peaks) | name.startswith("torchao")
        np.testing.assert_array_equal(found.scales[rows, 0], RECORDED[f"{key}.scales"].reshape(-1)[rows], key)
        if f"{key}.codes" in RECORDED.files:
            np.testing.assert_array_equal(found.codes[rows], RECORDED[f"{key}.codes"][rows], key)
        else:
            values = decode(found.codes, found.format.element, np.float32)[rows]
            np.testing.assert_array_equal(values.view(np.uint32), RECORDED[f"{key}.values"][rows].view(np.uint32), key)
        compared += 1
    assert compared >= 4


@st.composite
def ordinary_blocks(draw: st.DrawFn) -> np.ndarray:
    """Three blocks of finite numbers, their largest from 2^-100 up: below, float32 rounds what a rule divides."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    power = draw(st.integers(-96, 119))
    x = random.standard_normal((3, 32)) * 2.0**power
    x[1] = random.integers(-120, 121, 32) * 2.0 ** (power - 4)
    x[1, 0] = draw(st.sampled_from([1.0, 1.5, 1.75, 1.9375, 1.875, 1.125, 0.875, 448, 450, 6, 7.5, 28])) * 2.0**power
    x[2, :30] = draw(st.sampled_from([0.0, -0.0]))
    return x.astype(ml_dtypes.bfloat16) if draw(st.booleans()) else x.astype(np.float32)


@given(x=ordinary_blocks(), rule=st.sampled_from(RULES), format=st.sampled_from(list(BLOCK_ELEMENTS)))
def test_quantising_is_the_slow_definition(x, rule, format) -> None:
    found = refsim.quantize(x, format, recipe=rule)
    for row, codes, scale in zip(x.astype(np.float64), found.codes, found.scales, strict=True):
        assert (codes.tolist(), int(scale[0])) == block_quantize(row.tolist(), rule, format)


@given(seed=st.integers(0, 2**32 - 1), pair=st.sampled_from(PAIRS))
def test_the_short_way_of_bf16_has_the_same_bits(seed: int, pair: tuple[str, str]) -> None:
    """Any patterns, and blocks around one magnitude: as float32 they go the long way."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 1 << 16, (24, 32)).astype(np.uint16)
    near = random.standard_normal((16, 32)) * np.exp2(random.integers(-133, 127, (16, 1)))
    x[:16] = near.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    x[:12] = np.where(random.random((12, 32)) < 0.2, x[:12] & 0x8001, x[:12])
    found = refsim.quantize(x, pair[1], recipe=pair[0], input_format="bf16")
    long = refsim.quantize(decode(x, "bf16", np.float32), pair[1], recipe=pair[0])
    np.testing.assert_array_equal(found.scales, long.scales)
    np.testing.assert_array_equal(found.codes, long.codes)


def test_parts_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((2, 96, 128)).astype(np.float32)
    whole = refsim.quantize(x, "mxfp6_e3m2")
    monkeypatch.setattr(block_pass, "PART", 1000)
    monkeypatch.setattr(block_pass, "ALONE", 0)
    found = refsim.quantize(x, "mxfp6_e3m2")
    assert found.scales.shape == (2, 96, 4)
    np.testing.assert_array_equal(found.codes, whole.codes)
    np.testing.assert_array_equal(found.scales, whole.scales)
    halves = x.astype(ml_dtypes.bfloat16)
    long = refsim.quantize(halves.astype(np.float32), "mxfp6_e3m2")
    np.testing.assert_array_equal(refsim.quantize(halves, "mxfp6_e3m2").codes, long.codes)


def test_codes_and_values_are_read_alike() -> None:
    x = np.random.default_rng(4).standard_normal((4, 64)).astype(np.float16)
    codes = refsim.quantize(x.view(np.uint16), "mxfp4", input_format="f16")
    np.testing.assert_array_equal(refsim.quantize(x, "mxfp4").codes, codes.codes)
    np.testing.assert_array_equal(refsim.quantize(x.astype(np.float32), "mxfp4").scales, codes.scales)


def test_what_kernels_read() -> None:
    blocks = refsim.quantize(np.float32([[1, 2, -6, *(0,) * 29]]), "mxfp4")
    assert blocks.packed.shape == (1, 16)
    assert blocks.packed[0, :2].tolist() == [0x42, 0x0F]
    assert refsim.layouts.scale_layout("nvidia_128x4").shuffle(blocks.scales).shape == (512,)
    again = scaling.Blocks(blocks.codes, blocks.scales, "mxfp4")
    np.testing.assert_array_equal(again.dequantize(), blocks.dequantize())
    assert repr(blocks) == "<Blocks mxfp4: 1 x 32 by rceil>"


def test_a_scale_of_nan_and_the_smallest() -> None:
    blocks = scaling.Blocks(np.full((2, 32), 0x38, np.uint8), np.uint8([[255], [0]]), "mxfp8")
    values = blocks.dequantize(np.float64)
    assert np.isnan(values[0]).all()
    assert values[1].tolist() == [2.0**-127] * 32


def test_nothing_is_quantised_to_nothing() -> None:
    found = refsim.quantize(np.zeros((0, 64), np.float32), "mxfp8")
    assert (found.codes.shape, found.scales.shape) == ((0, 64), (0, 2))
    assert refsim.quantize(np.zeros((3, 0), np.float32), "mxfp8").scales.shape == (3, 0)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("unknown-format", lambda: refsim.quantize(block(1), "mxfp5")),
        ("unknown-recipe", lambda: refsim.quantize(block(1), "mxfp8", recipe="rciel")),
        ("unsupported-format", lambda: refsim.quantize(block(1), "mxfp4", recipe="te")),
        ("bad-shape", lambda: refsim.quantize(np.zeros((2, 40), np.float32), "mxfp8")),
        ("bad-shape", lambda: refsim.quantize(np.float32(1), "mxfp8")),
        ("bad-dtype", lambda: refsim.quantize(np.zeros((1, 32)), "mxfp8")),
        ("format-needed", lambda: refsim.quantize(np.zeros((1, 32), np.uint16), "mxfp8")),
        ("unsupported-format", lambda: refsim.quantize(np.zeros((1, 32), np.uint8), "mxfp8", input_format="e4m3")),
        ("bad-shape", lambda: scaling.Blocks(np.zeros((2, 64), np.uint8), np.zeros((2, 4), np.uint8), "mxfp4")),
        ("bad-shape", lambda: scaling.Blocks(np.zeros((2, 33), np.uint8), np.zeros((2, 1), np.uint8), "mxfp4")),
        ("out-of-range", lambda: scaling.Blocks(np.full((1, 32), 16, np.uint8), np.uint8([[1]]), "mxfp4")),
        ("bad-dtype", lambda: refsim.quantize(block(1), "mxfp8").dequantize(np.float16)),
        ("not-an-array", lambda: refsim.quantize([[1.0], [1.0, 2.0]], "mxfp8")),
        ("not-an-array", lambda: refsim.quantize(block(1), "mxfp8", random=[[1], [1, 2]])),
        ("random-bits", lambda: refsim.quantize(block(1), "mxfp8", random=np.zeros((1, 31), np.uint8))),
        ("bad-scale", lambda: refsim.quantize(block(1), "nvfp4", tensor_scale="1")),
        ("bad-scale", lambda: refsim.quantize(block(1), "nvfp4", tensor_scale=1j)),
        ("bad-scale", lambda: refsim.quantize(block(1), "nvfp4", tensor_scale={})),
        ("bad-scale", lambda: refsim.quantize(block(1), "nvfp4", tensor_scale=True)),
        ("bad-value", lambda: refsim.quantize(block(1), "mxfp8", block=(1.0, 32))),
        ("bad-dtype", lambda: scaling.Blocks(np.zeros((1, 32), np.int8), np.uint8([[1]]), "mxfp8")),
        ("out-of-range", lambda: scaling.Blocks(np.zeros((1, 16), np.uint8), np.uint8([[0x80]]), "nvfp4")),
    ],
)
def test_what_is_refused(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.rule or caught.value.help


@pytest.mark.parametrize("recipe", ["te", "torchao"])
def test_however_an_array_lies_its_values_count(recipe: str) -> None:
    """Strided, backwards, transposed, of the other byte order, read-only, broadcast: what a dense array of them gives."""
    x = np.random.default_rng(8).standard_normal((16, 64)).astype(np.float32)
    read_only = np.frombuffer(x.tobytes(), np.float32).reshape(16, 64)
    for array in (x[:, ::2], x[::-1, ::-1], x.T, x.astype(">f4"), read_only, np.broadcast_to(x[:1], (3, 64)), x[None]):
        dense = np.array(array.astype(np.float32), order="C")
        one, other = (refsim.quantize(each, "nvfp4", recipe=recipe) for each in (array, dense))
        np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_array_equal(one.scales, other.scales)


def test_a_wrong_vector_size_is_called_by_its_name() -> None:
    with pytest.raises(RefsimError, match="a scale for 16 along K is nvfp4"):
        scaling.Blocks(np.zeros((2, 64), np.uint8), np.zeros((2, 4), np.uint8), "mxfp4")
