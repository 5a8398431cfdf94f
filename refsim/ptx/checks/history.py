"""The accesses of one launch by number: who made them, by which statement, and which marks they replaced.

Numbers rise with time over all CTAs, also over CTAs that run one after another. The statement of an access is kept for
the whole launch; its lanes and places are kept for the newest accesses only, about 100 MB of them. `unread` are the
statements, by identity, whose results no statement reads; `volatile` are the volatile accesses that do not poll.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from refsim.ptx.checks.journal import Journal
from refsim.ptx.checks.knowledge import Released
from refsim.ptx.isa.definedness.tracking import ProductReads
from refsim.ptx.memory.access import READ, WEAK, Access, Semantics, semantics
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.snapshot import TouchedBytes
from refsim.ptx.memory.space import Addresses
from refsim.ptx.text.syntax import Statement

_LANES = 1 << 22  # of all accesses that are listed together
_OF_UNITS = ("wgmma.mma_async", "tcgen05.mma", "tcgen05.cp", "cp.async.bulk", "cp.reduce.async.bulk")
_MOST = 1 << 16  # lanes of accesses that are looked at


@dataclass
class StrongAccesses:
    """The strong accesses of a launch, in arrays of lanes: rows of statement, write, width, shared, first thread, index,
    thread.

    They are kept as they come and compared at the end, because a launch that waits makes thousands of them.
    """

    made: list[tuple[int, bool, int, bool, int, Addresses, Addresses]] = field(default_factory=list)
    left: int = _MOST

    def note(self, access: Access, first: int) -> None:
        """Note the statement and the thread of each lane of a strong access; lane 0 is thread `first` of the grid."""
        if self.left > 0:
            self.left -= len(access.threads.ids)
            made = id(access.statement), access.kind != READ, access.width, access.name == "shared", first
            self.made.append((*made, access.index, access.threads.ids))

    def contended(self) -> set[int]:
        """Return the identities of statements that accessed a place of another statement and of another thread, where
        one of them wrote."""
        if len({statement for statement, *_ in self.made}) < 2:
            return set()
        made = {(*row, index.tobytes(), ids.tobytes()): (index, ids) for *row, index, ids in self.made}  # each once
        counts = [len(ids) for _, ids in made.values()]
        statement, write, width, shared, first = np.repeat([row[:5] for row in made], counts, axis=0).T
        thread = np.concatenate([ids for _, ids in made.values()]) + first
        index = np.concatenate([at if len(at) == len(ids) else at.repeat(len(ids)) for at, ids in made.values()])
        place = index * width - shared * (first + 1 << 32)  # apart from global memory and from other waves' blocks
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=place.min() - 1))
        found = np.logical_or.reduceat(write[order], starts)
        for key in (statement[order], thread[order]):
            found &= np.minimum.reduceat(key, starts) != np.maximum.reduceat(key, starts)
        return set(statement[order][np.repeat(found, np.diff(starts, append=len(order)))].tolist())


@lru_cache(maxsize=4096)
def _unread(opcode: str) -> Semantics:
    """Return the semantics of an opcode whose result is not read."""
    return replace(semantics(opcode), returns=False, acquires=False)


@dataclass(slots=True, eq=False)
class AccessEvent:
    """One access, or the part of it that is marked alike: the threads (numbered over the grid) and their first
    granules. `benign` marks a write that changed nothing, `shared` that several threads touched one granule. `replaced`
    holds the replaced marks (last, agent, since) for lanes and granules, if they are to be remembered. `product`: the
    product of warpgroups that made it."""

    number: int
    agents: Array
    first: Array
    count: int
    benign: bool = False
    shared: bool = False
    replaced: tuple[Array, Array, Array] | None = None
    product: ProductReads | None = None

    def at(self, granule: int) -> Array:
        """Return the positions in `agents` of the threads that touched a granule."""
        return np.flatnonzero((self.first <= granule) & (granule < self.first + self.count))


class By(NamedTuple):
    """One thread's part of an access: its semantics, the bytes of one element, the thread's number in the grid."""

    meaning: Semantics
    element: int
    agent: int


@dataclass
class History:
    """Data that outlives the running CTAs: the numbering, the listed accesses, and releases in global memory. `written`
    and `touched`: bytes of global memory, if a check asks for them. `began_behind`: some block let the next launch
    begin only after it had waited for the previous one."""

    made: list[tuple[Statement, int] | None] = field(default_factory=lambda: [None])
    unread: frozenset[int] = frozenset()
    volatile: frozenset[int] = frozenset()
    listed: dict[int, AccessEvent] = field(default_factory=dict)
    order: deque[AccessEvent] = field(default_factory=deque)
    lanes: int = 0
    released: tuple[dict[tuple[str, int], Released], ...] = field(default_factory=lambda: ({}, {}))
    areas: dict[int, Any] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    strong: StrongAccesses = field(default_factory=StrongAccesses)
    written: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    touched: TouchedBytes | None = None
    began_behind: bool = False

    def left_behind(self, earlier: TouchedBytes | None) -> TouchedBytes | None:
        """Return the bytes that this launch, or the overlapped `earlier` one, may touch when the next one begins."""
        if self.touched is None or earlier is None or self.began_behind:
            return self.touched
        return self.touched.joined(earlier)

    @property
    def now(self) -> int:
        """Return the number of the newest access."""
        return len(self.made) - 1

    def number(self, statement: Statement, element: int) -> int:
        """Return the number of a new access by a statement to elements of `element` bytes."""
        self.made.append((statement, element))
        return len(self.made) - 1

    def is_asynchronous(self, number: int) -> bool:
        """Return whether a copy engine or a tensor core made an access, judged by its statement."""
        made = self.made[number]
        return made is not None and made[0].opcode.startswith(_OF_UNITS)

    def is_product(self, number: int) -> bool:
        """Return whether a product of a warpgroup made an access."""
        made = self.made[number]
        return made is not None and made[0].opcode.startswith("wgmma.mma_async")

    def is_volatile(self, number: int) -> bool:
        """Return whether a volatile access that does not poll has a number."""
        made = self.made[number]
        return made is not None and id(made[0]) in self.volatile

    def is_bulk_copy(self, number: int) -> bool:
        """Return whether a copy engine that moves bytes unchanged made an access."""
        made = self.made[number]
        return made is not None and made[0].opcode.startswith("cp.async.bulk")

    def meaning(self, number: int) -> Semantics:
        """Return the semantics of an access's statement."""
        made = self.made[number]
        return WEAK if made is None else self.meaning_of(made[0])

    def meaning_of(self, statement: Statement) -> Semantics:
        """Return the semantics of a statement. An atomic without a reader of its result learns nothing from earlier
        accesses: the program does the same in the other order. It counts as the `red` that the assembler makes of
        it."""
        return _unread(statement.opcode) if id(statement) in self.unread else semantics(statement.opcode)

    def evidence(self, number: int) -> tuple[bool, int, bool, int]:
        """Return what distinguishes accesses of one thread for a race: strong, scope, read-modify-write, element
        bytes."""
        made, meaning = self.made[number], self.meaning(number)
        return meaning.strong, meaning.scope, meaning.atomic and meaning.returns, 0 if made is None else made[1]

    def by(self, number: int, agent: int) -> By:
        """Return an access as one of its threads made it."""
        made = self.made[number]
        return By(self.meaning(number), 0 if made is None else made[1], agent)

    def list(self, event: AccessEvent) -> None:
        """Remember the lanes and places of an access; the oldest are forgotten once there are too many."""
        self.listed[event.number] = event
        self.order.append(event)
        self.lanes += len(event.agents)
        while self.lanes > _LANES:
            oldest = self.order.popleft()
            self.lanes -= len(oldest.agents)
            self.listed.pop(oldest.number, None)
