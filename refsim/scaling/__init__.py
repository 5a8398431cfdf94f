"""Quantization by groups: one scale for each group of elements, and where the groups of a matrix end.

`quantize` here has the FP8 groups of 1x128 and 128x128. `refsim.quantize` has the blocks of 16 and 32 that block-scaled
tensor cores read, by the recipes of `RECIPES`. `refsim.layouts.SCALE_LAYOUTS` defines where scales lie in memory:
MN-major and aligned for TMA, or packed.
"""

from refsim.scaling.block_formats import BLOCK_FORMATS, BlockFormat, block_format
from refsim.scaling.blocks import Blocks
from refsim.scaling.grids import scale_grid, spread
from refsim.scaling.hadamard import random_hadamard
from refsim.scaling.mx_recipes import MxRecipe
from refsim.scaling.nvfp4_recipes import Nvfp4Recipe
from refsim.scaling.quantizing import Quantized, dequantize, quantize
from refsim.scaling.recipes import RECIPES, Recipe, recipe_named, recipes_of
from refsim.scaling.rows import SCALE_KINDS, NanRule, Quotient, ScaleKind, ScaleKindName, scale_kind

__all__ = [
    "BLOCK_FORMATS",
    "RECIPES",
    "SCALE_KINDS",
    "BlockFormat",
    "Blocks",
    "MxRecipe",
    "NanRule",
    "Nvfp4Recipe",
    "Quantized",
    "Quotient",
    "Recipe",
    "ScaleKind",
    "ScaleKindName",
    "block_format",
    "dequantize",
    "quantize",
    "random_hadamard",
    "recipe_named",
    "recipes_of",
    "scale_grid",
    "scale_kind",
    "spread",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
