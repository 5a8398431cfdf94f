"""Number formats and element types, one entry each; range, special codes and the value of every code are derived."""

from refsim.formats.elements import ARRAY_TYPES, B1, ELEMENTS, S4, S8, S32, U4, U8, ElementType, Integer, array_type

# isort: split
from refsim.formats.elements import element_named, float_named
from refsim.formats.rows import BF16, E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, F16, F32

# isort: split
from refsim.formats.rows import F64, FORMATS, MXINT8, TF32, UE4M3, UE5M3, Format, Overflow, Specials, format_named

__all__ = [
    "ARRAY_TYPES",
    "B1",
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "ELEMENTS",
    "F16",
    "F32",
    "F64",
    "FORMATS",
    "MXINT8",
    "S4",
    "S8",
    "S32",
    "TF32",
    "U4",
    "U8",
    "UE4M3",
    "UE5M3",
    "ElementType",
    "Format",
    "Integer",
    "Overflow",
    "Specials",
    "array_type",
    "element_named",
    "float_named",
    "format_named",
]


def __dir__() -> list[str]:
    return sorted(__all__)
