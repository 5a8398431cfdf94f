"""The order of accesses to tensor memory by completed operations.

An operation of a tensor core is complete for a thread that sees the phase of its commit complete; a load or store of a
warp, after its tcgen05.wait. From then on it is an ordinary access, ordered by the mechanisms of the memory model (PTX
ISA, tcgen05, specialized inter-thread synchronization: they apply to tcgen05 too). So a barrier, or a release that is
acquired, needs no tcgen05.fence; CUTLASS and Triton use none there. Threads that synchronize by relaxed operations need
a tcgen05.fence::before_thread_sync and an ::after_thread_sync around these, which order tensor memory only. Such fences
also hand over an operation in flight to an operation that the tensor core executes after it anyway.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.race_reports import said
from refsim.ptx.checks.races import Races
from refsim.ptx.checks.repairs import UnorderedPair, missing
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import TensorBox
from refsim.ptx.memory.access import GPU, Semantics
from refsim.ptx.text.syntax import Statement, place

CODE = "race"
RULE = (
    "PTX ISA, tcgen05 memory consistency: completed operations of two threads need a barrier or a release that the other "
    "acquires between them, or relaxed ones between tcgen05.fence::before_thread_sync and ::after_thread_sync"
)
_BEFORE = Semantics(strong=True, releases=True, scope=GPU)
_AFTER = Semantics(strong=True, acquires=True, scope=GPU)
_NOBODY = -1
_PIPES = ("cp", "mma"), ("shift", "mma"), ("mma", "shift")


@dataclass(frozen=True, eq=False)
class TensorTouch:
    """A completed access to tensor memory: access `number` of these agents, which are of one warp or stand for a tensor
    core. `issuer`: the lane whose later operations follow it without further order; `handed`: other lanes to which it
    was handed over."""

    box: TensorBox
    writes: bool
    statement: Statement
    agents: NDArray[np.int64]
    number: int
    issuer: int = _NOBODY
    handed: frozenset[int] = frozenset()


@dataclass
class HandedOver:
    """The lanes to which an operation in flight was handed over; `fenced`: the access number of its thread's
    tcgen05.fence before."""

    fenced: int = 0
    lanes: frozenset[int] = frozenset()


@dataclass
class TensorOrder:
    """The accesses to each CTA's tensor memory that later accesses must come after."""

    races: Races
    touches: dict[int, list[TensorTouch]] = field(default_factory=dict)

    @property
    def clocks(self) -> Clocks:
        """Return the order of tensor memory."""
        return self.races.orders.tensor

    @property
    def history(self) -> History:
        """Return the accesses of the launch."""
        return self.races.history

    # ---- accesses
    def demand(self, lanes: Lanes, box: TensorBox, *, writes: bool, of: int = _NOBODY) -> None:
        """Report an access that a lane or a warp is about to make, if it does not come after earlier accesses. `of`: a
        tensor core accesses for this lane, after its earlier operations for that lane."""
        for touch in self.touches.get(box.cta, ()):
            if not (writes or touch.writes) or (of != _NOBODY and (of == touch.issuer or of in touch.handed)):
                continue
            if box.meets(touch.box) and not self._is_ordered(lanes.ids, touch):
                error = lanes.fault(CODE, 0, self._said(lanes, box, touch, writes=writes), RULE)
                self.races.machine.report(error, lanes.statement)
                return

    def _is_ordered(self, ids: Ids, touch: TensorTouch) -> bool:
        """Return whether some lane comes after some agent: a warp loads, stores and waits as one."""
        return any(self.clocks.comes_after(lane, touch.agents, touch.number).any() for lane in ids.tolist())

    def _said(self, lanes: Lanes, box: TensorBox, touch: TensorTouch, *, writes: bool) -> str:
        """Return the sentence on an access to a box and an earlier, unordered one, with what would have ordered them."""
        verb, done = "overwrites" if writes else "reads", "wrote" if touch.writes else "reads"
        geometry, agent, who, cause = self.races.geometry, int(touch.agents[0]), "a tensor core", ""
        if agent < geometry.grid_threads:
            who = geometry.describe(agent - geometry.first * geometry.threads)
            pair = UnorderedPair(geometry, int(lanes.ids[0]), agent, touch.number)
            notes = self.history.journal.since(touch.number)
            found = missing(notes, pair)
            cause = ": " + " and ".join(said(each, pair, notes) for each in found) if found else ""
        return (
            f"{verb} {spoken(box)} that {who} by {place(touch.statement)} {done}, with no barrier between, nor a release that "
            f"the other acquires{cause}"
        )

    def touched(self, touch: TensorTouch) -> None:
        """Record a completed access, and drop the earlier accesses that it makes irrelevant."""
        held = self.touches.setdefault(touch.box.cta, [])
        held[:] = [each for each in held if not _replaces(touch, each)]
        held.append(touch)

    def warp_touched(self, lanes: Ids, box: TensorBox, statement: Statement, *, writes: bool) -> None:
        """Record that a warp has waited for its load or store, or has allocated."""
        agents = lanes + self.races.first
        self.touched(TensorTouch(box, writes, statement, agents, self.history.number(statement, 4)))

    def landed(
        self, flat: int, one: Lanes, boxes: Iterable[tuple[TensorBox, bool]], handed: HandedOver
    ) -> tuple[int, int]:
        """Record an operation that an mbarrier counts, as a thread saw that phase complete; return its agent and
        number. `flat`: the byte position of the mbarrier. `boxes`: what the operation touched, and whether it wrote."""
        agent, number = self.races.phases.agent_of(flat), self.history.number(one.statement, 4)
        agents, issuer = np.array([agent]), int(one.ids[0])
        for box, writes in boxes:
            self.touched(TensorTouch(box, writes, one.statement, agents, number, issuer, handed.lanes))
        return agent, number

    def forget(self, box: TensorBox) -> None:
        """Drop the accesses to columns that were deallocated; a new allocation orders later ones."""
        held = self.touches.get(box.cta, [])
        held[:] = [each for each in held if not box.meets(each.box)]

    # ---- fences
    def fence_before(self, lanes: Lanes, flying: Iterable[tuple[int, HandedOver]]) -> None:
        """Record a tcgen05.fence::before_thread_sync: accesses of these lanes stay before their synchronization.
        `flying`: (lane, hand-over) of operations in flight, which are fenced too."""
        now = self.history.number(lanes.statement, 4)
        if self.clocks is not self.races.strict:
            self.clocks.fence(lanes.ids, _BEFORE, now)
        mine = set(lanes.ids.tolist())
        for lane, handed in flying:
            if lane in mine:
                handed.fenced = now

    def fence_after(self, lanes: Lanes, flying: Iterable[tuple[int, HandedOver]]) -> None:
        """Record a tcgen05.fence::after_thread_sync: operations in flight may be handed over to these lanes."""
        if self.clocks is not self.races.strict:
            self.clocks.fence(lanes.ids, _AFTER, self.history.now)
        for lane, handed in flying:
            if handed.fenced:
                agents, stamps = (np.full(lanes.count, each) for each in (lane + self.races.first, handed.fenced))
                ordered = self.clocks.is_ordered(lanes.ids, agents, stamps)
                handed.lanes |= frozenset(lanes.ids[ordered].tolist())


def are_piped(earlier: Statement, later: Statement, *, is_same: bool) -> bool:
    """Return whether a tensor core executes the second operation after the first without further order. See PTX ISA,
    tcgen05, pipelined instructions. `is_same`: two products use one accumulator."""
    (_, first, *words), (_, second, *more) = earlier.opcode.split("."), later.opcode.split(".")
    if (first, second) == ("mma", "mma"):
        return is_same and _kind(words) == _kind(more)
    return (first, second) in _PIPES or ((first, second) == ("shift", "cp") and "4x256b" in more)


def _kind(words: list[str]) -> str:
    """Return the `kind::` modifier of an opcode; "" if there is none."""
    return next((word for word in words if word.startswith("kind::")), "")


def spoken(box: TensorBox) -> str:
    """Return a box in words: `lanes 0 to 31, columns 0 to 63 of tensor memory`."""
    which = np.flatnonzero(box.lanes)
    return f"lanes {which[0]} to {which[-1]}, columns {box.first} to {box.end - 1} of tensor memory"


def by_warps(lanes: Lanes) -> Iterator[Lanes]:
    """Yield the lanes of whole warps, warp by warp."""
    for at in range(0, lanes.count, WARP):
        yield lanes if lanes.count == WARP else Lanes(lanes.machine, lanes.ids[at : at + WARP], lanes.statement)


def _replaces(new: TensorTouch, old: TensorTouch) -> bool:
    """Return whether every access after a new access also comes after an old one. The new access came after the old one
    and wrote all its elements, or the same agents read them again."""
    if old.box.first < new.box.first or old.box.end > new.box.end or (old.box.lanes & ~new.box.lanes).any():
        return False
    return new.writes or (old.issuer == new.issuer and not old.writes and np.array_equal(old.agents, new.agents))
