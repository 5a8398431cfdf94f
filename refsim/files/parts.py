"""Tensors of a safetensors file, a part at a time: what is read fits the memory, what is written survives being stopped.

A file that is written stands beside its name as NAME.part, at its full size, until every tensor is there; NAME.part.json
says which are. Who begins again with the same input and the same wishes goes on after them.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.files.access import ByteReader, open_for_reading, write_atomically
from refsim.files.codes import pack_all, unpack_all
from refsim.files.safetensors import BITS, StoredTensor, header_of, regions, stored_dtype
from refsim.formats import Format

PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class TensorFile:
    """An open file: its tensors by key, its metadata, and what tells it from another file of the same name."""

    reader: ByteReader
    regions: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    start: int
    identity: str

    def rows(self, region: StoredTensor) -> tuple[int, int]:
        """A tensor as a matrix: all dimensions but the last, and the last."""
        last = region.shape[-1] if region.shape else 1
        return prod(region.shape[:-1]), last

    def codes(self, region: StoredTensor, first: int, count: int) -> NDArray[Any]:
        """The codes of `count` rows from `first` on; rows fill whole bytes."""
        columns, format = self.rows(region)[1], region.format
        assert format is not None  # only tensors whose format is known are asked for
        bits = columns * BITS[region.dtype]
        stored = self.take(region, first * bits // 8, count * bits // 8)
        if BITS[region.dtype] < 8:
            return unpack_all(np.frombuffer(stored, np.uint8), format, count * columns, region.key).reshape(
                count, columns
            )
        kind = format.code_dtype
        return np.frombuffer(stored, kind.newbyteorder("<")).astype(kind, copy=False).reshape(count, columns)

    def take(self, region: StoredTensor, offset: int, count: int) -> bytes:
        """`count` bytes of a tensor from `offset` on."""
        self.reader.stream.seek(self.start + region.begin + offset)
        return bytes(ByteReader(region.key, self.reader.stream, count).take(count, f"tensor {region.key[:80]!r}"))


@contextmanager
def source(path: Path) -> Iterator[TensorFile]:
    """A safetensors file open for reading in parts."""
    with open_for_reading(path) as reader:
        status = os.fstat(reader.stream.fileno())
        found, metadata = regions(reader)
        start = reader.stream.tell()
        reader.stream.seek(0)
        head = hashlib.sha256(reader.stream.read(start)).hexdigest()
        yield TensorFile(reader, found, metadata, start, f"{head} {status.st_size} {status.st_mtime_ns}")


@dataclass(frozen=True)
class Planned:
    """A tensor that will stand in a file: how it is stored, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * BITS[self.dtype] // 8


def planned(format: Format, shape: tuple[int, ...]) -> Planned:
    """How codes of a format are stored."""
    return Planned(stored_dtype(format, prod(shape)), shape)


class PartFile:
    """A file that is written tensor by tensor; `done` are those that an earlier run has finished."""

    def __init__(self, path: Path, tensors: Mapping[str, Planned], notes: Mapping[str, str], wishes: str) -> None:
        self.path, self.tensors = path, tensors
        stored = {key: (each.dtype, each.shape, each.size_bytes) for key, each in tensors.items()}
        head, self.offsets = header_of(stored, notes)
        self.start, self.size = len(head), len(head) + sum(each.size_bytes for each in tensors.values())
        self.part = path.with_name(path.name + ".part")
        self.journal = path.with_name(path.name + ".part.json")
        self.wishes = hashlib.sha256(head + wishes.encode()).hexdigest()
        self.done: list[str] = self._resumed()
        self.stream: BinaryIO = self.part.open("r+b" if self.done else "w+b")
        if not self.done:
            self.stream.write(head)
            self.stream.truncate(self.size)

    def _resumed(self) -> list[str]:
        try:
            noted = json.loads(self.journal.read_text("utf-8"))
            if noted["wishes"] == self.wishes and self.part.stat().st_size == self.size:
                return [str(key) for key in noted["done"]]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return []

    def write(self, key: str, format: Format, first: int, codes: NDArray[Any]) -> None:
        """Codes of a tensor from its element `first` on; they fill whole bytes."""
        bits = BITS[self.tensors[key].dtype]
        flat = codes.reshape(-1)
        stored = pack_all(flat, format) if bits < 8 else flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        self.write_bytes(key, first * bits // 8, np.ascontiguousarray(stored).view(np.uint8).data)

    def write_bytes(self, key: str, offset: int, content: Any) -> None:
        """Bytes of a tensor from `offset` on."""
        self.stream.seek(self.start + self.offsets[key] + offset)
        self.stream.write(content)

    def finish(self, *keys: str) -> None:
        """These tensors are there: a run that is stopped after this does not write them again."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.done += keys
        noted = json.dumps({"wishes": self.wishes, "done": self.done}).encode()

        def fill(stream: BinaryIO) -> None:
            stream.write(noted)

        write_atomically(self.journal, fill, overwrite=True)

    def close(self, *, complete: bool) -> None:
        """Takes the name where everything is there; else the part stays."""
        self.stream.close()
        if complete:
            self.part.replace(self.path)
            self.journal.unlink(missing_ok=True)


@contextmanager
def target(
    path: Path, tensors: Mapping[str, Planned], notes: Mapping[str, str], wishes: str, *, overwrite: bool
) -> Iterator[PartFile]:
    """A file open for writing in parts; it has its name once the block ends without an error."""
    if path.exists() and not overwrite:
        raise RefsimError("file-exists", "the file is already there", where=str(path), help="--overwrite replaces it")
    try:
        opened = PartFile(path, tensors, notes, wishes)
        complete = False
        try:
            yield opened
            complete = True
        finally:
            opened.close(complete=complete)
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise RefsimError("cannot-write", f"cannot write: {reason}", where=str(path)) from problem
