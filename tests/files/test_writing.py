"""Writing: whole or not at all, over an older file where the caller says so."""

import gc
import os
from contextlib import suppress

import pytest

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files.access import collection_paused, write_atomically


def error_of(call: object, *arguments: object, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        call(*arguments, **options)  # type: ignore[operator]
    return caught.value


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "w.npy"
    files.save(path, [1], "e4m3")
    before = path.read_bytes()

    def fail_midway(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    problem = error_of(write_atomically, path, fail_midway, overwrite=True)
    assert problem.code == "cannot-write"
    assert "no space left" in problem.what
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["w.npy"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def interrupt(stream):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "w.npy", interrupt, overwrite=True)
    assert os.listdir(tmp_path) == []


def test_a_leftover_of_a_killed_writer_is_not_touched(tmp_path):
    leftover = tmp_path / f".refsim-{os.getpid()}-0.part"
    leftover.write_bytes(b"old")
    files.save(tmp_path / "w.npy", [1], "e4m3")
    assert leftover.read_bytes() == b"old"
    assert files.load(tmp_path / "w.npy").codes.tolist() == [1]


def test_overwriting_is_the_callers_choice(tmp_path):
    files.save(tmp_path / "w.npy", [1], "e4m3", overwrite=False)
    problem = error_of(files.save, tmp_path / "w.npy", [2], "e4m3", overwrite=False)
    assert problem.code == "file-exists"
    files.save(tmp_path / "w.npy", [3], "e4m3")
    assert files.load(tmp_path / "w.npy").codes.tolist() == [3]


def test_the_new_file_obeys_the_umask_and_follows_a_link(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    files.save(tmp_path / "link.npy", [1], "e4m3")
    assert (tmp_path / "link.npy").is_symlink()
    assert (tmp_path / "real.npy").stat().st_mode == plain.stat().st_mode


def test_places_that_cannot_be_written_or_read(tmp_path):
    (tmp_path / "d.npy").mkdir()
    assert error_of(files.save, tmp_path / "d.npy", [1], "e4m3").code == "not-a-file"
    assert error_of(files.load, tmp_path / "d.npy").code == "not-a-file"
    assert error_of(files.save, tmp_path / "none" / "w.npy", [1], "e4m3").code == "cannot-write"
    problem = error_of(files.load, tmp_path / "none.npy")
    assert (problem.code, problem.kind) == ("no-such-file", Kind.UNREADABLE)
    os.mkfifo(tmp_path / "pipe.npy")
    assert error_of(files.load, tmp_path / "pipe.npy").code == "not-a-file"


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_afterwards_as_before(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(KeyError), collection_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
