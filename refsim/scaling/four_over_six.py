"""NVFP4 recipes of 4over6: the largest of a block becomes 6 or 4, whichever scale leaves the smaller error.

    base = S * (amax of the block / 6)      S = 6 * M / amax of the tensor; M is 256 or 448
    scales = e4m3 of base, and e4m3 of base * 1.5
    error = sum of |q * scale / S - x|, or of its square, or the largest

The scale that makes the largest 6 stays in a tie. Errors are float32, added from the first element of a row of 16 to
the last; rows of 16 x 16 are then added in pairs, row i to row i + 8. FlashInfer's threads hold 16 elements on
compilers from CUDA 12.9 on. Model Optimizer and fouroversix leave the order to torch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

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
from refsim.sources import FLASHINFER, FOUR_OVER_SIX, MODELOPT, TRANSFORMER_ENGINE, Source

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


Formulas = tuple[Callable[..., Any], ...]
"""Of a recipe: kept of the tensor's amax, the scale of (1 or 1.5, amax, kept), scaled, a code's value, the factor."""


def _te(most: np.float32) -> Formulas:
    """Return the formulas of Transformer Engine's kernel; its reference in Python differs in the sign of -0."""

    def encoding(kept: Singles) -> Singles:
        found = np.minimum(most / kept, FLOAT_MAX)
        return np.asarray(np.where((kept == 0) | (found == 0), F32_ONE, found), np.float32)

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(np.minimum(peak / LARGEST_ELEMENT * encoding(kept) * expansion, LARGEST_SCALE_VALUE))

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(x * np.minimum(F32_ONE / (scale * (F32_ONE / encoding(kept))), FLOAT_MAX))

    return (
        np.asarray,
        scale,
        scaled,
        lambda q, scale, kept: q * scale * kept / most,
        lambda kept: kept * (F32_ONE / most),
    )


def _flashinfer(most: np.float32) -> Formulas:
    """Return the formulas of FlashInfer's kernel for one factor of the tensor; elements of blocks of zeros are +0."""
    rcp = approximate_reciprocal

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(kept * (peak * rcp(LARGEST_ELEMENT)) * expansion)

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(np.where(peak == 0, np.float32(0), x * rcp(scale * rcp(kept))))

    def kept(peak: Singles) -> Singles:
        return np.asarray(np.where(peak == 0, FLOAT_MAX, F32_ONE / peak * most))

    return kept, scale, scaled, lambda q, scale, kept: q * scale * rcp(kept), lambda kept: F32_ONE / kept


def _paper(most: np.float32) -> Formulas:
    """Return the formulas of the authors' reference in torch; with subnormal scales it gives 8 as -0."""

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(np.where(kept == 0, np.float32(0), peak / LARGEST_ELEMENT * (most / kept) * expansion))

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(np.where(scale == 0, np.float32(0), x * (F32_ONE / (F32_ONE / (most / kept) * scale))))

    return (
        np.asarray,
        scale,
        scaled,
        lambda q, scale, kept: q * scale * kept / most,
        lambda kept: F32_ONE / (most / kept),
    )


def _modelopt(most: np.float32) -> Formulas:
    """Return the formulas by which Model Optimizer exports calibrated weights."""
    bound = most / LARGEST_ELEMENT

    def scale(expansion: np.float32, peak: Singles, kept: Singles) -> Singles:
        found = one_for_zero(peak * expansion / LARGEST_ELEMENT) * bound / (kept / LARGEST_ELEMENT)
        return clamped_scale(found, 2.0**-9)

    def scaled(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
        return np.asarray(x / (scale * (kept / most)))

    return np.asarray, scale, scaled, lambda q, scale, kept: q * (scale * (kept / most)), lambda kept: kept / most


_SAID: dict[str, tuple[Callable[[np.float32], Formulas], Source, dict[str, Any]]] = {
    "Transformer Engine": (_te, TRANSFORMER_ENGINE["common/cast/nvfp4/quantize_4over6_nvfp4.cuh"], {"nan": "ignored"}),
    "FlashInfer": (
        _flashinfer,
        FLASHINFER["quantization_utils.cuh, cvt_warp_fp16_to_fp4"],
        {"nan": "ignored"},
    ),
    "Four Over Six": (
        _paper,
        FOUR_OVER_SIX["quantize/pytorch/reference.py, select_fouroversix"],
        {"policy": "te_reference"},
    ),
    "Model Optimizer": (
        _modelopt,
        MODELOPT["qtensor/nvfp4_tensor.py, fp8_max_for_normalization"],
        {"policy": "modelopt"},
    ),
}


def _row(name: str, library: str, bound: int, kind: str) -> Nvfp4Recipe:
    """Return an entry: M and the error are those of the library's option."""
    formulas, source, more = _SAID[library]
    kept, scale, scaled, value, factor = formulas(LARGEST_ELEMENT * np.float32(bound))
    summary = f"{library}'s 4over6: M {bound}, error {kind}; keeps {'S' if library == 'FlashInfer' else 'amax'}"

    def error(x: Singles, q: Singles, scales: Singles, of_tensor: Singles) -> Singles:
        return _summed(kind, value(q, scales, of_tensor), x)

    four = partial(scale, EXPANSION)
    return Nvfp4Recipe(
        name, summary, source, kept, partial(scale, F32_ONE), scaled, factor, four=four, error=error, **more
    )


FOUR_OVER_SIX_RECIPES = (
    _row("te_4over6", "Transformer Engine", 256, "mae"),
    _row("te_4over6_mse", "Transformer Engine", 256, "mse"),
    _row("te_4over6_448", "Transformer Engine", 448, "mae"),
    _row("te_4over6_448_mse", "Transformer Engine", 448, "mse"),
    _row("flashinfer_4over6", "FlashInfer", 448, "mae"),
    _row("flashinfer_4over6_mse", "FlashInfer", 448, "mse"),
    _row("flashinfer_4over6_256", "FlashInfer", 256, "mae"),
    _row("flashinfer_4over6_256_mse", "FlashInfer", 256, "mse"),
    _row("fouroversix", "Four Over Six", 256, "mse"),
    _row("fouroversix_mae", "Four Over Six", 256, "mae"),
    _row("fouroversix_abs_max", "Four Over Six", 256, "abs_max"),
    _row("modelopt_4over6", "Model Optimizer", 256, "mse"),
)
