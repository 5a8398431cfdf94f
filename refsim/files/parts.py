"""Tensors of files, a part at a time: parts fit into memory, and an interrupted write can be resumed.

A file in progress is NAME.part, at its full size, until every tensor is there; NAME.part.json lists the finished
tensors with a hash of the bytes that were read for each. A later run with equal input and options continues after them.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.files import gguf
from refsim.files.access import ByteReader, open_for_reading, read_whole, require_free, unreadable, write_atomically
from refsim.files.codes import pack_all, unpack_all
from refsim.files.safetensors import BITS, StoredTensor, header_of, regions, stored_dtype
from refsim.formats import Format

PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class TensorFile:
    """One or several open files: the tensors by key, the metadata, and an `identity` that differs for other contents.

    `config` is what config.json beside the files says of the quantization.
    """

    path: Path
    regions: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    identity: str
    readers: Sequence[tuple[ByteReader, int]]  # of each shard, and the place where the bytes of its tensors begin
    config: Mapping[str, Any] = field(default_factory=dict)
    hashes: dict[str, Any] = field(default_factory=dict)  # SHA-256 of what was read since `hashed`, by key

    def codes(self, region: StoredTensor, first: int, count: int) -> NDArray[Any]:
        """Return the codes (count, columns) of `count` rows from `first` on; rows fill whole bytes."""
        columns, format = region.rows[1], region.format
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
        reader, start = self.readers[region.shard]
        reader.stream.seek(start + region.begin + offset)
        taken = bytes(ByteReader(region.key, reader.stream, count).take(count, f"tensor {region.key[:80]!r}"))
        if offset == 0 or region.key not in self.hashes:
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


INDEX, MOST_SHARDS, MOST_TEXT = ".safetensors.index.json", 900, 1 << 26
FOLDER_RULE = "a folder holds *.safetensors, an index of them, or one .gguf file"


@contextmanager
def source(path: Path) -> Iterator[TensorFile]:
    """Yield the tensors of a safetensors or GGUF file, of a folder with such files, or of a *.safetensors.index.json."""
    with ExitStack() as opened:
        readers: list[tuple[ByteReader, int]] = []
        found: dict[str, StoredTensor] = {}
        metadata: dict[str, str] = {}
        head = hashlib.sha256()
        for shard, (file, promised) in enumerate(_shards(path)):
            reader = opened.enter_context(open_for_reading(file))
            tensors, notes = gguf.regions(reader) if file.suffix.lower() == ".gguf" else regions(reader)
            start, status = reader.stream.tell(), os.fstat(reader.stream.fileno())
            reader.stream.seek(0)
            head.update(
                f"{hashlib.sha256(reader.stream.read(start)).hexdigest()} {status.st_size} {status.st_mtime_ns}".encode()
            )
            readers.append((reader, start))
            lost = [key for key in promised if key not in tensors]
            if lost:
                raise unreadable("bad-file", f"{file.name} has no tensor {lost[0][:80]!r}", str(path), rule=INDEX_RULE)
            for key, region in tensors.items():
                if key in found:
                    raise unreadable("bad-file", f"two files hold a tensor called {key[:80]!r}", str(file))
                found[key] = region._replace(shard=shard)
            metadata |= notes
        yield TensorFile(path, found, metadata, head.hexdigest(), readers, _config(path))


INDEX_RULE = "weight_map of an index maps each tensor to the file beside it that holds it"


def _shards(path: Path) -> list[tuple[Path, list[str]]]:
    """Return the files that hold the tensors of `path`, each with the keys that an index promises of it."""
    if path.is_dir():
        names = sorted(os.listdir(path))
        index = [name for name in names if name.endswith(INDEX)]
        files = [name for name in names if name.endswith(".safetensors")] or [x for x in names if x.endswith(".gguf")]
        if len(index) == 1:
            return _shards(path / index[0])
        if not files or len(files) > MOST_SHARDS or len(index) > 1:
            what = f"the folder holds {len(index)} indexes and {len(files)} files of tensors"
            raise unreadable("not-a-file", what, str(path), rule=FOLDER_RULE, help="give a file in the folder")
        return [(path / name, []) for name in files]
    if not path.name.endswith(".json"):
        return [(path, [])]
    fields = _json(path).get("weight_map")
    if not isinstance(fields, dict) or not fields:
        raise unreadable("bad-file", "the index has no weight_map", str(path), rule=INDEX_RULE)
    by_file: dict[str, list[str]] = {}
    for key, name in fields.items():
        if not isinstance(name, str) or name != os.path.basename(name) or not name.endswith(".safetensors"):
            raise unreadable("bad-file", f"{key[:80]!r} lies in {str(name)[:80]!r}", str(path), rule=INDEX_RULE)
        by_file.setdefault(name, []).append(key)
    if len(by_file) > MOST_SHARDS:
        raise unreadable("too-large", f"the index names {len(by_file)} files", str(path), rule=f"at most {MOST_SHARDS}")
    return [(path.parent / name, keys) for name, keys in by_file.items()]


def _json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; raise `bad-file` for anything else."""
    try:
        found = json.loads(read_whole(path, MOST_TEXT, "a JSON file"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:
        raise unreadable("bad-file", f"not JSON: {str(problem)[:120]}", str(path)) from problem
    if not isinstance(found, dict):
        raise unreadable("bad-file", f"JSON of {type(found).__name__}, not of an object", str(path))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError where it gives a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object gives a key twice")
    return found


CONFIGS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "config.json": ("", (("quantization_config",), ("text_config", "quantization_config"), ("compression_config",))),
    "hf_quant_config.json": ("modelopt", (("quantization",),)),
    "quantize_config.json": ("gptq", ((),)),
}
"""Files that describe a quantization: what quant_method is where they do not say it, and where the description lies."""


def _config(path: Path) -> dict[str, Any]:
    """Return the quantization that a file of CONFIGS beside the files describes, and its name as `file`, or nothing."""
    folder = path if path.is_dir() else path.parent
    for name, (method, ways) in CONFIGS.items():
        given = _json(folder / name) if (folder / name).is_file() else {}
        for way in ways if given else ():
            found: Any = given
            for each in way:
                found = found.get(each) if isinstance(found, dict) else None
            if isinstance(found, dict):
                return {"quant_method": method, **found, "file": name}
    return {}


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
            try:
                self.stream.write(head)
                self.stream.truncate(self.size)
            except OSError:
                self.close(complete=False)
                raise

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
        """Close the part file, and rename it to its final name if it is `complete`; remove it where nothing is done."""
        try:
            self.stream.close()
        finally:
            if not self.done:
                self.part.unlink(missing_ok=True)
        if complete:
            self.part.replace(self.path)
            self.journal.unlink(missing_ok=True)


@contextmanager
def target(
    path: Path, tensors: Mapping[str, Planned], notes: Mapping[str, str], given: TensorFile, *, overwrite: bool
) -> Iterator[PartFile]:
    """Yield a file open for writing in parts; it takes its name when the block ends without an error."""
    require_free(path, overwrite=overwrite)
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
