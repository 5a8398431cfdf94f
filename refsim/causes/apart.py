"""Distinguish causes that give equal bits here: find a test case on which they differ."""

import itertools
from typing import Any

import numpy as np

from refsim.causes.search import Named
from refsim.computations.engine import Computation
from refsim.computations.ways import DoesNotApplyError

SEEDS = (1, 2, 3)
MOST = 3


def told_apart(subject: Computation, start: Any, named: tuple[Named, ...]) -> tuple[str, ...]:
    """Return a sentence for each pair of the first few fitting causes: a drawn test case on which they differ.

    The sentence says so where no drawn test case distinguishes the two. `start` is the plan that the causes change.
    """
    if len(named) < 2:
        return ()
    found = []
    kinds = {tuple(cause.family for cause in each.causes): each for each in reversed(named)}
    chosen = list(kinds.values())[::-1] if len(kinds) > 1 else named
    for one, other in itertools.islice(itertools.combinations(chosen, 2), MOST):
        found.append(f"{one} | {other}: {_difference(subject, start, one, other)}")
    return tuple(found)


def _difference(subject: Computation, start: Any, one: Named, other: Named) -> str:
    """Return how many elements differ between two causes on the first drawn test case where any does."""
    for wide in (False, True):
        for seed in SEEDS:
            drawn = subject.another(seed, wide=wide)
            try:
                first, second = (drawn.codes(each.plan_from(start)) for each in (one, other))
            except DoesNotApplyError:
                continue
            if count := int(np.count_nonzero(first != second)):
                size = " x ".join(map(str, drawn.shape))
                written = f", written in {drawn.format}" if drawn.format is not subject.format else ""
                return f"{count} of {first.size} elements differ on drawn numbers, {size}, seed {seed}{written}"
    return "no random test case distinguishes them"
