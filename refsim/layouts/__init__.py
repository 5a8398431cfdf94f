"""Layouts as executable facts: who holds an element, where a byte lies, what a descriptor means.

Names are loaded when first used: a question about a fragment does not import descriptors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "refsim.layouts.banks": ("BankConflicts", "Collision", "access_width", "bank_conflicts", "layout_conflicts"),
    "refsim.layouts.descriptors": (
        "DESCRIPTORS", "Descriptor", "Explanation", "Operand", "TensorMapForm", "Walk", "descriptor", "operand_descriptor",
        "operand_named", "walk",
    ),
    "refsim.layouts.drawing": ("Drawing", "draw"),
    "refsim.layouts.evidence": ("Evidence", "Level"),
    "refsim.layouts.families": ("FAMILIES", "Fragment", "fragment", "fragments"),
        "refsim.layouts.scales": ("SCALE_LAYOUTS", "ScaleLayout", "scale_layout"),
    "refsim.layouts.swizzles": ("SWIZZLES", "Swizzle", "swizzle"),
    "refsim.layouts.tiles": ("MAJORS", "Tile", "tile"),
    "refsim.layouts.tma": ("DATA_TYPES", "Placement", "TensorMap", "tensor_map"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from refsim.layouts.banks import BankConflicts, Collision, access_width, bank_conflicts, layout_conflicts
    from refsim.layouts.descriptors import (
        DESCRIPTORS,
        Descriptor,
        Explanation,
        Operand,
        TensorMapForm,
        Walk,
        descriptor,
        operand_descriptor,
        operand_named,
        walk,
    )
    from refsim.layouts.drawing import Drawing, draw
    from refsim.layouts.evidence import Evidence, Level
    from refsim.layouts.families import FAMILIES, Fragment, fragment, fragments
    from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout, scale_layout
    from refsim.layouts.swizzles import SWIZZLES, Swizzle, swizzle
    from refsim.layouts.tiles import MAJORS, Tile, tile
    from refsim.layouts.tma import DATA_TYPES, Placement, TensorMap, tensor_map


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'refsim.layouts' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
