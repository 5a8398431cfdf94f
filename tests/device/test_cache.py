"""The cache of compiled code: what is a key, and processes that want one entry."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refsim.device import cache
from refsim.errors import RefsimError

ROOT = Path(__file__).resolve().parents[2]


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
