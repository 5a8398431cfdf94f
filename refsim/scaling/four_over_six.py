"""NVFP4 recipes of 4over6: the largest of a block becomes 6 or 4, whichever scale leaves the smaller error.

    base = S * (amax of the block / 6)      S = 6 * M / amax of the tensor; M is 256 or 448
    scales = e4m3 of base, and e4m3 of base * 1.5
    error = sum of |q * scale / S - x|, or of its square, or the largest

The scale that makes the largest 6 stays in a tie. Errors are float32, added from the first element of a row of 16 to
the last; rows of 16 x 16 are then added in pairs, row i to row i + 8. FlashInfer's threads hold 16 elements on
compilers from CUDA 12.9 on. Model Optimizer and fouroversix leave the order to torch.
"""

from functools import partial

import numpy as np

from refsim.scaling.nvfp4_recipes import (
    F32_ONE,
    FLOAT_MAX,
    LARGEST_ELEMENT,
    LARGEST_SCALE_VALUE,
    Nvfp4Recipe,
    Singles,
    approximate_reciprocal,
    clamped_scale,
    one_for_zero,
)
from refsim.sources import FLASHINFER, FOUR_OVER_SIX, MODELOPT, TRANSFORMER_ENGINE

WIDTH, EXPANSION = 16, np.float32(1.5)


def _summed(kind: str, values: Singles, x: Singles) -> Singles:
    """Return the error of each block (blocks,) of values (blocks, width)."""
    apart = values - x
    rows = (apart * apart if kind == "mse" else np.abs(apart)).reshape(len(x), -1, WIDTH)
    if kind == "abs_max":
        return np.asarray(rows.max(axis=(1, 2)))
    found = rows[..., 0]
    for place in range(1, WIDTH):
        found = found + rows[..., place]
    while (half := found.shape[1] // 2) > 0:
        found = found[:, :half] + found[:, half:]
    return np.asarray(found[:, 0])


def _bounded(peak: Singles, most: np.float32) -> Singles:
    """Return S of Transformer Engine: 1 where the tensor is zero or infinite."""
    found = np.minimum(most / peak, FLOAT_MAX)
    return np.asarray(np.where((peak == 0) | (found == 0), F32_ONE, found), np.float32)


def _of_amax(kind: str, most: np.float32, x: Singles, q: Singles, scale: Singles, kept: Singles) -> Singles:
    return _summed(kind, q * scale * kept / most, x)


def _te(name: str, kind: str, bound: int) -> Nvfp4Recipe:
    """Return the recipe of Transformer Engine's kernel; its reference in Python differs in the sign of -0."""
    most = LARGEST_ELEMENT * np.float32(bound)

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        found = peak / LARGEST_ELEMENT * _bounded(kept, most) * expansion
        return np.asarray(np.minimum(found, LARGEST_SCALE_VALUE), np.float32)

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(x * np.minimum(F32_ONE / (scale * (F32_ONE / _bounded(kept, most))), FLOAT_MAX), np.float32)

    return Nvfp4Recipe(
        name,
        f"Transformer Engine's 4over6: M {bound}, error {kind.upper()}; keeps amax",
        TRANSFORMER_ENGINE["common/cast/nvfp4/quantize_4over6_nvfp4.cuh"],
        np.asarray,
        partial(scale, F32_ONE),
        scaled,
        lambda kept: kept * (F32_ONE / most),
        nan="ignored",
        four=partial(scale, EXPANSION),
        error=partial(_of_amax, kind, most),
    )


def _flashinfer(name: str, kind: str, bound: int) -> Nvfp4Recipe:
    """Return the recipe of FlashInfer's kernel for one factor of the tensor; elements of blocks of zeros are +0."""
    most = LARGEST_ELEMENT * np.float32(bound)

    def tensor(peak: Singles) -> Singles:
        return np.asarray(np.where(peak == 0, FLOAT_MAX, F32_ONE / peak * most), np.float32)

    def scale(peak: Singles, kept: Singles) -> Singles:
        return np.asarray(kept * (peak * approximate_reciprocal(LARGEST_ELEMENT)), np.float32)

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        inverse = approximate_reciprocal(scale * approximate_reciprocal(kept))
        return np.asarray(np.where(peak == 0, np.float32(0), x * inverse), np.float32)

    def error(x: Singles, q: Singles, scale: Singles, kept: Singles) -> Singles:
        return _summed(kind, q * scale * approximate_reciprocal(kept), x)

    return Nvfp4Recipe(
        name,
        f"FlashInfer's 4over6 of a tensor: M {bound}, error {kind.upper()}; rcp.approx.ftz as flashinfer",
        FLASHINFER["csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh, NVFP44Over6Config"],
        tensor,
        scale,
        scaled,
        lambda kept: F32_ONE / kept,
        nan="ignored",
        four=lambda peak, kept: scale(peak, kept) * EXPANSION,
        error=error,
    )


def _paper(name: str, kind: str) -> Nvfp4Recipe:
    """Return the recipe of the authors' reference in torch, where no scale is subnormal: there it gives 8 as -0."""
    most = LARGEST_ELEMENT * np.float32(256)

    def scale(peak: Singles, kept: Singles) -> Singles:
        return np.asarray(np.where(kept == 0, np.float32(0), peak / LARGEST_ELEMENT * (most / kept)), np.float32)

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        inverse = F32_ONE / (F32_ONE / (most / kept) * scale)
        return np.asarray(np.where(scale == 0, np.float32(0), x * inverse), np.float32)

    return Nvfp4Recipe(
        name,
        f"Four Over Six of its authors, in torch: M 256, error {kind}; keeps amax",
        FOUR_OVER_SIX["quantize/pytorch/reference.py, select_fouroversix"],
        np.asarray,
        scale,
        scaled,
        lambda kept: F32_ONE / (most / kept),
        policy="te_reference",
        four=lambda peak, kept: scale(peak, kept) * EXPANSION,
        error=partial(_of_amax, kind, most),
    )


def _modelopt() -> Nvfp4Recipe:
    """Return the recipe by which Model Optimizer exports calibrated weights."""
    bound, most = np.float32(256), LARGEST_ELEMENT * np.float32(256)

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        return clamped_scale(
            one_for_zero(peak * expansion / LARGEST_ELEMENT) * bound / (kept / LARGEST_ELEMENT), 2.0**-9
        )

    def error(x: Singles, q: Singles, scale: Singles, kept: Singles) -> Singles:
        return _summed("mse", q * (scale * (kept / most)), x)

    return Nvfp4Recipe(
        "modelopt_4over6",
        "Model Optimizer's NVFP4_FOUR_OVER_SIX_CFG: M 256, error MSE of calibration; keeps amax",
        MODELOPT["qtensor/nvfp4_tensor.py, get_weights_scaling_factor_from_quantizer"],
        np.asarray,
        partial(scale, F32_ONE),
        lambda x, scale, peak, kept: np.asarray(x / (scale * (kept / most)), np.float32),
        lambda kept: np.asarray(kept / most, np.float32),
        policy="modelopt",
        four=partial(scale, EXPANSION),
        error=error,
    )


FOUR_OVER_SIX_RECIPES = (
    _te("te_4over6", "mae", 256),
    _te("te_4over6_mse", "mse", 256),
    _te("te_4over6_448", "mae", 448),
    _te("te_4over6_448_mse", "mse", 448),
    _flashinfer("flashinfer_4over6", "mae", 448),
    _flashinfer("flashinfer_4over6_mse", "mse", 448),
    _flashinfer("flashinfer_4over6_256", "mae", 256),
    _flashinfer("flashinfer_4over6_256_mse", "mse", 256),
    _paper("fouroversix", "mse"),
    _paper("fouroversix_mae", "mae"),
    _paper("fouroversix_abs_max", "abs_max"),
    _modelopt(),
)
