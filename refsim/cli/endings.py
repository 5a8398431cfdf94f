"""Guards of the exit code: Python code that a command runs cannot end the process of refsim."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.errors import RefsimError

RULE = "an exit code is refsim's to give: code that ends the program shows nothing"
HELP = "raise an exception where something is wrong"


def program_ended(by: str) -> RefsimError:
    """Return the error for user code that called `by` to end the program."""
    return RefsimError("program-ended", f"Python code that refsim ran called {by}", rule=RULE, help=HELP)


@contextmanager
def exits_held(*, for_good: bool) -> Iterator[None]:
    """Make os._exit raise `program-ended` meanwhile, in all threads; child processes still end as they like.

    for_good: keep it so, for code that runs while the interpreter ends.
    """
    leave, process = os._exit, os.getpid()

    def refuse(status: Any) -> None:
        """Raise `program-ended` in this process; end a child process."""
        if os.getpid() != process:
            leave(status)
        raise program_ended(f"os._exit({status!r})")

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        if not for_good:
            os._exit = leave
