"""What is missing between two accesses that nothing orders: how it is called by how far the threads stand apart, and, where
the run shows it, at which statement a half of it is missing."""

from dataclasses import dataclass

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx.checks import repairs
from refsim.ptx.checks.happens_before import BARRIERS
from refsim.ptx.checks.history import By
from refsim.ptx.checks.journal import MEET_LANES, PASSED, Journal, Note
from refsim.ptx.checks.repairs import Repair, Unordered, missing
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.memory.semantics import GPU
from refsim.ptx.text.syntax import Statement, place

_FENCES = ("membar", "fence")
_WORDS = {
    repairs.WARP_BEFORE: "{at} speaks for its own thread alone: no {meeting} before it",
    repairs.WARP_BEHIND: "{at} tells its own thread alone: no {meeting} after it",
    repairs.BLOCK_BEFORE: "{at} speaks for its own thread alone: no {meeting} before it",
    repairs.BLOCK_BEHIND: "{at} tells its own thread alone: no {meeting} after it",
    repairs.CHAIN: "{at} ends the chain of read-modify-writes that a release began: an atomic goes on with it",
}


@dataclass(frozen=True)
class Accesses:
    """The two accesses of a race."""

    later: By
    here: Statement
    later_writes: bool
    earlier: By
    there: Statement
    earlier_writes: bool


def missing_edge(
    machine: Context, journal: Journal, pair: Unordered, both: Accesses, *, converged: bool = False
) -> str:
    """`barrier between`, and what the run shows of it."""
    by_distance = distance(pair, both)
    if converged:
        return f"{by_distance} between"
    notes = journal.since(pair.number)
    found, seen = missing(notes, pair), strength_seen(pair, both)
    if found and not (seen and len(found) > 1):
        if not pair.blocks_apart:
            by_distance = f"{by_distance}, nor a release that the other acquires,"
        seen = " and ".join(said(repair, pair) for repair in found)
    elif not pair.warps_apart:
        seen = mask_seen(notes, pair) or seen
    elif not pair.blocks_apart:
        seen = barrier_seen(machine, journal, pair) or seen
    seen = seen or copy_seen(pair, both)
    return f"{by_distance} between" + (f": {seen}" if seen else "")


def distance(pair: Unordered, both: Accesses) -> str:
    """The edge that would put two threads in order, by how far they stand apart."""
    if not pair.blocks_apart:
        several = pair.geometry.warps > 1
        return "barrier" if pair.warps_apart else f"bar.warp.sync (__syncwarp){' or barrier' if several else ''}"
    mine, other = both.later.meaning, both.earlier.meaning
    if mine.strong and other.strong and min(mine.scope, other.scope) < GPU:
        return "scope that includes both blocks (.gpu), nor a release that the other acquires,"
    return "release (fence and strong write) that the other acquires"


def said(repair: Repair, pair: Unordered) -> str:
    """A repair as what is missing."""
    statement, at = repair.statement, place(repair.statement)
    kind = statement.opcode.split(".")[0]
    if kind == "barrier":
        return f"{at} releases nothing (.relaxed)"
    if repair.kind in (repairs.RELEASE, repairs.FENCE_BEFORE):
        return f"{at} passes on nothing that came before it: no fence before it (release)"
    if repair.kind in (repairs.ACQUIRE, repairs.FENCE_BEHIND):
        return f"{at} sees it and orders nothing after it: no fence after it (acquire)"
    if repair.kind == repairs.SCOPE:
        return narrow(statement)
    meeting = "barrier of the block (__syncthreads)"
    if repair.kind in (repairs.WARP_BEFORE, repairs.WARP_BEHIND):
        warp = "bar.warp.sync (__syncwarp) of the lanes"
        meeting = f"{meeting}, nor {warp}," if pair.blocks_apart and pair.geometry.warps > 1 else warp
    return _WORDS[repair.kind].format(at=at, meeting=meeting)


def narrow(statement: Statement) -> str:
    """That a scope leaves the other block out."""
    if statement.opcode.split(".")[0] in _FENCES:
        return f"{place(statement)} fences for its own block alone, and the threads are in two: .gpu (__threadfence)"
    return f"{place(statement)} is strong for its own block alone, and the threads are in two: .gpu"


def strength_seen(pair: Unordered, both: Accesses) -> str:
    """Which of the two is weak or too narrow, where the other is not: two that are strong for each other need no order."""
    sides = ((both.later.meaning, both.here), (both.earlier.meaning, both.there))
    if both.later.element != both.earlier.element:
        return ""
    weak = [at for meaning, at in sides if not meaning.strong]
    if len(weak) == 1:
        return f"{place(weak[0])} is weak, and the other access is not (volatile, .relaxed and atomic ones are strong)"
    small = [at for meaning, at in sides if meaning.strong and meaning.scope < GPU]
    return narrow(small[0]) if not weak and len(small) == 1 and pair.blocks_apart else ""


def copy_seen(pair: Unordered, both: Accesses) -> str:
    """Where one of two accesses of a block is a cp.async."""
    if pair.blocks_apart:
        return ""
    if both.there.opcode.startswith("cp.async") and both.earlier_writes:
        return "a thread waits for its own copies alone, and the others meet it after that wait"
    if both.here.opcode.startswith("cp.async"):
        return f"a copy may {'write' if both.later_writes else 'read'} as soon as it is issued"
    return ""


def mask_seen(notes: list[Note], pair: Unordered) -> str:
    """The last bar.warp.sync that one of two lanes of a warp passed without the other."""
    if pair.warps_apart:
        return ""
    first = pair.geometry.first * pair.geometry.threads
    for note in reversed(notes):
        if note.verb != MEET_LANES or note.geometry is not pair.geometry or note.statement is None:
            continue
        here, there = np.isin((pair.lane, pair.other - first), note.lanes).tolist()
        if here != there:
            absent = (pair.other - first if here else pair.lane) % WARP
            return f"{place(note.statement)} was passed without lane {absent}"
        if here:
            where = np.searchsorted(note.lanes, (pair.lane, pair.other - first))
            if note.detail[where[0]] != note.detail[where[1]]:
                return f"at {place(note.statement)} the two lanes are in two masks"
    return ""


# ---- barriers of a block
@dataclass(frozen=True)
class Came:
    """One warp came to a barrier when access `now` was the newest; `phase` has all that came until it let go."""

    warp: int
    now: int
    statement: Statement
    number: int
    waited: bool
    phase: "dict[int, Came]"

    def __str__(self) -> str:
        return f"barrier {self.number} ({place(self.statement)})"


def barrier_seen(machine: Context, journal: Journal, pair: Unordered) -> str:
    """What the barriers next to two accesses of one block leave out: a warp, or an access behind an arrival."""
    first = pair.geometry.first * pair.geometry.threads
    late, early = pair.geometry.warp[[pair.lane, pair.other - first]].tolist()
    came = arrivals(machine, journal, pair.geometry)
    behind = [each for each in came if each.warp == late and each.now >= pair.number]
    before = [each for each in came if each.warp == early and each.now < pair.number]
    if not (behind or before):
        return ""
    last, other = (behind[-1], early) if behind else (before[-1], late)
    if other not in last.phase:
        others = [each for each in came if behind and each.warp == other and each.now >= pair.number]
        elsewhere = f", which came to {others[0]}" if others and others[0].number != last.number else ""
        return f"{last} was passed without warp {other % pair.geometry.warps}{elsewhere}"
    if not last.waited:
        return f"{last} does not wait: accesses after it have no order"
    if last.phase[other].now < pair.number and (behind or not last.phase[other].waited):
        return f"warp {other % pair.geometry.warps} came to {last.phase[other]} before its access, not after it"
    return ""


def arrivals(machine: Context, journal: Journal, geometry: Geometry) -> list[Came]:
    """The warps that came to barriers, in order, as far as some of their block did not come with them."""
    found: list[Came] = []
    phases: dict[int, dict[int, Came]] = {}
    for note in journal.notes:
        if note.verb != PASSED or note.geometry is not geometry:
            continue
        slots, waited, at = note.detail
        for slot, warp, waits, pc in zip(
            slots.tolist(), note.lanes.tolist(), waited.tolist(), at.tolist(), strict=True
        ):
            phase = phases.setdefault(slot, {})
            statement = machine.code.steps[pc].statement
            phase[warp] = Came(warp, note.now, statement, slot % BARRIERS, waits, phase)
            found.append(phase[warp])
        for slot in np.unique(slots[waited]).tolist():
            phases.pop(slot)
    return found
