"""Many chains of accesses asked about at once, for one thread: as a rule all of them come before what it does."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History

Array = NDArray[Any]
_MOST = 64  # events that are looked at, until chains are rather walked one by one


def are_all_before(history: History, clocks: Clocks, lane: int, granules: Array, numbers: Array, since: Array) -> bool:
    """Whether all that the chains through these marks of granules may hold, and more of the same events between the first and
    the last of them, comes before what a lane does: then none of them need be walked. False says nothing."""
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
    """Which of these accesses had several threads at one granule."""
    names, back = np.unique(numbers, return_inverse=True)
    events = [history.listed.get(name) for name in names.tolist()]
    return np.array([event is not None and event.shared for event in events])[back]


def _come_before(clocks: Clocks, lane: int, agents: Array, numbers: Array) -> bool:
    pairs = np.unique(agents.astype(np.int64) << 32 | numbers)
    if not len(pairs):
        return True
    return bool(clocks.is_ordered(np.full(len(pairs), lane), pairs >> 32, pairs & 0xFFFFFFFF).all())
