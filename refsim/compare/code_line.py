"""The code line: every format is a sequence of codes in order of value, and an ulp is one step along it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import F64, FORMATS, ElementType, Format, Integer, array_type
from refsim.typed_arrays import format_of, integer_bits, is_typed, words

Codes = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class CodeLine:
    """The codes of a format in order of value.

    `order` maps codes to int64 positions, `values` maps codes to float64 or integers; codes from `limit` on do not
    exist.
    """

    name: str
    bits: int
    order: Callable[[Any], Any]  # codes -> int64 positions
    values: Callable[[Codes], NDArray[Any]]  # codes -> float64, or integers
    limit: int
    integer: bool = False

    def value(self, code: int) -> float | int | None:
        """Return the number that a code stands for; None for a code that the format does not have."""
        if code >= self.limit:
            return None
        value = self.values(np.array([code], dtype=f"u{_container_bits(self.bits) // 8}"))[0]
        return value.item()  # type: ignore[no-any-return]

    def is_nan(self, codes: Codes) -> NDArray[np.bool_]:
        """Return where an array holds codes of NaN, as booleans of its shape; integers have none."""
        found = np.zeros(codes.shape, dtype=np.bool_)
        if self.integer:
            return found
        legal = codes < self.limit if self.limit <= np.iinfo(codes.dtype).max else np.ones(codes.shape, np.bool_)
        found[legal] = np.isnan(self.values(codes[legal]))
        return found


def _container_bits(width: int) -> int:
    return next(size for size in (8, 16, 32, 64) if size >= width)


def _format_line(row: Format) -> CodeLine:
    width = row.bits + row.padding_bits

    def order(codes: Any) -> Any:
        code = np.asarray(codes).astype(np.int64) >> row.padding_bits
        sign = row.sign_mask >> row.padding_bits
        if row.twos_complement:
            return np.where(code & sign, code - 2 * sign, code)
        return np.where(code & sign, -(code & ~sign), code) if sign else code

    return CodeLine(row.name, width, order, lambda codes: decode(codes, row), row.code_limit)


def _integer_line(dtype: np.dtype[Any]) -> CodeLine:
    width, signed = 8 * dtype.itemsize, dtype.kind == "i"

    def order(codes: Any) -> Any:
        codes = np.asarray(codes)
        if signed:
            return codes.view(f"i{dtype.itemsize}").astype(np.int64)
        return (codes.astype(np.uint64) ^ np.uint64(2**63)).view(np.int64)

    return CodeLine(str(dtype), width, order, lambda codes: codes.view(dtype), 1 << width, integer=True)


def _narrow_integer_line(dtype: np.dtype[Any], width: int, *, signed: bool) -> CodeLine:
    """Return the line of int4 and other integers that take `width` bits of a byte."""

    def values(codes: Any) -> Any:
        sign = 1 << (width - 1) if signed else 0
        return (np.asarray(codes).astype(np.int64) ^ sign) - sign

    return CodeLine(dtype.name, width, values, values, 1 << width, integer=True)


def _double_line() -> CodeLine:
    def order(codes: Any) -> Any:
        magnitude = (np.asarray(codes) & np.uint64(2**63 - 1)).astype(np.int64)
        return np.where(np.asarray(codes) >> np.uint64(63), -magnitude, magnitude)

    return CodeLine("float64", 64, order, lambda codes: codes.view(np.float64), 1 << 64)


def code_line(got: np.dtype[Any], want: np.dtype[Any], format: str | ElementType | None) -> CodeLine:
    """Return the line of codes on which two arrays of these dtypes are compared.

    Raises RefsimError where the dtypes and `format` do not agree, and where no format has the dtype.
    """
    given = None if format is None else array_type(format)
    if isinstance(given, Integer) or given is F64:
        return _plain_line(got, want, given)
    if got.itemsize != want.itemsize:
        raise RefsimError("bad-dtype", f"got is {got}, want is {want}: one element has other bits")
    rows = {row.name: row for row in (_format_of(got), _format_of(want), given) if row is not None}
    if len(rows) > 1:
        raise RefsimError("format-mismatch", f"got is {got}, want is {want}, format is {given}: they do not agree")
    integer = next((dtype for dtype in (got, want) if integer_bits(dtype) is not None), None)
    if integer is not None and rows:
        raise RefsimError("format-mismatch", f"{integer.name} holds integers, no codes of {next(iter(rows))}")
    doubles = [dtype for dtype in (got, want) if dtype == np.float64]
    if doubles and not rows:
        return _double_line()
    if not rows and is_typed(got) and is_typed(want) and got != want:
        raise RefsimError("bad-dtype", f"got is {got.name}, want is {want.name}")
    if integer is not None and (narrow := integer_bits(integer)) is not None:
        return _narrow_integer_line(integer, narrow[0], signed=narrow[1])
    if not rows:
        return _integer_line(got if got.kind == "i" else want)
    row = next(iter(rows.values()))
    if row.code_dtype.itemsize != got.itemsize or doubles:
        raise RefsimError("bad-dtype", f"codes of {row} are {row.code_dtype}, not {got}")
    return _format_line(row)


def _plain_line(got: np.dtype[Any], want: np.dtype[Any], given: ElementType) -> CodeLine:
    """Return the line of integers or float64; arrays have that type, or are unsigned of its width."""
    dtype = given.array_dtype
    assert dtype is not None  # no type of plain arrays is narrower than a byte
    for each in (got, want):
        if each not in (dtype, given.code_dtype) and not (each.kind == "b" and dtype.itemsize == 1):
            raise RefsimError("bad-dtype", f"elements of {given} are {dtype}, not {each}")
    return _double_line() if given is F64 else _integer_line(dtype)


def _format_of(dtype: np.dtype[Any]) -> Format | None:
    if is_typed(dtype):
        return format_of(dtype)
    if dtype.kind in "biu" or dtype == np.float64:
        return None
    for row in FORMATS:
        if str(dtype) == row.name or str(dtype) in row.aliases:
            return row
    raise RefsimError("unsupported-dtype", f"no format has the dtype {dtype}", help="pass unsigned codes and format=")


def codes_of(array: NDArray[Any]) -> Codes:
    """Return the elements as one flat array of unsigned codes of their width."""
    return np.ascontiguousarray(words(array)).reshape(-1).view(f"u{array.dtype.itemsize}")


def distances(got: Codes, want: Codes, line: CodeLine) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the steps between pairs of codes, and where they have no distance because a code is NaN."""
    here, there = line.order(got), line.order(want)
    # The distance of two int64 can need 64 bits: modular subtraction of the larger minus the smaller is exact.
    low, high = np.minimum(here, there).view(np.uint64), np.maximum(here, there).view(np.uint64)
    return high - low, line.is_nan(got) | line.is_nan(want)
