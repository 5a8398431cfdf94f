"""Files that torchao and compressed-tensors wrote: the values that refsim reads are those of the libraries."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim.checkpoints.conversion import dequantize_file

pytestmark = pytest.mark.peers


def library(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install '.[testing,peers]'")
    return importlib.import_module(name)


def read(path: Path, to: Path, key: str) -> tuple[np.ndarray, str]:
    """Return the values of a weight, and the layout that was told."""
    told = dequantize_file(path, to, overwrite=True)
    return np.load(to)[key], next(each.why for each in told if each.key == key).split(":")[0]


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "nvfp4", "nvfp4 two levels", "fp8 row", "fp8 tensor", "int8"])
def test_what_torchao_writes(kind: str, tmp_path: Path) -> None:
    torch, _, save = library("torch"), library("torchao"), library("safetensors.torch").save_file
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8Tensor, Int8Tensor, PerRow, PerTensor

    torch.manual_seed(3)
    x = torch.randn(64, 128, dtype=torch.bfloat16)
    made = {
        "mxfp8": lambda: MXTensor.to_mx(x, torch.float8_e4m3fn, 32),
        "mxfp4": lambda: MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32),
        "nvfp4": lambda: NVFP4Tensor.to_nvfp4(x),
        "nvfp4 two levels": lambda: NVFP4Tensor.to_nvfp4(
            x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max().float())
        ),
        "fp8 row": lambda: Float8Tensor.from_hp(x, granularity=PerRow()),
        "fp8 tensor": lambda: Float8Tensor.from_hp(x, granularity=PerTensor()),
        "int8": lambda: Int8Tensor.from_hp(x, granularity=PerRow()),
    }[kind]()
    tensors, metadata = flatten_tensor_state_dict({"p.weight": made})
    save(tensors, tmp_path / "m.safetensors", metadata=metadata)
    got, layout = read(tmp_path / "m.safetensors", tmp_path / "x.npz", "p.weight")
    assert layout == f"torchao-{kind.split(maxsplit=1)[0]}"
    assert_same(got, made.dequantize(torch.float32).numpy(), rounds_scales=kind == "nvfp4 two levels")


def assert_same(got: np.ndarray, want: np.ndarray, *, rounds_scales: bool) -> None:
    """Demand equal bits. A library that rounds the product of two scales to float32 first may differ by a step."""
    if not rounds_scales:
        np.testing.assert_array_equal(got, want)
    assert (np.abs(got.astype(np.float64) - want) <= np.spacing(np.abs(want))).all()


def scheme(**weights: Any) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (3, False), (8, True)])
def test_what_compressed_tensors_packs(bits: int, symmetric: bool, tmp_path: Path) -> None:
    torch, _, save = library("torch"), library("compressed_tensors"), library("safetensors.torch").save_file
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor

    torch.manual_seed(4)
    meant = scheme(num_bits=bits, type="int", strategy="group", group_size=32, symmetric=symmetric)
    state = {"weight": torch.randn(48, 96), "weight_scale": torch.rand(48, 3) / 4 + 0.1}
    if not symmetric:
        half = 1 << (bits - 1)
        state["weight_zero_point"] = torch.randint(-half, half, (48, 3), dtype=torch.int8)
    packed = PackedQuantizationCompressor.compress(state, meant)
    want = PackedQuantizationCompressor.decompress(packed, meant)["weight"]
    save({f"p.{key}": each.contiguous() for key, each in packed.items()}, tmp_path / "m.safetensors")
    got, layout = read(tmp_path / "m.safetensors", tmp_path / "x.npz", "p.weight")
    assert layout == "ct-packed"
    np.testing.assert_array_equal(got, want.float().numpy())


def test_what_compressed_tensors_writes_as_nvfp4(tmp_path: Path) -> None:
    torch, _, save = library("torch"), library("compressed_tensors"), library("safetensors.torch").save_file
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor

    torch.manual_seed(5)
    meant = scheme(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    factor = torch.tensor([512.0])
    state = {
        "weight": torch.randn(32, 64),
        "weight_scale": (torch.rand(32, 4) * 400 + 1).to(torch.float8_e4m3fn).float(),
        "weight_global_scale": factor,
    }
    packed = NVFP4PackedCompressor.compress(state, meant)
    want = NVFP4PackedCompressor.decompress(packed, meant)["weight"]
    save({f"p.{key}": each.contiguous() for key, each in packed.items()}, tmp_path / "m.safetensors")
    got, layout = read(tmp_path / "m.safetensors", tmp_path / "x.npz", "p.weight")
    assert layout == "ct-nvfp4"
    assert_same(got, want.float().numpy(), rounds_scales=True)
