"""Codes in and out of npy, npz, safetensors and raw files: the format is never lost, nothing is unpickled.

The suffix chooses the container: .npy, .npz, .safetensors, .bin or .raw (.bin and .raw are equal). npy and npz keep the
format as the field name of a structured array, `[('e4m3', '|u1')]`, and f16 and f32 as float16 and float32. safetensors
keeps it as its dtype, or as `refsim.format.<key>` in `__metadata__` where it has no such dtype. raw keeps no format. A
file from another program with plain uint8, uint16 or uint32 elements needs `format=`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from refsim.errors import Kind, RefsimError
from refsim.files import npy, npz, raw, safetensors
from refsim.files.access import checked_path, collection_paused, open_for_reading, unreadable, write_atomically
from refsim.files.codes import (
    Codes,
    Stored,
    TensorEntry,
    agreed_format,
    codes_to_store,
    element_count,
    requested_format,
    require_codes_in_range,
    require_room,
)
from refsim.formats import ElementType, Format
from refsim.typed_arrays import format_held, integer_bits

__all__ = ["DEFAULT_MAX_BYTES", "Stored", "load", "load_all", "save", "save_all"]
__dir__ = partial(sorted, __all__)


DEFAULT_MAX_BYTES = 1 << 32
SUFFIXES = {".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".bin": "raw", ".raw": "raw"}
_Contents = tuple[dict[str, Callable[[], TensorEntry]], dict[str, str]]


def load(
    path: "str | os.PathLike[str]",
    format: "str | ElementType | None" = None,
    *,
    key: str | None = None,
    shape: tuple[int, ...] | None = None,
    offset: int = 0,
    max_bytes: int | None = None,
) -> Stored:
    """Return one tensor of a file, as codes.

    `format` is needed where the file does not name it, and must agree where it does. Signed integers and float64 are read
    by their dtype (s8 to s64, f64); unsigned ones may be codes, so that "u8" is named too. `key` chooses among several
    tensors (npz, safetensors). `shape` and `offset` (bytes to skip) are for raw files. `max_bytes` bounds the codes, by
    default 4 GiB; giving it also accepts an npz file that unpacks to more than 64 MiB and 100 times its size. A 16-byte
    raw file read as "bf16" is 8 uint16 codes. Peak memory is about twice the codes; sizes in a header are checked
    before memory is allocated.

    Raises RefsimError, exit 2: format-needed, format-mismatch, key-needed, unknown-key, unknown-suffix; exit 3:
    truncated-file, trailing-bytes, bad-file, bad-shape, too-large, unsupported-dtype,
    pickle-refused, unsafe-archive, out-of-range, no-such-file, not-a-file. Source: NumPy,
    numpy.lib.format; PKWARE, APPNOTE (zip); safetensors, format.
    """
    file, requested, room = checked_path(path), requested_format(format), _room(max_bytes)
    container = _container(file)
    if container != "raw" and (shape is not None or offset != 0):
        raise RefsimError("usage", f"shape= and offset= describe raw files; {container} has its own header")
    trusted = max_bytes is not None
    opening = _opened(
        file, container, requested, shape=_checked_shape(shape), offset=_checked_offset(offset), trusted=trusted
    )
    with opening as (found, metadata):
        chosen = _chosen_key(found, key, file, container)
        codes, row = codes_of(found[chosen](), requested, room)
        return Stored(chosen, codes, row, container, MappingProxyType(dict(metadata)))


def load_all(
    path: "str | os.PathLike[str]",
    format: "str | Format | Mapping[str, str | Format] | None" = None,
    *,
    max_bytes: int | None = None,
) -> dict[str, Stored]:
    """Return every tensor of a file by its key, in the order of the file; `max_bytes` bounds the sum of their codes.

    `format` is one format for all, or a map from key to format for tensors whose format the file does not name. A
    safetensors file with `w` in F4 and `s` in F8_E8M0 gives {"w": E2M1 codes, "s": E8M0 codes}. Raises RefsimError as
    `load` does. Source: as load.
    """
    file, room = checked_path(path), _room(max_bytes)
    container = _container(file)
    by_key = {key: requested_format(name) for key, name in format.items()} if isinstance(format, Mapping) else None
    for_all = None if isinstance(format, Mapping) else requested_format(format)
    first = next(iter(by_key.values()), None) if by_key else for_all
    opening = _opened(file, container, first, shape=None, offset=0, trusted=max_bytes is not None)
    with opening as (found, metadata):
        for key in by_key or ():
            _require_known(key, found, file)
        tensors, notes = {}, MappingProxyType(dict(metadata))
        with collection_paused():
            for key, describe in found.items():
                wanted = by_key.get(key) if by_key is not None else for_all
                codes, row = codes_of(describe(), wanted, room)
                tensors[key] = Stored(key, codes, row, container, notes)
                room -= codes.nbytes
        return tensors


def save(
    path: "str | os.PathLike[str]",
    codes: ArrayLike,
    format: "str | Format | None" = None,
    *,
    key: str = "x",
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = True,
) -> None:
    """Write one tensor of codes; the complete file appears, or no file.

    `codes`: unsigned integers, one per element, of any shape, or an array of ml_dtypes, float16 or float32, whose dtype
    gives the format. `key` names the tensor in npz and safetensors, `metadata` is kept by safetensors only.
    save("w.npy", [0x7e], "e4m3") writes the field ('e4m3', '|u1'). Raises RefsimError, exit 2: wrong-type,
    out-of-range, bad-key, bad-metadata, file-exists, cannot-write. Source: as load.
    """
    container = _container(checked_path(path))
    if key != "x" and container in ("npy", "raw"):
        what = f"the key {key!r} would be lost: {container} has no keys"
        raise RefsimError("bad-key", what, help="save as .npz or .safetensors")
    save_all(path, {key: codes if format is None else (codes, format)}, metadata=metadata, overwrite=overwrite)


def save_all(
    path: "str | os.PathLike[str]",
    tensors: "Mapping[str, tuple[ArrayLike, str | Format] | Stored | ArrayLike]",
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = True,
) -> None:
    """Write several tensors to one file; npy and raw hold exactly one.

    Each tensor is (codes, format), an array of ml_dtypes, float16 or float32, or a `Stored` of load_all.
    save_all("w.safetensors", {"w": (codes, "e2m1"), "s": (scales, "e8m0")}). Raises RefsimError as `save` does. Source:
    as load.
    """
    file = checked_path(path)
    container = _container(file)
    checked = {_checked_key(key, container): _to_store(tensor) for key, tensor in tensors.items()}
    if container in ("npy", "raw") and len(checked) != 1:
        what = f"{container} holds one tensor, not {len(checked)}"
        raise RefsimError("bad-key", what, where=str(file), help="save as .npz or .safetensors")
    if metadata and container != "safetensors":
        raise RefsimError("bad-metadata", f"{container} keeps no metadata", help="save as .safetensors")
    safetensors.require_metadata(metadata or {})
    write_atomically(file, partial(_write, container, checked, metadata or {}), overwrite=overwrite)


def _write(
    container: str, tensors: Mapping[str, tuple[Codes, ElementType]], metadata: Mapping[str, str], stream: BinaryIO
) -> None:
    """Write the tensors to a stream in the given container."""
    match container:
        case "npz":
            npz.write(stream, tensors)
        case "safetensors":
            safetensors.write(stream, tensors, metadata)
        case _:
            codes, format = next(iter(tensors.values()))
            (npy if container == "npy" else raw).write(stream, codes, format)


def _to_store(tensor: Any) -> tuple[Codes, ElementType]:
    """Return the checked codes and the format of one tensor of `save_all`."""
    if isinstance(tensor, Stored):
        tensor = (tensor.codes, tensor.format)
    if isinstance(tensor, np.ndarray | np.generic):
        tensor = (np.asarray(tensor), format_held(tensor.dtype))
    if not isinstance(tensor, tuple) or len(tensor) != 2:
        what = f"a tensor is (codes, format), an array of ml_dtypes or a Stored, not {type(tensor).__name__}"
        raise RefsimError("wrong-type", what)
    codes, format = tensor
    row = requested_format(format)
    if row is None and isinstance(codes, np.ndarray) and integer_bits(codes.dtype) is not None:
        what = f"{codes.dtype.name} holds integers, codes of no number format"
        help = "numpy.save(path, array.astype(numpy.int8)) keeps their values"
        raise RefsimError("wrong-type", what, rule="a file names the format of its codes", help=help)
    if row is None:
        raise RefsimError("format-needed", "codes without a format cannot be saved", help="pass format=")
    return codes_to_store(codes, row), row


def _checked_key(key: str, container: str) -> str:
    """Return the key; raise `bad-key` where the container cannot hold it."""
    if not isinstance(key, str):
        raise RefsimError("bad-key", f"a key is text, not {type(key).__name__}")
    if container == "npz":
        npz.require_key(key)
    if container == "safetensors":
        safetensors.require_key(key)
    return key


@contextmanager
def _opened(
    file: Path,
    container: str,
    requested: ElementType | None,
    *,
    shape: tuple[int, ...] | None,
    offset: int,
    trusted: bool,
) -> Iterator[_Contents]:
    """Yield how to read each tensor, by key, and the metadata; the file stays open inside the block."""
    with open_for_reading(file) as reader:
        match container:
            case "npy":
                yield {file.stem: partial(npy.entry, reader)}, {}
            case "npz":
                with npz.contents(reader, trusted=trusted) as found:
                    yield found, {}
            case "safetensors":
                yield safetensors.contents(reader)
            case _:
                format = raw.require_format(requested, str(file))
                reader.require(offset, "what lies before the offset")
                reader.stream.seek(offset)
                reader.left -= offset
                yield {file.stem: partial(raw.entry, reader, format, shape)}, {}


def codes_of(entry: TensorEntry, requested: ElementType | None, room: int) -> tuple[Codes, ElementType]:
    """Return the codes of an entry and their format, after checks of size and range."""
    format = agreed_format(entry, requested)
    count = element_count(entry.shape, entry.where)
    if count:
        require_room(count * format.code_dtype.itemsize, room, entry.where)
    codes = entry.read()
    if count:
        require_codes_in_range(codes, format, entry.where)
    return codes, format


def _container(file: Path) -> str:
    """Return the container of a file's suffix; raise `unknown-suffix`."""
    container = SUFFIXES.get(file.suffix.lower())
    if container is None:
        what = f"the suffix {file.suffix!r} chooses no container"
        raise RefsimError("unknown-suffix", what, where=str(file), help=f"one of {', '.join(SUFFIXES)}")
    return container


def _chosen_key(found: Mapping[str, Any], key: str | None, file: Path, container: str) -> str:
    """Return the key of the tensor to read; raise where it is unknown, or left out of a file with several tensors."""
    if key is not None:
        if container in ("npy", "raw"):
            raise RefsimError("unknown-key", f"{container} has no keys, so none is called {key!r}", where=str(file))
        _require_known(key, found, file)
        return key
    if not found:
        raise unreadable("empty-file", "the file holds no tensor", str(file))
    if len(found) > 1:
        what = f"the file holds {len(found)} tensors"
        rule = f"its tensors are {_names(found)}"
        raise RefsimError("key-needed", what, where=str(file), rule=rule, help="pass key=, or use load_all")
    return next(iter(found))


def _require_known(key: str, found: Mapping[str, Any], file: Path) -> None:
    if key not in found:
        what = f"no tensor is called {key!r}"
        raise RefsimError("unknown-key", what, where=str(file), help=f"the file has {_names(found)}")


def _names(found: Mapping[str, Any]) -> str:
    shown = [repr(name[:80]) for name in list(found)[:8]]
    return ", ".join(shown) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def _room(max_bytes: int | None) -> int:
    if max_bytes is None:
        return DEFAULT_MAX_BYTES
    if type(max_bytes) is not int or max_bytes < 0:
        raise RefsimError("wrong-type", f"max_bytes is a count of bytes, not {max_bytes!r}")
    return max_bytes


def _checked_offset(offset: int) -> int:
    if type(offset) is not int or offset < 0:
        raise RefsimError("wrong-type", f"offset is a count of bytes, not {offset!r}")
    return offset


def _checked_shape(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    if not isinstance(shape, tuple | list) or any(type(size) is not int for size in shape):
        raise RefsimError("bad-shape", f"shape is a tuple of integers, not {shape!r}")
    element_count(tuple(shape), "shape=", kind=Kind.USAGE)
    return tuple(shape)
