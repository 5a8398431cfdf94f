"""A record of what ordered the accesses of a launch, from which a finding derives the missing synchronization.

The journal keeps all events that the clocks interpret, and every strong access in addition, even one that orders
nothing. It is only read for a finding. The oldest notes are dropped when there are too many; then a hint may be missed,
but no wrong hint is given.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile

from refsim.ptx.events import LaunchEvent
from refsim.ptx.execution.geometry import Geometry

_LANES = 1 << 20  # of all notes together


@dataclass(slots=True, eq=False)
class Note:
    """An event, with the number of the newest access when it happened, and the CTAs that ran then."""

    now: int
    geometry: Geometry
    event: LaunchEvent


@dataclass
class Journal:
    """The notes of one launch, the oldest first; `lanes`: how many they hold, `strong`: areas with strong accesses."""

    notes: deque[Note] = field(default_factory=deque)
    lanes: int = 0
    geometry: Geometry | None = None
    strong: set[int] = field(default_factory=set)

    def add(self, now: int, event: LaunchEvent) -> None:
        """Append a note, and drop the oldest beyond the limit."""
        assert self.geometry is not None
        self.notes.append(Note(now, self.geometry, event))
        self.lanes += len(event.lanes) + 1
        while self.lanes > _LANES:
            self.lanes -= len(self.notes.popleft().event.lanes) + 1

    def since(self, number: int) -> list[Note]:
        """Return the notes after an access, in order; an earlier note cannot order that access."""
        found = list(takewhile(lambda note: note.now >= number, reversed(self.notes)))
        return found[::-1]
