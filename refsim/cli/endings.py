"""The exit code is refsim's to give: Python code that a command runs does not end this process by itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.errors import RefsimError

RULE = "an exit code is refsim's to give: code that ends the program shows nothing"
HELP = "raise an exception where something is wrong"


def program_ended(by: str) -> RefsimError:
    """The error of code that wanted to end the program: `by` is the call."""
    return RefsimError("program-ended", f"Python code that refsim ran called {by}", rule=RULE, help=HELP)


@contextmanager
def exits_held(*, for_good: bool) -> Iterator[None]:
    """Meanwhile os._exit raises `program-ended`, in threads too; children of this process end as they like.

    for_good: it stays so, for what runs while the interpreter ends.
    """
    leave, process = os._exit, os.getpid()

    def refuse(status: Any) -> None:
        if os.getpid() != process:
            leave(status)
        raise program_ended(f"os._exit({status!r})")

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        if not for_good:
            os._exit = leave
