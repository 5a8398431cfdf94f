"""Progress of long commands: one live line on a terminal, nothing elsewhere."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from refsim.cli.console import takes_colour

if TYPE_CHECKING:
    from refsim.testing.campaign import Progress

PAUSE = 0.1  # seconds between two lines that one would see
ERASED = "\r\x1b[K"


@contextmanager
def reporting(stream: TextIO) -> "Iterator[Callable[[Progress], None] | None]":
    """A function to call with each campaign's Progress, or None where nobody watches."""
    if not takes_colour(stream):
        yield None
        return
    started, shown, phase = time.monotonic(), -PAUSE, ""

    def report(progress: "Progress") -> None:
        nonlocal shown, phase
        passed = time.monotonic() - started
        if passed - shown >= PAUSE or progress.phase != phase:
            shown, phase = passed, progress.phase
            stream.write(ERASED + spoken(progress, passed)[: shutil.get_terminal_size().columns - 1])
            stream.flush()

    try:
        yield report
    finally:
        stream.write(ERASED)
        stream.flush()


def spoken(progress: "Progress", seconds: float) -> str:
    """One line: "fp8_amax generated 37 of 100, 0:12"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{progress.kernel} {progress.phase} {progress.done} of {progress.planned}, {minutes}:{rest:02}"
