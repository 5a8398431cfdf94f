"""Quantization by groups: one scale for each group of elements, and where the groups of a matrix end.

`quantize` here has the FP8 groups of 1x128 and 128x128. `refsim.quantize` has the blocks of 16 and 32 that block-scaled
tensor cores read, by the recipes of `RECIPES`. `refsim.layouts.SCALE_LAYOUTS` defines where scales lie in memory:
MN-major and aligned for TMA, or packed.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.scaling.block_formats import BLOCK_FORMATS as BLOCK_FORMATS
    from refsim.scaling.block_formats import BlockFormat as BlockFormat
    from refsim.scaling.block_formats import block_format as block_format
    from refsim.scaling.blocks import Blocks as Blocks
    from refsim.scaling.grids import scale_grid as scale_grid
    from refsim.scaling.grids import spread as spread
    from refsim.scaling.hadamard import random_hadamard as random_hadamard
    from refsim.scaling.mx_recipes import MxRecipe as MxRecipe
    from refsim.scaling.nvfp4_recipes import Nvfp4Recipe as Nvfp4Recipe
    from refsim.scaling.quantizing import Quantized as Quantized
    from refsim.scaling.quantizing import dequantize as dequantize
    from refsim.scaling.quantizing import quantize as quantize
    from refsim.scaling.recipes import RECIPES as RECIPES
    from refsim.scaling.recipes import Recipe as Recipe
    from refsim.scaling.recipes import recipe_named as recipe_named
    from refsim.scaling.recipes import recipes_of as recipes_of
    from refsim.scaling.rows import SCALE_KINDS as SCALE_KINDS
    from refsim.scaling.rows import NanRule as NanRule
    from refsim.scaling.rows import Quotient as Quotient
    from refsim.scaling.rows import ScaleKind as ScaleKind
    from refsim.scaling.rows import ScaleKindName as ScaleKindName
    from refsim.scaling.rows import scale_kind as scale_kind
else:
    __getattr__, __dir__ = exports(__name__)
