"""Copies on their way: cp.async from global to shared memory, in groups that each thread commits and waits for.

When the bytes move is a policy. "eager" moves them at issue, "lazy" at the wait that covers them, "random" at a moment
between the two that a seeded generator picks, for some warps of the instruction and not yet for others. What a correct
kernel computes does not depend on it. For the checks a copy flies from its issue to that wait, whenever its bytes move.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.in_flight import InFlight
from refsim.ptx.checks.races import Races
from refsim.ptx.checks.undefined_memory import moved
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.memory.space import ITEM, AccessError, Addresses
from refsim.ptx.text.syntax import Statement, place

Array = NDArray[Any]

POLICIES = ("eager", "lazy", "random")
_AT_ISSUE = 0.3
_DRIFT = 0.3


@dataclass(frozen=True)
class Copy:
    """One executed cp.async: `size` bytes to item `index` of shared memory per lane, the first `given` from `source`.

    `group` is the lane's group, counted from 0; `moved` tells whether the bytes are in shared memory already.
    """

    lanes: Lanes
    index: Addresses
    source: Addresses
    size: int
    given: Array
    group: NDArray[np.int64]
    moved: bool = False
    number: int = 0

    def part(self, mask: NDArray[np.bool_], *, moved: bool | None = None) -> "Copy | None":
        """The copies of some lanes; None where there are none."""
        if not mask.any():
            return None
        chosen = Lanes(self.lanes.machine, self.lanes.ids[mask], self.lanes.statement)
        given = self.given if len(self.given) == 1 else self.given[mask]
        where = (self.index[mask], self.source[mask])
        return Copy(
            chosen, *where, self.size, given, self.group[mask], self.moved if moved is None else moved, self.number
        )


@dataclass(frozen=True)
class Wait:
    """One executed wait of some lanes: all groups below number `limit` are there, `pending` newer ones may not be."""

    statement: Statement
    pending: int
    limit: int


class Watch(Protocol):
    """Who wants to see the bytes that copies bring."""

    def moved(self, lanes: Lanes, at: Array, width: int, items: Array) -> None: ...


class Host(Machine, Protocol):
    """A machine with those that follow its copies."""

    @property
    def races(self) -> Races | None: ...
    @property
    def in_flight(self) -> InFlight | None: ...
    @property
    def watching(self) -> Watch | None: ...


@dataclass
class Copies:
    """The copies in flight of all lanes that run."""

    machine: Host
    policy: str
    choice: np.random.Generator | None
    committed: NDArray[np.int64] = field(init=False)
    flying: list[Copy] = field(default_factory=list)
    issued: int = 0
    waits: list[Wait] = field(default_factory=list)
    waited: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.committed = np.zeros(self.machine.geometry.lanes, np.int64)
        self.waited = np.full(self.machine.geometry.lanes, -1, np.int32)

    def issue(self, lanes: Lanes, to: Array, source: Array, size: int, given: Array) -> None:
        """Lanes start copies of `size` bytes to shared addresses `to`; bytes beyond `given` become zero."""
        self.issued += 1
        machine = self.machine
        ((lanes, _, at, _),) = lanes.parts("shared", to)
        state, owner = lanes.space("shared")
        lanes = copy(lanes)  # the set goes on to other statements
        access = machine.port.intend(lanes, "shared", state, lanes.full(at), owner, size)
        flight = Copy(
            lanes, access.index, lanes.full(source), size, given, self.committed[lanes.key].copy(), number=self.issued
        )
        self._check_source(flight)
        self._read_source(flight)
        if machine.in_flight is not None:
            machine.in_flight.before(access)
        if machine.races is not None:
            machine.races.copy_issued(access, lambda: self._items(flight))
        if machine.in_flight is not None:
            machine.in_flight.issued(access.index, size)
        state.mark_written(access.index, size)
        at_once, later = self._at_issue(flight)
        for part in (at_once, later):
            if part is not None:
                self.flying.append(part)
        if at_once is not None:
            self._move(at_once)

    def _at_issue(self, flight: Copy) -> tuple[Copy | None, Copy | None]:
        """Which lanes' bytes move now."""
        if self.policy == "random" and self.choice is not None:
            moves = self._some_warps(flight.lanes, _AT_ISSUE)
        else:
            moves = np.full(flight.lanes.count, self.policy == "eager")
        if moves.all():
            return replace(flight, moved=True), None
        if not moves.any():
            return None, flight
        return flight.part(moves, moved=True), flight.part(~moves)

    def _some_warps(self, lanes: Lanes, share: float) -> NDArray[np.bool_]:
        assert self.choice is not None
        warps = lanes.warp - int(lanes.warp[0])
        drawn: NDArray[np.bool_] = self.choice.random(int(warps[-1]) + 1) < share
        return drawn[warps]

    def commit(self, lanes: Lanes) -> None:
        """All copies since the last commit are one group."""
        self.committed[lanes.key] += 1

    def wait(self, lanes: Lanes, pending: int) -> None:
        """Lanes go on when at most `pending` of their newest groups are in flight."""
        if not self.flying:
            return
        self._note_wait(lanes, pending)
        limit = np.full(len(self.committed), -1, np.int64)
        limit[lanes.key] = self.committed[lanes.key] - pending
        self._land_where(lambda flight: flight.group < limit[flight.lanes.key])

    def land(self, ids: Ids, issued: int) -> None:
        """The copies of these lanes that are no younger than number `issued` have arrived."""
        self._land_where(lambda flight: np.isin(flight.lanes.ids, ids) & (flight.number <= issued))

    def _land_where(self, chosen: Callable[[Copy], NDArray[np.bool_]]) -> None:
        still: list[Copy] = []
        for flight in self.flying:
            done = chosen(flight)
            if not done.any():
                still.append(flight)
                continue
            finished = flight if done.all() else flight.part(done)
            rest = None if done.all() else flight.part(~done)
            if rest is not None:
                still.append(rest)
            assert finished is not None
            self._land(finished)
        self.flying = still

    def _note_wait(self, lanes: Lanes, pending: int) -> None:
        """Remember where each lane waited last, and for which of its groups."""
        assert lanes.statement is not None
        done = self.committed[lanes.key] - pending
        for limit in np.unique(done).tolist():
            self.waits.append(Wait(lanes.statement, pending, limit))
            self.waited[lanes.ids[done == limit]] = len(self.waits) - 1

    def drift(self) -> None:
        """Time passes: under the random policy, some bytes that fly arrive."""
        if self.choice is None or self.policy != "random" or self.choice.random() >= _DRIFT:
            return
        flying = [number for number, flight in enumerate(self.flying) if not flight.moved]
        if flying:
            number = flying[int(self.choice.integers(len(flying)))]
            flight = self.flying[number]
            moves = self._some_warps(flight.lanes, 0.5)
            parts = [part for part in (flight.part(moves, moved=True), flight.part(~moves)) if part is not None]
            self.flying[number : number + 1] = parts
            if parts[0].moved:
                self._move(parts[0])

    def _land(self, flight: Copy) -> None:
        if not flight.moved:
            self._move(flight)
        if self.machine.in_flight is not None:
            self.machine.in_flight.landed(flight.index, flight.size)
        if self.machine.races is not None:
            self.machine.races.copy_landed(flight.lanes, flight.index, flight.size)

    def _move(self, flight: Copy) -> None:
        shared, items = self.machine.shared, self._items(flight)
        shared.bytes.view(ITEM[flight.size])[flight.index] = items
        if self.machine.tracking is not None:
            moved(flight.lanes, flight.index, flight.source, flight.size, flight.given)
        if self.machine.watching is not None:
            self.machine.watching.moved(flight.lanes, flight.index * flight.size % shared.stride, flight.size, items)

    def _items(self, flight: Copy) -> Array:
        """The bytes that arrive: those of the source, then zeros."""
        lanes, given, size = flight.lanes, flight.given, flight.size
        if (given == size).all():
            return self._held(flight.source, size)
        amount, rows = lanes.full(given), np.zeros((lanes.count, size), np.uint8)
        for count in np.unique(amount[amount > 0]).tolist():
            chosen = amount == count
            for byte in range(count):
                rows[chosen, byte] = self._held(flight.source[chosen] + byte, 1)
        return rows.reshape(-1).view(ITEM[size])

    def _held(self, source: Array, width: int) -> Array:
        state = self.machine.memory.space
        return state.bytes.view(ITEM[width]).take(state.index(source.astype(np.int64) - state.base, 0, width))

    def _read_source(self, flight: Copy) -> None:
        """The copy reads its source from now on: an access of the lane that issued it, whenever the bytes move."""
        lanes, port, (state, owner) = flight.lanes, self.machine.port, flight.lanes.space("global")
        at = flight.source.astype(np.int64) - state.base
        if (flight.given == flight.size).all():
            port.touch(lanes, "global", state, at, owner, flight.size)
            return
        amount = lanes.full(flight.given)
        for count in np.unique(amount[amount > 0]).tolist():
            chosen = amount == count
            part = Lanes(lanes.machine, lanes.ids[chosen], lanes.statement)
            width = count if count in ITEM else 1
            for first in range(0, count, width):
                port.touch(part, "global", state, at[chosen] + first, owner, width)

    def _check_source(self, flight: Copy) -> None:
        """The source must exist when the flight is issued, whenever its bytes are read; nothing is read for zero bytes."""
        if (flight.given == flight.size).all():
            return  # reading it is the check
        lanes, amount = flight.lanes, flight.lanes.full(flight.given)
        state, _ = lanes.space("global")
        for count in np.unique(amount[amount > 0]).tolist():
            chosen = np.flatnonzero(amount == count)
            at = flight.source[chosen] - state.base
            try:
                if (stray := at % flight.size != 0).any():
                    raise AccessError("misaligned", int(np.argmax(stray)), f"address {state.address(at[np.argmax(stray)])} "
                                      f"is not a multiple of {flight.size} bytes")  # fmt: skip
                for first in (0, count - 1):
                    state.check(at + first, 1, store=False)
            except AccessError as error:
                raise lanes.fault(error.code, int(chosen[error.lane]), error.what) from None

    def describe(self, start: int, width: int, reader: int) -> str:
        """The flight that flies to one of these bytes of the flat shared memory, and what a lane has to wait for."""
        for flight in reversed(self.flying):
            first = flight.index * flight.size
            there = (first < start + width) & (first + flight.size > start)
            if there.any():
                lane, lanes = int(np.argmax(there)), flight.lanes
                assert lanes.statement is not None
                thread = int(lanes.ids[lane])
                who = self.machine.geometry.describe(thread)
                behind = int(self.committed[thread] - flight.group[lane])
                groups = "not committed" if behind == 0 else f"{behind} group{'s' * (behind > 1)} back"
                missing = self._missing_wait(thread, int(flight.group[lane]), behind)
                others = "" if thread == reader else ", and then a barrier, as the copy is another thread's"
                return f"{place(lanes.statement)} of {who} ({groups}) still writes them: {missing}{others}"
        return "a cp.async still writes them"

    def _missing_wait(self, thread: int, group: int, behind: int) -> str:
        """What a thread lacks that would wait for one of its groups."""
        if behind == 0:
            return "it lacks a cp.async.commit_group and a wait for that group"
        wait = self.waits[self.waited[thread]] if self.waited[thread] >= 0 else None
        left = -1 if wait is None else wait.limit + wait.pending - group
        if wait is None or left <= 0:  # it had not been committed then
            return "it lacks a cp.async.wait_group"
        needed = f"N = {left - 1} would wait for it"
        return f"{place(wait.statement)} leaves its newest groups in flight, N = {wait.pending} of them; {needed}"
