"""One run of the program, and its terminal: width, colour, and writing to it when the other end may be gone."""

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
        """What a shell takes to run this again."""
        return shlex.join(["refsim", *self.arguments])


def width() -> int | None:
    """Columns of the terminal on standard output, or None where the output is not read on one.

    COLUMNS, where it is set to a number, comes first, so that a pager or a test can ask for a width.
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
    """Whether somebody reads along; a stream that the user's code closed is no terminal."""
    return not stream.closed and stream.isatty()


def takes_colour(stream: TextIO) -> bool:
    """Whether escapes are welcome: a terminal that is not dumb, and no NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def open_closed() -> None:
    """Lets a standard output or error that the caller closed (`>&-`; Python has None there) swallow what is written, and a
    standard input be empty."""
    for name, mode in (("stdout", "w"), ("stderr", "w"), ("stdin", "r")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def answer(body: str) -> None:
    """`body` on standard output. When the reader has gone (`| head -1`) the rest is not an error."""
    _write(sys.stdout, body, "standard output")


def tell(line: str) -> None:
    """A line beside the answer: hints and headings go to standard error."""
    _write(sys.stderr, line + "\n", "standard error")


def tell_error(error: RefsimError) -> None:
    """An error's four lines on standard error, its code in bold red where the terminal takes colour."""
    record = str(error)
    if takes_colour(sys.stderr):
        label = f"[{error.code}]"
        record = f"\x1b[1;31m{label}\x1b[0m{record.removeprefix(label)}"
    tell(record)


def _write(stream: TextIO, text: str, name: str) -> None:
    if stream.closed:  # by Python code of the user's
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
    """Sends what is still buffered nowhere, so that the interpreter does not fail over it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
