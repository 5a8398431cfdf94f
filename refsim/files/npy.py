"""The .npy container: header versions 1.0, 2.0 and 3.0; the name of the one field is the name of the format."""

import ast
import re
import warnings
from typing import Any, BinaryIO

import numpy as np

from refsim.errors import RefsimError
from refsim.files.access import ByteReader, unreadable
from refsim.files.codes import Codes, TensorEntry, element_count, format_in_file
from refsim.formats import ARRAY_TYPES, F16, F32, U8, ElementType, Format, array_type
from refsim.sources import NUMPY

MAGIC = b"\x93NUMPY"
HEADER_LIMIT_BYTES = 10_000  # as NumPy's own reader
NATIVE = {("f", 2): F16, ("f", 4): F32}
RULE = str(NUMPY["header"])
_LONG = re.compile(r"\b([0-9]{1,20})L\b")
_DESCR = re.compile(r"([<>|=]?)([A-Za-z])([0-9]{0,3})")
_OBJECT = re.compile(r"[<>|=]?O[0-9]*")


def entry(reader: ByteReader) -> TensorEntry:
    """Return the array at the reader's position; its bytes must be the last of the stream.

    float16 and float32 are f16 and f32. A structured array with one field named by a format, `[('e4m3', '|u1')]`, is of
    that format. Other elements of 1, 2 or 4 bytes (unsigned, signed, or the void and `<f1` that NumPy writes for
    ml_dtypes) do not name their format. Object arrays are `pickle-refused`. Source: NumPy, numpy.lib.format.
    """
    descr, fortran_order, shape = _header(reader)
    word, named = _element(descr, reader.where)
    count = element_count(shape, reader.where)
    reader.require(count * word.itemsize, f"an array of shape {shape}")
    reader.require_end(count * word.itemsize, f"an array of shape {shape}")

    def read() -> Codes:
        words = np.frombuffer(reader.take(count * word.itemsize, f"an array of shape {shape}"), dtype=word)
        ordered = words.reshape(shape[::-1]).T if fortran_order else words.reshape(shape)
        return np.asarray(ordered, dtype=word.newbyteorder("="), order="C")

    return TensorEntry(reader.where, f"descr {_shown(descr)}", named, word.itemsize, shape, read, _plain(descr))


def _plain(descr: Any) -> ElementType | None:
    """Return the type of plain elements that cannot be codes: signed integers, truth values, 64 bits."""
    token = _DESCR.fullmatch(descr) if isinstance(descr, str) else None
    letter, size = token.group(2, 3) if token else ("", "")
    if letter == "b":
        return U8
    return array_type(np.dtype(letter + size).name) if letter == "i" or (letter in "uf" and size == "8") else None


def _shown(descr: Any) -> str:
    return f"{str(descr)[:60]!r}" if isinstance(descr, str) else str(descr)[:60]


def _header(reader: ByteReader) -> tuple[Any, bool, tuple[int, ...]]:
    """Return descr, fortran_order and shape of the npy header."""
    magic = bytes(reader.take(8, "the npy header"))
    version = (magic[6], magic[7])
    if magic[:6] != MAGIC or version not in ((1, 0), (2, 0), (3, 0)):
        rule = f"{RULE}: 93 'NUMPY'"
        raise unreadable("bad-file", f"not an npy file: it starts with {magic.hex(' ')}", reader.where, rule=rule)
    length = int.from_bytes(reader.take(2 if version == (1, 0) else 4, "the npy header"), "little")
    if length > HEADER_LIMIT_BYTES:
        what = f"the npy header claims {length} bytes, the limit is {HEADER_LIMIT_BYTES}"
        raise unreadable("too-large", what, reader.where)
    try:
        text = reader.take(length, "the npy header").decode("utf-8" if version == (3, 0) else "latin-1")
    except UnicodeDecodeError as problem:
        raise unreadable("bad-file", "the npy header is not UTF-8", reader.where, rule=RULE) from problem
    return _fields(_literal(text, reader.where, longs=version != (3, 0)), reader.where)


def _fields(header: Any, where: str) -> tuple[Any, bool, tuple[int, ...]]:
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise unreadable("bad-file", "the npy header lacks descr, fortran_order or shape", where, rule=RULE)
    fortran_order, shape = header["fortran_order"], header["shape"]
    if not isinstance(fortran_order, bool):
        raise unreadable("bad-file", "fortran_order is neither True nor False", where, rule=RULE)
    if not isinstance(shape, tuple) or any(type(size) is not int or size < 0 for size in shape):
        raise unreadable("bad-file", "shape is not a tuple of integers", where, rule=RULE)
    return header["descr"], fortran_order, shape


def _literal(text: str, where: str, *, longs: bool) -> Any:
    """Return the literal of an npy header; `longs`: 5L is 5, as Python 2 wrote it in versions 1.0 and 2.0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and of numbers that words follow
            try:
                return ast.literal_eval(text)
            except SyntaxError:
                return ast.literal_eval(_LONG.sub(r"\1", text) if longs else text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as problem:
        raise unreadable("bad-file", "the npy header cannot be read", where, rule=RULE) from problem


def _element(descr: Any, where: str) -> tuple[np.dtype[Any], Format | None]:
    """Return the unsigned dtype of one code, in the file's byte order, and the format if `descr` names it."""
    if _has_object(descr):
        what = "an object array is a pickle, and loading a pickle runs its code"
        raise unreadable("pickle-refused", what, where, help="save the codes as an unsigned integer array")
    if isinstance(descr, str):
        word, letter = _word(descr, where)
        return word, NATIVE.get((letter, word.itemsize))
    match descr:
        case list([tuple((str(name), str(words)))]):
            word, letter = _word(words, where)
            named = format_in_file(name, where)
            if letter in "ui" and word.itemsize == named.code_dtype.itemsize:
                return word, named
            help = "see refsim.files.save"
            raise unreadable("format-mismatch", f"a code of {named} is not stored as {words!r}", where, help=help)
    raise _unsupported(descr, where)


def _word(descr: str, where: str) -> tuple[np.dtype[Any], str]:
    """Return the unsigned dtype of a simple `descr` and its type letter."""
    token = _DESCR.fullmatch(descr)
    if token is None:
        raise _unsupported(descr, where)
    order, letter, size = token.groups()
    if (letter, size) != ("b", "1") and (
        letter not in "uiVf" or size not in ("1", "2", "4", "8") or (letter, size) == ("V", "8")
    ):
        raise _unsupported(descr, where)
    return np.dtype(f"{'<' if order in '|' else order}u{size}"), letter


def _has_object(descr: Any) -> bool:
    """Return whether a `descr` contains Python objects."""
    if isinstance(descr, str):
        return _OBJECT.fullmatch(descr) is not None
    return isinstance(descr, list | tuple) and any(_has_object(part) for part in descr)


def _unsupported(descr: Any, where: str) -> RefsimError:
    what = f"descr {_shown(descr)} holds no codes of a number format"
    rule = "floats of NumPy, words of 1, 2, 4 or 8 bytes, or one field named by a format"
    help = "save values as array.astype(np.float32), codes as array.astype(np.uint8), np.uint16 or np.uint32"
    return unreadable("unsupported-dtype", what, where, rule=rule, help=help)


def write(stream: BinaryIO, codes: Codes, format: ElementType) -> None:
    """Write one array in version 1.0: `<f2` and `<f4` for f16 and f32, else one field with the format's name.

    E4M3 codes have descr `[('e4m3', '|u1')]`: `np.load(path)["e4m3"]` gives the uint8 codes.
    """
    write_header(stream, codes, format)
    stream.write(codes.reshape(-1).view(np.uint8).data)


def write_header(stream: BinaryIO, codes: Codes, format: ElementType) -> None:
    """Write what precedes the codes."""
    size = codes.dtype.itemsize
    word = "|u1" if size == 1 else f"<u{size}"
    plain = format.array_dtype if format in (*NATIVE.values(), *ARRAY_TYPES) else None
    descr = [(format.name, word)] if plain is None else plain.newbyteorder("<").str
    shape = tuple(int(length) for length in codes.shape)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
