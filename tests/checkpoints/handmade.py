"""Checkpoints built by hand with NumPy from what libraries document: bytes of the files, and the values that they mean.

Nothing of refsim is used here: codes are looked up in lists that are written out, and words are packed by loops.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP6 = np.array(
    [
        s * v
        for s in (1, -1)
        for v in [m / 8 for m in range(8)] + [2**e * (1 + m / 8) for e in (0, 1, 2) for m in range(8)]
    ]
)
NF4 = np.fromstring(
    "-1 -0.6961928 -0.52507305 -0.39491749 -0.28444138 -0.18477343 -0.091050036 0 "
    "0.079580299 0.1609302 0.2461123 0.33791524 0.44070983 0.562617 0.72295684 1",
    np.float32,
    sep=" ",
)
NAMES = {
    "uint8": "U8",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16


@dataclass
class Made:
    """Tensors by key, the key of the values, the values, and what lies beside: metadata and config.json."""

    layout: str
    tensors: dict[str, np.ndarray]
    key: str
    want: np.ndarray
    metadata: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path, name: str = "model.safetensors", config: bool = True) -> Path:
        save(folder / name, self.tensors, self.metadata)
        if self.config and config:
            (folder / "config.json").write_text(json.dumps({"quantization_config": self.config}))
        return folder / name


def save(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file: 8 bytes with the length of the header, JSON, and the bytes of the tensors."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for key, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[key] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def fp8(rng: np.random.Generator, *shape: int, kind: Any = E4M3) -> np.ndarray:
    """Return finite codes of every exponent and sign."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    top = 0x7F if kind is E4M3 else 0x7C
    return np.where((codes & 0x7F) >= top, codes & 0x80 | 0x70, codes).astype(np.uint8).view(kind)


def powers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(100, 140, shape).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Return two codes of 4 bits a byte, the first in the low half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the rows of codes as a stream of bits in 32-bit words, the first code in the lowest bits."""
    rows = []
    for row in codes.tolist():
        stream = sum(int(code) << (bits * at) for at, code in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([stream >> (32 * at) & 0xFFFFFFFF for at in range(count)])
    return np.array(rows, np.uint32).view(np.int32)


def tiles(scales: np.ndarray, rows: int, columns: int, size: int = 128) -> np.ndarray:
    return np.repeat(np.repeat(scales.astype(np.float64), size, 0), size, 1)[:rows, :columns]


def deepseek_v3(rng: np.random.Generator, scale: Any = np.float32, end: str = "weight_scale_inv") -> Made:
    weight, scales = fp8(rng, 200, 272), rng.uniform(0.001, 2, (2, 3)).astype(scale)
    tensors = {"m.q.weight": weight, f"m.q.{end}": scales, "m.norm.weight": rng.standard_normal(8).astype(BF16)}
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    return Made(
        "deepseek-fp8", tensors, "m.q.weight", weight.astype(np.float64) * tiles(scales, 200, 272), config=config
    )


def qwen3(rng: np.random.Generator) -> Made:
    return deepseek_v3(rng, BF16)


def small_blocks(rng: np.random.Generator) -> Made:
    """FP8 in tiles of 64 x 32, which only config.json says."""
    weight, scales = fp8(rng, 130, 96), rng.uniform(0.1, 2, (3, 3)).astype(np.float32)
    want = weight.astype(np.float64) * np.repeat(np.repeat(scales.astype(np.float64), 64, 0), 32, 1)[:130]
    config = {"quant_method": "fp8", "weight_block_size": [64, 32]}
    return Made("deepseek-fp8", {"w.weight": weight, "w.weight_scale_inv": scales}, "w.weight", want, config=config)


def deepseek_v4_fp8(rng: np.random.Generator) -> Made:
    weight, codes = fp8(rng, 256, 200), powers(rng, 2, 2)
    want = weight.astype(np.float64) * tiles(2.0 ** (codes.astype(int) - 127), 256, 200)
    return Made(
        "deepseek-v4-fp8",
        {"layers.0.attn.wq_a.weight": weight, "layers.0.attn.wq_a.scale": codes.view(E8M0)},
        "layers.0.attn.wq_a.weight",
        want,
    )


def deepseek_v4_fp4(rng: np.random.Generator) -> Made:
    codes, scales = rng.integers(0, 16, (24, 96)), powers(rng, 24, 3)
    want = FP4[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    key = "layers.0.ffn.experts.0.w1.weight"
    return Made("deepseek-v4-fp4", {key: pairs(codes).view(np.int8), key[:-6] + "scale": scales.view(E8M0)}, key, want)


def gpt_oss(rng: np.random.Generator, blocks: str = "_blocks", scales_end: str = "_scales") -> Made:
    codes, scales = rng.integers(0, 16, (2, 10, 3, 32)), powers(rng, 2, 10, 3)
    want = (FP4[codes] * 2.0 ** (scales.astype(int) - 127)[..., None]).reshape(2, 10, 96)
    tensors = {
        f"e.down_proj{blocks}": pairs(codes),
        f"e.down_proj{scales_end}": scales,
        "e.down_proj_bias": rng.standard_normal((2, 10)).astype(BF16),
    }
    return Made("gpt-oss", tensors, "e.down_proj", want)


def gpt_oss_original(rng: np.random.Generator) -> Made:
    return gpt_oss(rng, ".blocks", ".scales")


def nvfp4_parts(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        rng.integers(0, 16, (20, 64)),
        np.abs(fp8(rng, 20, 4).astype(np.float32)).astype(E4M3),
        np.float32(rng.uniform(1e-5, 1e-3)),
    )


def modelopt_nvfp4(rng: np.random.Generator) -> Made:
    codes, scales, factor = nvfp4_parts(rng)
    want = FP4[codes] * np.repeat(scales.astype(np.float64), 16, 1) * np.float64(factor)
    tensors = {
        "p.weight": pairs(codes),
        "p.weight_scale": scales,
        "p.weight_scale_2": np.array(factor),
        "p.input_scale": np.array(0.5, np.float32),
    }
    return Made("modelopt-nvfp4", tensors, "p.weight", want)


def modelopt_mxfp4(rng: np.random.Generator) -> Made:
    codes, scales = rng.integers(0, 16, (6, 64)), powers(rng, 6, 2)
    want = FP4[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    return Made("modelopt-mxfp4", {"p.weight": pairs(codes), "p.weight_scale": scales}, "p.weight", want)


def fp8_tensor(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 12, 20), np.array(0.0123, np.float32)
    tensors = {"p.weight": weight, "p.weight_scale": scale, "p.input_scale": np.array(0.5, np.float32)}
    return Made("fp8-tensor", tensors, "p.weight", weight.astype(np.float64) * np.float64(scale))


def fp8_e5m2(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 12, 20, kind=ml_dtypes.float8_e5m2), np.array([0.0123], np.float32)
    return Made(
        "fp8-tensor",
        {"p.weight": weight, "p.weight_scale": scale},
        "p.weight",
        weight.astype(np.float64) * np.float64(scale[0]),
    )


def fp8_channel(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 12, 20), rng.uniform(0.1, 1, (12, 1)).astype(BF16)
    return Made(
        "fp8-channel",
        {"p.weight": weight, "p.weight_scale": scale},
        "p.weight",
        weight.astype(np.float64) * scale.astype(np.float64),
    )


def fp8_channel_flat(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 12, 20), rng.uniform(0.1, 1, 12).astype(np.float32)
    return Made(
        "fp8-channel",
        {"p.weight": weight, "p.weight_scale": scale},
        "p.weight",
        weight.astype(np.float64) * scale.astype(np.float64)[:, None],
    )


def fp8_block(rng: np.random.Generator) -> Made:
    weight, scales = fp8(rng, 300, 130), rng.uniform(0.1, 1, (3, 2)).astype(BF16)
    return Made(
        "fp8-block",
        {"p.weight": weight, "p.weight_scale": scales},
        "p.weight",
        weight.astype(np.float64) * tiles(scales, 300, 130),
    )


def fp8_one_block(rng: np.random.Generator) -> Made:
    """A weight smaller than a block: only config.json tells the block from one scale of the tensor, whose values agree."""
    weight, scales = fp8(rng, 24, 64), rng.uniform(0.001, 2, (1, 1)).astype(BF16)
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}}
    tensors = {"p.weight": weight, "p.weight_scale": scales}
    return Made("fp8-block", tensors, "p.weight", weight.astype(np.float64) * tiles(scales, 24, 64), config=config)


def fp8_one_row(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 1, 64), rng.uniform(0.001, 2, (1, 1)).astype(np.float32)
    tensors = {"p.weight": weight, "p.weight_scale": scale}
    return Made("fp8-tensor", tensors, "p.weight", weight.astype(np.float64) * scale.astype(np.float64))


def fp8_scalar_inv(rng: np.random.Generator) -> Made:
    """FP8 of transformers with weight_block_size null: the same names, one scale."""
    weight, scale = fp8(rng, 12, 20), np.array(0.0123, BF16)
    tensors = {"p.weight": weight, "p.weight_scale_inv": scale, "p.norm.weight": np.ones(4, BF16)}
    config = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    return Made("fp8-tensor", tensors, "p.weight", weight.astype(np.float64) * np.float64(scale), config=config)


def fp8_block_of_modelopt(rng: np.random.Generator) -> Made:
    """FP8_PB_WO: the scales have dimensions of 1 inside each block."""
    weight, scales = fp8(rng, 200, 272), rng.uniform(0.001, 2, (2, 1, 3, 1)).astype(np.float32)
    tensors = {"p.weight": weight, "p.weight_scale": scales}
    return Made("fp8-block", tensors, "p.weight", weight.astype(np.float64) * tiles(scales.reshape(2, 3), 200, 272))


def fp8_experts(rng: np.random.Generator) -> Made:
    """A stack of three matrices in tiles of 128."""
    weight, scales = fp8(rng, 3, 150, 130), rng.uniform(0.1, 1, (3, 2, 2)).astype(np.float32)
    want = np.stack([weight[e].astype(np.float64) * tiles(scales[e], 150, 130) for e in range(3)])
    return Made("deepseek-fp8", {"p.weight": weight, "p.weight_scale_inv": scales}, "p.weight", want)


def mxfp8(rng: np.random.Generator) -> Made:
    weight, scales = fp8(rng, 5, 96), powers(rng, 5, 3)
    want = weight.astype(np.float64) * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    return Made("modelopt-mxfp8", {"p.weight": weight, "p.weight_scale": scales}, "p.weight", want)


def ct_nvfp4(rng: np.random.Generator) -> Made:
    codes, scales, _ = nvfp4_parts(rng)
    factor = np.array([1234.5], np.float32)
    want = FP4[codes] * np.repeat(scales.astype(np.float64), 16, 1) / np.float64(factor[0])
    tensors = {"p.weight_packed": pairs(codes), "p.weight_scale": scales, "p.weight_global_scale": factor}
    return Made("ct-nvfp4", tensors, "p.weight", want)


def ct_mxfp4(rng: np.random.Generator) -> Made:
    made = modelopt_mxfp4(rng)
    tensors = {"p.weight_packed": made.tensors["p.weight"], "p.weight_scale": made.tensors["p.weight_scale"]}
    return Made("ct-mxfp4", tensors, "p.weight", made.want)


def ct_mxfp6(rng: np.random.Generator) -> Made:
    codes, scales = rng.integers(0, 64, (4, 64)), powers(rng, 4, 2)
    packed = words(codes, 6).view(np.uint8)
    want = FP6[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    return Made("ct-mxfp6", {"p.weight_packed": packed, "p.weight_scale": scales}, "p.weight", want)


def ct_int8(rng: np.random.Generator) -> Made:
    codes, scale = rng.integers(-128, 128, (9, 40)).astype(np.int8), rng.uniform(0.001, 0.1, (9, 1)).astype(BF16)
    return Made("ct-int8", {"p.weight": codes, "p.weight_scale": scale}, "p.weight", codes * scale.astype(np.float64))


def ct_int8_zeros(rng: np.random.Generator) -> Made:
    codes, scale = rng.integers(-128, 128, (9, 40)).astype(np.int8), rng.uniform(0.001, 0.1, (9, 1)).astype(np.float32)
    zeros = rng.integers(-128, 128, (9, 1)).astype(np.int8)
    want = (codes.astype(np.float64) - zeros) * scale.astype(np.float64)
    return Made("ct-int8", {"p.weight": codes, "p.weight_scale": scale, "p.weight_zero_point": zeros}, "p.weight", want)


def ct_packed(rng: np.random.Generator, bits: int = 4, zeros: bool = False, columns: int = 128) -> Made:
    codes, scale = rng.integers(0, 1 << bits, (10, columns)), rng.uniform(0.001, 0.1, (10, columns // 32)).astype(BF16)
    tensors = {
        "p.weight_packed": words(codes, bits),
        "p.weight_scale": scale,
        "p.weight_shape": np.array([10, columns], np.int64),
    }
    offset = np.full((10, columns // 32), 1 << (bits - 1))
    if zeros:
        offset = rng.integers(0, 1 << bits, offset.shape)
        tensors["p.weight_zero_point"] = np.ascontiguousarray(words(offset.T, bits).T)
    want = (codes - np.repeat(offset, 32, 1)) * np.repeat(scale.astype(np.float64), 32, 1)
    return Made("ct-packed", tensors, "p.weight", want)


def ct_packed_zeros(rng: np.random.Generator) -> Made:
    return ct_packed(rng, zeros=True)


def ct_packed_of_two_groups(rng: np.random.Generator) -> Made:
    """A group of config.json for other weights comes first: the shapes tell which one is meant."""
    of = {"one": {"num_bits": 4, "group_size": 16}, "two": {"num_bits": 8, "group_size": 32}}
    made = ct_packed(rng, bits=8)
    groups = {name: {"targets": [f"re:{name}"], "weights": said} for name, said in of.items()}
    made.config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    return made


def ct_packed_3(rng: np.random.Generator) -> Made:
    return ct_packed(rng, bits=3, zeros=True)


def ct_packed_8(rng: np.random.Generator) -> Made:
    return ct_packed(rng, bits=8)


def awq(rng: np.random.Generator) -> Made:
    codes, zeros = rng.integers(0, 16, (64, 24)), rng.integers(0, 16, (2, 24))
    scales = rng.uniform(0.001, 0.1, (2, 24)).astype(np.float16)

    def packed(values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(values), 3), np.uint32)
        for at, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            for word in range(3):
                out[:, word] |= values[:, 8 * word + column].astype(np.uint32) << np.uint32(4 * at)
        return out.view(np.int32)

    want = (codes - np.repeat(zeros, 32, 0)) * np.repeat(scales.astype(np.float64), 32, 0)
    return Made("awq", {"p.qweight": packed(codes), "p.qzeros": packed(zeros), "p.scales": scales}, "p.weight", want)


def gptq(rng: np.random.Generator, bits: int = 4, v2: bool = False, act: bool = True) -> Made:
    codes, zeros = rng.integers(0, 1 << bits, (64, 32)), rng.integers(0, 1 << bits, (2, 32))
    scales = rng.uniform(0.001, 0.1, (2, 32)).astype(np.float16)
    order = rng.permutation(np.arange(64) // 32).astype(np.int32)
    kept = zeros if v2 else (zeros - 1) % (1 << bits)
    tensors = {
        "p.qweight": np.ascontiguousarray(words(codes.T, bits).T),
        "p.qzeros": words(kept, bits),
        "p.scales": scales,
    }
    groups = order if act else np.arange(64) // 32
    if act:
        tensors["p.g_idx"] = order
    want = (codes - zeros[groups]) * scales.astype(np.float64)[groups]
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    return Made("gptq_v2" if v2 else "gptq", tensors, "p.weight", want, config=config)


def gptq_v2(rng: np.random.Generator) -> Made:
    return gptq(rng, v2=True)


def gptq_8(rng: np.random.Generator) -> Made:
    return gptq(rng, bits=8, act=False)


def gptq_3(rng: np.random.Generator) -> Made:
    return gptq(rng, bits=3)


def gptq_2(rng: np.random.Generator) -> Made:
    return gptq(rng, bits=2, v2=True)


def torchao(kind: str, names: str = "", **data: Any) -> dict[str, str]:
    body = {"_type": kind, "_data": data, "_tensor_data_names": ["qdata", "scale", *names.split()]}
    return {"p.weight": json.dumps(body), "tensor_names": json.dumps(["p.weight"])}


def torchao_fp8(rng: np.random.Generator) -> Made:
    weight, scale = fp8(rng, 8, 24), rng.uniform(0.1, 1, (8, 1)).astype(np.float32)
    meta = torchao("Float8Tensor", block_size=[1, 24])
    return Made(
        "torchao-fp8",
        {"p._weight_qdata": weight, "p._weight_scale": scale},
        "p.weight",
        weight.astype(np.float64) * scale.astype(np.float64),
        meta,
    )


def swizzled(scales: np.ndarray) -> np.ndarray:
    """Return scales in tiles of 128 x 4: row r, block c at byte (r % 32) * 16 + (r // 32) * 4 + c of its tile."""
    rows, columns = scales.shape
    down, across = -(-rows // 128), -(-columns // 4)
    out = np.zeros((down, across, 512), np.uint8)
    for r in range(rows):
        for c in range(columns):
            out[r // 128, c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    return out.reshape(down * 128, across * 4)


def torchao_mxfp8(rng: np.random.Generator, swizzle: bool = False) -> Made:
    weight, scales = fp8(rng, 130, 96), powers(rng, 130, 3)
    want = weight.astype(np.float64) * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    kept = swizzled(scales) if swizzle else scales
    meta = torchao("MXTensor", block_size=32, is_swizzled_scales=swizzle)
    return Made(
        "torchao-mxfp8", {"p._weight_qdata": weight, "p._weight_scale": kept.view(E8M0)}, "p.weight", want, meta
    )


def torchao_swizzled(rng: np.random.Generator) -> Made:
    return torchao_mxfp8(rng, swizzle=True)


def torchao_mxfp4(rng: np.random.Generator) -> Made:
    codes, scales = rng.integers(0, 16, (6, 64)), powers(rng, 6, 2)
    want = FP4[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    meta = torchao("MXTensor", block_size=32, is_swizzled_scales=False)
    return Made(
        "torchao-mxfp4", {"p._weight_qdata": pairs(codes), "p._weight_scale": scales.view(E8M0)}, "p.weight", want, meta
    )


def torchao_nvfp4(rng: np.random.Generator) -> Made:
    codes, scales, factor = nvfp4_parts(rng)
    want = FP4[codes] * np.repeat(scales.astype(np.float64), 16, 1) * np.float64(factor)
    tensors = {
        "p._weight_qdata": pairs(codes),
        "p._weight_scale": scales,
        "p._weight_per_tensor_scale": np.array(factor),
    }
    return Made("torchao-nvfp4", tensors, "p.weight", want, torchao("NVFP4Tensor", "per_tensor_scale", block_size=16))


def torchao_int8(rng: np.random.Generator) -> Made:
    codes, scale = rng.integers(-8, 8, (6, 64)).astype(np.int8), rng.uniform(0.01, 0.1, (6, 2)).astype(BF16)
    zeros = rng.integers(-8, 8, (6, 2)).astype(np.int8)
    want = (codes - np.repeat(zeros.astype(np.float64), 32, 1)) * np.repeat(scale.astype(np.float64), 32, 1)
    tensors = {"p._weight_qdata": codes, "p._weight_scale": scale, "p._weight_zero_point": zeros}
    return Made(
        "torchao-int8", tensors, "p.weight", want, torchao("IntxUnpackedToInt8Tensor", "zero_point", block_size=[1, 32])
    )


def torchao_int4(rng: np.random.Generator) -> Made:
    """Codes in two's complement; scales and zeros, which are added, lie (groups, rows)."""
    codes = rng.integers(-8, 8, (6, 96))
    scale, zero = rng.uniform(0.01, 0.1, (3, 6)).astype(BF16), rng.uniform(-0.2, 0.2, (3, 6)).astype(BF16)
    of_scale, of_zero = (np.repeat(each.astype(np.float64).T, 32, 1) for each in (scale, zero))
    tensors = {"p._weight_qdata": pairs(codes & 15).view(np.int8), "p._weight_scale": scale}
    meta = torchao("Int4Tensor", "zero_point", block_size=[1, 32], shape=[6, 96])
    want = codes * of_scale + of_zero
    return Made("torchao-int4", {**tensors, "p._weight_zero_point": zero}, "p.weight", want, meta)


def torchao_int4_experts(rng: np.random.Generator) -> Made:
    codes = rng.integers(-8, 8, (2, 5, 64))
    scale, zero = rng.uniform(0.01, 0.1, (2, 2, 5)).astype(BF16), rng.uniform(-0.2, 0.2, (2, 2, 5)).astype(BF16)
    of_scale, of_zero = (np.repeat(each.astype(np.float64).swapaxes(1, 2), 32, 2) for each in (scale, zero))
    packed = (codes[..., 0::2] & 15 | (codes[..., 1::2] & 15) << 4).astype(np.uint8)
    tensors = {"p._weight_qdata": packed, "p._weight_scale": scale, "p._weight_zero_point": zero}
    meta = torchao("Int4Tensor", "zero_point", block_size=[1, 1, 32], shape=[2, 5, 64])
    return Made("torchao-int4", tensors, "p.weight", codes * of_scale + of_zero, meta)


def torchao_int8_row(rng: np.random.Generator) -> Made:
    codes, scale = rng.integers(-128, 128, (6, 64)).astype(np.int8), rng.uniform(0.01, 0.1, (6, 1)).astype(np.float32)
    meta = torchao("Int8Tensor", block_size=[1, 64])
    want = codes * scale.astype(np.float64)
    return Made("torchao-int8", {"p._weight_qdata": codes, "p._weight_scale": scale}, "p.weight", want, meta)


def bnb(rng: np.random.Generator, nested: bool = False, kind: str = "nf4") -> Made:
    shape, codes = (13, 11), rng.integers(0, 16, 143)
    table = (
        NF4
        if kind == "nf4"
        else np.array([0, 0.0052083333, 0.6666667, 1, 0.33333333, 0.5, 0.16666667, 0.25] * 2, np.float32)
    )
    padded = np.append(codes, 0)
    packed = (padded[0::2] << 4 | padded[1::2]).astype(np.uint8)[:, None]
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
    tensors = {"p.weight": packed, "p.weight.quant_map": table}
    absmax = rng.uniform(0.1, 2, 3).astype(np.float32)
    if nested:
        inner, of = np.linspace(-1, 1, 256).astype(np.float32), rng.uniform(1, 2, 1).astype(np.float32)
        stored = rng.integers(0, 256, 3).astype(np.uint8)
        absmax = inner[stored] * of[0] + np.float32(1.5)
        tensors |= {"p.weight.absmax": stored, "p.weight.nested_absmax": of, "p.weight.nested_quant_map": inner}
        state |= {"nested_blocksize": 256, "nested_offset": 1.5, "nested_dtype": "float32"}
    else:
        tensors["p.weight.absmax"] = absmax
    tensors[f"p.weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    want = (table[codes].astype(np.float64) * np.repeat(absmax, 64)[:143]).reshape(shape)
    return Made(f"bnb-{kind}", tensors, "p.weight", want)


def bnb_nested(rng: np.random.Generator) -> Made:
    return bnb(rng, nested=True)


def bnb_fp4(rng: np.random.Generator) -> Made:
    return bnb(rng, kind="fp4")


def bnb_int8(rng: np.random.Generator) -> Made:
    codes, scb = rng.integers(-127, 128, (5, 16)).astype(np.int8), rng.uniform(1, 4, 5).astype(np.float32)
    return Made(
        "bnb-int8", {"p.weight": codes, "p.SCB": scb}, "p.weight", codes * (scb.astype(np.float64)[:, None] / 127)
    )


MAKERS: tuple[Callable[[np.random.Generator], Made], ...] = (
    deepseek_v3,
    qwen3,
    small_blocks,
    deepseek_v4_fp8,
    deepseek_v4_fp4,
    gpt_oss,
    gpt_oss_original,
    modelopt_nvfp4,
    modelopt_mxfp4,
    fp8_tensor,
    fp8_e5m2,
    fp8_channel,
    fp8_channel_flat,
    fp8_block,
    fp8_one_block,
    fp8_one_row,
    fp8_scalar_inv,
    fp8_block_of_modelopt,
    fp8_experts,
    mxfp8,
    ct_nvfp4,
    ct_mxfp4,
    ct_mxfp6,
    ct_int8,
    ct_int8_zeros,
    ct_packed,
    ct_packed_zeros,
    ct_packed_of_two_groups,
    ct_packed_3,
    ct_packed_8,
    awq,
    gptq,
    gptq_v2,
    gptq_8,
    gptq_3,
    gptq_2,
    torchao_fp8,
    torchao_mxfp8,
    torchao_swizzled,
    torchao_mxfp4,
    torchao_nvfp4,
    torchao_int8,
    torchao_int8_row,
    torchao_int4,
    torchao_int4_experts,
    bnb,
    bnb_nested,
    bnb_fp4,
    bnb_int8,
)
