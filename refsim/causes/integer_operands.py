"""The operands of an integer product as a user has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.computations.integer_products import IntegerProduct, Whole
from refsim.errors import RefsimError
from refsim.formats import S4, S8, S32, U4, U8, ElementType, Format, Integer, element_named
from refsim.integers import array_of
from refsim.render.cards import FieldsCard
from refsim.scaling.quantizing import scale_values
from refsim.typed_arrays import disagreeing, integer_held, integers, is_typed, native, words


@dataclass(frozen=True, kw_only=True, repr=False)
class IntegerOperands(FieldsCard):
    """The operands of D = (A - za)(B - zb)^T + C over integers, from which outputs are recomputed.

    `a` (M, K), `b` (N, K): int8, uint8, int4 and uint4 of ml_dtypes, or codes, one a byte, with `a_format` and
    `b_format` "s8", "u8", "s4" or "u4". `c` (M, N) or (N,): int32. `a_zero`, `b_zero`: a number, or one for each row.
    Without scales the sum is D: s32, or f32, bf16 or f16. With `a_scale` and `b_scale`, float32, a number or one for
    each row, D is the sum times the scales; in s8 or u8 it is rounded, `d_zero` is added, and it saturates.
    IntegerOperands(a=a, b=b) of int8 is what a tensor core returns in s32.
    """

    a: ArrayLike
    b: ArrayLike
    a_format: str | Integer | None = None
    b_format: str | Integer | None = None
    c: ArrayLike | None = None
    a_zero: ArrayLike = 0
    b_zero: ArrayLike = 0
    d_zero: int = 0
    a_scale: ArrayLike | None = None
    b_scale: ArrayLike | None = None

    def explained(self, shape: tuple[int, ...], format: ElementType) -> Any:
        """Return the product whose output has that shape and type. Raises RefsimError for operands that do not fit."""
        a, left = _matrix("a", self.a, self.a_format)
        knows = integer_held(array_of("b", self.b).dtype) is not None
        b, right = _matrix("b", self.b, self.b_format or (None if knows else self.a_format))
        if a.shape[1] != b.shape[1]:
            raise RefsimError("bad-shape", f"a has K = {a.shape[1]}, b has K = {b.shape[1]}", rule="(M, K), (N, K)")
        if shape != (len(a), len(b)):
            what = f"the output has shape {shape}, the product {(len(a), len(b))}"
            raise RefsimError("bad-shape", what)
        zeros = _zeros("a_zero", self.a_zero, len(a)), _zeros("b_zero", self.b_zero, len(b))
        scales = None
        if self.a_scale is not None or self.b_scale is not None:
            scales = _scales("a_scale", self.a_scale, len(a)), _scales("b_scale", self.b_scale, len(b))
        elif isinstance(format, Integer) and format is not S32:
            raise RefsimError("usage", f"an output of {format} without scales", help="a_scale=, b_scale=")
        if scales is not None and format is S32:
            raise RefsimError("usage", "scales of an output in s32", help="the sum is not scaled")
        c = None if self.c is None else _c(self.c, shape)
        return IntegerProduct(a, b, (left, right), c, (*zeros, int(self.d_zero)), scales, format)


def integer_codes(name: str, array: ArrayLike, format: str | ElementType | None) -> tuple[NDArray[Any], Integer] | None:
    """Return codes of integers with their type, from `format` or the dtype; None where they are floats.

    int8 is s8, int32 is s32, int4 and uint4 of ml_dtypes are s4 and u4; uint8 needs a format, as all codes do.
    """
    given = native(array_of(name, array))
    row = None if format is None else element_named(format)
    if is_typed(given.dtype):
        own = integer_held(given.dtype)
        if (own is not None or isinstance(row, Integer)) and row not in (None, own):
            raise disagreeing(given.dtype, row, name)
        return None if own is None else (words(given), own)
    if isinstance(row, Format) or (row is None and given.dtype.kind != "i"):
        return None
    if row is None:
        row = next((each for each in (S32, *_TYPES) if each.array_dtype == given.dtype), None)
        if row is None:
            raise RefsimError("bad-dtype", f"{name} holds {given.dtype}", rule="int8 or int32, or codes with a format")
    if given.dtype.kind not in "iu" or given.dtype.itemsize != row.code_dtype.itemsize:
        raise RefsimError("bad-dtype", f"{name} holds {given.dtype}, codes of {row} are {row.code_dtype}")
    return np.ascontiguousarray(given).view(row.code_dtype).reshape(given.shape), row


_TYPES = S8, U8, S4, U4


def _matrix(name: str, given: ArrayLike, format: str | Integer | None) -> tuple[NDArray[Any], Integer]:
    """Return an operand (rows, K) as codes of 4 or 8 bits, with their type."""
    array = array_of(name, given)
    if format is None and array.dtype == np.uint8:
        format = U8
    found = integer_codes(name, array, format)
    if found is None or found[1] not in _TYPES:
        rule = f"int8, uint8, or codes of {', '.join(map(str, _TYPES))}"
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}, of {format}", rule=rule)
    codes, row = found
    if codes.ndim != 2 or 0 in codes.shape:
        raise RefsimError("bad-shape", f"{name} has shape {codes.shape}", rule="(rows, K), neither of them empty")
    return narrow_codes(name, codes, row), row


def narrow_codes(name: str, codes: NDArray[Any], row: Integer) -> NDArray[Any]:
    """Return codes without the sign bits that fill their bytes. Raises RefsimError for other values above them."""
    are_codes = codes_or_extended(codes, row)
    if not are_codes.all():
        rule = f"codes of {row} are 0 to {row.code_limit - 1:#x}, one a place; above them no more than their sign"
        raise RefsimError("out-of-range", f"{name} holds {int(codes[~are_codes].flat[0]):#x}", rule=rule)
    return codes & (row.code_limit - 1)


def codes_or_extended(codes: NDArray[Any], row: Integer) -> NDArray[np.bool_]:
    """Return which elements are codes, or negative numbers sign-extended: 0xf8 is -8 of s4 in int8."""
    extended = codes.astype(np.int64) >= (1 << 8 * codes.dtype.itemsize) - row.sign_mask
    return (codes < row.code_limit) | extended & row.signed


def _c(given: ArrayLike, shape: tuple[int, int]) -> Whole:
    c = array_of("c", given)
    if c.dtype.kind not in "iu" or c.shape not in (shape, shape[1:]):
        raise RefsimError("bad-shape", f"c is {c.dtype} of shape {c.shape}", rule=f"int32, {shape} or {shape[1:]}")
    return np.broadcast_to(c.astype(np.int64), shape)


def _zeros(name: str, given: ArrayLike, rows: int) -> Whole:
    """Return whole zero points, one for each row."""
    zero = array_of(name, given)
    narrow = integers(zero)
    whole = (zero if narrow is None else narrow).reshape(-1)
    if whole.size not in (1, rows) or not np.isfinite(whole).all() or (whole != np.rint(whole)).any():
        raise RefsimError("bad-shape", f"{name} is {zero.dtype} of shape {zero.shape}", rule=f"integers, one or {rows}")
    return np.broadcast_to(whole.astype(np.int64), (rows,))


def _scales(name: str, given: ArrayLike | None, rows: int) -> NDArray[np.float32]:
    values = scale_values(np.float32(1) if given is None else given)
    if values.size not in (1, rows):
        raise RefsimError("bad-shape", f"{name} has shape {values.shape}", rule=f"one number, or {rows}")
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1, 1), (rows, 1)))
