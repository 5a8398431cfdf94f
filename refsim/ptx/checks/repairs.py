"""The search for the missing half of an order: the notes since an access are replayed with one statement changed.

A repair changes every execution of one statement: a release where a flag is stored, an acquire where it is read, a
wider scope, a barrier next to it. The notes of the run are replayed on fresh clocks with that change. If the two
accesses are then ordered, the repair is what was missing. Only repairs that pass this test are reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks import journal
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.journal import AccessPlaces, Note
from refsim.ptx.checks.knowledge import NOTHING
from refsim.ptx.checks.orders import ClusterOrder
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.access import GPU, READ, UPDATE, WRITE, Semantics
from refsim.ptx.memory.arrays import Bools
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
        len(note.lanes) if note.verb in (journal.ACCESS, journal.FENCE) else 1 + len(note.lanes) // 256
        for note in notes
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
    for note in notes:
        for kind in _kinds(note, pair) if note.statement is not None else ():
            assert note.statement is not None
            found[Repair(note.statement, kind)] = None
    order = (*HALVES, *MEETINGS)
    return sorted(found, key=lambda repair: order.index(repair.kind))


def _kinds(note: Note, pair: UnorderedPair) -> list[str]:
    """Return the kinds of repairs that may apply to the statement of a note."""
    meaning = note.meaning
    if note.verb == journal.CLUSTER_ARRIVE:
        return [] if meaning.releases else [RELEASE]
    narrow = [SCOPE] if pair.blocks_apart and meaning.scope < GPU else []
    if note.verb == journal.FENCE:
        return narrow + _meetings(pair, before=meaning.releases, after=meaning.acquires)
    if note.verb != journal.ACCESS or not meaning.strong:
        return []
    reads, writes = note.detail.kind != WRITE and meaning.returns, note.detail.kind != READ
    found = narrow + [RELEASE] * (writes and not meaning.releases) + [ACQUIRE] * (reads and not meaning.acquires)
    found += [FENCE_BEFORE] * writes + [FENCE_AFTER] * reads
    return found + [CHAIN] * (note.detail.kind == WRITE) + _meetings(pair, before=writes, after=reads)


def _meetings(pair: UnorderedPair, *, before: bool, after: bool) -> list[str]:
    """Return the kinds of barriers to try, except a barrier that would order the pair by itself."""
    found = [WARP_BEFORE] * before + [WARP_AFTER] * after if pair.warps_apart else []
    return found + ([BLOCK_BEFORE] * before + [BLOCK_AFTER] * after if pair.blocks_apart else [])


def is_ordered(notes: Sequence[Note], pair: UnorderedPair, repairs: Sequence[Repair]) -> bool:
    """Return whether the pair is ordered when the notes are replayed with these repairs."""
    changes: dict[int, set[str]] = {}
    for repair in repairs:
        changes.setdefault(id(repair.statement), set()).add(repair.kind)
    play = Play(changes)
    for note in notes:
        play.note(note)
    clocks = play.of(pair.geometry).clocks
    return bool(clocks.is_ordered(np.array([pair.lane]), np.array([pair.other]), np.array([pair.number]))[0])


@dataclass
class Stage:
    """The clocks of the CTAs that run at one time."""

    clocks: Clocks
    alive: Bools
    clusters: ClusterOrder


@dataclass
class Play:
    """A replay of notes on fresh clocks; `changes` are kinds of repairs by the identity of statements."""

    changes: Mapping[int, set[str]]
    stage: Stage | None = None
    released: dict[tuple[str, int], Any] = field(default_factory=dict)

    def of(self, geometry: Geometry) -> Stage:
        """Return the clocks of one wave of CTAs; what is released at locations outlives the wave."""
        if self.stage is None or self.stage.clocks.geometry is not geometry:
            clocks, alive = Clocks(geometry, self.released), np.ones(geometry.lanes, np.bool_)
            self.stage = Stage(clocks, alive, ClusterOrder(clocks, alive))
        return self.stage

    def note(self, note: Note) -> None:
        """Replay one note."""
        stage, lanes, now = self.of(note.geometry), note.lanes, note.now
        clocks = stage.clocks
        match note.verb:
            case journal.ACCESS:
                self._access(clocks, note, self.changes.get(id(note.statement), set()))
            case journal.FENCE:
                kinds = self.changes.get(id(note.statement), set())
                meet(clocks, lanes, now, kinds & {WARP_BEFORE, BLOCK_BEFORE})
                clocks.fence(lanes, self._meaning(note), now)
                meet(clocks, lanes, now, kinds & {WARP_AFTER, BLOCK_AFTER})
            case journal.MEET_CTA:
                clocks.meet_cta(lanes, now)
            case journal.MEET_WARPS:
                clocks.meet_warps(lanes, now)
            case journal.MEET_LANES:
                clocks.meet_lanes(lanes, note.detail, now)
            case journal.ARRIVE:
                clocks.arrive(note.detail, lanes, now)
            case journal.LEAVE:
                clocks.leave(note.detail, lanes)
            case journal.CLUSTER_ARRIVE:
                stage.alive[:] = note.detail
                stage.clusters.arrive(lanes, now, releases=self._meaning(note).releases)
            case journal.CLUSTER_FINISH:
                stage.clusters.finish(note.detail, lanes)
            case journal.CLUSTER_WAIT:
                for cluster in np.unique(note.geometry.cta[lanes] // note.geometry.cluster_ctas).tolist():
                    stage.clusters.complete.setdefault(cluster, NOTHING)  # the phase completed before the first note
                stage.clusters.wait(lanes)

    def _meaning(self, note: Note) -> Semantics:
        """Return the semantics of a note's statement with the repairs applied."""
        kinds = self.changes.get(id(note.statement), set())
        meaning = note.meaning
        if SCOPE in kinds:
            meaning = replace(meaning, scope=GPU)
        return replace(
            meaning, releases=meaning.releases or RELEASE in kinds, acquires=meaning.acquires or ACQUIRE in kinds
        )

    def _access(self, clocks: Clocks, note: Note, kinds: set[str]) -> None:
        """Replay an access with the fences and barriers that repairs put next to it."""
        lanes, place, meaning = note.lanes, note.detail, self._meaning(note)
        meet(clocks, lanes, note.now - 1, kinds & {WARP_BEFORE, BLOCK_BEFORE})
        if FENCE_BEFORE in kinds:
            clocks.fence(lanes, THREADFENCE, note.now - 1)
        keys = [(place.space, at) for at in self._positions(note).tolist()]
        if place.kind == READ:
            clocks.read(lanes, keys, meaning)
        elif place.kind == WRITE and (clocks.matters or meaning.releases):
            clocks.write(lanes, keys, meaning, note.now, update=CHAIN in kinds)
        elif place.kind == UPDATE:
            self._update(clocks, note, keys, meaning)
        if FENCE_AFTER in kinds:
            clocks.fence(lanes, THREADFENCE, note.now)
        meet(clocks, lanes, note.now, kinds & {WARP_AFTER, BLOCK_AFTER})

    def _update(self, clocks: Clocks, note: Note, keys: list[tuple[str, int]], meaning: Semantics) -> None:
        """Replay an atomic lane after lane."""
        place: AccessPlaces = note.detail
        for number, key in enumerate(keys):
            one = note.lanes[number : number + 1]
            if meaning.returns:
                clocks.read(one, [key], meaning)
            if (place.wrote is None or place.wrote[number]) and (clocks.matters or meaning.releases):
                clocks.write(one, [key], meaning, note.now, update=True)

    @staticmethod
    def _positions(note: Note) -> NDArray[np.int64]:
        """Return byte positions that are distinct for the shared memory of each wave of CTAs."""
        place: AccessPlaces = note.detail
        return place.at if place.space != "shared" else place.at + note.geometry.first * (1 << 32)


def meet(clocks: Clocks, lanes: Ids, now: int, kinds: set[str]) -> None:
    """Record a barrier of the warps or of the CTAs of these lanes."""
    geometry = clocks.geometry
    if kinds & {WARP_BEFORE, WARP_AFTER}:
        clocks.meet_warps(np.flatnonzero(np.isin(geometry.warp, geometry.warp[lanes])), now)
    if kinds & {BLOCK_BEFORE, BLOCK_AFTER}:
        clocks.meet_cta(np.flatnonzero(np.isin(geometry.cta, geometry.cta[lanes])), now)
