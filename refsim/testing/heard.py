"""What campaigns of the running test have shown, for the report of pytest: they tell it here, and each test begins anew."""

from typing import Any

MOST = 100
verdicts: list[Any] = []


def tell(verdict: Any) -> None:
    """A campaign ended with this verdict; of many the latest are kept."""
    verdicts.append(verdict)
    del verdicts[:-MOST]


def forget() -> None:
    """A test begins: what others showed is not its own."""
    verdicts.clear()
