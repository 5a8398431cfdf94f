"""Whether a copy to global memory writes values that are there already or that other copies in flight bring."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.async_ops.transfers import Transfer
from refsim.ptx.memory.space import Space

Array = NDArray[Any]


def repeats(flight: Transfer, flying: Iterable[Transfer], space: Space, index: Array, width: int) -> NDArray[np.bool_]:
    """Return for each item (by number) whether the copy leaves the value that would be there without the copy. This
    assumes that the sources of copies in flight do not change; a change is a finding of its own."""
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
    """Put the bytes of a copy into `to` at rising positions `at`; put -1 where a reduction computes the value."""
    target = flight.target
    if target is None or target.space is not space or flight.source is None:
        return
    places = (target.index[:, None] * flight.width + np.arange(flight.width)).reshape(-1)
    found = np.minimum(np.searchsorted(at, places), len(at) - 1)
    here = at[found] == places
    brought = flight.brings().view(np.uint8) if flight.combine is None else np.full(len(places), -1, np.int16)
    to[found[here]] = brought[here]
