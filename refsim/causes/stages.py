"""The two sums of one element, side by side: what a plan has after each part of K."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from refsim.causes.explanation import SumsSoFar
from refsim.causes.rows import Codes, Explained, Indices
from refsim.errors import RefsimError

STAGES = 32


@runtime_checkable
class WithSums(Protocol):
    """A subject whose elements are sums over K."""

    def sums_of(self, plan: Any, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """The float32 pattern of one element's sum over the columns of K before each of up to `most` places."""


def stages_of(
    subject: Explained[Any], plans: list[Any], got: Codes, want: Codes | None, at: Any, judged: Indices | None
) -> tuple[tuple[int, int] | None, tuple[SumsSoFar, ...]]:
    """The sums of one element under two plans, the first that differs if none is asked for; none where no plan has sums."""
    if not isinstance(subject, WithSums):
        return None, ()
    if at is None:
        rows = np.arange(len(got)) if judged is None else judged
        assert want is not None
        first = np.argwhere(got[rows] != want[rows])[0]
        at = int(rows[first[0]]), int(first[1])
    sums = [subject.sums_of(plan, at, STAGES) for plan in plans]
    return at, tuple(SumsSoFar(end, one, other) for (end, one), (_, other) in zip(*sums, strict=True))


def require_element(at: tuple[int, int] | None, shape: tuple[int, ...]) -> None:
    """An element is asked for before anything is searched, and has a place in the output."""
    if at is None:
        return
    if len(shape) != len(at):
        raise RefsimError("at-range", f"the output has shape {shape}", "--at", "ROW,COL of a matrix")
    for name, place, extent in zip(("row", "column"), at, shape, strict=True):
        if not 0 <= place < extent:
            raise RefsimError("at-range", f"{name} {place} is outside 0..{extent - 1}", "--at")
