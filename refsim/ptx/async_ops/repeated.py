"""Whether a copy to global memory writes what is there already, or what other copies on their way bring there."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.async_ops.transfers import Transfer
from refsim.ptx.memory.space import Space

Array = NDArray[Any]


def repeats(flight: Transfer, flying: Iterable[Transfer], space: Space, index: Array, width: int) -> NDArray[np.bool_]:
    """For each item of a space, by number, whether the copy leaves there what would stand there without it.

    The sources of copies on their way do not change, or that is a finding of its own.
    """
    at = (index[:, None] * width + np.arange(width)).reshape(-1)
    order = np.argsort(at, kind="stable")
    before = space.bytes[at[order]].astype(np.int16)
    for other in flying:
        if other is not flight and not other.is_performed:
            _bring(other, space, at[order], before)
    after = np.full(len(at), -1, np.int16)
    _bring(flight, space, at[order], after)
    equal = np.empty(len(at), np.bool_)
    equal[order] = (before == after) & (after >= 0)
    return np.asarray(equal.reshape(-1, width).all(axis=1))


def _bring(flight: Transfer, space: Space, at: Array, to: Array) -> None:
    """Put the bytes of a copy where they go, -1 where a reduction makes others of them; `at`: positions that rise."""
    target = flight.target
    if target is None or target.space is not space or flight.source is None:
        return
    places = (target.index[:, None] * flight.width + np.arange(flight.width)).reshape(-1)
    found = np.minimum(np.searchsorted(at, places), len(at) - 1)
    here = at[found] == places
    brought = flight.brings().view(np.uint8) if flight.combine is None else np.full(len(places), -1, np.int16)
    to[found[here]] = brought[here]
