"""What a quantiser reads: bf16, f16 or f32, as codes or as arrays that hold the values."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, E5M2, F16, F32, Format, format_named
from refsim.integers import array_of
from refsim.typed_arrays import format_held, is_typed, native, with_format

WIDE_FORMATS = (BF16, F16, F32)
NARROW_FORMATS = (E4M3, E5M2)


def wide_values(codes: ArrayLike, format: str | Format | None) -> NDArray[Any]:
    """The exact values, float32, of codes or of an array that holds values of one of the formats."""
    array = array_of("codes", codes)
    held = None if is_typed(array.dtype) else format_held(array.dtype)
    if held is not None and (format is None or format_named(format) == held):
        codes = np.ascontiguousarray(native(array)).view(held.code_dtype).reshape(array.shape)
        return decode(codes, held, np.float32)
    codes, format = with_format(codes, format)
    return decode(codes, one_of(format, WIDE_FORMATS, "format"), np.float32)


def one_of(name: str | Format, allowed: tuple[Format, ...], where: str) -> Format:
    """The format of that name, which must be one of `allowed`."""
    row = format_named(name)
    if row not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise RefsimError("format-not-here", f"{where} is {row.name}", rule=f"{where} is one of {names}")
    return row
