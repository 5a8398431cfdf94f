"""Choose the rows of a large output that are judged: as many as the time allows to compute several times."""

import time

import numpy as np

from refsim.computations.engine import Computation
from refsim.computations.ways import Codes, Indices, lines_chosen

LOOKED_AFTER = 1 << 15
"""Number of elements that are computed between two checks of the clock."""
JUDGED_SHARE = 0.15
"""Share of the time for one plan of all judged rows: plans that fit, or nearly do, are computed again."""


def tile_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows in a tile."""
    return max(1, LOOKED_AFTER // max(1, shape[1]))


def judged_rows(subject: Computation, got: Codes, want: Codes | None, seconds: float) -> Indices | None:
    """Return the rows where outputs differ most, and some others; without `want`, evenly spaced rows; None: all."""
    if not subject.is_sampled or subject.shape[0] <= tile_rows(subject.shape):
        return None
    rows, step = subject.shape[0], tile_rows(subject.shape)
    columns = np.arange(subject.shape[1])
    subject.codes(subject.usual, (np.arange(1), columns[:16]))  # the first call also compiles, so it is not timed
    began = time.process_time()
    subject.codes(subject.usual, (np.arange(step), columns))
    took = time.process_time() - began
    most = int(JUDGED_SHARE * seconds / max(took, 1e-6)) * step
    if most >= rows:
        return None
    if want is not None:
        return lines_chosen((got != want).sum(axis=1), max(step, most))
    return np.unique(np.linspace(0, rows - 1, max(step, most)).astype(np.int64))
