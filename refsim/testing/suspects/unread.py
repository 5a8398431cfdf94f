"""Inputs that have no effect: the outputs stay as they are, whatever the inputs hold."""

from functools import partial
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.suspicion import Suspicion


def unread(diet: Diet, problem: Any, *, budget: Budget) -> Suspicion | None:
    """Return an input that no output of `problem` depends on; raise OutOfTimeError if the budget ended.

    `diet.device` must be one that a changed input cannot harm.
    """
    given, uploads = diet.outputs(problem), diet.uploads(problem)
    for name in sorted(uploads, key=lambda name: uploads[name].nbytes):
        if (_other(uploads[name]) == uploads[name]).all():
            continue
        budget.check()
        try:
            made = diet.fed(problem, partial(_changed, name))
        except (RefsimError, ValueError):  # a fault on changed inputs
            continue
        if not any(each.any() for each in differing(made, given).values()):
            return Suspicion("left out", "it has no effect on any output", (f"input {name}",), 1)
    return None


def _changed(name: str, at: str, array: Array) -> Array:
    return _other(array) if at == name else array


def _other(array: Array) -> Array:
    """Return the array with other numbers: those of other places, or for one number its double."""
    distinct, places = np.unique(array, return_inverse=True)
    if len(distinct) > 1:
        return np.asarray(distinct[(places.reshape(array.shape) + len(distinct) // 2) % len(distinct)])
    return array * 2 if array.dtype.kind == "f" else array
