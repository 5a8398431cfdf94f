"""The verdicts of campaigns in the running test, for pytest's report; each test starts with an empty list."""

from typing import Any

MOST = 100
verdicts: list[Any] = []


def tell(verdict: Any) -> None:
    """Record the verdict of a finished campaign; only the latest are kept."""
    verdicts.append(verdict)
    del verdicts[:-MOST]


def forget() -> None:
    """Delete the recorded verdicts at the start of a test."""
    verdicts.clear()
