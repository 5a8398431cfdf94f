"""Marks on memory: the last access to every granule, and the chain of accesses before it.

A granule is the narrowest access of the kernel, so every access covers whole granules. `last` is the number of the
newest access, `agent` its thread. `since` is the access by which that thread took over from another thread that still
matters. It is 0 if nothing before matters, since it happened before everything to come. The rest of the chain is kept
in the events. An earlier access of one thread matters no more if its newer access has equal semantics; otherwise it may
race or have observed where the newer one did not.

Memory areas whose accesses are marked together, the parts of accesses that lie in them, and reads that wait for
marks.

Reads and plain writes are only listed at first. They become events and marks when another access needs them, or when no
order follows soon."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import tee
from typing import Any

import numpy as np

from refsim.ptx.checks.history import AccessEvent, History
from refsim.ptx.isa.definedness.tracking import ProductReads
from refsim.ptx.memory.access import GPU, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, zeros

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

    def lost(self, event: AccessEvent, index: Array) -> Bools:
        """Return which lanes touched a granule that is marked for another lane of the event."""
        found = self.take(self.agent, index, event.count)
        lost: Bools = (found != event.agents[:, None]).any(axis=1)
        return lost

    def take_over(self, event: AccessEvent, index: Array, keep: Bools, strength: int, history: History) -> None:
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

    def _cover(self, event: AccessEvent, first: int, keep: Bools, strength: int, history: History) -> None:
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
    def _are_alike(numbers: Array, event: AccessEvent, history: History) -> Bools:
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


Repeats = Callable[[Array, int], Bools]
_LISTED = 128  # writes of a buffer that are kept as a list before they become marks
_MOST = 1 << 12  # most runs; beyond, marks are cheaper


def _none() -> Array:
    """Return an empty array."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Spans:
    """Runs of granules [starts, ends), rising and disjoint; adjacent runs are merged."""

    starts: Array = field(default_factory=_none)
    ends: Array = field(default_factory=_none)

    def and_items(self, index: Array, count: int) -> "Spans | None":
        """Return these runs with items of `count` granules each added. None if two items, or an item and a run, share a
        granule, or if there are too many runs. Items 4, 5, 6, 0, 1 of two granules are the runs [8, 14) and [0, 4)."""
        if (longer := self._each_longer(index, count)) is not None:
            return longer
        breaks = np.flatnonzero(index[1:] != index[:-1] + 1)
        if len(breaks) + len(self.starts) > _MOST:
            return None
        starts = np.concatenate([self.starts, index[:1] * count, index[breaks + 1] * count])
        ends = np.concatenate([self.ends, (index[breaks] + 1) * count, (index[-1:] + 1) * count])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        if np.count_nonzero(starts[1:] < ends[:-1]):
            return None
        apart = np.flatnonzero(starts[1:] != ends[:-1])
        return Spans(starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)])

    def _each_longer(self, index: Array, count: int) -> "Spans | None":
        """Return the runs if one item extends each and reaches no other, as columns of a matrix do; else None."""
        if len(index) != len(self.ends) or len(index) < 2 or (index * count != self.ends).any():
            return None
        ends = self.ends + count
        return Spans(self.starts, ends) if (ends[:-1] < self.starts[1:]).all() else None


@dataclass(eq=False)
class Area:
    """Memory whose accesses are marked together: the shared memory of all running CTAs, or one global buffer from
    byte `base`. `granule`: bytes of one mark. `waiting` and `unmarked`: reads and writes that are listed and not yet
    marked."""

    base: int
    granule: int
    writes: Marks
    reads: Marks
    is_shared: bool
    waiting: "list[Read]" = field(default_factory=list)
    lanes: int = 0
    unmarked: list[tuple[AccessEvent, Array]] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)

    @staticmethod
    def over(start: int, end: int, granule: int, *, is_shared: bool) -> "Area":
        """Return the area of bytes [start, end), with one mark for each `granule` bytes."""
        base = start // 16 * 16
        granules = -(-(end - base) // 16) * 16 // granule
        return Area(base, granule, Marks(granules), Marks(granules), is_shared)

    def items(self, at: Array, width: int) -> Array:
        """Return the numbers of items of `width` bytes from byte positions."""
        return (at - self.base) // width

    def settle(self) -> None:
        """Turn the listed weak writes into marks."""
        for event, index in self.unmarked:
            self.writes.put(event, index, 0)
        self.unmarked.clear()
        self.spans = Spans()

    def fresh(self, index: Array, count: int) -> "Spans | None":
        """Return the written spans with these items added, if no mark is needed yet; None otherwise. No mark is needed
        for a global buffer with a few writes that do not overlap: there is nothing to compare them with."""
        if self.is_shared or self.waiting or self.writes.is_used or self.reads.is_used or len(self.unmarked) >= _LISTED:
            return None
        return self.spans.and_items(index, count)

    def forget(self) -> None:
        """Drop all listed accesses, since they happened before everything to come."""
        self.waiting.clear()
        self.unmarked.clear()
        self.lanes = 0

    def renew(self, start: int, end: int, history: History) -> None:
        """Clear the marks of bytes [start, end), which begin a new life."""
        self.settle()
        self.mark_reads(0, history)
        granules = slice((start - self.base) // self.granule, -(-(end - self.base) // self.granule))
        for marks in (self.writes, self.reads):
            marks.last[granules] = marks.since[granules] = 0

    def mark_reads(self, floor: int, history: History) -> None:
        """Turn the listed reads into marks; older marks up to access `floor` are replaced and not remembered."""
        for read in self.waiting:
            (event, index), strength = read.event(), read.part.strength
            before = self.reads.lasts(index, event.count)
            keep = before > floor
            if keep.any():
                self.reads.take_over(event, index, keep, strength, history)
            else:
                self.reads.put(event, index, strength)
            event.shared = bool(self.reads.lost(event, index).any())
            if event.shared:
                self.reads.has_chains = True
            history.list(event)
        self.waiting.clear()
        self.lanes = 0


@dataclass(eq=False)
class AccessPart:
    """The part of an access that lies in one area: its items there, and which lanes change memory. For a copy to global
    memory, `repeats(items, width)` tells which items already hold the copied bytes. `repeated` are the items that do
    and that another unordered copy writes too. `is_volatile`: it may race with volatile accesses of its own warp."""

    area: Area
    access: Access
    changed: Bools | None = None
    fresh: Spans | None = None
    reads_are_ordered: bool = True
    is_volatile: bool = False
    repeats: "Repeats | None" = None
    repeated: Bools | None = None

    @cached_property
    def index(self) -> Array:
        """Return the number of each lane's item in the area."""
        access = self.access
        return access.index if self.area.is_shared else access.threads.full(self.area.items(access.at, access.width))

    @property
    def count(self) -> int:
        """Return the granules of one item."""
        return self.access.width // self.area.granule

    @property
    def strength(self) -> int:
        """Return the element size of strong accesses of GPU scope, which never race with each other; 0 for others."""
        meaning = self.access.semantics
        return self.access.width // meaning.elements if meaning.strong and meaning.scope >= GPU else 0


@dataclass(slots=True, eq=False)
class Read:
    """A read that waits to be marked, by the `chosen` lanes of a part; lane 0 is thread `first` of the grid. `product`:
    the complete product of warpgroups that made it."""

    part: AccessPart
    number: int
    chosen: Any
    first: int
    product: ProductReads | None = None

    def event(self) -> tuple[AccessEvent, Array]:
        """Return the read as an event, and its items."""
        index, count = self.part.index[self.chosen], self.part.count
        agents = (self.part.access.threads.ids[self.chosen] + self.first).astype(np.int32)
        return AccessEvent(self.number, agents, index * count, count, product=self.product), index


def is_rising(index: Array) -> bool:
    """Return whether item numbers rise strictly, so that no two lanes access one place."""
    return bool((index[1:] > index[:-1]).all())


def unequal(first: Array, second: Array) -> Bools:
    """Return which items differ in their bits (NumPy takes a 16-byte item for a complex number)."""
    if first.dtype.itemsize == 16:
        one, two = (np.ascontiguousarray(items).view(np.uint64).reshape(-1, 2) for items in (first, second))
        return np.asarray((one != two).any(axis=1))
    unequal: Bools = first != second
    return unequal
