"""The accesses of one launch, numbered: who made them, by which statement, and what they replaced in the marks.

Numbers rise with time over all CTAs, also over those that run one after another. What an access was stays for the whole
launch; which lanes touched which places is kept for the newest ones, some 100 MB of them. `unread` are the statements, by
identity, whose results nobody reads.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.journal import Journal
from refsim.ptx.checks.knowledge import Released
from refsim.ptx.memory.semantics import WEAK, Semantics, semantics
from refsim.ptx.memory.touched import TouchedBytes
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
_LANES = 1 << 22  # of all accesses that are listed together
_OF_UNITS = ("wgmma.mma_async", "tcgen05.mma", "tcgen05.cp", "cp.async.bulk", "cp.reduce.async.bulk")


@lru_cache(maxsize=4096)
def _unread(opcode: str) -> Semantics:
    return replace(semantics(opcode), returns=False, acquires=False)


@dataclass(slots=True, eq=False)
class AccessEvent:
    """One access, or the part of one that is marked alike: the threads (numbered over the grid) and their first granules.

    `benign` marks a write that changed nothing, `shared` that several threads touched one granule. `replaced` holds, for
    lanes and granules, the marks (last, agent, since) that stood there, where these are to be remembered.
    """

    number: int
    agents: Array
    first: Array
    count: int
    benign: bool = False
    shared: bool = False
    replaced: tuple[Array, Array, Array] | None = None

    def at(self, granule: int) -> Array:
        """The positions in `agents` of those that touched a granule."""
        return np.flatnonzero((self.first <= granule) & (granule < self.first + self.count))


class By(NamedTuple):
    """One thread's part of an access: what it promises, the bytes of one element, the thread's number in the grid."""

    meaning: Semantics
    element: int
    agent: int


@dataclass
class History:
    """What outlives the CTAs that run at one time: the numbering, the listed accesses, releases in global
    memory, which of its bytes were `written` and which `touched`, where anybody asks; `began_behind`: some block let the
    next launch begin only after it had waited for the one before."""

    made: list[tuple[Statement, int] | None] = field(default_factory=lambda: [None])
    unread: frozenset[int] = frozenset()
    listed: dict[int, AccessEvent] = field(default_factory=dict)
    order: deque[AccessEvent] = field(default_factory=deque)
    lanes: int = 0
    released: tuple[dict[tuple[str, int], Released], ...] = field(default_factory=lambda: ({}, {}))
    areas: dict[int, Any] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    written: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    touched: TouchedBytes | None = None
    began_behind: bool = False

    def left_behind(self, earlier: TouchedBytes | None) -> TouchedBytes | None:
        """What may still be touched when the next launch begins: by this one, and by the `earlier` one that it began beside."""
        if self.touched is None or earlier is None or self.began_behind:
            return self.touched
        return self.touched.joined(earlier)

    @property
    def now(self) -> int:
        """The number of the newest access."""
        return len(self.made) - 1

    def number(self, statement: Statement, element: int) -> int:
        """The number of a new access by a statement to elements of so many bytes."""
        self.made.append((statement, element))
        return len(self.made) - 1

    def is_asynchronous(self, number: int) -> bool:
        """Whether a copy engine or a tensor core made an access, asked by its statement."""
        made = self.made[number]
        return made is not None and made[0].opcode.startswith(_OF_UNITS)

    def is_bulk_copy(self, number: int) -> bool:
        """Whether an access is of a copy engine that moves bytes as they are."""
        made = self.made[number]
        return made is not None and made[0].opcode.startswith("cp.async.bulk")

    def meaning(self, number: int) -> Semantics:
        """What the statement of an access promises."""
        made = self.made[number]
        return WEAK if made is None else self.meaning_of(made[0])

    def meaning_of(self, statement: Statement) -> Semantics:
        """What a statement promises. An atomic whose result nobody reads has learnt nothing of who came before it: the
        program does the same after the other order, so that it is taken for the red that the assembler makes of it."""
        return _unread(statement.opcode) if id(statement) in self.unread else semantics(statement.opcode)

    def evidence(self, number: int) -> tuple[bool, int, bool, int]:
        """What tells one access of a thread from another for those that race with it: strength, scope, whether it reads and
        writes at once, the bytes of an element."""
        made, meaning = self.made[number], self.meaning(number)
        return meaning.strong, meaning.scope, meaning.atomic and meaning.returns, 0 if made is None else made[1]

    def by(self, number: int, agent: int) -> By:
        """An access as one of its threads made it."""
        made = self.made[number]
        return By(self.meaning(number), 0 if made is None else made[1], agent)

    def list(self, event: AccessEvent) -> None:
        """Remember who touched what; the oldest are forgotten when these are too many."""
        self.listed[event.number] = event
        self.order.append(event)
        self.lanes += len(event.agents)
        while self.lanes > _LANES:
            oldest = self.order.popleft()
            self.lanes -= len(oldest.agents)
            self.listed.pop(oldest.number, None)
