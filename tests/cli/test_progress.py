"""Progress of long commands: one line that replaces itself on a terminal, and nothing for a pipe."""

import io
from dataclasses import replace

import pytest

from refsim.cli import progress
from refsim.testing.campaign import Progress

AT = Progress("fp8_amax", "generated", 37, 100, 1 << 20, None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal of 20 columns on which every line is shown."""
    monkeypatch.setattr(progress, "PAUSE", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_a_line_says_what_runs_and_how_far() -> None:
    assert progress.spoken(AT, 72.9) == "fp8_amax generated 37 of 100, 1:12"


def test_each_line_takes_the_place_of_the_last_and_none_stays(terminal: Terminal) -> None:
    with progress.reporting(terminal) as report:
        assert report is not None
        report(AT)
        report(AT)
    assert terminal.getvalue() == "\r\x1b[Kfp8_amax generated " * 2 + "\r\x1b[K"


def test_a_new_phase_is_shown_at_once(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 3600)
    with progress.reporting(terminal) as report:
        assert report is not None
        for phase in ("corpus", "corpus", "suspects"):
            report(replace(AT, phase=phase))
    assert terminal.getvalue() == "\r\x1b[Kfp8_amax corpus 37 \r\x1b[Kfp8_amax suspects 3\r\x1b[K"


def test_what_nobody_would_see_is_not_written(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 3600)
    with progress.reporting(terminal) as report:
        assert report is not None
        for _ in range(3):
            report(AT)
    assert terminal.getvalue().count("fp8_amax") == 1


def interrupted(terminal: Terminal) -> None:
    with progress.reporting(terminal) as report:
        assert report is not None
        report(AT)
        raise KeyboardInterrupt


def test_the_line_goes_when_the_command_fails(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(terminal)
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_pipe_gets_nothing() -> None:
    stream = io.StringIO()
    with progress.reporting(stream) as report:
        assert report is None
    assert stream.getvalue() == ""
