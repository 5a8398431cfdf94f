"""Arrays whose dtype names the format of their codes: arrays of ml_dtypes.

A dtype only names a format here. The bits are read as codes and decoded by the format's entry; no cast of ml_dtypes is
used. One element takes a whole byte, even if its code has 4 or 6 bits, as in arrays of codes.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.errors import RefsimError
from refsim.formats import E4M3, ELEMENTS, F64, FORMATS, UE4M3, ElementType, Format, Integer, float_named, format_named
from refsim.integers import array_of

AS_ML_DTYPES = "ml_dtypes"
_NATIVE: dict[np.dtype[Any], Format] = {row.array_dtype: row for row in FORMATS if row.array_dtype is not None}
_UNSIGNED = E4M3, UE4M3  # NVFP4 scales have dtype e4m3; codes without a sign are equal in both formats
_INTEGER = re.compile(r"(u?)int([124])")


def is_typed(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype belongs to ml_dtypes: bfloat16, float8_e4m3fn, int4 and others."""
    return dtype.type.__module__ == AS_ML_DTYPES


def format_of(dtype: np.dtype[Any]) -> Format | None:
    """Return the format that a dtype of ml_dtypes names; None for every other dtype, and for integers such as int4.

    format_of(np.dtype(ml_dtypes.float8_e4m3fn)) is E4M3. Raises RefsimError `unsupported-dtype` for a dtype without a
    format here (float8_e4m3b11fnuz, float8_e3m4, float8_e4m3).
    """
    if not is_typed(dtype) or _INTEGER.fullmatch(dtype.name):
        return None
    row = next((row for row in FORMATS if dtype.name in row.aliases), None)
    if row is None:
        what = f"{AS_ML_DTYPES}.{dtype.name} is none of the formats here"
        raise RefsimError("unsupported-dtype", what, help="array.view(np.uint8) gives its bits")
    return row


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in the byte order of this machine; return the array itself if it has that order already."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def format_held(dtype: np.dtype[Any]) -> Format | None:
    """Return the format of an array's bits: a dtype's of ml_dtypes, f16 for float16, f32 for float32; else None."""
    return _NATIVE.get(dtype.newbyteorder("=")) or format_of(dtype)


def integer_bits(dtype: np.dtype[Any]) -> tuple[int, bool] | None:
    """Return (bits, is signed) of int4, uint4 and the other small integers of ml_dtypes; None for any other dtype."""
    integer = _INTEGER.fullmatch(dtype.name) if is_typed(dtype) else None
    return None if integer is None else (int(integer[2]), not integer[1])


def integer_held(dtype: np.dtype[Any]) -> Integer | None:
    """Return the element type of int4 and uint4 of ml_dtypes; None for int2 and uint2, and for any other dtype."""
    if integer_bits(dtype) is None:
        return None
    return next((row for row in ELEMENTS if isinstance(row, Integer) and dtype.name in row.aliases), None)


def words(array: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of an array of ml_dtypes as unsigned integers of its width; return any other array unchanged."""
    if not is_typed(array.dtype):
        return array
    codes = np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")
    if (integer := integer_bits(array.dtype)) is not None:
        codes = codes & np.uint8((1 << integer[0]) - 1)  # ml_dtypes may or may not extend the sign into the upper bits
    return codes


def integers(array: NDArray[Any] | np.generic) -> NDArray[np.int8] | None:
    """Return the values of an array of small integers of ml_dtypes (int4, uint4, ...) as int8; None for others."""
    integer = integer_bits(array.dtype)
    if integer is None:
        return None
    width, signed = integer
    array = np.asarray(array)
    sign = np.int8(1 << (width - 1) if signed else 0)
    return (words(array).view(np.int8) ^ sign) - sign


def with_format(codes: ArrayLike, format: str | Format | None, what: str = "codes") -> tuple[ArrayLike, Format]:
    """Return codes as unsigned integers and their format: the given format, or the format that the dtype names.

    with_format(np.ones(2, ml_dtypes.bfloat16), None) is ([0x3f80, 0x3f80], BF16). Any other input is returned
    unchanged. Raises RefsimError `format-mismatch` if the two disagree, `format-needed` if neither is given.
    """
    given = None if format is None else format_named(format)
    array = codes if isinstance(codes, np.ndarray | np.generic) else None
    if array is None or not is_typed(array.dtype):
        if given is None:
            raise RefsimError("format-needed", f"{what} of {_kind(codes)} do not say their format", help="pass format=")
        return codes, given
    own = format_of(array.dtype)
    if own is None:
        fault = f"{what} are {array.dtype.name}: integers, codes of no number format"
        raise RefsimError("format-mismatch", fault, help="array.astype(np.int32) gives their values")
    if given is not None and given != own and (own, given) != _UNSIGNED:
        raise disagreeing(array.dtype, given, what)
    return words(np.asarray(array)), given or own


def held_codes(given: ArrayLike, format: str | Format | None, what: str = "codes") -> tuple[ArrayLike, Format]:
    """Return codes and format as `with_format` does; the bits of float16 and float32 arrays are codes of f16 and f32.

    Both byte orders are accepted. held_codes(np.float16([1, 2]), None) is ([0x3c00, 0x4000], F16). An array of float64
    holds codes if `format` is f64.
    """
    asked = None if format is None else float_named(format)
    array = array_of(what, given)
    if not isinstance(given, np.ndarray | np.generic):
        return with_format(given, asked, what)
    if array.dtype.kind in "iu" or is_typed(array.dtype):
        return with_format(native(array), asked, what)
    own = F64 if asked is F64 and array.dtype.newbyteorder("=") == F64.array_dtype else format_held(array.dtype)
    if own is None:
        return with_format(given, asked, what)
    if asked not in (None, own):
        raise disagreeing(array.dtype, asked, what)
    return np.ascontiguousarray(native(array)).reshape(array.shape).view(own.code_dtype), own


def codes_with_format(
    what: str, given: ArrayLike, format: str | Format | None, usual: Format | None = None
) -> tuple[NDArray[Any], Format]:
    """Return codes in their format's dtype, and the format: the given one, else the dtype's, else `usual`.

    codes_with_format("x", np.uint16([0x3f80]), None, BF16) is ([0x3f80], BF16). Raises RefsimError `bad-dtype`.
    """
    array = native(array_of(what, given))
    if format is None and format_held(array.dtype) is None:
        format = usual
    words, row = held_codes(array, format, what)
    codes = np.asarray(words)
    if codes.dtype != row.code_dtype:
        raise RefsimError("bad-dtype", f"{what} holds {codes.dtype}, codes of {row} are {row.code_dtype}")
    return codes, row


def disagreeing(dtype: np.dtype[Any], asked: ElementType | None, what: str) -> RefsimError:
    """Return the error for an array whose dtype names another format than the caller asked for."""
    return RefsimError(
        "format-mismatch",
        f"{what} are {dtype.name}, the format asked for is {asked}",
        rule="the dtype of an array that knows its format is its format",
        help=f"leave the format out, or array.view(np.uint{8 * dtype.itemsize}) to read the bits otherwise",
    )


def _kind(codes: ArrayLike) -> str:
    return str(codes.dtype) if isinstance(codes, np.ndarray | np.generic) else type(codes).__name__


def typed(codes: NDArray[Any], format: Format, dtype: DTypeLike | str | None) -> NDArray[Any]:
    """Return codes in the dtype that a caller asked for: None leaves them, "ml_dtypes" selects the dtype of the format.

    That dtype is float16 and float32 for f16 and f32. Any other dtype must be one of these two. Raises RefsimError
    `unsupported-dtype` for a format without a dtype (ue4m3, ue5m3, tf32, mxint8) and `format-mismatch` for the dtype of
    another format.
    """
    if dtype is None:
        return codes
    if isinstance(dtype, str) and dtype == AS_ML_DTYPES:
        return codes.view(dtype_of(format))
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        help = f'dtype="{AS_ML_DTYPES}" or np.{format.code_dtype}'
        raise RefsimError("unsupported-dtype", f"dtype {dtype!r}", help=help) from None
    if wanted == format.code_dtype:
        return codes
    own = dtype_of(format) if is_typed(wanted) or wanted in _NATIVE else None
    if own is None or wanted != own:  # np.dtype("float64") == None is true
        what = f"codes of {format} are no {wanted.name}"
        raise RefsimError("format-mismatch", what, help=f'dtype="{AS_ML_DTYPES}" takes the one that fits')
    return codes.view(wanted)


def dtype_of(format: Format) -> np.dtype[Any]:
    """Return the dtype of arrays of a format: float16, float32, or the dtype of ml_dtypes with its name."""
    kind = format.array_dtype or format.ml_dtype
    if kind is None:
        what = f"{AS_ML_DTYPES} has no dtype for {format}"
        raise RefsimError("unsupported-dtype", what, help="leave dtype= out: codes are unsigned")
    return kind
