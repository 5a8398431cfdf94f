"""Bytes of files: bounded reading of regular files, atomic writing, and their errors."""

import difflib
import gc
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from refsim.errors import Kind, RefsimError

CHUNK_BYTES = 1 << 20


def unreadable(code: str, what: str, where: str, *, rule: str = "", help: str = "") -> RefsimError:
    """Return the error of a file that cannot be read: the command line exits with 3."""
    return RefsimError(code, what, where=where, rule=rule, help=help, kind=Kind.UNREADABLE)


def bytes_text(count: int) -> str:
    """Return a byte count as text: `1 byte`, `4096 bytes`."""
    return f"{count} byte{'' if count == 1 else 's'}"


_BEGINNINGS = {
    b"\x93NUMPY": "an array of NumPy (.npy)",
    b"PK\x03\x04": "a zip archive, as .npz and .whl are",
    b"\x7fELF": "an ELF file, as a cubin is",
    b"\x1f\x8b": "compressed by gzip",
}


def text_of(content: bytes, wanted: str, where: str, code: str = "unreadable-file") -> str:
    """Return `content` as text; raise for bytes that are not UTF-8.

    The error says what the file is, by its first bytes, and what is `wanted`.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        known = (what for beginning, what in _BEGINNINGS.items() if content.startswith(beginning))
        found = next(known, f"not text: byte {problem.start} is {content[problem.start]:#04x}")
        raise unreadable(code, f"the file is {found}", where, help=f"give {wanted}") from None


@dataclass
class ByteReader:
    """A stream that claims to have `left` more bytes; no memory is allocated before its bytes have been read.

    `where` names the file (and the member) in errors. A request for 10 bytes of a stream with 4 left is
    `truncated-file`.
    """

    where: str
    stream: IO[bytes]
    left: int

    def require(self, count: int, what: str) -> None:
        """Raise `truncated-file` unless the stream claims `count` more bytes."""
        if count > self.left:
            raise self._truncated(count, self.left, what)

    def take(self, count: int, what: str) -> bytearray:
        """Return the next `count` bytes, read in pieces of 1 MiB; raise `truncated-file` with both counts where they
        end early."""
        self.require(count, what)
        taken = bytearray()
        while len(taken) < count:
            piece = self.stream.read(min(CHUNK_BYTES, count - len(taken)))
            if not piece:
                raise self._truncated(count, len(taken), what)
            taken += piece
        self.left -= count
        return taken

    def _truncated(self, expected: int, found: int, what: str) -> RefsimError:
        return unreadable(
            "truncated-file",
            f"{what} is cut short: expected {bytes_text(expected)}, found {found}",
            self.where,
            help="copy the file again, or write it again: its end is missing",
        )

    def require_end(self, expected: int, what: str) -> None:
        """Raise `trailing-bytes` unless exactly `expected` bytes are left."""
        if self.left > expected:
            raise unreadable(
                "trailing-bytes",
                f"{what} ends before the file does: expected {bytes_text(expected)}, found {self.left}",
                self.where,
                rule="a file holds what its header describes and nothing after it",
                help="the file was appended to, or its shape is not the one that was written",
            )


def checked_path(path: "str | os.PathLike[str]") -> Path:
    """Return `path` as a Path; raise `wrong-type` for other types, an empty path or a NUL."""
    if not isinstance(path, str | os.PathLike):
        raise RefsimError("wrong-type", f"a path is a string or a Path, not {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text or not text:
        raise RefsimError("wrong-type", f"{text!r} cannot name a file")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as problem:
        raise RefsimError("wrong-type", f"{text!r} cannot name a file") from problem
    return Path(text)


def opened_regular(path: Path) -> BinaryIO | None:
    """Return the regular file, open for reading, or None for a pipe, a device or a folder.

    Opening never waits for a writer. The type is checked before and after opening, since another file may take the name
    between.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None


def read_whole(path: Path, most: int, what: str, *, help: str = "") -> bytes:
    """Return the bytes of a regular file of at most `most` bytes; `what` names it in errors, as "a PTX file".

    Raises RefsimError: `no-such-file`, `not-a-file` (a pipe, a device, a folder), and `too-large` before reading.
    """
    with open_for_reading(path) as reader:
        if reader.left > most:
            rule = f"at most {bytes_text(most)} are read"
            raise unreadable("too-large", f"{what} of {bytes_text(reader.left)}", str(path), rule=rule, help=help)
        return bytes(reader.take(reader.left, "the file"))


@contextmanager
def open_for_reading(path: Path) -> Iterator[ByteReader]:
    """Yield a reader of a regular file; raise for pipes, devices and directories, whose size is unknown."""
    try:
        stream = opened_regular(path)
    except (OSError, ValueError) as problem:
        help = names_near(path) if isinstance(problem, FileNotFoundError) else ""
        raise unreadable("no-such-file", f"cannot open: {_reason(problem)}", str(path), help=help) from problem
    if stream is None:
        help = "give a file in the folder" if path.is_dir() else "copy what it holds to a file"
        raise unreadable("not-a-file", "not a regular file, so its size is unknown", str(path), help=help)
    with stream:
        try:
            yield ByteReader(str(path), stream, os.fstat(stream.fileno()).st_size)
        except OSError as problem:
            raise unreadable("no-such-file", f"cannot read: {_reason(problem)}", str(path)) from problem


def names_near(path: Path, otherwise: str = "give the path of a file; the folder has no similar name") -> str:
    """Return the help for a missing file: files of its folder with similar names, or that the folder is missing."""
    try:
        names = sorted(os.listdir(path.parent)[:1000])
    except OSError:
        return f"there is no folder {path.parent}"
    close = difflib.get_close_matches(path.name[:200], names)
    return f"nearest: {', '.join(str(path.parent / each) for each in close)}" if close else otherwise


def _reason(problem: Exception) -> str:
    return (getattr(problem, "strerror", None) or str(problem)).lower()


def require_free(path: Path, *, overwrite: bool) -> None:
    """Raise RefsimError where something that is no regular file has this name, or a file without `overwrite`."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise RefsimError("not-a-file", "something that is not a regular file has this name", where=str(path))
    if os.path.exists(path) and not overwrite:
        raise RefsimError("file-exists", "the file is already there", where=str(path), help="--overwrite replaces it")


def write_atomically(path: Path, write: Callable[[BinaryIO], None], *, overwrite: bool) -> None:
    """Write a file with `write`: `path` gets the complete content, or stays unchanged.

    The bytes go to a new file of the directory, are flushed to the disk, and take the name by `os.replace`. Raises
    RefsimError `file-exists` (overwrite is False) or `cannot-write`; no partial file is left.
    """
    require_free(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))
    try:
        partial, stream = _partial_file(target.parent)
        try:
            with stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise RefsimError("cannot-write", f"cannot write: {_reason(problem)}", where=str(path)) from problem


def _partial_file(directory: Path) -> tuple[Path, io.BufferedWriter]:
    """Return a new file with a unique name; mode "x" separates two writers and obeys the umask."""
    for attempt in itertools.count():
        partial = directory / f".refsim-{os.getpid()}-{attempt}.part"
        try:
            return partial, partial.open("xb")
        except FileExistsError:
            continue
    raise AssertionError("itertools.count never ends")


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection inside the block: it would scan every small object of a long header."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
