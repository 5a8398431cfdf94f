"""Progress of long commands on standard error: a live line on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from refsim.cli.console import takes_colour

if TYPE_CHECKING:
    from refsim.testing.campaign import Progress


@contextmanager
def reporting() -> "Iterator[Callable[[Progress], None] | None]":
    """A function to call with each campaign's Progress, or None where nobody watches."""
    if not takes_colour(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def report(progress: "Progress") -> None:
            if progress.kernel not in tasks:
                tasks[progress.kernel] = bar.add_task(progress.kernel)
            label = f"{progress.kernel} {progress.phase}"
            bar.update(
                tasks[progress.kernel],
                description=label,
                completed=progress.done,
                total=progress.planned,
            )

        yield report
