"""The cache of compiled code: what is a key, processes that want one entry, entries that are damaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refsim.device import cache
from refsim.errors import RefsimError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setattr(cache, "cache_directory", lambda: directory)
    return directory


def test_digest_separates_its_parts() -> None:
    assert cache.digest("ab", "c") != cache.digest("a", "bc")


def test_cache_refuses_what_is_no_key() -> None:
    with pytest.raises(RefsimError):
        cache.read_entry("ptx", "../outside")


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX locks: each process makes its own")
def test_processes_that_want_one_entry_make_it_once(tmp_path: Path) -> None:
    """Each of four would append a letter."""
    script = (
        "import sys, time; from refsim.device import cache\n"
        "def make():\n"
        "    open(sys.argv[1], 'a').write('x'); time.sleep(0.3)\n"
        "    return b'made'\n"
        "print(cache.entry('ptx', 'abc', make))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "made")], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(4)
    ]
    assert [run.communicate(timeout=120)[0] for run in runs] == [b"b'made'\n"] * 4
    assert (tmp_path / "made").read_text() == "x"
    assert [path.name for path in (tmp_path / "refsim" / "ptx").iterdir()] == ["abc"]


DAMAGED = {
    "truncated": lambda path: path.write_bytes(b"\0" * 31),
    "empty": lambda path: path.write_bytes(b""),
    "another checksum": lambda path: path.write_bytes(b"\0" * 32 + b"text"),
    "folder": lambda path: path.mkdir(),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "sparse terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_entry_is_made_again_and_never_waited_for(own_cache: Path, damage: str) -> None:
    folder = own_cache / "ptx"
    folder.mkdir(parents=True)
    DAMAGED[damage](folder / "abc")
    assert cache.read_entry("ptx", "abc") is None
    assert cache.entry("ptx", "abc", lambda: b"made") == b"made"
    assert cache.entry("ptx", "abc", lambda: b"again") == (b"again" if damage == "folder" else b"made")
    DAMAGED.get(damage, Path.touch)(folder / "def")
    removed = cache.clear_cache()
    assert removed == (0 if damage == "folder" else 2)
    assert cache.cache_size() == (0, 0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_lock_that_is_a_pipe_or_a_link_is_nobodys_turn(own_cache: Path, tmp_path: Path) -> None:
    folder = own_cache / "ptx"
    folder.mkdir(parents=True)
    os.mkfifo(folder / ".abc.lock")
    (tmp_path / "mine").write_text("kept")
    (folder / ".def.lock").symlink_to(tmp_path / "mine")
    assert cache.entry("ptx", "abc", lambda: b"made") == b"made"
    assert cache.entry("ptx", "def", lambda: b"made") == b"made"
    assert (tmp_path / "mine").read_text() == "kept"
