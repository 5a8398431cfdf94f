"""Blocks against torchao itself: every format and mode of to_mx on drawn bfloat16, and NVFP4 with its tensor scale."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refsim
from refsim.conversions import policy_patterns
from refsim.scaling import recipes_of

ELEMENTS_OF_TORCHAO = {
    "mxfp8": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "float4_e2m1fn_x2",
}
PAIRS = [(format, each.name) for format in ELEMENTS_OF_TORCHAO for each in recipes_of(format) if "torchao" in each.name]


def drawn(seed: int) -> np.ndarray:
    """2,048 blocks of 64 bf16 patterns around one magnitude each, and 256 of any finite patterns."""
    random = np.random.default_rng(seed)
    near = random.standard_normal((2048, 64)) * np.exp2(random.integers(-130, 126, (2048, 1)))
    with np.errstate(all="ignore"):
        x = near.astype(np.float32).astype(ml_dtypes.bfloat16)
    patterns = (
        random.integers(0, 0x7F80, (256, 64)).astype(np.uint16)
        | random.integers(0, 2, (256, 64)).astype(np.uint16) << 15
    )
    return np.concatenate([x, patterns.view(ml_dtypes.bfloat16)])


def as_torch(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


@pytest.mark.filterwarnings("ignore")  # torchao looks for CUDA as it is imported
@pytest.mark.peers("torch", "torchao")
@pytest.mark.parametrize(("format", "recipe"), PAIRS)
def test_blocks_are_those_of_to_mx(format: str, recipe: str) -> None:
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    x, name = drawn(31), ELEMENTS_OF_TORCHAO[format]
    scales, codes = to_mx(
        as_torch(x), getattr(torch, name, name), 32, ScaleCalculationMode(recipe.removeprefix("torchao_"))
    )
    bytes_of = codes.view(torch.uint8).numpy()
    found = refsim.quantize(x, format, recipe=recipe)
    np.testing.assert_array_equal(found.scales, scales.view(torch.uint8).numpy())
    np.testing.assert_array_equal(found.codes, nibbles(bytes_of) if found.format.element.bits == 4 else bytes_of)


@pytest.mark.filterwarnings("ignore")  # torchao looks for CUDA as it is imported
@pytest.mark.peers("torch", "torchao")
@pytest.mark.parametrize("seed", range(4))
def test_nvfp4_is_that_of_torchao(seed: int) -> None:
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    random = np.random.default_rng(seed)
    x = (random.standard_normal((256, 256)) * np.exp2(random.integers(-16, 1, (256, 1)))).astype(np.float32)
    tensor = torch.from_numpy(x)
    kept = per_tensor_amax_to_scale(tensor.abs().amax())
    scales, codes = nvfp4_quantize(tensor, per_tensor_scale=kept)
    found = refsim.quantize(x, "nvfp4", recipe="torchao")
    assert found.tensor_scale == kept.numpy()
    np.testing.assert_array_equal(found.scales, scales.view(torch.uint8).numpy().reshape(found.scales.shape))
    np.testing.assert_array_equal(found.codes, nibbles(codes.view(torch.uint8).numpy()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.peers("torch", "torchao")
@pytest.mark.parametrize("name", ["f32_to_f4_unpacked", "f32_to_f6_e2m3_unpacked", "f32_to_f6_e3m2_unpacked"])
def test_elements_are_those_of_torchao(name: str) -> None:
    """NaN too, whose codes are what rounding makes of their payloads."""
    import torch
    from torchao.prototype.mx_formats import kernels

    patterns = policy_patterns()
    format = {"f32_to_f4_unpacked": "e2m1"}.get(name, name.removeprefix("f32_to_f6_").removesuffix("_unpacked"))
    codes = getattr(kernels, name)(torch.from_numpy(patterns.view(np.float32).copy())).numpy()
    np.testing.assert_array_equal(refsim.convert(f"torchao.{format}", patterns), codes)
