"""What one thread knew when it released: for CTAs, warps and threads, up to which access of theirs it comes after.

Every access of a launch has a number that rises with time, the same count for all threads. So "all that this CTA did up to
number 812" is one entry, and knowledge is the largest of the entries that cover a thread: joins are maxima, and exact. A join
is only noted; who asks for it gets tables, which are kept while they are few, so that a chain of releases by thousands of
threads that nobody asks about costs one note each.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Stamps = dict[int, int]
Key = tuple[str, int]
Tables = tuple[tuple[Array, Array], ...]
_DEEP = 4096  # joins upon joins, until they become one table
_FEW = 16  # threads asked about, and parts that are looked at, without a table
_ENTRIES = 1 << 22  # of all tables that are kept


@dataclass(frozen=True, eq=False, slots=True)
class Knowledge:
    """Stamps by CTA, by warp and by thread, each numbered over the whole grid, and all that its `parts` know."""

    ctas: Stamps = field(default_factory=dict)
    warps: Stamps = field(default_factory=dict)
    threads: Stamps = field(default_factory=dict)
    parts: "tuple[Knowledge, ...]" = ()
    depth: int = 0

    def __or__(self, other: "Knowledge") -> "Knowledge":
        if self is other or other is NOTHING or other in self.parts:
            return self
        if self is NOTHING or self in other.parts:
            return other
        return joined((self, other))


NOTHING = Knowledge()


def joined(
    parts: tuple[Knowledge, ...], ctas: Stamps | None = None, warps: Stamps | None = None, threads: Stamps | None = None
) -> Knowledge:
    """What all of these know together, and these stamps."""
    depth = 1 + max([part.depth for part in parts], default=-1)
    found = Knowledge(ctas or {}, warps or {}, threads or {}, parts, depth)
    if depth < _DEEP:
        return found
    all_ctas, all_warps, all_threads = (as_stamps(*table) for table in _tables(found, {}))
    return Knowledge(all_ctas, all_warps, all_threads)


def together(parts: Iterable[Knowledge]) -> Knowledge:
    """What all of these know, by one join however many they are: a join for each would make a chain as deep as they are many."""
    distinct = tuple(dict.fromkeys(part for part in parts if part is not NOTHING))
    return joined(distinct) if len(distinct) > 1 else distinct[0] if distinct else NOTHING


@dataclass
class Answers:
    """Tables of the knowledge that was asked about last."""

    tables: OrderedDict[Knowledge, Tables] = field(default_factory=OrderedDict)
    entries: int = 0

    def stamps(self, known: Knowledge, cta: Array, warp: Array, thread: Array) -> Array:
        """Up to which access each of these threads is known; 0 for one that is not."""
        if known not in self.tables and len(thread) <= _FEW:
            few = _few_stamps(known, cta.tolist(), warp.tolist(), thread.tolist())
            if few is not None:
                return np.array(few)
        found = np.zeros(len(thread), np.int64)
        for (names, stamps), numbers in zip(self._of(known), (cta, warp, thread), strict=True):
            if len(names):
                at = np.minimum(np.searchsorted(names, numbers), len(names) - 1)
                found = np.maximum(found, np.where(names[at] == numbers, stamps[at], 0))
        return found

    def _of(self, known: Knowledge) -> Tables:
        if known not in self.tables:
            tables = _tables(known, self.tables)
            while self.tables and self.entries > _ENTRIES:
                self.entries -= _size(self.tables.popitem(last=False)[1])
            self.tables[known] = tables
            self.entries += _size(tables)
        return self.tables[known]


def _few_stamps(known: Knowledge, cta: list[int], warp: list[int], thread: list[int]) -> list[int] | None:
    """The same for a few threads, by looking at each part; None where there are many."""
    waiting, found, left = [known], [0] * len(thread), _FEW
    while waiting:
        if not left:
            return None
        one, left = waiting.pop(), left - 1
        waiting += one.parts
        for place, stamp in enumerate(found):
            found[place] = max(
                stamp, one.ctas.get(cta[place], 0), one.warps.get(warp[place], 0), one.threads.get(thread[place], 0)
            )
    return found


def _size(tables: Tables) -> int:
    return sum(len(names) for names, _ in tables)


def _tables(known: Knowledge, made: "OrderedDict[Knowledge, Tables] | dict[Knowledge, Tables]") -> Tables:
    """All that is known, by rising names, from what is noted there and from tables made before."""
    waiting, seen = [known], {known}
    given: list[Tables] = []
    noted: list[Knowledge] = []
    while waiting:
        one = waiting.pop()
        if one in made:
            given.append(made[one])
            continue
        noted.append(one)
        fresh = [part for part in one.parts if part not in seen]
        seen.update(fresh)
        waiting += fresh
    tables = []
    for place, kind in enumerate(("ctas", "warps", "threads")):
        stamps: list[Stamps] = [found for one in noted if (found := getattr(one, kind))]
        count = sum(map(len, stamps))
        names = [np.fromiter(chain.from_iterable(stamps), np.int64, count)]
        values = [np.fromiter(chain.from_iterable(found.values() for found in stamps), np.int64, count)]
        names += [each[place][0] for each in given]
        values += [each[place][1] for each in given]
        tables.append(largest(np.concatenate(names), np.concatenate(values)))
    return tuple(tables)


def largest(names: Array, stamps: Array) -> tuple[Array, Array]:
    """Each name once, rising, with the largest of its stamps."""
    if not len(names):
        return names, stamps
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    return ordered[starts], np.maximum.reduceat(stamps[order], starts)


def as_stamps(names: Array, stamps: Array) -> Stamps:
    """The stamp of each name."""
    return dict(zip(names.tolist(), stamps.tolist(), strict=True))


@dataclass
class Gathered:
    """What those that arrived at one barrier knew."""

    count: int
    cta: int = 0
    foreign: set[int] = field(default_factory=set)
    warps: Array = field(init=False)
    lanes: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.warps = np.zeros(self.count, np.int32)


@dataclass(frozen=True, eq=False)
class Released:
    """What an acquire of one location brings, by how far the releases that stand there reach; `is_narrow` where one of
    them does not reach the whole GPU.

    `fenced` is what sequentially consistent fences before the write covered: it reaches such a fence behind a read alone.
    """

    everybody: Knowledge = NOTHING
    fenced: Knowledge = NOTHING
    clusters: "dict[int, Knowledge]" = field(default_factory=dict)
    ctas: "dict[int, Knowledge]" = field(default_factory=dict)
    is_narrow: bool = False


def places(keys: list[Key]) -> dict[Key, list[int]]:
    """Where each key stands."""
    if keys.count(keys[0]) == len(keys):
        return {keys[0]: [*range(len(keys))]}
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places
