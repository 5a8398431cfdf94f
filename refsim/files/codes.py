"""Shared parts of the containers: the stored tensor, the format of its codes, and the possible shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.conversions import pack, unpack
from refsim.conversions.coding import codes_from
from refsim.errors import Kind, RefsimError
from refsim.files.access import unreadable
from refsim.formats import (
    ARRAY_TYPES,
    E4M3,
    F32,
    FORMATS,
    TF32,
    UE4M3,
    ElementType,
    Format,
    Integer,
    array_type,
)
from refsim.integers import read_as_array
from refsim.render.cards import Card
from refsim.typed_arrays import format_held, is_typed, typed, with_format

Codes = NDArray[np.unsignedinteger[Any]]

LARGEST_SIZE = 2**63 - 1
READS_AS = {(E4M3, UE4M3), (F32, TF32)}
"""(named by the file, requested): every code of the second is a code of the first with an equal value."""


@dataclass(frozen=True, eq=False, repr=False)
class Stored(Card):
    """One tensor of a file: `codes` holds one code of `format` per element, in the format's `code_dtype`.

    An F4 tensor of shape (2, 8) is 8 bytes in a safetensors file and 16 uint8 codes below 16 here. `key` is its name in
    the file (the stem of the file where the container has no names), `container` is npy, npz, safetensors or raw,
    `metadata` is the text that a safetensors file carries.
    """

    key: str
    codes: Codes
    format: Any  # an ElementType: a Format, or an Integer of plain arrays
    container: str
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return tuple(self.codes.shape)

    def typed(self) -> NDArray[Any]:
        """Return the codes as an array of the format's ml_dtypes type, without a copy; f16, f32, f64 and integers as
        NumPy's types.

        Raises RefsimError `unsupported-dtype` for a format without one (ue4m3, ue5m3, tf32, mxint8).
        """
        if self.format in ARRAY_TYPES:
            return self.codes.view(self.format.array_dtype)
        return typed(self.codes, self.format, "ml_dtypes")

    def _repr_summary(self) -> str:
        return f"{self.key}: {self.format} {self.shape} of {self.container}"


class TensorEntry(NamedTuple):
    """One tensor as its header describes it; `read` returns the codes in C order and native byte order.

    `named` is the format that the file names, or None where the file holds plain elements of `word_bytes` bytes. `plain`
    is what these are where nothing else is asked: signed integers, truth values and float64; unsigned may be codes.
    """

    where: str
    stored_as: str
    named: ElementType | None
    word_bytes: int
    shape: tuple[int, ...]
    read: Callable[[], Codes]
    plain: ElementType | None = None


PACKED_BITS = (4, 6)
"""Widths that are packed: e2m1 two codes a byte, e2m3 and e3m2 four codes in three bytes."""
PIECE_CODES = 1 << 18


def bits_per_code(format: ElementType) -> int:
    """Return the distance of codes in a file, in bits: 4 for e2m1, 6 for e3m2, 8 for ue4m3 (7 bits), 32 for tf32."""
    return format.bits if format.bits in PACKED_BITS else 8 * format.code_dtype.itemsize


def pack_all(codes: Codes, format: Format) -> NDArray[np.uint8]:
    """Return the bytes of a vector of sub-byte codes; zeros fill a last group, which is cut to whole bytes.

    Three e2m1 codes 1, 2, 3 are the bytes 0x21, 0x03. Packing goes piece by piece to save memory.
    """
    packed = np.empty(-(-codes.size * format.bits // 8), dtype=np.uint8)
    for first in range(0, codes.size, PIECE_CODES):
        piece = codes[first : first + PIECE_CODES]
        filled = np.concatenate([piece, np.zeros(-piece.size % 4, dtype=piece.dtype)])
        target = packed[first * format.bits // 8 : (first + PIECE_CODES) * format.bits // 8]
        target[:] = np.asarray(pack(filled, format))[: target.size]
    return packed


def unpack_all(packed: NDArray[np.uint8], format: Format, count: int, where: str) -> Codes:
    """Return the `count` codes of pack_all's bytes; raise `trailing-bytes` where bits after the last code are not
    zero."""
    codes = np.empty(count, dtype=format.code_dtype)
    for first in range(0, count, PIECE_CODES):
        piece = packed[first * format.bits // 8 : (first + PIECE_CODES) * format.bits // 8]
        filled = np.concatenate([piece, np.zeros(-piece.size % 3, dtype=np.uint8)])
        unpacked = np.asarray(unpack(filled, format))
        target = codes[first : first + PIECE_CODES]
        target[:] = unpacked[: target.size]
        if unpacked[target.size :].any():
            what = f"the bits after the last of {count} {format} codes are not zero"
            raise unreadable("trailing-bytes", what, where, help="the shape is not the one that was written")
    return codes


def requested_format(format: "str | ElementType | None") -> ElementType | None:
    """Return the format that the caller requests, or None; raise for anything else than a name or a known format."""
    if format is None:
        return None
    if not isinstance(format, str | Format | Integer):
        raise RefsimError("wrong-type", f"a format is a name or a Format row, not {type(format).__name__}")
    if not isinstance(format, str) and format not in (*FORMATS, *ARRAY_TYPES):
        raise RefsimError("wrong-type", f"a file can name only the formats of refsim, not your row {format.name!r}")
    return array_type(format)


def format_in_file(name: str, where: str) -> Format:
    """Return the format that a file names; raise `unsupported-dtype` for an unknown name."""
    row = next((row for row in FORMATS if name.lower() in (row.name, *row.aliases)), None) if len(name) < 64 else None
    if row is None:
        what = f"the file names the format {name[:40]!r}, which is none of refsim"
        raise unreadable("unsupported-dtype", what, where, help=f"known: {', '.join(known.name for known in FORMATS)}")
    return row


def agreed_format(entry: TensorEntry, requested: ElementType | None) -> ElementType:
    """Return the format of the codes in `entry`: the file's, or `requested` where the file names none.

    A uint8 array read as "e4m3" is E4M3. A BF16 tensor read as "f16" is `format-mismatch`; without any name it is
    `format-needed`. An e4m3 tensor may be read as ue4m3, and f32 as tf32: their codes have equal values.
    """
    if entry.named is None:
        return _format_of_words(entry, requested)
    if requested is None or requested == entry.named or (entry.named, requested) in READS_AS:
        return requested or entry.named
    what = f"the file holds {entry.named}, not {requested}"
    where = f"{entry.where}, stored as {entry.stored_as}"
    raise RefsimError("format-mismatch", what, where=where, help=f"name no format, or {entry.named}")


def _format_of_words(entry: TensorEntry, requested: ElementType | None) -> ElementType:
    """Return the requested format of plain elements; raise where it is missing or has another width."""
    if requested is None and entry.plain is not None:
        return entry.plain
    fitting = [row.name for row in (*FORMATS, *ARRAY_TYPES) if row.code_dtype.itemsize == entry.word_bytes]
    if requested is None:
        what = f"{entry.stored_as} does not say which number format its codes have"
        rule = f"formats of {8 * entry.word_bytes} bits: {', '.join(fitting)}"
        raise RefsimError("format-needed", what, where=entry.where, rule=rule, help="pass format=")
    if requested.code_dtype.itemsize != entry.word_bytes:
        what = f"a code of {requested} takes {8 * requested.code_dtype.itemsize} bits, the file holds {entry.stored_as}"
        help = f"formats of {8 * entry.word_bytes} bits: {', '.join(fitting)}"
        raise RefsimError("format-mismatch", what, where=entry.where, help=help)
    return requested


def element_count(shape: tuple[int, ...], where: str, *, kind: Kind = Kind.UNREADABLE) -> int:
    """Return the product of `shape`, 1 for (); raise `bad-shape` for a shape that no array can have.

    (0, 2^62) has no element, yet NumPy refuses it: the product without the zeros must stay below 2^60.
    """
    if shape in ((), (0,)):
        return 0 if shape else 1
    possible = len(shape) <= 64 and min(shape) >= 0 and max(shape) <= LARGEST_SIZE
    if not possible or prod([size or 1 for size in shape]) > LARGEST_SIZE // 8:
        shown = str(shape) if len(str(shape)) <= 80 else f"{str(shape)[:77]}..."
        rule = "at most 64 dimensions of 0 or more, fewer than 2^60 elements"
        raise RefsimError("bad-shape", f"no array has the shape {shown}", where=where, rule=rule, kind=kind)
    return prod(shape)


def require_room(count_bytes: int, max_bytes: int, where: str) -> None:
    """Raise `too-large` where the codes would take more than `max_bytes`."""
    if count_bytes > max_bytes:
        what = f"its codes take {count_bytes} bytes, more than the {max_bytes} that may be read"
        raise unreadable("too-large", what, where, help=f"pass max_bytes={count_bytes} or more if the file is trusted")


def require_codes_in_range(codes: Codes, format: ElementType, where: str, *, kind: Kind = Kind.UNREADABLE) -> None:
    """Raise `out-of-range` with the first code that `format` does not have: 0x10 for e2m1, 0x80 for ue4m3."""
    if codes.size == 0 or format.code_limit > np.iinfo(codes.dtype).max or int(codes.max()) < format.code_limit:
        return
    position = np.unravel_index(int(np.argmax(codes >= format.code_limit)), codes.shape)
    raise RefsimError(
        "out-of-range",
        f"{int(codes[position]):#x} is not a code of {format}: they end at {format.code_limit - 1:#x}",
        where=f"{where}, element {tuple(int(i) for i in position)}",
        help="a byte that packs several codes is read as e4m3 codes and split with refsim.unpack",
        kind=kind,
    )


def codes_to_store(codes: ArrayLike, format: ElementType) -> Codes:
    """Return `codes` as a C-ordered, little-endian array of the format's `code_dtype`; raise for codes outside the
    format.

    Floats are refused (`wrong-type`): they are values, and refsim.encode turns them into codes. An array of ml_dtypes
    holds codes of its format, and an array of float16 or float32 the patterns of f16 or f32.
    """
    try:
        array = read_as_array("codes", codes)
    except ValueError as problem:
        raise RefsimError("wrong-type", f"not an array: {problem}") from problem
    is_plain = format in ARRAY_TYPES and array.dtype.newbyteorder("=") == format.array_dtype
    if is_typed(array.dtype) and isinstance(format, Format):
        array = np.asarray(with_format(array, format)[0])
    elif is_plain or (array.dtype.kind == "f" and format_held(array.dtype) == format):
        array = (
            np.ascontiguousarray(array).reshape(array.shape).view(format.code_dtype.newbyteorder(array.dtype.byteorder))
        )
    empty_list = array.size == 0 and not isinstance(codes, np.ndarray)
    if array.dtype.kind not in "ui" and not empty_list:
        what = f"codes are unsigned integers, not {array.dtype}"
        way = codes_from(array.dtype, format) if isinstance(format, Format) else f"an array of {format.array_dtype}"
        raise RefsimError("wrong-type", what, help=way)
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise RefsimError("wrong-type", f"a code is not negative: {int(array.min())}", kind=Kind.USAGE)
    if array.dtype.kind in "ui":
        unsigned = array.astype(np.dtype(f"u{array.dtype.itemsize}"), copy=False)
        require_codes_in_range(unsigned, format, "codes", kind=Kind.USAGE)
    element_count(array.shape, "codes", kind=Kind.USAGE)
    return np.asarray(array, dtype=format.code_dtype.newbyteorder("<"), order="C")
