"""The safetensors container: a JSON header with every tensor's dtype, shape and byte range, then the bytes."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from refsim.errors import RefsimError
from refsim.files.access import ByteReader, collection_paused, unreadable
from refsim.files.codes import Codes, TensorEntry, element_count, format_in_file, pack_all, unpack_all
from refsim.formats import ARRAY_TYPES, BF16, E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, F16, F32, F64

# isort: split
from refsim.formats import MXINT8, ElementType, Format, array_type
from refsim.sources import SAFETENSORS

HEADER_LIMIT_BYTES = 16 << 20
LIST_LIMIT_CHARACTERS = 4096
FORMAT_KEY = "refsim.format."
METADATA = "__metadata__"
RULE = str(SAFETENSORS["format"])
NAMED = {"F4": E2M1, "F6_E2M3": E2M3, "F6_E3M2": E3M2, "F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": E8M0}
NAMED |= {"F8_E4M3FNUZ": E4M3FNUZ, "F8_E5M2FNUZ": E5M2FNUZ, "BF16": BF16, "F16": F16, "F32": F32}
WORDS = {"U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4}
BITS = {name: row.bits for name, row in NAMED.items()} | {name: 8 * size for name, size in WORDS.items()}
BITS |= {"BOOL": 8, "F64": 64, "I64": 64, "U64": 64, "C64": 64}
PLAIN_TYPES = {"U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4"}
PLAIN_TYPES |= {"U64": "<u8", "I64": "<i8", "F64": "<f8", "BOOL": "|b1", "C64": "<c8"}
"""Types of NumPy for the dtypes that hold no codes of a format."""
DTYPE_OF = {row: name for name, row in NAMED.items()}
_PLAIN = {"I8": "s8", "I16": "s16", "I32": "s32", "I64": "s64", "U64": "u64", "F64": "f64", "BOOL": "u8"}
_PLAIN_OF = {dtype: array_type(name) for dtype, name in _PLAIN.items()}
_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{}]', re.DOTALL)
_LONG_INTEGER = re.compile(r"[0-9]{20}")
_NEGATIVE = re.compile(r"[\[,:]\s*+-")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_FLAT = r'[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[^"\[\]{}]{0,4000}+\]'
_SHALLOW = re.compile(rf'\{{(?:{_FLAT}|\{{(?:{_FLAT})*+\}})*+\}}[^"\[\]{{}}]*+', re.DOTALL)


_FIELDS = {"dtype", "shape", "data_offsets"}
_WHOLE = {int}


class StoredTensor(NamedTuple):
    """The byte range of a tensor after the header, its format where the file names one, and which file holds it."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    format: Format | None = None
    shard: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """Return the size as a matrix: the product of all dimensions except the last, and the last."""
        return prod(self.shape[:-1]), self.shape[-1] if self.shape else 1


def contents(reader: ByteReader) -> tuple[dict[str, Callable[[], TensorEntry]], dict[str, str]]:
    """Return how to read each tensor, by key, and the text of `__metadata__`.

    The byte ranges must tile the rest of the file without holes, overlaps or trailing bytes. F4 holds two codes a byte,
    the first in the low nibble; F6_E2M3 and F6_E3M2 four codes in three bytes, the first in the low bits. U8, I8, U16,
    I16, U32 and I32 are plain elements, whose format `__metadata__` may name under `refsim.format.<key>`. Source:
    safetensors, format.
    """
    with collection_paused():
        tensors, noted, metadata = _checked(reader)
        start = reader.stream.tell()
        found: dict[str, Callable[[], TensorEntry]] = {
            t.key: partial(entry, reader, start, t, noted.get(t.key) if noted else None) for t in tensors
        }
        return found, metadata


def _checked(reader: ByteReader) -> tuple[list[StoredTensor], dict[str, Format], dict[str, str]]:
    """Return the tensors in the order of their bytes, the formats that the metadata names, and the other metadata."""
    header = _header(reader)
    metadata = _metadata(header.pop(METADATA, {}), reader.where)
    bits: dict[tuple[object, ...], int | None] = {}
    tensors = sorted(
        (_tensor(key, fields, reader.where, bits) for key, fields in header.items()), key=attrgetter("begin", "end")
    )
    end = 0
    for tensor in tensors:
        if tensor.begin != end:
            fault = "overlaps the one before it" if tensor.begin < end else "leaves a hole before it"
            raise _bad(f"tensor {tensor.key[:80]!r} begins at {tensor.begin}, not {end}: it {fault}", reader.where)
        end = tensor.end
    reader.require(end, "the tensor bytes")
    reader.require_end(end, "the last tensor")
    named = {key.removeprefix(FORMAT_KEY): name for key, name in metadata.items() if key.startswith(FORMAT_KEY)}
    noted = {key: format_in_file(name, f"{reader.where}, {METADATA}") for key, name in named.items()}
    return tensors, noted, {key: text for key, text in metadata.items() if not key.startswith(FORMAT_KEY)}


def _bad(what: str, where: str) -> RefsimError:
    return unreadable("bad-file", what, where, rule=RULE)


def _header(reader: ByteReader) -> dict[str, Any]:
    """Return the parsed header; raise for text that is too long, not UTF-8, not JSON, or has duplicate keys."""
    length = int.from_bytes(reader.take(8, "the safetensors header"), "little")
    if length > HEADER_LIMIT_BYTES:
        what = f"the safetensors header claims {length} bytes, the limit is {HEADER_LIMIT_BYTES}"
        raise unreadable("too-large", what, reader.where)
    try:
        text = reader.take(length, "the safetensors header").decode("utf-8")
    except UnicodeDecodeError as problem:
        raise _bad("the header is not UTF-8", reader.where) from problem
    if not text.startswith("{"):
        raise _bad("the header does not start with '{'", reader.where)
    _require_shallow(text, reader.where)

    def fault(token: str) -> Any:
        raise _bad(f"the header holds {token[:40]}, which no field may be", reader.where)

    def integer(token: str) -> int:
        return int(token) if len(token) <= 19 and token[0] != "-" else fault(token)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise _bad("the header gives a key twice", reader.where)
        return fields

    try:
        is_rare = ("-" in text and _NEGATIVE.search(text)) or _LONG_INTEGER.search(text)
        whole = integer if is_rare else int  # the parser itself is quick only with int
        header = json.loads(text, parse_int=whole, parse_float=fault, parse_constant=fault)
        if _STRING.sub("", text).count(":") != len(header) + sum(len(f) for f in header.values() if type(f) is dict):
            json.loads(text, object_pairs_hook=unique)  # a key is duplicate: the slow hook reports it
        text.encode() if "\\u" not in text else json.dumps(header, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        raise _bad(f"the header is not JSON: {problem.msg} at character {problem.pos}", reader.where) from problem
    except UnicodeEncodeError as problem:
        raise _bad("a name in the header holds half of a surrogate pair", reader.where) from problem
    return dict(header)


def _require_shallow(text: str, where: str) -> None:
    """Raise, before parsing, for a fourth nesting level (the parser recurses) and for long lists."""
    if _SHALLOW.fullmatch(text):  # true for every known writer; the loop locates the fault otherwise
        return
    depth, opened = 0, 0
    for token in _STRUCTURE.finditer(text):
        mark, place = token.group()[0], token.start()
        if mark == '"' and not token.group(1):
            raise _bad("the header ends inside a string", where)
        depth += (mark in "[{") - (mark in "]}")
        if depth > 3:
            raise _bad(f"the header nests deeper than 3 at character {place}", where)
        if mark == "]" and place - opened > LIST_LIMIT_CHARACTERS:
            raise _bad(f"the list at character {opened} is longer than {LIST_LIMIT_CHARACTERS} characters", where)
        opened = place if mark == "[" else opened


def _metadata(fields: Any, where: str) -> dict[str, str]:
    if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
        raise _bad(f"{METADATA} is not a map from text to text", where)
    return fields


def _tensor(key: str, fields: Any, where: str, bits: dict[tuple[object, ...], int | None]) -> StoredTensor:
    """Return one checked entry of the header; `bits` caches the size of each dtype and shape, None for unknown
    dtypes."""
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        raise _bad(f"{_place(key)} does not have exactly dtype, shape and data_offsets", where)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or not _integers(shape) or not _integers(offsets) or len(offsets) != 2:
        raise _bad(f"{_place(key)}: dtype is text, shape and data_offsets are lists of integers, of two offsets", where)
    begin, end = offsets
    if end < begin:
        raise _bad(f"{_place(key)} ends at {end}, before its begin {begin}", where)
    kind = (dtype, *shape)
    if kind not in bits:
        count = element_count(kind[1:], f"{where}, {_place(key)}")
        bits[kind] = count * BITS[dtype] if dtype in BITS else None
    if bits[kind] not in (None, 8 * (end - begin)):
        shown = str(kind[1:])[:80]
        raise _bad(f"{_place(key)}: {dtype} of shape {shown} takes {bits[kind]} bits, not {8 * (end - begin)}", where)
    return StoredTensor(key, dtype, kind[1:], begin, end)


def _place(key: str) -> str:
    return f"tensor {key[:80]!r}"


def _integers(value: Any) -> bool:
    return type(value) is list and _WHOLE.issuperset(map(type, value))


def entry(reader: ByteReader, start: int, tensor: StoredTensor, noted: Format | None) -> TensorEntry:
    """Return how to read one tensor, with the format that its dtype or the metadata (`noted`) names."""
    where = f"{reader.where}, {_place(tensor.key)}"
    named = NAMED.get(tensor.dtype, noted)
    plain = _PLAIN_OF.get(tensor.dtype)
    word_bytes = (
        WORDS.get(tensor.dtype)
        or (plain.code_dtype.itemsize if plain else 0)
        or (named.code_dtype.itemsize if tensor.dtype in NAMED and named else 0)
    )
    if not word_bytes:
        what = f"dtype {tensor.dtype[:40]!r} holds no codes of a number format"
        rule = f"dtypes read: {', '.join([*NAMED, *WORDS, 'I64', 'U64', 'F64', 'BOOL'])}"
        raise unreadable("unsupported-dtype", what, where, rule=rule)
    if noted is not None and (noted != named or noted.code_dtype.itemsize != word_bytes):
        raise unreadable(
            "format-mismatch", f"{METADATA} says {noted}, but {tensor.dtype} cannot hold its codes", where, rule=RULE
        )

    def read() -> Codes:
        if tensor.begin == tensor.end:
            return np.zeros(tensor.shape, f"=u{word_bytes}")
        reader.stream.seek(start + tensor.begin)
        stored = ByteReader(where, reader.stream, tensor.end - tensor.begin).take(
            tensor.end - tensor.begin, "its codes"
        )
        if BITS[tensor.dtype] < 8 and named is not None:
            return unpack_all(np.frombuffer(stored, dtype=np.uint8), named, prod(tensor.shape), where).reshape(
                tensor.shape
            )
        words = np.frombuffer(stored, dtype=f"<u{word_bytes}")
        return np.asarray(words, dtype=f"=u{word_bytes}").reshape(tensor.shape)

    return TensorEntry(where, f"dtype {tensor.dtype}", named, word_bytes, tensor.shape, read, plain)


def regions(reader: ByteReader) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the place of each tensor, by key, and the text of `__metadata__`, with the checks of `contents`."""
    tensors, noted, metadata = _checked(reader)
    return {each.key: each._replace(format=NAMED.get(each.dtype, noted.get(each.key))) for each in tensors}, metadata


def stored_dtype(format: ElementType, count: int) -> str:
    """Return the dtype for `count` codes: plain elements where the format has no dtype or codes fill no whole bytes."""
    if format in ARRAY_TYPES:
        return f"{'F' if format is F64 else 'IU'[not format.sign_mask]}{format.bits}"
    assert isinstance(format, Format)
    dtype = DTYPE_OF.get(format)
    if dtype is not None and count * format.bits % 8 == 0:
        return dtype
    return "I8" if format == MXINT8 else f"U{8 * format.code_dtype.itemsize}"


def header_of(
    stored: Mapping[str, tuple[str, tuple[int, ...], int]], notes: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of tensors given as (dtype, shape, bytes), and each tensor's offset after it, widest dtype
    first."""
    header: dict[str, Any] = {METADATA: dict(sorted(notes.items()))} if notes else {}
    end, begins = 0, {}
    for key in sorted(stored, key=lambda key: (-BITS[stored[key][0]], key)):
        dtype, shape, size = stored[key]
        header[key] = {"dtype": dtype, "shape": [int(length) for length in shape], "data_offsets": [end, end + size]}
        begins[key], end = end, end + size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, begins


def write(stream: BinaryIO, tensors: Mapping[str, tuple[Codes, ElementType]], metadata: Mapping[str, str]) -> None:
    """Write all `tensors`, widest dtype first, the header padded with spaces to a multiple of 8 bytes.

    Formats without a dtype are kept as plain elements and named in `__metadata__`: ue4m3, ue5m3 as U8, mxint8 as I8,
    tf32 as U32. So are E2M1, E2M3 and E3M2 codes that do not fill whole bytes: three e2m1 codes are three U8, not 12
    bits.
    """
    notes = dict(metadata)
    stored: dict[str, tuple[str, Codes]] = {}
    for key, (codes, format) in tensors.items():
        dtype = stored_dtype(format, codes.size)
        if isinstance(format, Format) and format is not F64 and dtype != DTYPE_OF.get(format):
            notes[FORMAT_KEY + key] = format.name
        stored[key] = dtype, pack_all(codes.reshape(-1), cast(Format, format)) if BITS[dtype] < 8 else codes
    rows = {key: (dtype, tensors[key][0].shape, words.nbytes) for key, (dtype, words) in stored.items()}
    header, begins = header_of(rows, notes)
    stream.write(header)
    for key in sorted(begins, key=begins.__getitem__):
        stream.write(stored[key][1].reshape(-1).view(np.uint8).data)


def require_key(key: str) -> None:
    """Raise `bad-key` where a tensor may not be called `key`."""
    if key == METADATA or not key.isprintable():
        raise RefsimError("bad-key", f"{key!r} cannot name a tensor", help=f"any printable name but {METADATA}")


def require_metadata(metadata: Mapping[str, str]) -> None:
    """Raise `bad-metadata` unless `metadata` maps text to text and leaves the refsim.format.* keys alone."""
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str) or key.startswith(FORMAT_KEY):
            what = f"{key!r}: {text!r} cannot be metadata"
            raise RefsimError("bad-metadata", what, rule=f"text to text, not {FORMAT_KEY}*")
        try:
            (key + text).encode()
        except UnicodeEncodeError:
            raise RefsimError("bad-metadata", f"{key!r}: {text!r} is not Unicode text") from None
