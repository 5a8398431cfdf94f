"""One run of the program, and its terminal: width, color, and writing to it when the other end may be gone."""

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TextIO

from refsim.cli.spelled import count_in
from refsim.errors import RefsimError


@dataclass
class Session:
    """The arguments of this run, and whether tracebacks are wanted."""

    arguments: tuple[str, ...] = ()
    debug: bool = False

    @property
    def command_line(self) -> str:
        """Return the shell command that repeats this run."""
        return shlex.join(["refsim", *self.arguments])


_NOTES: list[str] = []


def note(line: str) -> None:
    """Keep a line that the next answer begins with, once."""
    if line not in _NOTES:
        _NOTES.append(line)


def notes() -> tuple[str, ...]:
    """Return the lines that `note` kept, and forget them."""
    found = tuple(_NOTES)
    _NOTES.clear()
    return found


def width() -> int | None:
    """Return the columns of the terminal on standard output, or None where standard output is no terminal.

    A number in COLUMNS comes first, so that a pager or a test can ask for a width.
    """
    wanted = count_in(os.environ.get("COLUMNS", ""))
    if wanted:
        return wanted
    if not is_terminal(sys.stdout):
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal; a stream that the user's code closed is none."""
    return not stream.closed and stream.isatty()


def takes_colour(stream: TextIO) -> bool:
    """Return whether a stream takes color escapes: a terminal that is not dumb, without NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def open_closed() -> None:
    """Replace standard streams that the caller closed (`>&-`, which Python shows as None) by the null device."""
    for name, mode in (("stdout", "w"), ("stderr", "w"), ("stdin", "r")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def answer(body: str) -> None:
    """Write `body` to standard output. A reader that has gone (`| head -1`) is no error."""
    _write(sys.stdout, body, "standard output")


def tell(line: str) -> None:
    """Write one line to standard error: a hint or a heading."""
    _write(sys.stderr, line + "\n", "standard error")


def tell_error(error: RefsimError) -> None:
    """Write an error's four lines to standard error, with its code in bold red where the terminal takes color."""
    record = str(error)
    if takes_colour(sys.stderr):
        label = f"[{error.code}]"
        record = f"\x1b[1;31m{label}\x1b[0m{record.removeprefix(label)}"
    tell(record)


def _write(stream: TextIO, text: str, name: str) -> None:
    if stream.closed:  # the user's Python code closed it
        if stream is sys.stderr:
            return
        raise RefsimError("cannot-write", "cannot write: it was closed", name)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        abandon(stream)
    except OSError as problem:
        abandon(stream)
        raise RefsimError(
            "cannot-write", f"cannot write: {(problem.strerror or str(problem)).lower()}", name
        ) from problem


def abandon(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the interpreter does not fail on its buffered text when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
