"""Quantisation by groups: one scale for each group of elements, and where the groups of a matrix end.

Where scales lie in memory, MN-major and aligned for TMA or packed, is a row of `refsim.layouts.SCALE_LAYOUTS`.
"""

from refsim.scaling.grids import scale_grid, spread
from refsim.scaling.quantizing import Quantized, dequantize, quantize
from refsim.scaling.rows import SCALE_KINDS, NanRule, Quotient, ScaleKind, ScaleKindName, scale_kind

__all__ = [
    "SCALE_KINDS",
    "NanRule",
    "Quantized",
    "Quotient",
    "ScaleKind",
    "ScaleKindName",
    "dequantize",
    "quantize",
    "scale_grid",
    "scale_kind",
    "spread",
]


def __dir__() -> list[str]:
    return sorted(__all__)
