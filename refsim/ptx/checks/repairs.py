"""The search for the missing half of an order: the notes since an access are replayed with one statement changed.

A repair changes every execution of one statement: a release where a flag is stored, an acquire where it is read, a
wider scope, a barrier next to it. The events of the run are interpreted again on fresh clocks with that change. If the
two accesses are then ordered, the repair is what was missing. Only repairs that pass this test are reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.journal import Note
from refsim.ptx.checks.orders import ClockedOrder
from refsim.ptx.events import ACCESS, CLUSTER_ARRIVE, FENCE, MEET_CTA, MEET_WARPS, LaunchEvent
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.memory.access import GPU, READ, UPDATE, WRITE, Semantics
from refsim.ptx.text.syntax import Statement

SCOPE, RELEASE, ACQUIRE, CHAIN = "scope", "release", "acquire", "chain"
WARP_BEFORE, WARP_AFTER, BLOCK_BEFORE, BLOCK_AFTER = "warp before", "warp after", "block before", "block after"
FENCE_BEFORE, FENCE_AFTER = "fence before", "fence after"
HALVES, MEETINGS = (
    (SCOPE, RELEASE, CHAIN, ACQUIRE, FENCE_BEFORE, FENCE_AFTER),
    (WARP_BEFORE, WARP_AFTER, BLOCK_BEFORE, BLOCK_AFTER),
)
THREADFENCE = Semantics(strong=True, acquires=True, releases=True, scope=GPU, sequential=True)  # __threadfence
_WORK = 200_000  # most lane accesses to replay for one finding
_MOST = 3  # most repairs to report together


@dataclass(frozen=True)
class Repair:
    """One kind of change to one statement."""

    statement: Statement
    kind: str


@dataclass(frozen=True)
class UnorderedPair:
    """A running lane, and access `number` of thread `other` of the grid, which it does not come after."""

    geometry: Geometry
    lane: int
    other: int
    number: int

    @property
    def blocks_apart(self) -> bool:
        """Return whether the two threads are in different blocks."""
        return self.geometry.first + self.lane // self.geometry.threads != self.other // self.geometry.threads

    @property
    def warps_apart(self) -> bool:
        """Return whether the two threads are in different warps."""
        threads = self.geometry.threads
        return self.blocks_apart or self.lane % threads // 32 != self.other % threads // 32


def missing(notes: Sequence[Note], pair: UnorderedPair) -> tuple[Repair, ...]:
    """Return the fewest repairs that order the pair: one if one is enough, else several that are all needed, or ()."""
    weight = sum(
        len(event.lanes) if event.verb in (ACCESS, FENCE) else 1 + len(event.lanes) // 256
        for event in (note.event for note in notes)
    )
    halves = [one for one in candidates(notes, pair) if one.kind in HALVES]
    meetings = [one for one in candidates(notes, pair) if one.kind in MEETINGS]
    if weight * (len(halves) + len(meetings) + 2) > _WORK:
        return ()
    for one in (*halves, *meetings):
        if is_ordered(notes, pair, [one]):
            return (one,)
    for several in (halves, [*halves, *meetings]):
        if is_ordered(notes, pair, several):
            found = _last(spared(notes, pair, several))
            return tuple(found) if len(found) <= _MOST else ()
    return ()


def spared(notes: Sequence[Note], pair: UnorderedPair, repairs: list[Repair]) -> list[Repair]:
    """Return the repairs with each one dropped that the rest does not need, the least likely tried first."""
    for one in reversed(repairs):
        others = [each for each in repairs if each != one]
        if is_ordered(notes, pair, others):
            repairs = others
    return repairs


def _last(repairs: list[Repair]) -> list[Repair]:
    """Return the repairs without the half next to a missing barrier: its fence may already stand at the right place."""
    sides = {
        WARP_BEFORE: (RELEASE, FENCE_BEFORE),
        BLOCK_BEFORE: (RELEASE, FENCE_BEFORE),
        WARP_AFTER: (ACQUIRE, FENCE_AFTER),
        BLOCK_AFTER: (ACQUIRE, FENCE_AFTER),
    }
    spare = {(id(one.statement), half) for one in repairs for half in sides.get(one.kind, ())}
    return [one for one in repairs if (id(one.statement), one.kind) not in spare]


def candidates(notes: Sequence[Note], pair: UnorderedPair) -> list[Repair]:
    """Return the possible repairs, the likeliest first."""
    found: dict[Repair, None] = {}
    for event in (note.event for note in notes):
        for kind in _kinds(event, pair):
            found[Repair(event.statement, kind)] = None
    order = (*HALVES, *MEETINGS)
    return sorted(found, key=lambda repair: order.index(repair.kind))


def _kinds(event: LaunchEvent, pair: UnorderedPair) -> list[str]:
    """Return the kinds of repairs that may apply to the statement of an event."""
    meaning = event.meaning
    if event.verb == CLUSTER_ARRIVE:
        return [] if meaning.releases else [RELEASE]
    narrow = [SCOPE] if pair.blocks_apart and meaning.scope < GPU else []
    if event.verb == FENCE:
        return narrow + _meetings(pair, before=meaning.releases, after=meaning.acquires)
    if event.verb != ACCESS or not meaning.strong:
        return []
    reads, writes = event.payload.kind != WRITE and meaning.returns, event.payload.kind != READ
    found = narrow + [RELEASE] * (writes and not meaning.releases) + [ACQUIRE] * (reads and not meaning.acquires)
    found += [FENCE_BEFORE] * writes + [FENCE_AFTER] * reads
    return found + [CHAIN] * (event.payload.kind == WRITE) + _meetings(pair, before=writes, after=reads)


def _meetings(pair: UnorderedPair, *, before: bool, after: bool) -> list[str]:
    """Return the kinds of barriers to try, except a barrier that would order the pair by itself."""
    found = [WARP_BEFORE] * before + [WARP_AFTER] * after if pair.warps_apart else []
    return found + ([BLOCK_BEFORE] * before + [BLOCK_AFTER] * after if pair.blocks_apart else [])


def is_ordered(notes: Sequence[Note], pair: UnorderedPair, repairs: Sequence[Repair]) -> bool:
    """Return whether the pair is ordered when the notes are replayed with these repairs."""
    changes: dict[int, set[str]] = {}
    for repair in repairs:
        changes.setdefault(id(repair.statement), set()).add(repair.kind)
    released: dict[tuple[str, int], Any] = {}  # at locations; it outlives the CTAs that run at one time
    order = ClockedOrder(Clocks(pair.geometry, released))
    for note in notes:
        if order.clocks.geometry is not note.geometry:
            order = ClockedOrder(Clocks(note.geometry, released))
        for event, now in repaired(note, changes.get(id(note.event.statement), set())):
            order.apply(event, now)
    if order.clocks.geometry is not pair.geometry:
        return False
    return bool(order.clocks.is_ordered(np.array([pair.lane]), np.array([pair.other]), np.array([pair.number]))[0])


def repaired(note: Note, kinds: set[str]) -> Iterator[tuple[LaunchEvent, int]]:
    """Yield the event of a note as these repairs of its statement change it, with the fences and barriers that they put
    next to it, and the number of the newest access at each."""
    event, now = note.event, note.now
    if not kinds or event.verb not in (ACCESS, FENCE, CLUSTER_ARRIVE):
        yield event, now
        return
    before = now - 1 if event.verb == ACCESS else now
    fence = LaunchEvent(FENCE, event.lanes, meaning=THREADFENCE)
    yield from ((each, before) for each in barriers(note, kinds & {WARP_BEFORE, BLOCK_BEFORE}))
    if FENCE_BEFORE in kinds:
        yield fence, before
    yield changed(event, kinds), now
    if FENCE_AFTER in kinds:
        yield fence, now
    yield from ((each, now) for each in barriers(note, kinds & {WARP_AFTER, BLOCK_AFTER}))


def changed(event: LaunchEvent, kinds: set[str]) -> LaunchEvent:
    """Return an event with the meaning that repairs give to its statement. A store that continues a chain of releases
    is an update that returns nothing."""
    meaning, payload = event.meaning, event.payload
    if SCOPE in kinds:
        meaning = replace(meaning, scope=GPU)
    if CHAIN in kinds and payload.kind == WRITE:
        meaning, payload = replace(meaning, returns=False), replace(payload, kind=UPDATE)
    releases, acquires = meaning.releases or RELEASE in kinds, meaning.acquires or ACQUIRE in kinds
    return replace(event, meaning=replace(meaning, releases=releases, acquires=acquires), payload=payload)


def barriers(note: Note, kinds: set[str]) -> Iterator[LaunchEvent]:
    """Yield a barrier of the warps or of the CTAs of a note's lanes."""
    geometry, lanes = note.geometry, note.event.lanes
    if kinds & {WARP_BEFORE, WARP_AFTER}:
        yield LaunchEvent(MEET_WARPS, np.flatnonzero(np.isin(geometry.warp, geometry.warp[lanes])))
    if kinds & {BLOCK_BEFORE, BLOCK_AFTER}:
        yield LaunchEvent(MEET_CTA, np.flatnonzero(np.isin(geometry.cta, geometry.cta[lanes])))
