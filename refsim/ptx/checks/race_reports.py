"""The report of a race: both accesses with their threads and source lines, and the missing order."""

from dataclasses import dataclass

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.layouts.holders import WARP
from refsim.ptx.checks import repairs
from refsim.ptx.checks.happens_before import BARRIERS
from refsim.ptx.checks.history import By, History
from refsim.ptx.checks.journal import Journal, Note
from refsim.ptx.checks.repairs import Repair, UnorderedPair, missing
from refsim.ptx.events import ARRIVE, FENCE, MEET_CTA, MEET_WARPS, PASSED
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.findings.record import fault
from refsim.ptx.memory.access import DISCARD, GPU, READ, Access
from refsim.ptx.memory.space import SHARED_BASE, Space
from refsim.ptx.text.syntax import Statement, place

CONVERGED = "ordered-by-convergence"
RULE = "PTX ISA, memory model: accesses that conflict need an order, or both must be strong (atomic or volatile)"
VOLATILE_RULE = (
    "CUDA C++ Programming Guide, independent thread scheduling: lanes of a warp run at different times; volatile does not "
    "order their accesses, __syncwarp does"
)
CONVERGENCE_RULE = (
    "PTX ISA: shfl, vote, match, redux and wgmma make lanes meet but order no memory; "
    "only bar.warp.sync (__syncwarp) does"
)
EQUAL_STORES = "equal-stores"
EQUAL_RULE = (
    "PTX ISA, memory consistency model: writes of one value race as well; whichever comes last, the bytes are the same"
)
EXIT_RULE = "a block must not exit while others of its cluster use its shared memory: meet at barrier.cluster first"
_FENCES, _MEETINGS = ("membar", "fence"), (MEET_CTA, MEET_WARPS, ARRIVE)
_WORDS = {
    repairs.WARP_BEFORE: "{at} publishes accesses of its own thread only: no {meeting} before it",
    repairs.WARP_AFTER: "{at} orders accesses of its own thread only: no {meeting} after it",
    repairs.BLOCK_BEFORE: "{at} publishes accesses of its own thread only: no {meeting} before it",
    repairs.BLOCK_AFTER: "{at} orders accesses of its own thread only: no {meeting} after it",
    repairs.CHAIN: "{at} ends the chain of read-modify-writes that a release began: an atomic continues it",
}


@dataclass(frozen=True)
class Pair:
    """A running lane, and the thread (of the grid) whose access `number` it races with. `converged`: convergence of the
    warp orders the two. `same`: one instruction made both accesses. `by_products`: completed products order them."""

    lane: int
    other: int
    number: int
    kind: str  # of the other access: "read" or "write"
    converged: bool = False
    same: bool = False
    by_products: bool = False

    @property
    def code(self) -> str:
        """Return the code of the finding."""
        return CONVERGED if self.converged else "race"


class Reporter:
    """Raises or records races, one for each statement and code."""

    def __init__(self, machine: Context, history: History) -> None:
        self.machine, self.history = machine, history
        self.raises = machine.checks.level("race") == "error"

    def is_news(self, statement: Statement) -> bool:
        """Return whether a race at this statement would be raised, or recorded for the first time. A race that is a
        known defect of the compiler is reported once."""
        findings = self.machine.findings
        if findings.has_warned("race", statement) or findings.has_waived("race", statement):
            return False
        return self.raises or not findings.is_known("race", statement)

    def report_exit(self, cta: int, agent: int, number: int) -> None:
        """Report that a CTA may exit before an access of an agent to its shared memory."""
        geometry, made = self.machine.geometry, self.history.made[number]
        assert made is not None
        block = geometry.describe(cta * geometry.threads).partition(" of ")[2]
        what = f"the shared memory of {block}, which may have exited by then"
        first = geometry.first * geometry.threads
        who = "a copy engine" if agent >= 2 * geometry.grid_threads else geometry.describe(agent - first)
        self.machine.report(fault("out-of-bounds", what, made[0], who, EXIT_RULE), made[0])

    def note_equal(self, access: Access, pair: Pair, where: tuple[Space, int]) -> None:
        """Note that two unordered copies write equal bytes to one place."""
        made = self.history.made[pair.number]
        assert made is not None
        if self.machine.checks.level(EQUAL_STORES) == "off":
            return
        what = (
            f"writes {access.width} B at {self._place(*where)} that {self._who(pair.other)} by {place(made[0])} writes too: the "
            f"same bytes, with no {self._missing(access, pair)}"
        )
        at = f"{place(access.statement)}, {self.machine.geometry.describe(pair.lane)}"
        self.machine.findings.note(RefsimError(EQUAL_STORES, what, at, EQUAL_RULE, kind=Kind.FAULT), access.statement)

    def report(self, access: Access, pair: Pair, where: tuple[Space, int]) -> None:
        """Raise or record a race, as the checks of the launch say; `where`: the space and byte position."""
        if not (pair.converged and self.machine.findings.has_warned(pair.code, access.statement)):
            self.machine.report(self.error(access, pair, where), access.statement)

    def error(self, access: Access, pair: Pair, where: tuple[Space, int]) -> RefsimError:
        """Return the finding of a race."""
        lane = int(np.searchsorted(access.threads.ids, pair.lane))
        made = self.history.made[pair.number]
        assert made is not None
        verb = "reads" if access.kind == READ else "overwrites" if pair.kind == "read" else "writes"
        verb = "frees" if access.kind == DISCARD else verb
        done = "reads" if pair.kind == "read" else "writes" if pair.same else "wrote"
        by = "by the same instruction" if pair.same else f"by {place(made[0])}"
        size = access.width // access.semantics.elements
        between = "" if pair.same else f", with no {self._missing(access, pair)}"
        act = f"{done} {by}" if pair.same else f"{by} {done}"
        is_volatile = id(access.statement) in self.history.volatile and self.history.is_volatile(pair.number)
        what = f"{verb} {size} B at {self._place(*where)} that {self._who(pair.other)} {act}{between}"
        rule = CONVERGENCE_RULE if pair.converged else VOLATILE_RULE if is_volatile else RULE
        return access.threads.fault(pair.code, lane, what, rule)

    def _place(self, space: Space, position: int) -> str:
        if space.name == "shared":
            return f"shared address {position:#x} (byte {position - SHARED_BASE} of shared memory)"
        return f"{space.name} address {space.address(position)} ({space.where(position)})"

    def _who(self, thread: int) -> str:
        geometry = self.machine.geometry
        if thread >= 2 * geometry.grid_threads:
            return "a copy engine"
        thread %= geometry.grid_threads  # a virtual agent is reported as its thread
        described = geometry.describe(thread - geometry.first * geometry.threads)
        return f"{described} (warp {thread % geometry.threads // WARP})"

    def _missing(self, access: Access, pair: Pair) -> str:
        """Return the missing order of a pair, to follow "with no"."""
        geometry, history = self.machine.geometry, self.history
        made = history.made[pair.number]
        assert made is not None
        if pair.by_products:
            return "__syncwarp before that arrival, nor an arrival of this thread, between: only products do it"
        if pair.other >= geometry.grid_threads and "bulk_group" in made[0].opcode:
            return "wait of that thread between for the bulk group of this copy"
        if pair.other >= geometry.grid_threads:
            return "wait between that sees the mbarrier complete at which these copies arrived"
        element = access.width // access.semantics.elements
        later = By(access.semantics, element, pair.lane + geometry.first * geometry.threads)
        earlier = history.by(pair.number, pair.other)
        unordered = UnorderedPair(geometry, pair.lane, pair.other, pair.number)
        both = Accesses(later, access.statement, access.kind != READ, earlier, made[0], pair.kind == "write")
        return missing_edge(self.machine, history.journal, unordered, both, converged=pair.converged)


@dataclass(frozen=True)
class Accesses:
    """The two accesses of a race, with their statements and whether they write."""

    later: By
    here: Statement
    later_writes: bool
    earlier: By
    there: Statement
    earlier_writes: bool


def missing_edge(
    machine: Context, journal: Journal, pair: UnorderedPair, both: Accesses, *, converged: bool = False
) -> str:
    """Return the missing order in words, such as `barrier between`, and what the run shows of it. `converged`: only
    convergence of a warp orders the two, so that the journal is not searched."""
    by_distance = distance(pair, both)
    if converged:
        return f"{by_distance} between"
    notes = journal.since(pair.number)
    found, seen = missing(notes, pair), strength_seen(pair, both)
    if found and not (seen and len(found) > 1):
        if not pair.blocks_apart:
            by_distance = f"{by_distance}, nor a release that the other acquires,"
        seen = " and ".join(said(repair, pair, notes) for repair in found)
    elif not pair.warps_apart:
        seen = mask_seen(notes, pair) or seen
    elif not pair.blocks_apart:
        seen = barrier_seen(machine, journal, pair) or seen
    seen = seen or copy_seen(pair, both)
    return f"{by_distance} between" + (f": {seen}" if seen else "")


def distance(pair: UnorderedPair, both: Accesses) -> str:
    """Return the synchronization that would order two threads: within a warp, within a block, or between blocks."""
    if not pair.blocks_apart:
        several = pair.geometry.warps > 1
        return "barrier" if pair.warps_apart else f"bar.warp.sync (__syncwarp){' or barrier' if several else ''}"
    mine, other = both.later.meaning, both.earlier.meaning
    if mine.strong and other.strong and min(mine.scope, other.scope) < GPU:
        return "scope that includes both blocks (.gpu), nor a release that the other acquires,"
    return "release (fence and strong write) that the other acquires"


def said(repair: Repair, pair: UnorderedPair, notes: list[Note]) -> str:
    """Return a repair as words for what is missing; `notes` are those since the earlier access."""
    statement, at = repair.statement, place(repair.statement)
    kind = statement.opcode.split(".")[0]
    if kind == "barrier":
        return f"{at} releases nothing (.relaxed)"
    if repair.kind in (repairs.RELEASE, repairs.FENCE_BEFORE):
        if early := early_fence(notes, pair, statement):
            return f"{at} does not release earlier accesses: {place(early)} must stand after the barrier, not before it"
        return f"{at} does not release earlier accesses: no fence before it (release)"
    if repair.kind in (repairs.ACQUIRE, repairs.FENCE_AFTER):
        return f"{at} does not order later accesses: no fence after it (acquire)"
    if repair.kind == repairs.SCOPE:
        return narrow(statement)
    meeting = "barrier of the block (__syncthreads)"
    if repair.kind in (repairs.WARP_BEFORE, repairs.WARP_AFTER):
        warp = "bar.warp.sync (__syncwarp) of the lanes"
        meeting = f"{meeting}, nor {warp}," if pair.blocks_apart and pair.geometry.warps > 1 else warp
    return _WORDS[repair.kind].format(at=at, meeting=meeting)


def early_fence(notes: list[Note], pair: UnorderedPair, write: Statement) -> Statement | None:
    """Return the fence of the earlier thread before its last barrier before a write; None if there is none."""
    earlier = pair.other - pair.geometry.first * pair.geometry.threads
    until = max(number for number, note in enumerate(notes) if note.event.statement is write)
    mine = [each.event for each in notes[:until] if each.geometry is pair.geometry and earlier in each.event.lanes]
    met = max((number for number, event in enumerate(mine) if event.verb in _MEETINGS), default=0)
    return next((event.statement for event in mine[:met] if event.verb == FENCE and event.meaning.releases), None)


def narrow(statement: Statement) -> str:
    """Return the sentence that the scope of a statement does not include the other block."""
    if statement.opcode.split(".")[0] in _FENCES:
        return f"{place(statement)} covers its own block only, and the threads are in two: .gpu (__threadfence)"
    return f"{place(statement)} is strong within its own block only, and the threads are in two: .gpu"


def strength_seen(pair: UnorderedPair, both: Accesses) -> str:
    """Return the sentence on the one access that is weak or too narrow; "" if neither or both are. Two accesses that
    are strong for each other need no order."""
    sides = ((both.later.meaning, both.here), (both.earlier.meaning, both.there))
    if both.later.element != both.earlier.element:
        return ""
    weak = [at for meaning, at in sides if not meaning.strong]
    if len(weak) == 1:
        return f"{place(weak[0])} is weak, and the other access is not (volatile, .relaxed and atomic ones are strong)"
    small = [at for meaning, at in sides if meaning.strong and meaning.scope < GPU]
    return narrow(small[0]) if not weak and len(small) == 1 and pair.blocks_apart else ""


def copy_seen(pair: UnorderedPair, both: Accesses) -> str:
    """Return the sentence on a cp.async, if one of two accesses of a block is one; otherwise ""."""
    if pair.blocks_apart:
        return ""
    if both.there.opcode.startswith("cp.async") and both.earlier_writes:
        return "a wait covers the copies of its own thread only, and other threads need a barrier after it"
    if both.here.opcode.startswith("cp.async"):
        return f"a copy may {'write' if both.later_writes else 'read'} as soon as it is issued"
    return ""


def mask_seen(notes: list[Note], pair: UnorderedPair) -> str:
    """Return the sentence on the last bar.warp.sync that one of two lanes of a warp passed alone; otherwise ""."""
    if pair.warps_apart:
        return ""
    first = pair.geometry.first * pair.geometry.threads
    for event in (note.event for note in reversed(notes) if note.geometry is pair.geometry):
        if event.verb != MEET_WARPS or event.payload is None:
            continue
        here, there = np.isin((pair.lane, pair.other - first), event.lanes).tolist()
        if here != there:
            absent = (pair.other - first if here else pair.lane) % WARP
            return f"{place(event.statement)} was passed without lane {absent}"
        if here:
            where = np.searchsorted(event.lanes, (pair.lane, pair.other - first))
            if event.payload[where[0]] != event.payload[where[1]]:
                return f"at {place(event.statement)} the two lanes are in two masks"
    return ""


# ---- barriers of a block
@dataclass(frozen=True)
class Came:
    """The arrival of one warp at a barrier when access `now` was the newest; `phase`: all arrivals of that phase."""

    warp: int
    now: int
    statement: Statement
    number: int
    waited: bool
    phase: "dict[int, Came]"

    def __str__(self) -> str:
        return f"barrier {self.number} ({place(self.statement)})"


def barrier_seen(machine: Context, journal: Journal, pair: UnorderedPair) -> str:
    """Return the sentence on a warp or an access that the barriers next to two accesses leave out; otherwise ""."""
    first = pair.geometry.first * pair.geometry.threads
    late, early = pair.geometry.warp[[pair.lane, pair.other - first]].tolist()
    came = arrivals(machine, journal, pair.geometry)
    later = [each for each in came if each.warp == late and each.now >= pair.number]
    before = [each for each in came if each.warp == early and each.now < pair.number]
    if not (later or before):
        return ""
    last, other = (later[-1], early) if later else (before[-1], late)
    if other not in last.phase:
        others = [each for each in came if later and each.warp == other and each.now >= pair.number]
        elsewhere = f", which came to {others[0]}" if others and others[0].number != last.number else ""
        return f"{last} was passed without warp {other % pair.geometry.warps}{elsewhere}"
    if not last.waited:
        return f"{last} does not wait: accesses after it have no order"
    if last.phase[other].now < pair.number and (later or not last.phase[other].waited):
        return f"warp {other % pair.geometry.warps} came to {last.phase[other]} before its access, not after it"
    return ""


def arrivals(machine: Context, journal: Journal, geometry: Geometry) -> list[Came]:
    """Return the arrivals of warps at barriers that some warps of their block did not join, in order."""
    found: list[Came] = []
    phases: dict[int, dict[int, Came]] = {}
    for note in journal.notes:
        if note.event.verb != PASSED or note.geometry is not geometry:
            continue
        slots, waited, _, at = note.event.payload
        for slot, warp, waits, pc in zip(
            slots.tolist(), note.event.lanes.tolist(), waited.tolist(), at.tolist(), strict=True
        ):
            phase = phases.setdefault(slot, {})
            statement = machine.code.steps[pc].statement
            phase[warp] = Came(warp, note.now, statement, slot % BARRIERS, waits, phase)
            found.append(phase[warp])
        for slot in np.unique(slots[waited]).tolist():
            phases.pop(slot)
    return found
