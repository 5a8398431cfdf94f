"""--rerun: a run at first and one for each change, of files that come and go too, until Ctrl-C."""

import os
from pathlib import Path

import pytest

from refsim.cli.commands.verify import Watched


class Looks:
    """What happens between two looks: one deed after another, then Ctrl-C."""

    def __init__(self, *deeds) -> None:
        self.deeds, self.looks = list(deeds), 0

    def __call__(self) -> None:
        self.looks += 1
        if not self.deeds:
            raise KeyboardInterrupt
        self.deeds.pop(0)()


def nothing() -> None:
    pass


@pytest.fixture
def header(tmp_path: Path) -> Path:
    (tmp_path / "k.cuh").write_text("one")
    return tmp_path / "k.cuh"


def rounds(header: Path, *deeds, files=None) -> tuple[int, Looks]:
    looks, runs = Looks(*deeds), []
    ran = list(Watched(lambda: runs.append(header.exists()), files or (lambda: [header]), looks))
    assert len(ran) == len(runs)
    return len(runs), looks


def test_without_a_change_there_is_one_run(header):
    runs, looks = rounds(header, nothing, nothing)
    assert (runs, looks.looks) == (1, 3)


def test_a_change_is_a_run_and_no_more(header):
    runs, looks = rounds(header, nothing, lambda: header.write_text("three"), nothing)
    assert runs == 2
    assert looks.looks == 4


def test_files_that_go_and_come_are_changes(header):
    assert rounds(header, header.unlink, lambda: header.write_text("one"))[0] == 3


def test_the_same_size_is_seen_by_the_time_it_was_written(header):
    assert rounds(header, lambda: os.utime(header, ns=(1, 1)))[0] == 2


def test_what_changes_while_it_runs_is_run_again(header):
    contents, looks = iter(["longer", "longer still"]), Looks()

    def once() -> None:
        header.write_text(next(contents, "longer still"))
        os.utime(header, ns=(1, 1))

    assert sum(1 for _ in Watched(once, lambda: [header], looks)) == 3
    assert looks.looks == 1


def test_files_that_a_run_finds_are_watched_from_then_on(header, tmp_path):
    found = tmp_path / "late.cuh"
    known = [header]

    def find() -> None:
        found.write_text("x")
        known.append(found)
        header.write_text("changed")

    assert rounds(header, find, lambda: found.write_text("xyz"), files=lambda: list(known))[0] == 3


def test_a_file_that_a_run_names_no_more_is_watched_still(header, tmp_path):
    """A source that does not compile for the moment names no header, and the next edit may be of that header."""
    other = tmp_path / "other.cuh"
    other.write_text("one")
    named = [header, other]

    def forget() -> None:
        named.remove(other)
        header.write_text("broken")

    assert rounds(header, forget, lambda: other.write_text("mended"), files=lambda: list(named))[0] == 3
