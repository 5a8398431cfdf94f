"""The GGUF container: metadata, then name, shape, type and offset of every tensor, then the bytes."""

import struct
from itertools import pairwise
from math import prod
from operator import attrgetter

from refsim.errors import RefsimError
from refsim.files.access import ByteReader, unreadable
from refsim.files.codes import element_count
from refsim.files.safetensors import NAMED, StoredTensor
from refsim.sources import GGUF

RULE = str(GGUF["file structure"])
MOST_TENSORS, MOST_FIELDS, MOST_TEXTS, MOST_FIELD_BYTES = 1 << 20, 1 << 16, 1 << 20, 1 << 26
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""Name, elements and bytes of a block of each tensor type, by its number. Source: GGUF, ggml_type."""
GGUF_BLOCKS = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)  # bytes of a metadata value by its type; 8 is text, 9 an array
TEXT, ARRAY, ALIGNMENT = 8, 9, "general.alignment"


def regions(reader: ByteReader) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the place of each tensor, by key, and the metadata that is text; the stream is left at the first tensor.

    Shapes are in NumPy's order: the file lists the dimension of neighbors first. Source: GGUF, file structure.
    """
    whole = reader.left
    magic, version, count, fields = struct.unpack("<4sIQQ", reader.take(24, "the GGUF header"))
    if magic != b"GGUF" or version not in (2, 3):
        what = "the file does not begin with GGUF" if magic != b"GGUF" else f"GGUF version {version} is not known"
        raise unreadable("bad-file", what, reader.where, rule=RULE, help="versions 2 and 3, little-endian, are read")
    if count > MOST_TENSORS or fields > MOST_FIELDS:
        raise unreadable("too-large", f"the header claims {count} tensors, {fields} fields", reader.where, rule=RULE)
    metadata: dict[str, str] = {}
    alignment = 32
    for _ in range(fields):
        name = _text(reader)
        kind = _number(reader, 4)
        content = _value(reader, kind, name)
        if kind == TEXT:
            metadata[name] = content.decode("utf-8", "replace")
        elif name == ALIGNMENT:
            alignment = int.from_bytes(content, "little")
    if alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise unreadable("bad-file", f"{ALIGNMENT} is {alignment}", reader.where, rule=f"{RULE}: a power of two")
    listed = [_tensor(reader) for _ in range(count)]
    used = whole - reader.left
    begin = -(-used // alignment) * alignment
    reader.stream.seek(begin)
    found: dict[str, StoredTensor] = {}
    for tensor in listed:
        if tensor.key in found:
            raise unreadable("bad-file", f"the file names {tensor.key[:80]!r} twice", reader.where, rule=RULE)
        if tensor.begin % alignment or tensor.end > whole - begin:
            code = "truncated-file" if tensor.end > whole - begin else "bad-file"
            what = f"tensor {tensor.key[:80]!r} takes bytes {tensor.begin} to {tensor.end} of {max(0, whole - begin)}"
            raise unreadable(code, what, reader.where, rule=f"{RULE}: offsets are multiples of {alignment}")
        found[tensor.key] = tensor
    for one, other in pairwise(sorted(listed, key=attrgetter("begin", "end"))):
        if other.begin < one.end:
            what = f"tensors {one.key[:80]!r} and {other.key[:80]!r} share bytes from {other.begin} on"
            raise unreadable("bad-file", what, reader.where, rule=RULE)
    return found, metadata


def _number(reader: ByteReader, size: int) -> int:
    return int.from_bytes(reader.take(size, "the GGUF header"), "little")


def _text(reader: ByteReader) -> str:
    """Return a name of the header; raise for bytes that are not UTF-8."""
    length = _number(reader, 8)
    if length > 1 << 16:
        raise unreadable("bad-file", f"a name of {length} bytes", reader.where, rule=f"{RULE}: at most 65535 bytes")
    try:
        return reader.take(length, "the GGUF header").decode("utf-8")
    except UnicodeDecodeError as problem:
        raise unreadable("bad-file", "a name is not UTF-8", reader.where, rule=RULE) from problem


def _value(reader: ByteReader, kind: int, name: str, *, nested: bool = False) -> bytes:
    """Return the bytes of a metadata value; those of an array are passed over."""
    if kind == TEXT:
        return bytes(reader.take(_bounded(reader, _number(reader, 8), name), "the GGUF header"))
    if kind == ARRAY and not nested:
        of, count = _number(reader, 4), _bounded(reader, _number(reader, 8), name)
        if of == TEXT:
            for _ in range(_bounded(reader, count, name, MOST_TEXTS)):
                _value(reader, TEXT, name)
        else:
            _value(reader, of, name, nested=True) if count == 1 else _skip(reader, count, of, name)
        return b""
    return bytes(reader.take(_size(kind, reader, name), "the GGUF header"))


def _skip(reader: ByteReader, count: int, kind: int, name: str) -> None:
    size = _bounded(reader, count * _size(kind, reader, name), name)
    reader.stream.seek(size, 1)
    reader.left -= size


def _size(kind: int, reader: ByteReader, name: str) -> int:
    if kind >= len(_SIZES) or not _SIZES[kind]:
        raise unreadable("bad-file", f"field {name[:80]!r} has the type {kind}", reader.where, rule=RULE)
    return _SIZES[kind]


def _bounded(reader: ByteReader, count: int, name: str, most: int = MOST_FIELD_BYTES) -> int:
    """Return `count`; raise where a field claims more bytes than the file has, or more of them than a header may take."""
    reader.require(count, f"field {name[:80]!r}")
    if count > most:
        raise unreadable("too-large", f"field {name[:80]!r} claims {count}", reader.where, rule=RULE)
    return count


def _tensor(reader: ByteReader) -> StoredTensor:
    """Return one checked entry: its bytes are a whole number of blocks along the last dimension."""
    key, dimensions = _text(reader), _number(reader, 4)
    if dimensions > 8:
        raise unreadable("bad-file", f"tensor {key[:80]!r} has {dimensions} dimensions", reader.where, rule=RULE)
    shape = tuple(_number(reader, 8) for _ in range(dimensions))[::-1]
    kind, begin = _number(reader, 4), _number(reader, 8)
    if kind not in TENSOR_TYPES:
        raise unreadable("unsupported-dtype", f"tensor {key[:80]!r} has the type {kind}", reader.where, rule=RULE)
    name, elements, size = TENSOR_TYPES[kind]
    try:
        element_count(shape, f"{reader.where}, tensor {key[:80]!r}")
    except RefsimError as problem:
        problem.rule = RULE
        raise
    if shape and shape[-1] % elements:
        what = f"tensor {key[:80]!r} is {name} with rows of {shape[-1]} elements"
        raise unreadable("bad-shape", what, reader.where, rule=f"{RULE}: {elements} elements share a block")
    end = begin + prod(shape) // elements * size
    return StoredTensor(key, name, shape, begin, end, NAMED.get(name))
