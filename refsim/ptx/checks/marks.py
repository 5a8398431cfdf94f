"""Marks on memory: the last access to every granule, and the chain of accesses before it.

A granule is the narrowest access of the kernel, so every access covers whole granules. `last` is the number of the
newest access, `agent` its thread. `since` is the access by which that thread took over from another thread that still
matters. It is 0 if nothing before matters, since it happened before everything to come. The rest of the chain is kept
in the events. An earlier access of one thread matters no more if its newer access has equal semantics; otherwise it may
race or have observed where the newer one did not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import tee
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.history import AccessEvent, History
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.sparse import zeros

Array = NDArray[Any]
Link = tuple[int, Array, bool]
"""A link of a chain: the number of an access, its agents, whether it changed nothing."""


class Marks:
    """The marks of one kind, reads or writes, over `granules` places. `strength` is the element size if all remembered
    accesses were strong with GPU scope, else 0."""

    def __init__(self, granules: int) -> None:
        self.size = granules
        self.last, self.agent, self.since = (zeros(granules, np.int32) for _ in range(3))
        self.strength = zeros(granules, np.uint8)
        self.is_used = self.has_chains = self.has_strong = False

    def rows(self, table: Array, count: int) -> Array:
        """Return a table as rows of `count` granules, one row for each item."""
        return table if count == 1 else table[: self.size // count * count].reshape(-1, count)

    def lasts(self, index: Array, count: int) -> Array:
        """Return the newest accesses to the granules of each item, (n, count)."""
        return self.take(self.last, index, count)

    def take(self, table: Array, index: Array, count: int) -> Array:
        """Return the entries of a table for the granules of each item, (n, count)."""
        size = table.itemsize * count
        if size in ITEM:
            return table.view(ITEM[size]).take(index).view(table.dtype).reshape(len(index), count)
        return self.rows(table, count).take(index, axis=0).reshape(len(index), count)

    def never_race(self, strength: int, index: Array, count: int) -> bool:
        """Return whether all remembered accesses to these items are strong with GPU scope and of this strength."""
        return bool(strength and self.has_strong and (self.take(self.strength, index, count) == strength).all())

    def fill(self, table: Array, index: Array, count: int, values: Any) -> None:
        """Write one value, or one for each item, to all granules of these items."""
        size = table.itemsize * count
        if size in ITEM:
            table.view(ITEM[size])[index] = np.repeat(np.asarray(values, table.dtype), count).view(ITEM[size])
        else:
            self.rows(table, count)[index] = values if np.ndim(values) == 0 else values[:, None]

    def put(self, event: AccessEvent, index: Array, strength: int) -> None:
        """Mark the event as the last access to its items, with nothing before it that matters."""
        self.is_used = True
        self.fill(self.last, index, event.count, event.number)
        if self.has_chains:
            self.fill(self.since, index, event.count, 0)
        if strength or self.has_strong:
            self.has_strong = True
            self.fill(self.strength, index, event.count, strength)
        self.fill(self.agent, index, event.count, event.agents)

    def lost(self, event: AccessEvent, index: Array) -> NDArray[np.bool_]:
        """Return which lanes touched a granule that is marked for another lane of the event."""
        found = self.take(self.agent, index, event.count)
        lost: NDArray[np.bool_] = (found != event.agents[:, None]).any(axis=1)
        return lost

    def take_over(
        self, event: AccessEvent, index: Array, keep: NDArray[np.bool_], strength: int, history: History
    ) -> None:
        """Mark the event as the last access, and remember the replaced marks where `keep` (n, count) is set."""
        self.has_chains = True
        if len(index) == 1 or bool((index == index[0]).all()):
            self._cover(event, int(index[0]) * event.count, keep[-1], strength, history)
            return
        granules = index[:, None] * event.count + np.arange(event.count)
        before = tuple(table[granules] for table in (self.last, self.agent, self.since))
        own = keep & (before[1] == event.agents[:, None])
        if own.any():
            own &= self._are_alike(before[0], event, history)
        event.replaced = before[0], before[1], before[2]
        weaker = granules[keep & (self.strength[granules] != strength)]
        self.put(event, index, strength)
        self.strength[weaker] = 0
        self.since[granules[own]] = before[2][own]
        self.since[granules[keep & ~own]] = event.number

    def _cover(self, event: AccessEvent, first: int, keep: NDArray[np.bool_], strength: int, history: History) -> None:
        """Do the work of `take_over` if all threads of the event access one item; the last thread is marked."""
        at = slice(first, first + event.count)
        last, agent, since = (table[at].copy() for table in (self.last, self.agent, self.since))
        own = keep & (agent == event.agents[-1]) if len(event.agents) == 1 else np.zeros_like(keep)
        if own.any():
            own &= self._are_alike(last, event, history)
        event.replaced = last[None], agent[None], since[None]
        self.strength[at] = np.where(keep & (self.strength[at] != strength), 0, strength)
        self.is_used, self.has_strong = True, self.has_strong or strength > 0
        self.last[at], self.agent[at] = event.number, event.agents[-1]
        self.since[at] = np.where(own, since, np.where(keep, event.number, 0))

    @staticmethod
    def _are_alike(numbers: Array, event: AccessEvent, history: History) -> NDArray[np.bool_]:
        """Return which earlier accesses of a thread add nothing to its newest one."""
        names, back = np.unique(numbers, return_inverse=True)
        wanted = history.evidence(event.number), event.benign
        found = [
            (history.evidence(name), name in history.listed and history.listed[name].benign) for name in names.tolist()
        ]
        return np.array([each == wanted for each in found])[back.reshape(numbers.shape)]

    def chain(self, granule: int, history: History) -> Iterator[Link]:
        """Yield the accesses to a granule that matter, the newest first."""
        number, agent, since = (int(table[granule]) for table in (self.last, self.agent, self.since))
        while number:
            event = history.listed.get(number)
            agents = np.array([agent])
            if event is not None and event.shared:
                agents = event.agents[event.at(granule)]
            yield number, agents, event is not None and event.benign
            taken = history.listed.get(since) if since else None
            if taken is None or taken.replaced is None:
                return
            where = taken.at(granule)
            if since != number and taken.shared:
                yield since, taken.agents[where], taken.benign
            lane, place = int(where[0]), granule - int(taken.first[where[0]])
            number, agent, since = (int(table[lane, place]) for table in taken.replaced)


@dataclass
class Chains:
    """Chains that many lanes ask about while no mark changes: each is walked once, as far as any lane needs."""

    history: History
    walked: dict[tuple[int, int], Iterator[Link]] = field(default_factory=dict)

    def of(self, marks: Marks, granule: int) -> Iterator[Link]:
        """Yield the links of `marks.chain` for a granule."""
        key = id(marks), granule
        self.walked[key], chain = tee(self.walked.get(key) or marks.chain(granule, self.history))
        return chain
