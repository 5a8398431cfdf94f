"""What put the accesses of a launch in order, noted as it happened, so that a finding can say what would have done it.

A journal hears what the clocks hear, and besides every strong access, also those that order nothing. Nobody reads it until
there is a finding. The oldest notes go when there are too many: what they would tell is missed, and nothing wrong is said.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.memory.access import Access
from refsim.ptx.memory.semantics import WEAK, Semantics
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
_LANES = 1 << 20  # of all notes together
FENCE, ACCESS, MEET_CTA, MEET_WARPS, MEET_LANES, ARRIVE, LEAVE, PASSED = (
    "fence",
    "access",
    "meet_cta",
    "meet_warps",
    "meet_lanes",
    "arrive",
    "leave",
    "passed",
)
CLUSTER_ARRIVE, CLUSTER_FINISH, CLUSTER_WAIT = "cluster_arrive", "cluster_finish", "cluster_wait"


@dataclass(slots=True, eq=False)
class AccessPlaces:
    """Where the lanes of an access were: byte positions in a space, the shared memory of all CTAs being one."""

    kind: str
    space: str
    at: Array
    wrote: NDArray[np.bool_] | None


@dataclass(slots=True, eq=False)
class Note:
    """One thing that lanes did when access `now` was the newest. detail: what the verb takes besides."""

    verb: str
    now: int
    geometry: Geometry
    lanes: Ids
    statement: Statement | None = None
    meaning: Semantics = WEAK
    detail: Any = None


@dataclass
class Journal:
    """The notes of one launch, the oldest first."""

    notes: deque[Note] = field(default_factory=deque)
    lanes: int = 0
    geometry: Geometry | None = None
    strong: set[int] = field(default_factory=set)

    def add(self, verb: str, now: int, lanes: Ids, **more: Any) -> None:
        """Note one thing; forget the oldest beyond what is kept."""
        assert self.geometry is not None
        self.notes.append(Note(verb, now, self.geometry, lanes, **more))
        self.lanes += len(lanes) + 1
        while self.lanes > _LANES:
            self.lanes -= len(self.notes.popleft().lanes) + 1

    def since(self, number: int) -> list[Note]:
        """What happened after an access, in order; nothing before it can order that access."""
        found = list(takewhile(lambda note: note.now >= number, reversed(self.notes)))
        return found[::-1]

    def accessed(self, access: Access, at: Array, area: int, meaning: Semantics, now: int) -> None:
        """A strong access to byte positions of an area, or a weak write to one that strong accesses go to."""
        if meaning.strong:
            self.strong.add(area)
        elif area not in self.strong:
            return
        place = AccessPlaces(access.kind, access.name, at, access.wrote)
        self.add(ACCESS, now, access.threads.ids, statement=access.statement, meaning=meaning, detail=place)
