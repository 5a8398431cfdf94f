"""Runs of statements that one call computes: one operation on different registers, and none reads another's result."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.lowering.steps import Step
from refsim.ptx.text.syntax import Register

Array = NDArray[Any]
_FEWEST = 4  # statements that are worth a call of their own
_MOST = 1 << 13  # numbers of one operand; with more of them their memory costs more than calls


def runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the steps in order, as lists of steps that one call may compute."""
    run: list[Step] = []
    for step in steps:
        if not (run and _goes_on(run, step)):
            yield from _cut(run)
            run = []
        run.append(step)
    yield from _cut(run)


def _cut(run: list[Step]) -> Iterator[list[Step]]:
    if len(run) >= _FEWEST:
        yield run
    else:
        yield from ([step] for step in run)


def _goes_on(run: list[Step], step: Step) -> bool:
    """Return whether a step repeats the operation of the run, and neither reads nor writes its results."""
    before = run[-1]
    written = {index for each in run for index in each.writes()}
    return (
        step.bound.clause.together
        and step.guard is None
        and before.guard is None
        and step.bound.clause is before.bound.clause
        and step.bound.keywords == before.bound.keywords
        and all(isinstance(source, Register) for each in (before, step) for source, _ in each.sources)
        and written.isdisjoint((*step.reads(), *step.writes()))
    )


def in_one_call(
    function: Callable[..., Array], unviewed: Callable[[Array], Array], count: int, *operands: list[Array] | Array
) -> list[Array]:
    """Return the result bits of `count` statements. Each operand is a list of bits, one per statement, or one array for
    all statements. One call computes as many statements as caches hold."""
    columns = [each if isinstance(each, list) else [each] * count for each in operands]
    lanes = max(len(each) for column in columns for each in column)
    if (rows := _MOST // lanes) < _FEWEST:
        return [unviewed(function(*each)) for each in zip(*columns, strict=True)]
    found: list[Array] = []
    for first in range(0, count, rows):
        some = slice(first, min(first + rows, count))
        shape = some.stop - first, lanes
        stacked = [_stacked(each[some] if isinstance(each, list) else each, shape) for each in operands]
        found += [unviewed(row) for row in function(*stacked)]
    return found


def _stacked(operands: list[Array] | Array, shape: tuple[int, int]) -> Array:
    """Return an operand of several statements as rows (statements, lanes)."""
    if not isinstance(operands, list):
        return np.broadcast_to(operands, shape)
    if all(len(each) == shape[1] for each in operands):
        return np.concatenate(operands).reshape(shape)
    return np.stack([np.broadcast_to(each, shape[1:]) for each in operands])
