"""The input of a quantizer: bf16, f16 or f32, as codes or as arrays of values."""

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
    """Return the exact float32 values of codes, or of an array of bf16, f16 or f32 values."""
    codes, row = held_codes(codes, format)
    return decode(codes, one_of(row, WIDE_FORMATS, "format"), np.float32)


def one_of(name: str | Format, allowed: tuple[Format, ...], where: str) -> Format:
    """Return the format of that name; raise unless it is in `allowed`."""
    row = format_named(name)
    if row not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise RefsimError("unsupported-format", f"{where} is {row.name}", rule=f"{where} is one of {names}")
    return row
