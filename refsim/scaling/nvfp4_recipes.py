"""NVFP4 recipes: a float32 factor of the tensor, UE4M3 scales of blocks, e2m1 elements, each in its own order of
operations.

    S = 2688 / amax of the tensor        2688: 6, the largest e2m1, times 448, the largest scale
    scale = satfinite e4m3 of S * (amax of the block / 6)
    element = satfinite e2m1 of x * (S / scale)

Each library rounds these products in another order and keeps S, its reciprocal or amax. Every operation is one float32
operation, rounded to nearest even, subnormals kept. The kernels of vLLM and FlashInfer take reciprocals with
rcp.approx.ftz.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.conversions.coding import encode_rule
from refsim.conversions.rounding import EncodingRule
from refsim.formats import UE4M3, Format
from refsim.mufu import unit
from refsim.render.cards import Facts, NamedCard
from refsim.scaling.rows import NanRule
from refsim.sources import COMPRESSED_TENSORS, FLASHINFER, MODELOPT, TORCHAO, TRANSFORMER_ENGINE, VLLM, Source

Singles = NDArray[np.float32]
LARGEST_ELEMENT, LARGEST_SCALE_VALUE = np.float32(6), np.float32(448)
LARGEST_PRODUCT = LARGEST_ELEMENT * LARGEST_SCALE_VALUE
FLOAT_MAX = np.float32(np.finfo(np.float32).max)
SMALLEST_NORMAL = np.float32(np.finfo(np.float32).tiny)
F32_ONE = np.float32(1)
SIXTH = F32_ONE / LARGEST_ELEMENT


@dataclass(frozen=True, repr=False)
class Nvfp4Recipe(NamedCard):
    """One library's NVFP4 quantization. The functions take float32 arrays and keep the library's order of operations.

    `tensor` maps the largest magnitude of the tensor (1,) to the kept value (S, 1 / S or amax). `scale` maps the
    largest magnitude of each block (blocks, 1) and the kept value to the numbers that are converted to UE4M3. `scaled`
    maps x (blocks, width), the scales' values, the blocks' largest magnitudes and the kept value to the numbers that
    are converted to e2m1. `factor` maps the kept value to the factor with which dequantizing multiplies scales.
    `zero_scale` replaces scale code 0. `nan` tells whether a NaN counts among the largest; `policy` is the conversion
    of elements. A recipe of 4over6 has `four`, which is `scale` for blocks whose largest becomes 4, and `error`, which
    maps x, the elements' values, the scales' values and the kept value to the error of each block.
    """

    name: str
    summary: str
    source: Source
    tensor: Callable[[Singles], Singles]
    scale: Callable[[Singles, Singles], Singles]
    scaled: Callable[[Singles, Singles, Singles, Singles], Singles]
    factor: Callable[[Singles], Singles]
    zero_scale: int = 0
    nan: NanRule = "spreads"
    policy: str = "cuda.satfinite"
    formats: tuple[str, ...] = ("nvfp4",)
    four: Callable[[Singles, Singles], Singles] | None = None
    error: Callable[[Singles, Singles, Singles, Singles], Singles] | None = None

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.summary}"

    def _facts(self) -> Facts:
        yield "for", ", ".join(self.formats)
        yield "NaN", self.nan
        yield "elements", self.policy
        yield "source", self.source


def nvfp4_scale_codes(peak: Singles, recipe: Nvfp4Recipe, kept: Singles, format: Format = UE4M3) -> NDArray[np.uint8]:
    """Return the scale codes of blocks whose largest magnitudes are `peak`; a NaN gives 0x7f."""
    with np.errstate(all="ignore"):
        codes = np.asarray(encode(recipe.scale(peak, kept), format), np.uint8)
    codes[codes == 0] = recipe.zero_scale
    return codes


def nvfp4_scales(
    x: Singles, peak: Singles, recipe: Nvfp4Recipe, kept: Singles, rule: EncodingRule
) -> tuple[NDArray[np.uint8], Singles]:
    """Return the scale codes of blocks x (blocks, width) with largest magnitudes `peak`, and the numbers before UE4M3.

    4over6 takes the scale whose error is smaller, and the scale that makes the largest 6 in a tie.
    """
    codes = nvfp4_scale_codes(peak, recipe, kept)
    with np.errstate(all="ignore"):
        numbers = np.asarray(recipe.scale(peak, kept), np.float32)
        if recipe.four is None or recipe.error is None:
            return codes, numbers
        of_four, errors = nvfp4_scale_codes(peak, replace(recipe, scale=recipe.four), kept), []
        for each in (codes, of_four):
            scales = decode(each, UE4M3, np.float32)[:, None]
            elements = encode_rule(recipe.scaled(x, scales, peak[:, None], kept), rule)
            errors.append(recipe.error(x, decode(elements, rule.to, np.float32), scales, kept))
        is_four = errors[1] < errors[0]
        return np.where(is_four, of_four, codes), np.where(is_four, recipe.four(peak, kept), numbers)


def clamped_scale(values: Any, least: float) -> Singles:
    """Clamp to [least, 448] as torch.clamp does: a NaN stays."""
    return np.asarray(np.minimum(np.maximum(values, np.float32(least)), LARGEST_SCALE_VALUE), np.float32)


def _te_tensor(peak: Singles) -> Singles:
    """Return S, at most the largest float32; 1 where the tensor is zero or S is zero."""
    found = np.minimum(LARGEST_PRODUCT / peak, FLOAT_MAX)
    return np.asarray(np.where((peak == 0) | (found == 0), F32_ONE, found), np.float32)


def _te_reference_tensor(peak: Singles) -> Singles:
    found = np.minimum(LARGEST_PRODUCT / peak, FLOAT_MAX)
    return np.asarray(np.where(found == 0, F32_ONE, found), np.float32)


def _te_scale(peak: Singles, kept: Singles) -> Singles:
    return np.minimum(peak * (kept * SIXTH), FLOAT_MAX)


def _te_scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
    return np.asarray(x * np.minimum(F32_ONE / (scale * (F32_ONE / kept)), FLOAT_MAX), np.float32)


def _divided_or_zero(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
    """Return x * (S / scale), or 0 where the scale is 0."""
    return np.asarray(x * np.where(scale == 0, np.float32(0), kept / scale), np.float32)


def _te_cpu_scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
    inverse = np.minimum(F32_ONE / (scale * (F32_ONE / kept)), FLOAT_MAX)
    return np.asarray(x * np.where(scale == 0, np.float32(0), inverse), np.float32)


def _vllm_reciprocal(values: Singles) -> Singles:
    """Return 1 / x, and 1e-8 for zero."""
    return np.asarray(F32_ONE / np.where(values == 0, np.float32(1e8), values), np.float32)


def approximate_reciprocal(values: Any) -> Singles:
    """Return rcp.approx.ftz.f32, within one last place of 1 / x; rcp(6) is 1 / 6 rounded."""
    return unit.rcp(np.asarray(values, np.float32).view(np.uint32)).view(np.float32)


def _approximate_scale(peak: Singles, kept: Singles) -> Singles:
    return kept * (peak * approximate_reciprocal(LARGEST_ELEMENT))


def _approximate(x: Singles, scale: Singles, kept: Singles, zeros: Any) -> Singles:
    """Return x * rcp(scale * rcp(S)), or 0 where `zeros`."""
    return np.asarray(
        x * np.where(zeros, np.float32(0), approximate_reciprocal(scale * approximate_reciprocal(kept))), np.float32
    )


def _compressed_tensor(peak: Singles) -> Singles:
    found = _torch_quotient(np.maximum(peak, SMALLEST_NORMAL))
    return np.asarray(np.where(np.isfinite(found), found, F32_ONE), np.float32)


def _torch_quotient(peak: Singles) -> Singles:
    """Return 2688 / x as torch divides a number by a tensor: times its reciprocal, rounded twice."""
    return np.asarray(F32_ONE / peak * LARGEST_PRODUCT, np.float32)


def _inverse(peak: Singles) -> Singles:
    return peak / LARGEST_PRODUCT


def _reciprocal(kept: Singles) -> Singles:
    return F32_ONE / kept


def _itself(kept: Singles) -> Singles:
    return kept


_REFERENCE = TRANSFORMER_ENGINE["custom_recipes/reference_nvfp4.py, NVFP4QuantizerRef"]
_TE_TESTS = TRANSFORMER_ENGINE["tests/cpp/operator/test_cast_nvfp4_transpose.cu"]
_TO_NVFP4 = TORCHAO["prototype/mx_formats/nvfp4_tensor.py, nvfp4_quantize"]
# fmt: off
NVFP4_RECIPES = (
    Nvfp4Recipe(
        "te", "Transformer Engine's kernels: NaN does not count; an underflowed scale gives elements +-6",
        TRANSFORMER_ENGINE["common/cast/nvfp4/core_nvfp4.cuh, compute_decoding_scaling_factor"],
        _te_tensor, _te_scale, _te_scaled, _reciprocal, nan="ignored",
    ),
    Nvfp4Recipe(
        "te_reference", "Transformer Engine's reference in Python: -0 and NaN become 0", _REFERENCE, _te_reference_tensor,
        _te_scale, _te_scaled, _reciprocal, policy="te_reference",
    ),
    Nvfp4Recipe(
        "te_cpp", "Transformer Engine's C++ test reference: an underflowed scale gives 0", _TE_TESTS, _te_tensor, _te_scale,
        _te_cpu_scaled, _reciprocal, nan="ignored",
    ),
    Nvfp4Recipe(
        "te_cpp_2d", "Transformer Engine's C++ test reference for 16 x 16: amax / 6 * S, S / scale", _TE_TESTS, _te_tensor,
        lambda peak, kept: peak / LARGEST_ELEMENT * kept, _divided_or_zero, _reciprocal, nan="ignored",
    ),
    Nvfp4Recipe(
        "vllm", "vLLM's kernels: S * (amax * rcp(6)), rcp(scale * rcp(S)) with rcp.approx.ftz, 0 for scale 0",
        VLLM["csrc/quantization/fp4/nvfp4_utils.cuh, cvt_warp_fp16_to_fp4"], _torch_quotient, _approximate_scale,
        lambda x, scale, peak, kept: _approximate(x, scale, kept, scale == 0), _reciprocal, nan="ignored",
    ),
    Nvfp4Recipe(
        "flashinfer", "FlashInfer and TensorRT-LLM: as vllm, but 0 for amax 0; an underflowed scale gives elements +-6",
        FLASHINFER["csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh, cvt_warp_fp16_to_fp4"],
        _torch_quotient, _approximate_scale,
        lambda x, scale, peak, kept: _approximate(x, scale, kept, peak == 0), _reciprocal, nan="ignored",
    ),
    Nvfp4Recipe(
        "vllm_reference", "ref_nvfp4_quant of vLLM's tests: S * (amax * (1 / 6)), 1 / (scale * (1 / S))",
        VLLM["tests/kernels/quantization/nvfp4_utils.py, ref_nvfp4_quant"], _torch_quotient,
        lambda peak, kept: clamped_scale(kept * (peak * SIXTH), -448),
        lambda x, scale, peak, kept: x * _vllm_reciprocal(scale * _vllm_reciprocal(kept)), _reciprocal,
        policy="te_reference",
    ),
    Nvfp4Recipe(
        "vllm_emulation", "vLLM's emulation in Triton: S * (amax * (1 / 6)), S / scale, 0 for scale 0",
        VLLM["quantization/utils/nvfp4_emulation_utils.py, _nvfp4_quant_dequant_kernel"], _torch_quotient,
        lambda peak, kept: clamped_scale(kept * (peak * SIXTH), -448), _divided_or_zero, _reciprocal, policy="modelopt",
    ),
    Nvfp4Recipe(
        "torchao", "torchao with a tensor scale: amax / 6 / s, at least 2^-6; x * (1 / s / scale)", _TO_NVFP4, _inverse,
        lambda peak, kept: clamped_scale(peak / LARGEST_ELEMENT / kept, 2.0**-6),
        lambda x, scale, peak, kept: x * (F32_ONE / kept / scale), _itself, policy="torchao",
    ),
    Nvfp4Recipe(
        "torchao_single", "torchao without a tensor scale: amax / 6, at least 2^-6", _TO_NVFP4, np.ones_like,
        lambda peak, kept: clamped_scale(peak / LARGEST_ELEMENT, 2.0**-6),
        lambda x, scale, peak, kept: x * (F32_ONE / scale), _itself, policy="torchao",
    ),
    Nvfp4Recipe(
        "modelopt", "Model Optimizer: amax / (6 * s), 1 for quotient 0, at least 2^-9; x / (scale * s)",
        MODELOPT["qtensor/nvfp4_tensor.py, NVFP4QTensor.quantize"], _inverse,
        lambda peak, kept: clamped_scale(one_for_zero(peak / (LARGEST_ELEMENT * kept)), 2.0**-9),
        lambda x, scale, peak, kept: x / (scale * kept), _itself, policy="modelopt",
    ),
    Nvfp4Recipe(
        "compressed_tensors", "compressed-tensors: S * (amax / 6), 0.125 for scale 0; x / (scale / S); keeps S",
        COMPRESSED_TENSORS["quantization/utils/helpers.py, generate_gparam and calculate_qparams"], _compressed_tensor,
        lambda peak, kept: clamped_scale(kept * (peak / LARGEST_ELEMENT), -448),
        lambda x, scale, peak, kept: x / (scale / kept), _reciprocal, zero_scale=0x20, policy="compressed_tensors",
    ),
)
# fmt: on


def one_for_zero(values: Singles) -> Singles:
    return np.asarray(np.where(values == 0, F32_ONE, values), np.float32)
