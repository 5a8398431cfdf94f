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
    r"""Return this platform's directory for deletable files: ~/.cache/refsim on Linux.

    macOS: ~/Library/Caches/refsim. Windows: %LOCALAPPDATA%\refsim\Cache. Elsewhere $XDG_CACHE_HOME or ~/.cache. The
    directory need not exist.
    """
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / _APPLICATION / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / _APPLICATION
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # XDG: ignore a relative path in the variable.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / _APPLICATION


def digest(*parts: str | bytes) -> str:
    """Return SHA-256 in hex of the parts with their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


def read_entry(kind: str, key: str) -> bytes | None:
    """Return the bytes stored under `kind` ("ptx", "cubin", "host") and the hex `key`; None for an absent or damaged entry."""
    path = _path(kind, key)
    try:
        stored = read_whole(path, MAX_ENTRY_BYTES, "a cache entry")
    except RefsimError:  # not there, not a file, not ours to read
        return None
    checksum, content = stored[:32], stored[32:]
    return content if hashlib.sha256(content).digest() == checksum else None


def write_entry(kind: str, key: str, content: bytes) -> None:
    """Store `content` atomically; do nothing in a directory that cannot be written."""
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
    """Return the stored bytes, or call `make` and store its result.

    Processes that need an entry at the same time wait for the first of them. Without a writable directory or POSIX
    locks, each process calls `make`.
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
    """Hold the lock of one entry; delete its file afterwards."""
    path = _path(kind, key).with_name(f".{key}.lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
            held.callback(os.close, lock)
            if stat.S_ISREG(os.fstat(lock).st_mode):  # a pipe of that name is no lock
                fcntl.flock(lock, fcntl.LOCK_EX)
                held.callback(path.unlink, missing_ok=True)
        yield


def cache_size() -> tuple[int, int]:
    """Return (number of entries, their bytes)."""
    sizes = [status.st_size for _, status in _entries()]
    return len(sizes), sum(sizes)


def clear_cache() -> int:
    """Delete every entry and return their number; files outside the entries are not touched.

    Raises RefsimError `cannot-write` if an entry may not be deleted.
    """
    entries = _entries()
    for path, _ in entries:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise RefsimError("cannot-write", f"cannot delete a cache entry: {reason}", str(path)) from problem
    return len(entries)


_KINDS = ("ptx", "cubin", "host")


def _entries() -> list[tuple[Path, os.stat_result]]:
    """Return every path in the folders of entries except folders; a damaged entry may be a pipe or a dangling link.

    Another process may delete its lock meanwhile.
    """
    found = []
    for kind in _KINDS:
        for path in sorted((cache_directory() / kind).glob("*")):
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.lstat()))
    return [(path, status) for path, status in found if not stat.S_ISDIR(status.st_mode)]


def _path(kind: str, key: str) -> Path:
    if kind not in _KINDS or not key.isalnum():
        what = f"no cache entry is called {kind}/{key}"
        raise RefsimError("unknown-key", what, rule=f"kinds: {', '.join(_KINDS)}; hex keys")
    return cache_directory() / kind / key
