"""Layouts as executable facts: the thread that holds an element, the place of a byte, the meaning of a descriptor.

Names are loaded when first used: a question about a fragment does not import descriptors.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.evidence import Evidence as Evidence
    from refsim.evidence import Level as Level
    from refsim.layouts.banks import BankConflicts as BankConflicts
    from refsim.layouts.banks import Collision as Collision
    from refsim.layouts.banks import access_width as access_width
    from refsim.layouts.banks import bank_conflicts as bank_conflicts
    from refsim.layouts.banks import layout_conflicts as layout_conflicts
    from refsim.layouts.descriptors import DESCRIPTORS as DESCRIPTORS
    from refsim.layouts.descriptors import Descriptor as Descriptor
    from refsim.layouts.descriptors import Explanation as Explanation
    from refsim.layouts.descriptors import Operand as Operand
    from refsim.layouts.descriptors import TensorMapForm as TensorMapForm
    from refsim.layouts.descriptors import Walk as Walk
    from refsim.layouts.descriptors import descriptor as descriptor
    from refsim.layouts.descriptors import operand_descriptor as operand_descriptor
    from refsim.layouts.descriptors import operand_named as operand_named
    from refsim.layouts.descriptors import walk as walk
    from refsim.layouts.drawing import Drawing as Drawing
    from refsim.layouts.drawing import draw as draw
    from refsim.layouts.families import FAMILIES as FAMILIES
    from refsim.layouts.families import Fragment as Fragment
    from refsim.layouts.families import fragment as fragment
    from refsim.layouts.families import fragments as fragments
    from refsim.layouts.scales import SCALE_LAYOUTS as SCALE_LAYOUTS
    from refsim.layouts.scales import ScaleLayout as ScaleLayout
    from refsim.layouts.scales import scale_layout as scale_layout
    from refsim.layouts.swizzles import SWIZZLES as SWIZZLES
    from refsim.layouts.swizzles import Swizzle as Swizzle
    from refsim.layouts.swizzles import swizzle as swizzle
    from refsim.layouts.tiles import MAJORS as MAJORS
    from refsim.layouts.tiles import Major as Major
    from refsim.layouts.tiles import Tile as Tile
    from refsim.layouts.tiles import tile as tile
    from refsim.layouts.tma import DATA_TYPES as DATA_TYPES
    from refsim.layouts.tma import Interleave as Interleave
    from refsim.layouts.tma import L2Promotion as L2Promotion
    from refsim.layouts.tma import OobFill as OobFill
    from refsim.layouts.tma import PixelBox as PixelBox
    from refsim.layouts.tma import Placement as Placement
    from refsim.layouts.tma import SwizzleMode as SwizzleMode
    from refsim.layouts.tma import TensorMap as TensorMap
    from refsim.layouts.tma import im2col_map as im2col_map
    from refsim.layouts.tma import tensor_map as tensor_map
else:
    __getattr__, __dir__ = exports(__name__)
