"""The report of a race: both accesses with their threads and source lines, and the missing order."""

from dataclasses import dataclass

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.layouts.holders import WARP
from refsim.ptx.checks.history import By, History
from refsim.ptx.checks.missing_edges import Accesses, missing_edge
from refsim.ptx.checks.repairs import Unordered
from refsim.ptx.execution.context import Context
from refsim.ptx.findings.faults import fault
from refsim.ptx.memory.access import DISCARD, READ, Access
from refsim.ptx.memory.space import SHARED_BASE, Space
from refsim.ptx.text.syntax import Statement, place

CONVERGED = "ordered-by-convergence"
RULE = "PTX ISA, memory consistency model: conflicting accesses of two threads need an order, or strength on both sides"
CONVERGENCE_RULE = (
    "PTX ISA: shfl, vote, match, redux and wgmma make lanes meet but order no memory; "
    "only bar.warp.sync (__syncwarp) does"
)
EQUAL = "equal-stores"
EQUAL_RULE = (
    "PTX ISA, memory consistency model: writes of one value race as well; whichever comes last, the bytes are the same"
)
EXIT_RULE = "a block must not exit while others of its cluster use its shared memory: meet at barrier.cluster first"


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

    def is_news(self, statement: Statement) -> bool:
        """Return whether a race at this statement would be raised, or recorded for the first time. A race that is a
        known defect of the compiler is reported once."""
        findings = self.machine.findings
        if findings.has_warned("race", statement):
            return False
        return self.machine.checks.level("race") == "error" or not findings.is_known("race", statement)

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
        if self.machine.checks.level(EQUAL) == "off":
            return
        what = (
            f"writes {access.width} B at {self._place(*where)} that {self._who(pair.other)} by {place(made[0])} writes too: the "
            f"same bytes, with no {self._missing(access, pair)}"
        )
        at = f"{place(access.statement)}, {self.machine.geometry.describe(pair.lane)}"
        self.machine.findings.note(RefsimError(EQUAL, what, at, EQUAL_RULE, kind=Kind.FAULT), access.statement)

    def report(self, access: Access, pair: Pair, where: tuple[Space, int]) -> None:
        """Raise or record a race, as the checks of the launch say; `where`: the space and byte position."""
        if pair.converged and self.machine.findings.has_warned(pair.code, access.statement):
            return
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
        error = access.threads.fault(
            pair.code,
            lane,
            f"{verb} {size} B at {self._place(*where)} that {self._who(pair.other)} {act}{between}",
            CONVERGENCE_RULE if pair.converged else RULE,
        )
        self.machine.report(error, access.statement)

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
        unordered = Unordered(geometry, pair.lane, pair.other, pair.number)
        both = Accesses(later, access.statement, access.kind != READ, earlier, made[0], pair.kind == "write")
        return missing_edge(self.machine, history.journal, unordered, both, converged=pair.converged)
