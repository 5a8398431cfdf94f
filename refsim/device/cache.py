"""A content-addressed store of compiler outputs in the user's cache directory.

An entry is named by the SHA-256 of everything that decides it, so nothing in it is ever stale and deleting any file is
harmless. A directory that cannot be written costs time, never a failure.
"""

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from refsim.errors import RefsimError
from refsim.files.access import read_whole

_APPLICATION = "refsim"
MAX_ENTRY_BYTES = 1 << 28


def cache_directory() -> Path:
    """Where this platform keeps what may be deleted at any time: ~/.cache/refsim on Linux.

    macOS: ~/Library/Caches/refsim. Windows: %LOCALAPPDATA%\\refsim\\Cache. Elsewhere $XDG_CACHE_HOME or ~/.cache.
    The directory need not exist.
    """
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / _APPLICATION / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / _APPLICATION
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path in the variable is to be ignored.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / _APPLICATION


def digest(*parts: str | bytes) -> str:
    """SHA-256 in hex of the parts with their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


def read_entry(kind: str, key: str) -> bytes | None:
    """The bytes stored under `kind` ("ptx", "cubin") and the hex `key`, or None; a damaged entry counts as absent."""
    path = _path(kind, key)
    try:
        stored = read_whole(path, MAX_ENTRY_BYTES, "a cache entry")
    except RefsimError:  # not there, not a file, not ours to read
        return None
    checksum, content = stored[:32], stored[32:]
    return content if hashlib.sha256(content).digest() == checksum else None


def write_entry(kind: str, key: str, content: bytes) -> None:
    """Store `content`; readers see all of it or nothing. A directory that refuses the write is left alone."""
    path = _path(kind, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(hashlib.sha256(content).digest() + content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def entry(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """The stored bytes, else what `make` returns, stored; processes that want one entry at once wait for the first of them.

    Without a directory that can be written, or without POSIX locks, each makes its own.
    """
    stored = read_entry(kind, key)
    if stored is None:
        with _turn(kind, key):
            stored = read_entry(kind, key)
            if stored is None:
                stored = make()
                write_entry(kind, key, stored)
    return stored


@contextlib.contextmanager
def _turn(kind: str, key: str) -> Iterator[None]:
    """Holds the lock of one entry; its file goes when the work is done."""
    path = _path(kind, key).with_name(f".{key}.lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
            held.callback(os.close, lock)
            if stat.S_ISREG(os.fstat(lock).st_mode):  # a pipe of that name is nobody's turn
                fcntl.flock(lock, fcntl.LOCK_EX)
                held.callback(path.unlink, missing_ok=True)
        yield


def cache_size() -> tuple[int, int]:
    """Number of entries and their bytes."""
    sizes = [path.lstat().st_size for path in _entries()]
    return len(sizes), sum(sizes)


def clear_cache() -> int:
    """Delete every entry and return how many there were; nothing outside the entries is touched.

    Raises RefsimError `cannot-write` where one may not be deleted.
    """
    entries = _entries()
    for path in entries:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise RefsimError("cannot-write", f"cannot delete a cache entry: {reason}", str(path)) from problem
    return len(entries)


_KINDS = ("ptx", "cubin")


def _entries() -> list[Path]:
    """Whatever lies there and is no folder: a damaged entry may be a pipe or a link to nothing."""
    found = [path for kind in _KINDS for path in sorted((cache_directory() / kind).glob("*"))]
    return [path for path in found if not stat.S_ISDIR(path.lstat().st_mode)]


def _path(kind: str, key: str) -> Path:
    if kind not in _KINDS or not key.isalnum():
        raise RefsimError(
            "unknown-key", f"no cache entry is called {kind}/{key}", rule=f"kinds: {', '.join(_KINDS)}; hex keys"
        )
    return cache_directory() / kind / key
