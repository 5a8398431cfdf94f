"""Compare two sums of one element: the running sum of each plan after each part of K."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refsim.causes.explanation import DiffExplanation, SumsSoFar
from refsim.computations.engine import Computation
from refsim.computations.ways import Codes, Indices
from refsim.errors import RefsimError

STAGES = 32


def require_sums(subject: Computation, at: int | None) -> None:
    """Raise RefsimError where an element is given with `--at` for a subject without sums."""
    if at is not None and not subject.summed_over:
        raise RefsimError("usage", "an element is asked for that is no sum", "--at", "of products and attention")


def stages_of(
    subject: Computation,
    plans: Sequence[Any],
    got: Codes,
    want: Codes | None,
    at: int | None,
    judged: Indices | None,
) -> tuple[tuple[int, int] | None, tuple[SumsSoFar, ...]]:
    """Return an element and its sums under two plans; (None, ()) where no plan has sums.

    `at` is the flat index of the element, None: the first element that differs.
    """
    if not subject.summed_over:
        return None, ()
    columns = subject.shape[1]
    if at is None:
        rows = np.arange(len(got)) if judged is None else judged
        assert want is not None
        first = np.argwhere(got[rows] != want[rows])[0]
        at = int(rows[first[0]]) * columns + int(first[1])
    place = divmod(at, columns)
    sums = [subject.sums_of(plan, place, STAGES) for plan in plans]
    kind = subject.sums_held, subject.summed_over
    return place, tuple(SumsSoFar(end, one, other, *kind) for (end, one), (_, other) in zip(*sums, strict=True))


def place_of_element(at: tuple[int, ...] | None, shape: tuple[int, ...]) -> int | None:
    """Return the flat index of the element `at`; None for None. Raises RefsimError outside the output."""
    if at is None:
        return None
    if len(shape) != len(at):
        rule = f"{len(shape)} numbers: BATCH,ROW,COL of batches and heads, ROW,COL of a matrix"
        raise RefsimError("out-of-range", f"the output has shape {shape}", "--at", rule)
    names = ("batch", "row", "column")[-len(at) :]
    for name, place, extent in zip(names, at, shape, strict=True):
        if not 0 <= place < extent:
            raise RefsimError("out-of-range", f"{name} {place} is outside 0..{extent - 1}", "--at")
    return int(np.ravel_multi_index(at, shape))


def shown_in(
    found: DiffExplanation, shape: tuple[int, ...], columns: int, row_of: Callable[[int], int] = int
) -> DiffExplanation:
    """Return the explanation with its element as an index in an output of `shape`; `row_of` maps its row."""
    if found.element is None:
        return found
    row, column = found.element
    return replace(found, element=tuple(map(int, np.unravel_index(row_of(row) * columns + column, shape))))
