"""Headerless files: little-endian elements, or packed codes where the format is narrower than a byte."""

from typing import BinaryIO, cast

import numpy as np

from refsim.errors import RefsimError
from refsim.files.access import ByteReader, bytes_text, unreadable
from refsim.files.codes import PACKED_BITS, Codes, TensorEntry, bits_per_code, element_count, pack_all, unpack_all
from refsim.formats import ElementType, Format


def entry(reader: ByteReader, format: ElementType, shape: tuple[int, ...] | None) -> TensorEntry:
    """Return all codes from the reader's position to the end, as a vector or in `shape`.

    Without a shape the bytes must be whole codes (whole groups of three bytes for 6-bit formats): 7 bytes of bf16 are
    `truncated-file`, expected 8. With a shape the byte count must fit its codes: (3,) of e2m1 is 2 bytes.
    """
    bits = bits_per_code(format)
    group_bytes = 3 if bits == 6 else max(1, bits // 8)
    if shape is None:
        over = reader.left % group_bytes
        if over:
            whole = reader.left + group_bytes - over
            what = f"the last code of {format} is cut short: expected {bytes_text(whole)}, found {reader.left}"
            rule = f"codes of {format} come in {bytes_text(group_bytes)}"
            help = "pass shape= for a count that does not fill the last bytes" if bits == 6 else ""
            raise unreadable("truncated-file", what, reader.where, rule=rule, help=help)
        shape = (reader.left * 8 // bits,)
    count = element_count(shape, reader.where)
    count_bytes = -(-count * bits // 8)
    reader.require(count_bytes, f"{format} of shape {shape}")
    reader.require_end(count_bytes, f"{format} of shape {shape}")

    def read() -> Codes:
        stored = reader.take(count_bytes, f"{format} of shape {shape}")
        if bits in PACKED_BITS:
            return unpack_all(np.frombuffer(stored, dtype=np.uint8), cast(Format, format), count, reader.where).reshape(
                shape
            )
        words = np.frombuffer(stored, dtype=format.code_dtype.newbyteorder("<"))
        return np.asarray(words, dtype=format.code_dtype).reshape(shape)

    return TensorEntry(reader.where, f"{bits} bits a code", format, format.code_dtype.itemsize, shape, read)


def write(stream: BinaryIO, codes: Codes, format: ElementType) -> None:
    """Write the codes in C order without a header; shape and format are not kept."""
    flat = codes.reshape(-1)
    stored = pack_all(flat, cast(Format, format)) if bits_per_code(format) in PACKED_BITS else flat.view(np.uint8)
    stream.write(stored.data)


def require_format(format: ElementType | None, where: str) -> ElementType:
    """Return `format`; raise `format-needed` for None, since a raw file has no format."""
    if format is None:
        what = "a raw file does not say which number format its codes have"
        help = "pass format=, and shape= for more than one dimension"
        raise RefsimError("format-needed", what, where=where, help=help)
    return format
