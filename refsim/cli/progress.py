"""Progress of long commands: one live line on a terminal, nothing elsewhere."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from refsim.cli.console import takes_colour

PAUSE = 0.1  # seconds between two visible lines
ERASED = "\r\x1b[K"


class Countable(Protocol):
    """A line of progress: the kernel, its phase, and how many of the planned cases are done."""

    @property
    def kernel(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def planned(self) -> int: ...


@dataclass(frozen=True)
class Passed:
    """Progress of work without a kernel: the bytes of a file, the shards of a campaign."""

    kernel: str
    phase: str
    done: int
    planned: int


@contextmanager
def reporting(stream: TextIO) -> Iterator[Callable[[Countable], None] | None]:
    """Yield a function that shows a Progress on one live line, or None where the stream is no terminal."""
    if not takes_colour(stream):
        yield None
        return
    started, shown, phase = time.monotonic(), -PAUSE, ""

    def report(progress: Countable) -> None:
        """Show the progress, at most once in PAUSE seconds within a phase."""
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


def tell(report: Callable[[Countable], None] | None, kernel: str, phase: str, done: int, planned: int) -> None:
    """Show progress without a kernel, where a terminal shows it."""
    if report is not None:
        report(Passed(kernel, phase, done, planned))


def spoken(progress: Countable, seconds: float) -> str:
    """Return the line of a progress: "fp8_amax generated 37 of 100, 0:12"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{progress.kernel} {progress.phase} {progress.done} of {progress.planned}, {minutes}:{rest:02}"
