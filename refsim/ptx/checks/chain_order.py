"""Bulk questions about chains of accesses: usually all accesses of a chain happened before the asking lane."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import AccessEvent, History

Array = NDArray[Any]
_MOST, _LANES = 64, 64  # most events to visit and most lanes that ask; beyond, chains are walked one by one
_EACH = 2  # chains of a lane from which this pays
_SIDE_BY_SIDE = 8  # chains of many lanes from which it pays to walk them together


def come_after(
    history: History, clocks: Clocks, lanes: Array, granules: Array, agents: Array, numbers: Array, since: Array
) -> NDArray[np.bool_]:
    """Return for each lane and granule whether the lane comes after all accesses that the granule's chain may hold.
    True means that the chain need not be walked; False decides nothing. `agents`, `numbers`, `since`: the marks of the
    granules."""
    found = np.zeros(len(lanes), np.bool_)
    names = np.unique(lanes).tolist()
    if len(names) <= _LANES and len(lanes) >= _EACH * len(names):
        for lane in names:
            own = lanes == lane
            found[own] = _comes_after(history, clocks, lane, granules[own], numbers[own], since[own])
    elif len(lanes) >= _SIDE_BY_SIDE:
        found[_side_by_side(history, clocks, lanes, granules, agents, numbers, since)] = True
    return found


def _side_by_side(
    history: History, clocks: Clocks, lanes: Array, granules: Array, agents: Array, numbers: Array, since: Array
) -> Array:
    """Return the indices of lanes that come after their granule's whole chain, following all chains one link at a time.
    Accesses that lanes of one statement made lie at one depth. A chain with an access that several threads made is left
    to the exact walk."""
    here, ended = np.arange(len(lanes)), []
    for _ in range(_MOST):
        right = ~are_shared(history, numbers) & clocks.is_ordered(lanes[here], agents, numbers)
        here, since = here[right], since[right]
        following = np.zeros((3, len(here)), np.int64)
        for name in np.unique(since).tolist():
            own = np.flatnonzero(since == name)
            event = history.listed.get(name)
            if event is not None and event.replaced is not None:
                following[:, own] = -1 if event.shared else _replaced(event, granules[here[own]])
        numbers, agents, since = following
        ended.append(here[numbers == 0])
        going = numbers > 0
        here, numbers, agents, since = here[going], numbers[going], agents[going], since[going]
        if not len(here):
            break
    return np.concatenate(ended)


def _replaced(event: AccessEvent, granules: Array) -> Array:
    """Return the marks that an access replaced in granules of one thread each: (3, n): number, thread, since."""
    assert event.replaced is not None
    order = np.argsort(event.first, kind="stable")
    rows = order[np.searchsorted(event.first[order], granules, side="right") - 1]
    places = granules - event.first[rows]
    return np.stack([table[rows, places] for table in event.replaced])


def _comes_after(history: History, clocks: Clocks, lane: int, granules: Array, numbers: Array, since: Array) -> bool:
    """Return whether one lane comes after the chains of all these granules, and after their events in between."""
    low, high = int(granules.min()), int(granules.max())
    waiting = {*np.unique(numbers).tolist(), *np.unique(since).tolist()} - {0}
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        seen.add(number)
        event = history.listed.get(number)
        if event is None or len(seen) > _MOST:
            return False
        near = (event.first <= high) & (event.first + event.count > low)
        agents = event.agents[near]
        if not _come_before(clocks, lane, agents, np.full(len(agents), number)):
            return False
        if event.replaced is None:
            continue
        last, agents, earlier = (table if len(table) == 1 else table[near] for table in event.replaced)
        some = last > 0
        if not _come_before(clocks, lane, agents[some], last[some]):
            return False
        waiting |= {*np.unique(last[some]).tolist(), *np.unique(earlier).tolist()} - seen - {0}
    return True


def are_shared(history: History, numbers: Array) -> NDArray[np.bool_]:
    """Return which of these accesses had several threads at one granule."""
    names, back = np.unique(numbers, return_inverse=True)
    events = [history.listed.get(name) for name in names.tolist()]
    return np.array([event is not None and event.shared for event in events])[back]


def _come_before(clocks: Clocks, lane: int, agents: Array, numbers: Array) -> bool:
    """Return whether all these accesses (threads and access numbers) happened before what a lane does now."""
    pairs = np.unique(agents.astype(np.int64) << 32 | numbers)
    if not len(pairs):
        return True
    return bool(clocks.is_ordered(np.full(len(pairs), lane), pairs >> 32, pairs & 0xFFFFFFFF).all())
