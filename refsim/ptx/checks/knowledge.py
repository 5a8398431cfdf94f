"""The knowledge of a thread when it releases: for CTAs, warps and threads, the access number up to which it comes after
them.

Every access of a launch has a number that rises with time, from one counter for all threads. So "all that this CTA did
up to number 812" is one entry, and knowledge of a thread is the largest entry that covers it: joins are maxima, and
exact. A join is only noted. Tables are made when knowledge is asked about, and a limited number is kept. So a chain of
releases by thousands of threads costs one note each while no thread asks.

The knowledge of lanes at one moment, derived from the rows of the clocks."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.arrays import Array

Stamps = dict[int, int]
Key = tuple[str, int]
Tables = tuple[tuple[Array, Array], ...]
_DEEP = 4096  # depth of nested joins from which they become one table
_FEW = 16  # most threads and parts that are looked up without a table
_ENTRIES = 1 << 22  # entries of all kept tables


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
Fenced = dict[int, Knowledge]


def joined(
    parts: tuple[Knowledge, ...], ctas: Stamps | None = None, warps: Stamps | None = None, threads: Stamps | None = None
) -> Knowledge:
    """Return the joint knowledge of these parts and these stamps."""
    depth = 1 + max([part.depth for part in parts], default=-1)
    found = Knowledge(ctas or {}, warps or {}, threads or {}, parts, depth)
    if depth < _DEEP:
        return found
    all_ctas, all_warps, all_threads = (as_stamps(*table) for table in _tables(found, {}))
    return Knowledge(all_ctas, all_warps, all_threads)


def together(parts: Iterable[Knowledge]) -> Knowledge:
    """Return the joint knowledge of these parts by a single join; pairwise joins would nest too deeply."""
    distinct = tuple(dict.fromkeys(part for part in parts if part is not NOTHING))
    return joined(distinct) if len(distinct) > 1 else distinct[0] if distinct else NOTHING


@dataclass
class Answers:
    """Tables of the knowledge that was asked about last."""

    tables: OrderedDict[Knowledge, Tables] = field(default_factory=OrderedDict)
    entries: int = 0

    def stamps(self, known: Knowledge, cta: Array, warp: Array, thread: Array) -> Array:
        """Return the access number up to which each of these threads is known; 0 for an unknown thread."""
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
        """Return the tables of some knowledge, made once and kept while there is room."""
        if known not in self.tables:
            tables = _tables(known, self.tables)
            while self.tables and self.entries > _ENTRIES:
                self.entries -= _size(self.tables.popitem(last=False)[1])
            self.tables[known] = tables
            self.entries += _size(tables)
        return self.tables[known]


def _few_stamps(known: Knowledge, cta: list[int], warp: list[int], thread: list[int]) -> list[int] | None:
    """Return the stamps of a few threads by visiting each part, without tables; None if there are too many parts."""
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
    """Return sorted (names, stamps) by CTA, warp and thread of all that is known; `made` are tables to reuse."""
    waiting, seen = [known], set[Knowledge]()
    given: list[Tables] = []
    noted: list[tuple[Stamps, Stamps, Stamps]] = []
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in made:
            given.append(made[one])
        else:
            noted.append((one.ctas, one.warps, one.threads))
            waiting += one.parts
    tables = []
    for place, kind in enumerate(zip(*noted, strict=True)):
        stamps = [*filter(None, kind)]
        count = sum(map(len, stamps))
        names = [np.fromiter(chain.from_iterable(stamps), np.int64, count)]
        values = [np.fromiter(chain.from_iterable(map(dict.values, stamps)), np.int64, count)]
        names += [each[place][0] for each in given]
        values += [each[place][1] for each in given]
        tables.append(largest(np.concatenate(names), np.concatenate(values)))
    return tuple(tables)


def largest(names: Array, stamps: Array) -> tuple[Array, Array]:
    """Return each name once, rising, with the largest of its stamps."""
    if not len(names):
        return names, stamps
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    return ordered[starts], np.maximum.reduceat(stamps[order], starts)


def as_stamps(names: Array, stamps: Array) -> Stamps:
    """Return the stamp of each name as a dictionary."""
    return dict(zip(names.tolist(), stamps.tolist(), strict=True))


@dataclass
class Gathered:
    """The joint knowledge of the lanes that arrived at one barrier."""

    count: int
    cta: int = 0
    foreign: set[int] = field(default_factory=set)
    lanes: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.warps: Array = np.zeros(self.count, np.int32)


@dataclass(frozen=True, eq=False)
class Released:
    """The knowledge that an acquire of one location gets, by the scope of the releases there. `is_narrow`: some release
    does not have GPU scope. `fenced`: what sequentially consistent fences before the write covered, by the CTA, the
    cluster or the GPU within which they order; it only reaches such a fence after a read."""

    everybody: Knowledge = NOTHING
    fenced: "Fenced" = field(default_factory=dict)
    clusters: "dict[int, Knowledge]" = field(default_factory=dict)
    ctas: "dict[int, Knowledge]" = field(default_factory=dict)
    is_narrow: bool = False


def places(keys: list[Key]) -> dict[Key, list[int]]:
    """Return the positions of each key in a list."""
    if keys.count(keys[0]) == len(keys):
        return {keys[0]: [*range(len(keys))]}
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


@dataclass
class Rows:
    """For each lane, the access numbers up to which it comes after others. `cta` and `warp`: its own CTA and warp.
    `warps` and `lanes`: each warp of its CTA and each lane of its warp, None until needed. `foreign`: the number of its
    `Knowledge` of other threads. `own`: its own newest access, in a copy of rows."""

    cta: Array
    warp: Array
    foreign: Array
    own: Array
    warps: Array | None = None
    lanes: Array | None = None

    @staticmethod
    def empty(lanes: int) -> "Rows":
        """Return rows of lanes that know nothing."""
        return Rows(*(np.zeros(lanes, np.int32) for _ in range(4)))


def of_lane(geometry: Geometry, known: list[Knowledge], rows: Rows, lane: int, now: int) -> Knowledge:
    """Return what one lane knows by these rows, with all that it did itself up to `now`."""
    of_grid, thread = divmod(lane, geometry.threads)
    cta, warp = of_grid + geometry.first, thread // WARP
    ctas, warps = {cta: int(rows.cta[lane])}, {cta * geometry.warps + warp: int(rows.warp[lane])}
    threads = {cta * geometry.threads + thread: now}
    if rows.warps is not None:
        for number in np.flatnonzero(rows.warps[lane]).tolist():
            name = cta * geometry.warps + number
            warps[name] = max(warps.get(name, 0), int(rows.warps[lane, number]))
    if rows.lanes is not None:
        first = cta * geometry.threads + warp * WARP
        for number in np.flatnonzero(rows.lanes[lane]).tolist():
            threads[first + number] = max(threads.get(first + number, 0), int(rows.lanes[lane, number]))
    foreign = int(rows.foreign[lane])
    return joined((known[foreign],) if foreign else (), ctas, warps, threads)


def of_lanes(geometry: Geometry, known: list[Knowledge], rows: Rows, lanes: Ids, now: int) -> Knowledge:
    """Return the joint knowledge of several lanes, with all that they did up to `now`."""
    if len(lanes) == 1:
        return of_lane(geometry, known, rows, int(lanes[0]), now)
    ctas = geometry.cta[lanes] + geometry.first
    warp, stamps = geometry.warp[lanes] + geometry.first * geometry.warps, rows.warp[lanes]
    if rows.warps is not None:
        which, number = np.nonzero(rows.warps[lanes])
        warp = np.concatenate([warp, ctas[which] * geometry.warps + number])
        stamps = np.concatenate([stamps, rows.warps[lanes[which], number]])
    thread, numbers = lanes + geometry.first * geometry.threads, np.full(len(lanes), now)
    if rows.lanes is not None:
        which, number = np.nonzero(rows.lanes[lanes])
        thread = np.concatenate([thread, thread[which] - geometry.laneid[lanes[which]] + number])
        numbers = np.concatenate([numbers, rows.lanes[lanes[which], number]])
    threads = as_stamps(*largest(thread, numbers))
    foreign = tuple(known[number] for number in np.unique(rows.foreign[lanes]).tolist() if number)
    of_ctas, of_warps = as_stamps(*largest(ctas, rows.cta[lanes])), as_stamps(*largest(warp, stamps))
    return joined(foreign, of_ctas, of_warps, threads)
