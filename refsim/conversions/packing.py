"""Codes to bytes and back: the places of sub-byte codes in memory and in registers."""

from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions.coding import Codes, checked_codes
from refsim.errors import RefsimError, check_named, counted
from refsim.formats import E2M1, Format, format_named
from refsim.typed_arrays import typed, with_format

Container = Literal["dense", "byte", "f8f6f4", "x2"]
DENSE: Final = "dense"
BYTE, F8F6F4, X2 = "byte", "f8f6f4", "x2"
CONTAINERS: tuple[Container, ...] = get_args(Container)


def pack(codes: ArrayLike, format: str | Format | None = None, container: Container = DENSE) -> Codes:
    """Pack codes into bytes along the last axis, the first code in the lowest bits.

    `codes` (..., n), also as an array of ml_dtypes, which knows its format. Containers:

      "dense"   wastes no bit: a byte per code of 7 or 8 bits, two e2m1 a byte, four 6-bit codes in three bytes
                (a little-endian 24-bit integer), wider codes unchanged
      "byte"    one code in the low bits of each byte
      "f8f6f4"  the operands of mma.sync kind::f8f6f4: one byte a code, e2m1 at bits 5..2, others in the low bits
      "x2"      the pair type of the CUDA headers, the first of a pair low: a byte for e2m1, a uint16 for 6 and 8 bits

    pack([1, 2], "e2m1") is [0x21]; pack([1, 2, 3, 4], "e2m3") is [0x81, 0x30, 0x10].
    Raises RefsimError for codes out of range, an unknown container, or n that is no multiple of the group.
    Source: PTX ISA, packed data types and mma.sync fragments of kind::f8f6f4; cuda_fp4.h, cuda_fp6.h.
    """
    codes, to = with_format(codes, format)
    legal = checked_codes(codes, to)
    count, width, dtype = _grouping(to, container)
    if count == 1:
        return legal << np.uint8(_offset(to, container))
    if legal.ndim == 0 or legal.shape[-1] % count:
        raise _uneven(counted(legal.shape[-1] if legal.ndim else 1, f"{to} code"), count, container)
    groups = legal.reshape(*legal.shape[:-1], legal.shape[-1] // count, count).astype(np.uint32)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(
        groups << (np.uint32(width) * np.arange(count, dtype=np.uint32)), axis=-1
    )
    return _bytes_of_words(words) if count == 4 else words.astype(dtype)


def unpack(
    packed: ArrayLike, format: str | Format, container: Container = DENSE, *, dtype: DTypeLike | None = None
) -> NDArray[Any]:
    """Return the codes along the last axis: the inverse of pack. Bits outside the places of codes are ignored.

    `packed` (..., m) of the type that pack returns; dtype="ml_dtypes" gives the codes the ml_dtypes type of the format.
    unpack([0x21], "e2m1") is [1, 2].
    Raises RefsimError for another type, an unknown container, or bytes that do not fill a group. Source: as pack.
    """
    to = format_named(format)
    return typed(_unpacked(packed, to, container), to, dtype)


def _unpacked(packed: ArrayLike, to: Format, container: str) -> Codes:
    """Return the codes (..., n) of `packed` in `to.code_dtype`; raise for another type or an incomplete group."""
    count, width, dtype = _grouping(to, container)
    array: NDArray[Any] = np.asarray(packed)
    if isinstance(packed, list) and array.dtype.kind == "i" and array.size and 0 <= array.min() <= array.max() < 256:
        array = array.astype(dtype)
    if array.dtype != dtype:
        raise RefsimError("bad-dtype", f"{container} {to} is packed in {dtype}, not {array.dtype}")
    mask = (1 << to.bits + to.padding_bits) - 1
    if count == 1:
        return (array >> np.uint8(_offset(to, container))) & dtype.type(mask)
    if array.ndim == 0:
        raise _uneven("one value without an axis", 1, container)
    raw = np.ascontiguousarray(array, dtype.newbyteorder("<")).view(np.uint8)
    if raw.shape[-1] * 8 % (count * width):
        raise _uneven(f"{raw.shape[-1]} bytes", 3, DENSE)
    return bit_fields(raw, width, raw.shape[-1] * 8 // width) & to.code_dtype.type(mask)


def bit_fields(stored: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Return the first `count` codes of each row of bytes (..., bytes): code i has the bits i * bits and up.

    bit_fields([0x21], 4, 2) is [1, 2]. `bits` is 1 to 8. Source: defined here.
    """
    if bits == 8:
        return stored[..., :count]
    groups = -(-count // 8)  # eight codes fill as many bytes as a code has bits
    raw = stored[..., : groups * bits]
    if raw.shape[-1] < groups * bits:
        raw = np.concatenate([raw, np.zeros((*raw.shape[:-1], groups * bits - raw.shape[-1]), np.uint8)], axis=-1)
    raw = raw.reshape(*stored.shape[:-1], groups, bits)
    found = np.empty((*stored.shape[:-1], groups, 8), np.uint8)
    for place in range(8):
        byte, shift = divmod(place * bits, 8)
        high = raw[..., byte + 1] << np.uint8(8 - shift) if shift + bits > 8 else np.uint8(0)
        found[..., place] = (raw[..., byte] >> np.uint8(shift) | high) & np.uint8((1 << bits) - 1)
    return found.reshape(*stored.shape[:-1], groups * 8)[..., :count]


def _grouping(format: Format, container: str) -> tuple[int, int, np.dtype[np.unsignedinteger]]:
    """Return codes in a group, bits from one code to the next, and the type of the packed array."""
    check_named("container", container, CONTAINERS)
    if format.code_dtype.itemsize > 1:
        if container != DENSE:
            what = f'{format} has no container "{container}"'
            raise RefsimError("unsupported-format", what, help='container="dense"')
        return 1, 0, format.code_dtype
    if container == X2:
        return (2, 4, np.dtype(np.uint8)) if format is E2M1 else (2, 8, np.dtype(np.uint16))
    if container == DENSE and format.bits == 4:
        return 2, 4, np.dtype(np.uint8)
    if container == DENSE and format.bits == 6:
        return 4, 6, np.dtype(np.uint8)
    return 1, 0, np.dtype(np.uint8)


def _offset(format: Format, container: str) -> int:
    return 2 if container == F8F6F4 and format is E2M1 else 0


def _uneven(what: str, count: int, container: str) -> RefsimError:
    way = f"pad the last axis with zeros to a multiple of {count}"
    return RefsimError("bad-shape", f"{what}: the {container} container holds groups of {count}", help=way)


def _bytes_of_words(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    three = (words[..., None] >> np.array([0, 8, 16], np.uint32)) & 0xFF
    return three.astype(np.uint8).reshape(*words.shape[:-1], 3 * words.shape[-1])
