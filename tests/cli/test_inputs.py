"""Whatever stands in the place of an input file: one error, exit 3 (2 where the name is refused), and nobody waits."""

import os
import signal

import pytest

LINES = (
    "simulate {}.ptx k",
    "simulate {}.cu k",
    "simulate k.ptx k --arg {}.npy",
    "ptx coverage {}.ptx",
    "decode -t e4m3 {}.npy",
    "decode -t e4m3 {}.safetensors",
    "diff {}.npy x.npy -t bf16",
    "show {}.npz -t bf16",
    "show {}.bin -t bf16 --layout mma.m16n8k16.bf16.a",
    "show x.npy -t bf16 --scales {}.bin --scale-format e8m0",
    "layout check mma.m16n8k16.bf16.a {}.npy",
    "layout check mma.m16n8k16.bf16.a {}.csv",
    "scales shuffle nvidia_128x4 {}.bin",
    "mma --a {}.npy --b 1 --unit mma.sync",
    "kernels {}.py",
    "verify --device sim --kernels {}.py",
    "replay {}.json",
    "bringup --device sim --baseline {}.json",
)
SUFFIXES = ("ptx", "cu", "npy", "npz", "safetensors", "bin", "csv", "py", "json")
PTX = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n ret;\n}\n"


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """pipe, zero, loop, folder and nothing, under every suffix; an alarm instead of a wait without end."""
    import numpy as np

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "k.ptx").write_text(PTX)
    np.save(tmp_path / "x.npy", np.zeros((2, 32), np.uint16))
    for suffix in SUFFIXES:
        os.mkfifo(tmp_path / f"pipe.{suffix}")
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
        (tmp_path / f"loop.{suffix}").symlink_to(tmp_path / f"loop.{suffix}")
        (tmp_path / f"folder.{suffix}").mkdir()
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("line", LINES)
def test_what_is_no_file_is_one_error(refsim, strange, line):
    for what in ("pipe", "zero", "loop", "folder", "absent"):
        done = refsim(*line.format(what).split(" "))
        assert done.code in (2, 3), f"{what}: {done}"
        assert done.out == ""
        assert done.err.count("\n[") + done.err.startswith("[") == 1, f"{what}: {done.err}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_list_of_codes_is_a_file_or_no_code(refsim, strange):
    """A word that names no file is a code, and then a bad one."""
    for what in ("pipe", "zero", "loop", "folder", "absent"):
        done = refsim("decode", "-t", "e4m3", f"{what}.json")
        assert done.code in (2, 3)
        assert done.err.startswith("[")


def test_memory_that_is_not_there_is_no_bug_of_refsim(refsim, strange, monkeypatch):
    def short(*_):
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr("refsim.cli.commands.simulate.parse_argument", short)
    done = refsim("simulate", "k.ptx", "k", "--arg", "zeros:f32:4")
    assert done.code == 4
    assert done.err.startswith("[out-of-memory] this needs more memory than there is: Unable to allocate 3 TiB\n")


@pytest.mark.parametrize("word", ["zeros:f64:134217729", "zeros:u8:1073741825", "zeros:u8:99999999999999999999"])
def test_an_array_of_zeros_has_a_size_that_is_checked_first(refsim, strange, word):
    done = refsim("simulate", "k.ptx", "k", "--arg", word)
    assert (done.code, done.out) == (2, "")
    assert "at most 1073741824 bytes" in done.err
