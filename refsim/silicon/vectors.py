"""Recorded hardware results as small files that replay without a GPU, and the digest that the files use.

The input space of an instruction on float32 has 2^32 patterns. They are recorded in 65,536 chunks of 65,536: chunk c
holds the patterns whose upper half is c, and one 64-bit word stands for its results r(0) .. r(65535):

    digest = sum over i of weight(i) * r(i)  mod 2^64,    weight(i) = splitmix64(i) with its lowest bit set

A 64-bit result counts as two 32-bit words, the upper one with weight(65536 + i): above bit 31 a weight has too few bits
to distinguish many equal errors. The weights are odd, so every single wrong result changes the digest. They all differ,
so order counts. The sum is linear: `locate` finds a single wrong result from two digests, and neighboring chunks of a
piecewise linear function differ by few distinct words, which the file stores. Worked number: the digest of 65,536
results of 1 is 0xcbff58fb1c827bb2.
"""

import hashlib
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bundled import bundled
from refsim.errors import Kind, RefsimError, unknown

CHUNK = 1 << 16
PARTNER = 0x2545F491
"""The second operand of a recorded pair is pattern ^ PARTNER: a permutation of all float32 patterns."""
PARTNER_F16 = 0x5A35
"""The upper half of a recorded f16x2 is pattern ^ PARTNER_F16."""
_RECORDED_FIRST = ("h200",)
"""Devices whose arrays other devices' arrays are compared with."""


def splitmix64(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a fixed one-to-one mixing of 64-bit words: splitmix64(0) = 0xe220a8397b1dcdaf."""
    z = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@cache
def weights() -> NDArray[np.uint64]:
    """Return weight(0) .. weight(131071), read-only: weight(0) = 0xe220a8397b1dcdaf; the second half is for upper
    words."""
    table = splitmix64(np.arange(2 * CHUNK, dtype=np.uint64)) | np.uint64(1)
    table.setflags(write=False)
    return table


def digest(results: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    """Return the digest of each chunk: unsigned integers of shape (..., 65536) give uint64 of shape (...)."""
    if results.ndim == 0 or results.shape[-1] != CHUNK or results.dtype.kind != "u":
        what = f"a digest is taken of 65536 unsigned integers, not of shape {results.shape} {results.dtype}"
        raise RefsimError("bad-shape", what, help="give register bits, 65536 along the last axis")
    low, high = weights()[:CHUNK], weights()[CHUNK:]
    if results.dtype.itemsize < 8:
        return np.asarray(np.einsum("...i,i->...", results.astype(np.uint64), low))
    words = results.astype(np.uint64)
    lower = np.einsum("...i,i->...", words & np.uint64(0xFFFFFFFF), low)
    upper = np.einsum("...i,i->...", words >> np.uint64(32), high)
    return np.asarray(np.add(lower, upper))  # the ufunc wraps silently, + on scalars would warn


def locate(got: int, want: int) -> tuple[int, int] | None:
    """Return (index, got - want) where two chunks differ in one result only, for results of up to 32 bits.

    The difference of the digests is weight(index) * (got - want); a quotient below 2^32 by chance has odds of 2^-15.
    Returns None if the digests are equal or no single result explains them.
    """
    difference = (int(got) - int(want)) % (1 << 64)
    if difference == 0:
        return None
    quotients = _inverse_weights() * np.uint64(difference)
    small = np.flatnonzero((quotients < np.uint64(1 << 32)) | (quotients > np.uint64((1 << 64) - (1 << 32))))
    if small.size == 0:
        return None
    sizes = [min(int(q), (1 << 64) - int(q)) for q in quotients[small]]
    index = int(small[int(np.argmin(sizes))])
    quotient = int(quotients[index])
    return index, quotient if quotient < 1 << 63 else quotient - (1 << 64)


@cache
def _inverse_weights() -> NDArray[np.uint64]:
    """Return 1 / weight(i) mod 2^64 by Newton's iteration: each step doubles the correct bits, and x * x = 1 mod 8."""
    odd = weights()[:CHUNK]
    inverse = odd.copy()
    for _ in range(5):
        inverse *= np.uint64(2) - odd * inverse
    return inverse


def chunk_patterns(chunk: int) -> NDArray[np.uint32]:
    """Return the 65,536 patterns of one chunk: chunk 0x3f80 begins with 0x3f800000, which is 1.0."""
    if not 0 <= chunk < CHUNK:
        raise RefsimError("out-of-range", f"there is no chunk {chunk}", rule="chunks are 0 to 65535")
    return (np.uint32(chunk) << np.uint32(16)) | np.arange(CHUNK, dtype=np.uint32)


def pack_digests(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the differences of neighboring digests mod 2^64, which a file stores because they repeat."""
    return np.diff(digests, prepend=np.uint64(0))


def unpack_digests(differences: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the inverse of pack_digests: running sums mod 2^64."""
    return np.cumsum(differences, dtype=np.uint64)


@dataclass(frozen=True)
class Recording:
    """The results of one instruction: `arrays` by key, `facts` its entry of the sidecar (opcode, operands, SASS
    ...)."""

    name: str
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def vectors_folder(device: str = "h200") -> Path:
    """Return the folder of one device's recordings, in the installed package or else in the checkout."""
    recordings = bundled("conformance/vectors")
    if not (recordings / device).is_dir():
        raise unknown("recorded device", device, sorted(path.name for path in recordings.iterdir() if path.is_dir()))
    return recordings / device


MAX_UNPACKED_BYTES = 1 << 28


def sidecar(stem: str, device: str = "h200") -> dict[str, Any]:
    """Return the facts next to the arrays: device, driver, compiler, flags, hashes, date and one entry per recording.

    A device whose results equal another's has no arrays of its own: `equal_to` names the other device, whose entries
    apply; `left_out` lists the entries of times instead of results.
    """
    path = vectors_folder(device) / f"{stem}.json"
    if not path.is_file():
        raise unknown("recording file", stem, sorted(p.stem for p in path.parent.glob("*.json")))
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise _damaged(path, problem) from problem
    if isinstance(content, dict) and content.get("equal_to") in _RECORDED_FIRST and content["equal_to"] != device:
        content["recordings"] = sidecar(stem, content["equal_to"])["recordings"]
    if not isinstance(content, dict) or not isinstance(content.get("recordings"), dict):
        raise RefsimError("bad-file", f"{path.name} has no recordings", where=str(path), kind=Kind.UNREADABLE)
    return content


def _damaged(path: Path, problem: Exception) -> RefsimError:
    what = f"{path.name} is damaged: {type(problem).__name__}: {str(problem)[:200]}"
    return RefsimError("bad-file", what, where=str(path), help="reinstall refsim", kind=Kind.UNREADABLE)


def recorded_devices(stem: str) -> tuple[str, ...]:
    """Return the devices with arrays of a recording file of their own; none is no error. recorded_devices("cublaslt")
    is ("h100", "h200"), where both have their own."""
    try:
        folder = bundled("conformance/vectors")
    except RefsimError:
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if arrays_file(path, stem).is_file()))


def recordings(stem: str, device: str = "h200") -> dict[str, Recording]:
    """Return every recording of `<stem>.npz` (or .npz.xz) by name, with unpacked digests.

    A device whose results equal another's has the other's recordings; RefsimError `bad-file` where their hash no
    longer fits the sidecar. Arrays are plain unsigned integers. Key "digests": uint64, one per chunk; "results": one
    per 16-bit input; for scalar forms "operand0" .. and "result" are the columns of a table.
    """
    content = sidecar(stem, device)
    if "equal_to" in content:
        apart = content.get("left_out", [])
        found = {name: row for name, row in recordings(stem, content["equal_to"]).items() if name not in apart}
        if arrays_sha256(found) != content.get("arrays_sha256"):
            path = vectors_folder(device) / f"{stem}.json"
            raise _damaged(path, ValueError(f"the arrays of {content['equal_to']} are not those that it was equal to"))
        return found
    opened = Shelf(stem, device)
    return opened.take(opened.rows)


class Shelf:
    """The recordings of one file, read one by one: the file stays in memory, its members are not unpacked.

    `rows` are the sidecar's entries, `chips` its device and the devices with equal results. Raises RefsimError
    `bad-file` where either file is damaged.
    """

    def __init__(self, stem: str, device: str = "h200") -> None:
        """Open the recordings of a device."""
        facts = sidecar(stem, device)
        self.rows: dict[str, Any] = facts["recordings"]
        folder = vectors_folder(device)
        others = (each.parent.name for each in sorted(folder.parent.glob(f"*/{stem}.json")) if each.parent != folder)
        equal = (sidecar(stem, other) for other in others)
        names = [facts.get("device", device), *(each["device"] for each in equal if each.get("equal_to") == device)]
        self.chips = " and ".join(map(str, names))
        self.path = arrays_file(folder, stem)
        with _named_if_damaged(self.path):
            self._stored = np.load(unpacked(self.path), allow_pickle=False)

    def take(self, names: Iterable[str]) -> dict[str, Recording]:
        """Return some recordings by name."""
        with _named_if_damaged(self.path):
            return _joined({name: self.rows[name] for name in names}, self._stored)


@cache
def shelf(stem: str, device: str) -> Shelf:
    """Return the open recordings of a device, kept for the life of the process."""
    return Shelf(stem, device)


@contextmanager
def _named_if_damaged(path: Path) -> Iterator[None]:
    """Raise every error of reading inside the block as `bad-file` of the file."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, MemoryError) as problem:
        raise _damaged(path, problem) from problem
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, TokenError) as problem:
        raise _damaged(path, problem) from problem
    except lzma.LZMAError as problem:
        raise _damaged(path, problem) from problem


def arrays_file(folder: Path, stem: str) -> Path:
    """Return the file of a recording's arrays: <stem>.npz.xz if it is there, else <stem>.npz."""
    packed = folder / f"{stem}.npz.xz"
    return packed if packed.is_file() else folder / f"{stem}.npz"


def unpacked(path: Path) -> BytesIO:
    """Return an npz file in memory, decompressed from .npz.xz. Raises lzma.LZMAError for a damaged file, and beyond 256
    MiB."""
    content = path.read_bytes()
    if path.suffix != ".xz":
        return BytesIO(content)
    reader = lzma.LZMADecompressor(memlimit=MAX_UNPACKED_BYTES)
    found = reader.decompress(content, MAX_UNPACKED_BYTES)
    if not reader.eof:
        raise lzma.LZMAError("the stream does not end")
    return BytesIO(found)


def arrays_sha256(found: Mapping[str, Recording]) -> str:
    """Return SHA-256 over every array of a recording file by name, to compare with another device's."""
    state = hashlib.sha256()
    for name, recording in sorted(found.items()):
        for key, array in sorted(recording.arrays.items()):
            state.update(f"{name} {key} {array.dtype.str} {array.shape}\n".encode())
            state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _joined(rows: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> dict[str, Recording]:
    """Return the recordings of some entries; entries may share a stored array."""
    found: dict[str, Recording] = {}
    cached: dict[str, NDArray[Any]] = {}
    for name, facts in rows.items():
        arrays = {}
        for key, member in facts["arrays"].items():
            if member not in cached:
                cached[member] = stored[member]
            arrays[key] = unpack_digests(cached[member]) if key == "digests" else cached[member]
        found[name] = Recording(name, facts, arrays)
    return found
