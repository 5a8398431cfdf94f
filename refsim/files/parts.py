"""Tensors of a safetensors file, a part at a time: parts fit into memory, and an interrupted write can be resumed.

A file in progress is NAME.part, at its full size, until every tensor is there; NAME.part.json lists the finished
tensors with a hash of the bytes that were read for each. A later run with equal input and options continues after them.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """An open file: its tensors by key, its metadata, and an `identity` that differs for other contents of the file
    name."""

    reader: ByteReader
    regions: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    start: int
    identity: str
    hashes: dict[str, Any] = field(default_factory=dict)  # SHA-256 of what was read since `hashed`, by key

    def rows(self, region: StoredTensor) -> tuple[int, int]:
        """Return a tensor's size as a matrix: the product of all dimensions except the last, and the last."""
        last = region.shape[-1] if region.shape else 1
        return prod(region.shape[:-1]), last

    def codes(self, region: StoredTensor, first: int, count: int) -> NDArray[Any]:
        """Return the codes (count, columns) of `count` rows from `first` on; rows fill whole bytes."""
        columns, format = self.rows(region)[1], region.format
        assert format is not None  # callers request only tensors of a known format
        bits = columns * BITS[region.dtype]
        stored = self.take(region, first * bits // 8, count * bits // 8)
        if BITS[region.dtype] < 8:
            return unpack_all(np.frombuffer(stored, np.uint8), format, count * columns, region.key).reshape(
                count, columns
            )
        kind = format.code_dtype
        return np.frombuffer(stored, kind.newbyteorder("<")).astype(kind, copy=False).reshape(count, columns)

    def take(self, region: StoredTensor, offset: int, count: int) -> bytes:
        """Return `count` bytes of a tensor from `offset` on; a tensor is read from its begin to its end."""
        self.reader.stream.seek(self.start + region.begin + offset)
        taken = bytes(ByteReader(region.key, self.reader.stream, count).take(count, f"tensor {region.key[:80]!r}"))
        if offset == 0:
            self.hashes[region.key] = hashlib.sha256()
        self.hashes[region.key].update(taken)
        return taken

    def hashed(self) -> dict[str, str]:
        """Return the hash of every tensor that was read since the last call, by key."""
        found = {key: each.hexdigest() for key, each in self.hashes.items()}
        self.hashes.clear()
        return found

    def has(self, hashes: Mapping[str, str]) -> bool:
        """Return whether the tensors of these keys still have these hashes; each is read once."""
        for region in (self.regions[key] for key in hashes if key in self.regions):
            for offset in range(0, max(1, region.end - region.begin), PIECE_BYTES):
                self.take(region, offset, min(PIECE_BYTES, region.end - region.begin - offset))
        return self.hashed() == hashes


@contextmanager
def source(path: Path) -> Iterator[TensorFile]:
    """Yield a safetensors file open for reading in parts."""
    with open_for_reading(path) as reader:
        status = os.fstat(reader.stream.fileno())
        found, metadata = regions(reader)
        start = reader.stream.tell()
        reader.stream.seek(0)
        head = hashlib.sha256(reader.stream.read(start)).hexdigest()
        yield TensorFile(reader, found, metadata, start, f"{head} {status.st_size} {status.st_mtime_ns}")


@dataclass(frozen=True)
class Planned:
    """A tensor of a file to write: its dtype and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size of the stored tensor in bytes."""
        return prod(self.shape) * BITS[self.dtype] // 8


def planned(format: Format, shape: tuple[int, ...]) -> Planned:
    """Return the dtype and shape with which codes of a format are stored."""
    return Planned(stored_dtype(format, prod(shape)), shape)


class PartFile:
    """A file that is written tensor by tensor; `done` are the keys that an earlier run has finished."""

    def __init__(self, path: Path, tensors: Mapping[str, Planned], notes: Mapping[str, str], given: TensorFile) -> None:
        """Open the part file: continue an earlier run's, or write a new header and reserve the full size. A part file
        of other options, or of a `given` file that has changed in any finished tensor, is written anew."""
        self.path, self.tensors, self.given = path, tensors, given
        stored = {key: (each.dtype, each.shape, each.size_bytes) for key, each in tensors.items()}
        head, self.offsets = header_of(stored, notes)
        self.start, self.size = len(head), len(head) + sum(each.size_bytes for each in tensors.values())
        self.part = path.with_name(path.name + ".part")
        self.journal = path.with_name(path.name + ".part.json")
        self.wishes = hashlib.sha256(head + given.identity.encode()).hexdigest()
        self.done: list[str] = []
        self.read: dict[str, str] = {}
        self._resume()
        self.stream: BinaryIO = self.part.open("r+b" if self.done else "w+b")
        if not self.done:
            self.stream.write(head)
            self.stream.truncate(self.size)

    def _resume(self) -> None:
        """Take over the finished tensors of an interrupted run with equal header, options and input.

        Size and time of the input do not decide this: `cp -p` and `rsync -t` keep the time of another file.
        """
        try:
            noted = json.loads(self.journal.read_text("utf-8"))
            same = noted["wishes"] == self.wishes and self.part.stat().st_size == self.size
            if same and noted["read"] and self.given.has(dict(noted["read"])):
                self.done, self.read = [str(key) for key in noted["done"]], dict(noted["read"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass

    def write(self, key: str, format: Format, first: int, codes: NDArray[Any]) -> None:
        """Write codes of a tensor from its element `first` on; they fill whole bytes."""
        bits = BITS[self.tensors[key].dtype]
        flat = codes.reshape(-1)
        stored = pack_all(flat, format) if bits < 8 else flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        self.write_bytes(key, first * bits // 8, np.ascontiguousarray(stored).view(np.uint8).data)

    def write_bytes(self, key: str, offset: int, content: Any) -> None:
        """Write bytes of a tensor from `offset` on."""
        self.stream.seek(self.start + self.offsets[key] + offset)
        self.stream.write(content)

    def finish(self, *keys: str) -> None:
        """Record that these tensors are complete, and what was read for them: a resumed run does not write them."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.done += keys
        self.read |= self.given.hashed()
        noted = json.dumps({"wishes": self.wishes, "done": self.done, "read": self.read}).encode()

        def fill(stream: BinaryIO) -> None:
            stream.write(noted)

        write_atomically(self.journal, fill, overwrite=True)

    def close(self, *, complete: bool) -> None:
        """Close the part file, and rename it to its final name if it is `complete`."""
        self.stream.close()
        if complete:
            self.part.replace(self.path)
            self.journal.unlink(missing_ok=True)


@contextmanager
def target(
    path: Path, tensors: Mapping[str, Planned], notes: Mapping[str, str], given: TensorFile, *, overwrite: bool
) -> Iterator[PartFile]:
    """Yield a file open for writing in parts; it takes its name when the block ends without an error."""
    if path.exists() and not overwrite:
        raise RefsimError("file-exists", "the file is already there", where=str(path), help="--overwrite replaces it")
    try:
        opened = PartFile(path, tensors, notes, given)
        complete = False
        try:
            yield opened
            complete = True
        finally:
            opened.close(complete=complete)
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise RefsimError("cannot-write", f"cannot write: {reason}", where=str(path)) from problem
