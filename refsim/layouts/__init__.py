"""Layouts as executable facts: the thread that holds an element, the place of a byte, the meaning of a descriptor.

Names are loaded when first used: a question about a fragment does not import descriptors.
"""

from typing import TYPE_CHECKING

__all__ = [
    "DATA_TYPES",
    "DESCRIPTORS",
    "FAMILIES",
    "MAJORS",
    "SCALE_LAYOUTS",
    "SWIZZLES",
    "BankConflicts",
    "Collision",
    "Descriptor",
    "Drawing",
    "Evidence",
    "Explanation",
    "Fragment",
    "Interleave",
    "L2Promotion",
    "Level",
    "Major",
    "OobFill",
    "Operand",
    "PixelBox",
    "Placement",
    "ScaleLayout",
    "Swizzle",
    "SwizzleMode",
    "TensorMap",
    "TensorMapForm",
    "Tile",
    "Walk",
    "access_width",
    "bank_conflicts",
    "descriptor",
    "draw",
    "fragment",
    "fragments",
    "im2col_map",
    "layout_conflicts",
    "operand_descriptor",
    "operand_named",
    "scale_layout",
    "swizzle",
    "tensor_map",
    "tile",
    "walk",
]

if TYPE_CHECKING:
    from refsim.evidence import Evidence, Level
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
    from refsim.layouts.families import FAMILIES, Fragment, fragment, fragments
    from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout, scale_layout
    from refsim.layouts.swizzles import SWIZZLES, Swizzle, swizzle
    from refsim.layouts.tensor_maps import im2col_map, tensor_map
    from refsim.layouts.tiles import MAJORS, Major, Tile, tile
    from refsim.layouts.tma import (
        DATA_TYPES,
        Interleave,
        L2Promotion,
        OobFill,
        PixelBox,
        Placement,
        SwizzleMode,
        TensorMap,
    )
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.evidence": ("Evidence", "Level"),
            "refsim.layouts.banks": (
                "BankConflicts",
                "Collision",
                "access_width",
                "bank_conflicts",
                "layout_conflicts",
            ),
            "refsim.layouts.descriptors": (
                "DESCRIPTORS",
                "Descriptor",
                "Explanation",
                "Operand",
                "TensorMapForm",
                "Walk",
                "descriptor",
                "operand_descriptor",
                "operand_named",
                "walk",
            ),
            "refsim.layouts.drawing": ("Drawing", "draw"),
            "refsim.layouts.families": ("FAMILIES", "Fragment", "fragment", "fragments"),
            "refsim.layouts.scales": ("SCALE_LAYOUTS", "ScaleLayout", "scale_layout"),
            "refsim.layouts.swizzles": ("SWIZZLES", "Swizzle", "swizzle"),
            "refsim.layouts.tiles": ("MAJORS", "Major", "Tile", "tile"),
            "refsim.layouts.tensor_maps": ("im2col_map", "tensor_map"),
            "refsim.layouts.tma": (
                "DATA_TYPES",
                "Interleave",
                "L2Promotion",
                "OobFill",
                "Placement",
                "SwizzleMode",
                "PixelBox",
                "TensorMap",
            ),
        },
    )
    del exports
