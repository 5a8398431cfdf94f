"""A record of what ordered the accesses of a launch, from which a finding derives the missing synchronization.

The journal receives all events of the clocks, and every strong access in addition, even one that orders nothing. It is
only read for a finding. The oldest notes are dropped when there are too many; then a hint may be missed, but no wrong
hint is given.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.access import WEAK, Access, Semantics
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.text.syntax import Statement
from refsim.ptx.text.words import words_in

_LANES = 1 << 20  # of all notes together
FENCE, ACCESS, MEET_CTA, MEET_WARPS, MEET_LANES, ARRIVE, LEAVE, PASSED = words_in(
    "fence access meet_cta meet_warps meet_lanes arrive leave passed"
)
CLUSTER_ARRIVE, CLUSTER_FINISH, CLUSTER_WAIT = "cluster_arrive", "cluster_finish", "cluster_wait"


@dataclass(slots=True, eq=False)
class AccessPlaces:
    """The byte positions of an access's lanes in a space; the shared memories of all CTAs count as one space."""

    kind: str
    space: str
    at: Array
    wrote: Bools | None


@dataclass(slots=True, eq=False)
class Note:
    """One action of lanes, made when access `now` was the newest; `detail`: further arguments of the verb."""

    verb: str
    now: int
    geometry: Geometry
    lanes: Ids
    statement: Statement | None = None
    meaning: Semantics = WEAK
    detail: Any = None


@dataclass
class Journal:
    """The notes of one launch, the oldest first; `lanes`: how many they hold, `strong`: areas with strong accesses."""

    notes: deque[Note] = field(default_factory=deque)
    lanes: int = 0
    geometry: Geometry | None = None
    strong: set[int] = field(default_factory=set)

    def add(self, verb: str, now: int, lanes: Ids, **more: Any) -> None:
        """Append a note, and drop the oldest beyond the limit."""
        assert self.geometry is not None
        self.notes.append(Note(verb, now, self.geometry, lanes, **more))
        self.lanes += len(lanes) + 1
        while self.lanes > _LANES:
            self.lanes -= len(self.notes.popleft().lanes) + 1

    def since(self, number: int) -> list[Note]:
        """Return the notes after an access, in order; an earlier note cannot order that access."""
        found = list(takewhile(lambda note: note.now >= number, reversed(self.notes)))
        return found[::-1]

    def accessed(self, access: Access, at: Array, area: int, meaning: Semantics, now: int) -> None:
        """Record a strong access to byte positions of an area, or a weak write to an area with strong accesses."""
        if meaning.strong:
            self.strong.add(area)
        elif area not in self.strong:
            return
        place = AccessPlaces(access.kind, access.name, at, access.wrote)
        self.add(ACCESS, now, access.threads.ids, statement=access.statement, meaning=meaning, detail=place)
