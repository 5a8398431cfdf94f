"""The policy that decides when asynchronous work takes effect.

"eager" performs it at issue and "lazy" at the wait that covers it. "random" performs it at a moment between the two
that a seeded generator picks, perhaps for only some units of an operation. The result of a correct kernel does not
depend on the policy.

Groups of asynchronous work that a thread commits and waits for.

sync/mbarriers models the other way to learn of completion: an mbarrier at which the work arrives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.text.syntax import Statement, place


@dataclass(frozen=True)
class Wait:
    """One executed wait of some threads: the groups below number `limit` are complete, `pending` newer ones need not
    be."""

    statement: Statement
    pending: int
    limit: int


@dataclass
class ThreadGroups:
    """The groups of `lanes` threads or warpgroups. A commit puts everything that a thread started since its last commit
    into one group. Groups are numbered from 0. The names of the instructions begin with `family`."""

    lanes: int
    family: str = "cp.async"
    waits: list[Wait] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.committed: NDArray[np.int64] = np.zeros(self.lanes, np.int64)
        self.waited: NDArray[np.int32] = np.full(self.lanes, -1, np.int32)

    def commit(self, lanes: Ids | slice) -> None:
        """Close the current group of each of these threads."""
        self.committed[lanes] += 1

    def current(self, lanes: Ids | slice) -> NDArray[np.int64]:
        """Return the group that new work of each of these threads joins."""
        return self.committed[lanes].copy()

    def all_but(self, lanes: Ids | slice, pending: int) -> NDArray[np.int64]:
        """Return for every thread the first group that a wait of `lanes` leaves in flight; -1 for all other threads."""
        limit = np.full(self.lanes, -1, np.int64)
        limit[lanes] = self.committed[lanes] - pending
        return limit

    def note_wait(self, lanes: Ids, statement: Statement, pending: int) -> None:
        """Remember where each thread waited last, and for which of its groups."""
        done = self.committed[lanes] - pending
        for limit in np.unique(done).tolist():
            self.waits.append(Wait(statement, pending, limit))
            self.waited[lanes[done == limit]] = len(self.waits) - 1

    def behind(self, thread: int, group: int) -> int:
        """Return how many groups before the current one a thread's `group` is."""
        return int(self.committed[thread]) - group

    def missing_wait(self, thread: int, group: int) -> str:
        """Return a sentence about the wait that a thread lacks for one of its groups."""
        if self.behind(thread, group) == 0:
            return f"it lacks a {self.family}.commit_group and a wait for that group"
        wait = self.waits[self.waited[thread]] if self.waited[thread] >= 0 else None
        left = -1 if wait is None else wait.limit + wait.pending - group
        if wait is None or left <= 0:  # it had not been committed then
            return f"it lacks a {self.family}.wait_group"
        needed = f"N = {left - 1} would wait for it"
        return f"{place(wait.statement)} leaves its newest groups in flight, N = {wait.pending} of them; {needed}"


SchedulePolicy = Literal["eager", "lazy", "random"]
POLICIES: tuple[SchedulePolicy, ...] = get_args(SchedulePolicy)
HELD_POLICY = "held"
"""The policy that moves copies as "eager" does, and holds lanes before one access: the seed says where and how long."""
_AT_ISSUE = 0.3
_DRIFT = 0.3
SHARE = _AT_ISSUE  # of the work that is requested, or drifts, at one moment


class AsyncOp(Protocol):
    """Work in flight: from its issue until a thread has observed that it is complete.

    Its reads and writes are checked and shown to the observers at issue, so an error does not depend on when the bytes
    move. Only the policy decides when `performed` is called; `ThreadGroups` models who waits for it.
    """

    @property
    def is_performed(self) -> bool:
        """Return whether its bytes have moved."""

    @property
    def units(self) -> NDArray[np.int64]:
        """Return the unit of each of its parts, rising; parts of one unit take effect together."""

    def part(self, chosen: Bools) -> Self:
        """Return the chosen parts as an operation of their own."""

    def performed(self) -> Self:
        """Move its bytes now and return the performed operation."""

    def complete(self) -> None:
        """Mark it as complete for the checks, after a thread has waited for it."""

    def writes_to(self, start: int, width: int) -> Array:
        """Return which of its parts write to these bytes of the flat shared memory."""


Op = TypeVar("Op", bound=AsyncOp)


@dataclass
class Queue(Generic[Op]):
    """The operations in flight, the oldest first; an operation that is partly performed or complete is split in two."""

    policy: str
    choice: np.random.Generator | None
    flying: list[Op] = field(default_factory=list)

    def start(self, operation: Op) -> None:
        """Put an operation in flight, and perform the parts that the policy chooses."""
        if self.policy == "random" and self.choice is not None:
            now = self._some(operation, _AT_ISSUE)
        else:
            now = np.full(len(operation.units), self.policy == "eager")
        self.flying += self._performed(operation, now)

    def drift(self) -> None:
        """Perform some work in flight, under the random policy, as time passes."""
        if self.choice is None or self.policy != "random" or self.choice.random() >= _DRIFT:
            return
        waiting = [place for place, operation in enumerate(self.flying) if not operation.is_performed]
        if waiting:
            place = waiting[int(self.choice.integers(len(waiting)))]
            operation = self.flying[place]
            self.flying[place : place + 1] = self._performed(operation, self._some(operation, 0.5))

    def perform(self, chosen: Callable[[Op], Bools]) -> None:
        """Perform the parts in flight that `chosen` selects and that the policy has not performed yet."""
        flying: list[Op] = []
        for operation in self.flying:
            flying += [operation] if operation.is_performed else self._performed(operation, chosen(operation))
        self.flying = flying

    def complete(self, chosen: Callable[[Op], Bools]) -> None:
        """Complete the parts in flight that `chosen` selects, after a thread has waited for them."""
        still: list[Op] = []
        for operation in self.flying:
            done = chosen(operation)
            finished, rest = _cut(operation, done)
            if rest is not None:
                still.append(rest)
            if finished is not None:
                (finished if finished.is_performed else finished.performed()).complete()
        self.flying = still

    def writer_of(self, start: int, width: int) -> tuple[Op, int] | None:
        """Return the newest operation that writes to these bytes of the flat shared memory, and its first such part."""
        for operation in reversed(self.flying):
            there = operation.writes_to(start, width)
            if there.any():
                return operation, int(np.argmax(there))
        return None

    def _performed(self, operation: Op, now: Bools) -> list[Op]:
        first, rest = _cut(operation, now)
        return [*([] if first is None else [first.performed()]), *([] if rest is None else [rest])]

    def _some(self, operation: Op, share: float) -> Bools:
        assert self.choice is not None
        units = operation.units - int(operation.units[0])
        drawn: Bools = self.choice.random(int(units[-1]) + 1) < share
        return drawn[units]


def _cut(operation: Op, chosen: Bools) -> tuple[Op | None, Op | None]:
    """Return the chosen parts and the rest, None for an empty side."""
    if chosen.all():
        return operation, None
    if not chosen.any():
        return None, operation
    return operation.part(chosen), operation.part(~chosen)
