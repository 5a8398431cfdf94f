"""The .npz container: a zip archive of .npy members, read under limits that bound the cost of a hostile archive."""

import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, BinaryIO, cast

from refsim.errors import RefsimError
from refsim.files import npy
from refsim.files.access import ByteReader, unreadable
from refsim.files.codes import Codes, TensorEntry
from refsim.formats import ElementType

DIRECTORY_LIMIT_BYTES = 1 << 20
LARGEST_DEFLATE_RATIO = 1032
UNTRUSTED_RATIO, UNTRUSTED_BYTES = 100, 1 << 26
_ARCHIVE_FAULTS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, OverflowError, KeyError, IndexError, OSError),
)


@dataclass
class _Directory:
    """A stream that refuses large reads while zipfile reads the directory, whose claimed size is not trusted."""

    stream: IO[bytes]
    where: str
    reading: bool = True

    def read(self, count: int = -1) -> bytes:
        """Return at most `count` bytes; raise `unsafe-archive` for a large read of the directory."""
        if not self.reading:
            return self.stream.read(count)
        if count > DIRECTORY_LIMIT_BYTES:
            raise _unsafe(f"the directory claims {count} bytes, the limit is {DIRECTORY_LIMIT_BYTES}", self.where)
        return self.stream.read(DIRECTORY_LIMIT_BYTES if count < 0 else count)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset of the stream."""
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the stream."""
        return self.stream.tell()

    def seekable(self) -> bool:
        """Return True: zipfile requires a seekable stream."""
        return True


@contextmanager
def contents(reader: ByteReader, *, trusted: bool) -> Iterator[dict[str, Callable[[], TensorEntry]]]:
    """Yield the key of every member, and a function that reads its header.

    Refused as `unsafe-archive`: names that leave the directory, duplicate names, encrypted members, compression other
    than deflate, and sizes that deflate cannot reach (1032 to 1). Unless `trusted`, also archives whose members unpack
    to more than 64 MiB together and to more than 100 times the file's size. Nothing is extracted.
    """
    directory = _Directory(reader.stream, reader.where)
    with _faults(reader.where):
        archive = zipfile.ZipFile(cast(IO[bytes], directory))
    with archive:
        directory.reading = False
        members = archive.infolist()
        name, uses = Counter(member.filename for member in members).most_common(1)[0] if members else ("", 0)
        if uses > 1:
            raise _unsafe(f"{uses} members are called {name[:80]!r}", reader.where)
        for member in members:
            _check(member, reader)
        if not trusted:
            _require_small(members, reader)
        yield {member.filename.removesuffix(".npy"): partial(_entry, archive, member, reader) for member in members}


def _require_small(members: list[zipfile.ZipInfo], reader: ByteReader) -> None:
    """Raise where all members together unpack to far more than the file holds; overlapping bytes count once."""
    expanded, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    packed = min(packed, reader.left)  # members may lie on top of one another
    if expanded > UNTRUSTED_BYTES and expanded > UNTRUSTED_RATIO * packed:
        largest = max(members, key=lambda member: member.file_size)
        raise _unsafe(
            f"{packed} bytes expand to {expanded}, more than {UNTRUSTED_RATIO} times",
            f"{reader.where}, {len(members)} members, the largest {largest.filename[:80]!r}",
            help=f"pass max_bytes={expanded} if the file is trusted",
        )


def _check(member: zipfile.ZipInfo, reader: ByteReader) -> None:
    """Raise `unsafe-archive` for a member with an unsafe name, encryption, compression method or size."""
    name, where = member.filename, f"{reader.where}, member {member.filename[:80]!r}"
    if _leaves_archive(name):
        raise _unsafe("the name of a member leaves the archive or is not a file name", where)
    if not name.endswith(".npy"):
        raise _unsafe("a member is not an npy array", where)
    if member.flag_bits & 0x41:
        raise _unsafe("a member is encrypted", where)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _unsafe(f"a member uses compression method {member.compress_type}, not deflate", where)
    expanded, packed = member.file_size, member.compress_size
    if packed > reader.left:
        what = f"a member is cut short: expected {packed} bytes, found at most {reader.left}"
        raise unreadable("truncated-file", what, where)
    stored = member.compress_type == zipfile.ZIP_STORED
    if expanded != packed if stored else expanded > LARGEST_DEFLATE_RATIO * packed + LARGEST_DEFLATE_RATIO:
        raise _unsafe(f"{packed} bytes cannot expand to {expanded}", where)


def _leaves_archive(name: str) -> bool:
    """Return whether a member's name would be written outside the archive's directory."""
    return "\\" in name or ":" in name or any(part in ("", ".", "..") for part in name.split("/"))


def _entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, reader: ByteReader) -> TensorEntry:
    """Return the entry of a member, whose header is read now. `TensorEntry.read` opens the member again for the codes
    and closes it."""
    where = f"{reader.where}, member {member.filename[:80]!r}"
    with _faults(where), archive.open(member) as stream:
        described = npy.entry(ByteReader(where, stream, member.file_size))

    def read() -> Codes:
        with _faults(where), archive.open(member) as stream:
            return npy.entry(ByteReader(where, stream, member.file_size)).read()

    return described._replace(where=where, read=read)


@contextmanager
def _faults(where: str) -> Iterator[None]:
    """Raise every error of zipfile on a damaged archive as `bad-file`."""
    try:
        yield
    except _ARCHIVE_FAULTS as problem:
        what = f"the zip archive is damaged: {str(problem)[:120] or type(problem).__name__}"
        help = "write the file again: its directory or a member is missing or changed"
        raise unreadable("bad-file", what, where, help=help) from problem


def _unsafe(what: str, where: str, *, help: str = "") -> RefsimError:
    return unreadable("unsafe-archive", what, where, help=help)


def write(stream: BinaryIO, tensors: Mapping[str, tuple[Codes, ElementType]]) -> None:
    """Write one stored (not compressed) member `key.npy` per tensor, with a fixed date: equal tensors give equal
    files."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for key, (codes, format) in tensors.items():
            member = zipfile.ZipInfo(f"{key}.npy")
            with archive.open(member, "w", force_zip64=codes.nbytes >= 1 << 31) as opened:
                npy.write(cast(BinaryIO, opened), codes, format)


def require_key(key: str) -> None:
    """Raise `bad-key` where a member called `key`.npy could not be read again."""
    if not key.isprintable() or _leaves_archive(key):
        raise RefsimError("bad-key", f"{key!r} cannot name a member of an archive", help="use letters, digits, . and _")
