"""Groups of asynchronous work that a thread commits and waits for.

sync/mbarriers models the other way to learn of completion: an mbarrier at which the work arrives.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
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
    committed: NDArray[np.int64] = field(init=False)
    waits: list[Wait] = field(default_factory=list)
    waited: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.committed = np.zeros(self.lanes, np.int64)
        self.waited = np.full(self.lanes, -1, np.int32)

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
