"""What a quantiser reads: bf16, f16 or f32, as codes or as arrays that hold the values."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, E5M2, F16, F32, Format, format_named
from refsim.typed_arrays import held_codes

WIDE_FORMATS = (BF16, F16, F32)
NARROW_FORMATS = (E4M3, E5M2)


def wide_values(codes: ArrayLike, format: str | Format | None) -> NDArray[Any]:
    """The exact values, float32, of codes or of an array that holds values of one of the formats."""
    codes, row = held_codes(codes, format)
    return decode(codes, one_of(row, WIDE_FORMATS, "format"), np.float32)


def one_of(name: str | Format, allowed: tuple[Format, ...], where: str) -> Format:
    """The format of that name, which must be one of `allowed`."""
    row = format_named(name)
    if row not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise RefsimError("format-not-here", f"{where} is {row.name}", rule=f"{where} is one of {names}")
    return row
