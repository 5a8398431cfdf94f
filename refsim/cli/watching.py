"""Repetition of a command whenever a file changes: `--rerun`."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

Result = TypeVar("Result")
PAUSE = 0.3  # seconds between two looks


class Watched(Generic[Result]):
    """Iterator that runs `once`, and again whenever a file of `files` is written, created or removed.

    `files` is called after each run, since a run may find new headers. `wait` is called between two looks; a test
    passes a function that edits a file, or raises KeyboardInterrupt as Ctrl-C does. That ends the iteration and is no
    error.
    """

    def __init__(
        self,
        once: Callable[[], Result],
        files: Callable[[], Sequence[Path]],
        wait: Callable[[], None] = lambda: time.sleep(PAUSE),
        waiting: Callable[[Sequence[Path]], None] = lambda files: None,
    ) -> None:
        self.once, self.files, self.wait, self.waiting = once, files, wait, waiting

    def __iter__(self) -> Iterator[Result]:
        before: dict[Path, tuple[int, int] | None] = {}
        while True:
            before = states({*before, *self.files()})
            yield self.once()
            known = self.files()
            seen = before | {file: state for file, state in states(known).items() if file not in before}
            self.waiting(known)
            try:
                while states(seen) == seen:
                    self.wait()
            except KeyboardInterrupt:
                return


def states(
    files: "Sequence[Path] | set[Path] | dict[Path, tuple[int, int] | None]",
) -> dict[Path, tuple[int, int] | None]:
    """Return the time of the last write and the size of each file; None for a file that does not exist."""
    return {file: _state(file) for file in files}


def _state(file: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
