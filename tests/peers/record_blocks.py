"""Records what other packages make of blocks: `python tests/peers/record_blocks.py`, where they are installed.

torchao 0.18.0, compressed-tensors 0.20.0, nvidia-modelopt 0.47.0 on torch 2.13.0 for CPU, and the file
custom_recipes/reference_nvfp4.py of transformer_engine 2.20.2, whose folder is the argument. The tests of scaling replay it.
"""

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

WHERE = Path(__file__).parent.parent / "scaling" / "recorded_blocks.npz"
WIDTH = 32


def drawn_blocks() -> np.ndarray:
    """Blocks of 32 float32: noise of every magnitude, ties, powers of two and their neighbours, and specials."""
    random = np.random.default_rng(26)
    noise = random.standard_normal((96, WIDTH)) * np.exp2(random.integers(-126, 124, (96, 1)))
    even = random.integers(-60, 61, (48, WIDTH)) * np.exp2(random.integers(-100, 100, (48, 1)) - 2.0)
    x = np.concatenate([noise, even, np.zeros((36, WIDTH))]).astype(np.float32)
    special = x[144:]
    special[:] = (random.standard_normal(special.shape) * 2.0**-3).astype(np.float32)
    peaks = [1, 2**-3, 448, 450, 57344, 6, 6.1, 7, 7.5, 28, 480, 464, 3.3895314e38, 3.4028235e38, np.inf, -np.inf]
    special[: len(peaks), 3] = peaks
    special[16, 5] = np.nan
    special[17, :2] = np.nan, np.inf
    special[18:22] = 0
    special[19, ::2] = -0.0
    special[20, 0] = 1e-40
    special[21, :3] = 1e-38, -3e-39, 2e-45
    special[22:, 7] = np.exp2(np.arange(-140, -70, 5))
    special[22:] *= np.exp2(np.arange(-140, -70, 5))[:, None].astype(np.float32)
    return x


def torchao_recordings(x: Any) -> dict[str, np.ndarray]:
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    names = {
        "mxfp8": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp6_e2m3": "fp6_e2m3",
        "mxfp6_e3m2": "fp6_e3m2",
        "mxfp4": torch.float4_e2m1fn_x2,
    }
    found = {}
    for format, element in names.items():
        for mode in ScaleCalculationMode:
            scales, codes = to_mx(x, element, WIDTH, mode)
            codes = codes.view(torch.uint8)
            key = f"torchao_{mode.value}.{format}"
            found[f"{key}.codes"] = (unpacked(codes) if format == "mxfp4" else codes).numpy()
            found[f"{key}.scales"] = scales.view(torch.uint8).numpy()
    return found


def unpacked(codes: Any) -> Any:
    import torch

    return torch.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)


def modelopt_recordings(x: Any) -> dict[str, np.ndarray]:
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

    packed, scales = MXFP4QTensor.quantize(x, WIDTH)
    return {"modelopt.mxfp4.codes": unpacked(packed._quantized_data).numpy(), "modelopt.mxfp4.scales": scales.numpy()}


def compressed_recordings(x: Any) -> dict[str, np.ndarray]:
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

    found = {}
    for format, bits in (("mxfp8", 8), ("mxfp6_e2m3", 6), ("mxfp4", 4)):
        args = QuantizationArgs(
            num_bits=bits, type="float", strategy="group", group_size=WIDTH, symmetric=True, scale_dtype=torch.uint8
        )
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        factors, zero = calculate_qparams(low, high, args)
        peak = torch.max(torch.abs(torch.min(low, torch.zeros_like(low))), torch.max(high, torch.zeros_like(high)))
        codes = torch.round(torch.clamp(generate_mx_scales(peak, bits), 0, 255)).to(torch.uint8)
        values = quantize(x.clone(), factors, zero, args)
        found[f"compressed_tensors.{format}.values"] = values.float().numpy()
        found[f"compressed_tensors.{format}.scales"] = codes.numpy()
    return found


def drawn_tensors() -> dict[str, np.ndarray]:
    """Tensors of 24 x 64 for NVFP4: noise, blocks of every magnitude, ties, scales that underflow, zeros, specials."""
    random = np.random.default_rng(27)
    shape = 24, 64
    noise = random.standard_normal(shape)
    steps = np.exp2(random.integers(-24, 1, (24, 4))).repeat(16, axis=1)
    ties = random.integers(-24, 25, shape) / 4.0
    ties[:, ::16] = 6 * random.choice([1, 2, 0.5, 448 / 256], (24, 4))
    ties[0, 0] = 2688
    special = noise.copy()
    special[0, 3], special[1, 20] = np.inf, -np.inf
    lost = noise.copy()
    lost[2, 5] = np.nan
    zeros = np.where(random.random(shape) < 0.5, 0.0, -0.0)
    some = np.where(steps < 2.0**-12, zeros, noise * steps)
    tiny = noise * 1e-42
    tensors = {"noise": noise, "steps": noise * steps, "ties": ties, "special": special, "lost": lost, "zeros": zeros}
    tensors |= {"some": some, "tiny": tiny, "large": noise * 2.0**125}
    with np.errstate(all="ignore"):
        return {name: each.astype(np.float32) for name, each in tensors.items()}


def two_level_recordings(x: Any, reference: dict[str, Any]) -> dict[str, np.ndarray]:
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    found = {}

    def keep(recipe: str, codes: Any, scales: Any, kept: Any) -> None:
        found[f"{recipe}.nvfp4.codes"] = unpacked(codes.view(torch.uint8)).numpy()
        found[f"{recipe}.nvfp4.scales"] = scales.view(torch.uint8).reshape(len(codes), -1).numpy()
        found[f"{recipe}.nvfp4.kept"] = kept.float().reshape(()).numpy()

    kept = per_tensor_amax_to_scale(x.abs().amax())
    scales, codes = nvfp4_quantize(x, per_tensor_scale=kept)
    keep("torchao", codes, scales, kept)
    scales, codes = nvfp4_quantize(x)
    keep("torchao_single", codes, scales, torch.ones(()))
    packed, scales, kept = NVFP4QTensor.quantize(x.clone(), 16)
    keep("modelopt", packed._quantized_data, scales, kept)
    args = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
    )
    kept = generate_gparam(x.amin(), x.amax())
    groups = x.reshape(len(x), -1, 16)
    scales, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, kept)
    codes = quantize_and_pack_fp4(x.clone(), scales, kept)
    keep("compressed_tensors", codes, scales.to(torch.float8_e4m3fn), kept)
    for recipe, width in (("te_reference", 1), ("te_reference_2d", 16)):
        padded = torch.zeros((32, x.shape[1]), dtype=x.dtype)
        padded[: len(x)] = x
        codes, scales = reference["NVFP4QuantizerRef"]._quantize_blockwise_reference(
            padded, x.float().abs().amax(), 16, width, pow_2_scales=False, eps=0.0
        )
        keep(recipe, codes, scales, torch.ones(()))
    return found


def te_reference(folder: str) -> dict[str, Any]:
    """The functions of reference_nvfp4.py that quantise, without the library around them."""
    import types
    from typing import Optional

    import torch

    text = (Path(folder) / "transformer_engine/pytorch/custom_recipes/reference_nvfp4.py").read_text()
    first = text.index("def cast_to_fp4x2")
    method = text.index("    def _quantize_blockwise_reference")
    body = "class NVFP4QuantizerRef:\n    @classmethod\n" + text[method : text.index("    @staticmethod", method)]
    known = {"torch": torch, "Tuple": tuple, "Optional": Optional, "types": types}
    exec(text[first : text.index("def cast_from_fp4x2")] + body, known)
    return known


def main() -> None:
    import torch

    torch._dynamo.config.disable = True
    x = drawn_blocks()
    recorded = {"x": x}
    for name, given in (("f32", x), ("bf16", x.astype(ml_dtypes.bfloat16))):
        tensor = (
            torch.from_numpy(given.view(np.uint16).copy()).view(torch.bfloat16)
            if name == "bf16"
            else torch.from_numpy(x)
        )
        for record in (torchao_recordings, modelopt_recordings, compressed_recordings):
            recorded |= {f"{name}.{key}": value for key, value in record(tensor.clone()).items()}
    reference = te_reference(sys.argv[1])
    for name, each in drawn_tensors().items():
        recorded[f"nvfp4.{name}"] = each
        made = two_level_recordings(torch.from_numpy(each), reference)
        recorded |= {f"{name}.{key}": value for key, value in made.items()}
    np.savez_compressed(WHERE, **recorded)
    print(f"{len(recorded)} arrays in {WHERE}, {WHERE.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
