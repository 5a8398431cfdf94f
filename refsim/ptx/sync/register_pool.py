"""What warps of a CTA wait for: registers that warps hand to each other by setmaxnreg, and columns of tensor memory
(tcgen05.alloc)."""

from dataclasses import dataclass, field
from math import prod

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import ColumnsAsked
from refsim.ptx.memory.arrays import Array
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import Function, Statement, place

RULE = "PTX ISA, setmaxnreg"
_REGISTERS, _LEAST, _MOST, _STEP, _WARP, _GROUP = 65_536, 24, 256, 8, 32, 4


def registers_at_entry(function: Function) -> int | None:
    """Return the registers of a thread when the kernel begins, as its directives bound them; None if none does.
    `.maxntid 384` leaves 65,536 / 384 = 170 registers, which is 168 in steps of 8."""
    directives = function.directives
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _STEP) * _STEP
    threads = prod(directives.get("reqntid", ()) or directives.get("maxntid", ()))
    if threads == 1 and directives.keys().isdisjoint(("reqntid", "maxntid")):
        return None
    ctas = directives.get("minnctapersm", (1,))[0]
    return min(_REGISTERS // (threads * max(ctas, 1)) // _STEP * _STEP, _MOST)


@dataclass
class RegisterPool:
    """The registers of a thread of every warp (`held`), the free registers of each CTA (`over`), and the waiting warps.
    `done`: the (count, statement) of each setmaxnreg that a warp executed. `queue`: (warp, count, program counter,
    lanes) that wait, the longest first."""

    machine: Scheduler
    done: dict[int, list[tuple[int, Statement]]] = field(default_factory=dict)
    queue: list[tuple[int, int, int, Ids]] = field(default_factory=list)

    def __post_init__(self) -> None:
        geometry = self.machine.geometry
        self.entry = registers_at_entry(self.machine.code.function)
        self.held: Array = np.full(geometry.count * geometry.warps, self.entry or 0, np.int64)
        self.over: Array = np.zeros(geometry.count, np.int64)

    def change(self, lanes: Lanes, count: int, *, grows: bool) -> None:
        """Let whole warps ask for `count` registers a thread (`grows`), or give up all beyond."""
        if count % _STEP or not _LEAST <= count <= _MOST:
            what = f"{count} registers: a multiple of 8 from 24 to 256"
            raise lanes.fault("invalid-operand", 0, what, RULE)
        for warp in np.unique(lanes.warp).tolist():
            mine = lanes.ids[lanes.warp == warp]
            self._agree(Lanes(self.machine, mine, lanes.statement), warp, count)
            if self.entry is None:
                self._warn(lanes)
            elif grows and self.held[warp] < count:
                self.queue.append((warp, count, lanes.pc, mine))
                continue
            elif not grows and self.held[warp] > count:
                self.over[warp // self.machine.geometry.warps] += (int(self.held[warp]) - count) * _WARP
                self.held[warp] = count
            self.machine.go(lanes.pc + 1, mine)
        self.release()

    def release(self) -> None:
        """Resume the warps for which enough registers are free now, the longest waiting first."""
        left = []
        for warp, count, pc, ids in self.queue:
            cta, needed = warp // self.machine.geometry.warps, (count - int(self.held[warp])) * _WARP
            if self.over[cta] < needed:
                left.append((warp, count, pc, ids))
                continue
            self.over[cta] -= needed
            self.held[warp] = count
            self.machine.go(pc + 1, ids)
        self.queue = left

    def waiting(self) -> list[tuple[int, Ids]]:
        """Return the program counters at which lanes wait, with these lanes, for a deadlock report."""
        places: dict[int, list[Ids]] = {}
        for _, _, pc, ids in self.queue:
            places.setdefault(pc, []).append(ids)
        return [(pc, np.sort(np.concatenate(ids))) for pc, ids in places.items()]

    def question(self, lane: int) -> str:
        """Return what a lane waits for here: the registers it asks for, and its CTA's free registers; or ""."""
        geometry = self.machine.geometry
        for warp, count, pc, ids in self.queue:
            if lane in ids:
                over = int(self.over[warp // geometry.warps])
                needed = (count - int(self.held[warp])) * _WARP
                return (
                    f"{place(self.machine.code.steps[pc].statement)} for {needed:,} registers more a warp: "
                    f"{over:,} of the block's are free, of {self.entry} a thread at its beginning"
                )
        return ""

    def finish(self) -> None:
        """Report a warpgroup whose warps executed different numbers of setmaxnreg, after all threads have exited."""
        for warp, done in sorted(self.done.items()):
            for other in self._group(warp):
                if len(self.done.get(other, ())) < len(done):
                    statement = done[len(self.done.get(other, ()))][1]
                    what = f"warp {other % self.machine.geometry.warps} of its warpgroup never executes it"
                    self._report(self._lanes(warp, statement), what)
                    return

    def _agree(self, lanes: Lanes, warp: int, count: int) -> None:
        """Record the setmaxnreg of a warp; report a count that differs from another warp's of its warpgroup."""
        mine = self.done.setdefault(warp, [])
        mine.append((count, lanes.statement))
        for other in self._group(warp):
            theirs = self.done.get(other, [])
            if len(theirs) >= len(mine) and theirs[len(mine) - 1][0] != count:
                before, statement = theirs[len(mine) - 1]
                number = other % self.machine.geometry.warps
                what = f"asks for {count} registers, where warp {number} of its warpgroup asked for {before} ({place(statement)})"
                self._report(lanes, what)

    def _group(self, warp: int) -> list[int]:
        """Return the other warps of a warp's warpgroup."""
        cta, own = divmod(warp, self.machine.geometry.warps)
        first, warps = own // _GROUP * _GROUP, self.machine.geometry.warps
        return [cta * warps + each for each in range(first, min(first + _GROUP, warps)) if each != own]

    def _lanes(self, warp: int, statement: Statement) -> Lanes:
        return Lanes(self.machine, np.flatnonzero(self.machine.geometry.warp == warp)[:1], statement)

    def _report(self, lanes: Lanes, what: str) -> None:
        rule = f"{RULE}: all warps of a warpgroup execute the same one"
        self.machine.report(lanes.fault("divergent-sync", 0, what, rule), lanes.statement)

    def _warn(self, lanes: Lanes) -> None:
        what = "the entry has no .maxnreg, .maxntid or .reqntid, so that no register may move"
        rule = f"{RULE}: the kernel has a bound on the registers of a thread, or the instruction may have no effect"
        self.machine.report(lanes.fault("setmaxnreg-ignored", 0, what, rule), lanes.statement)


@dataclass
class TensorColumns:
    """The requests that wait for columns, the longest first; within a CTA they are served in order."""

    machine: Scheduler
    queue: list[ColumnsAsked] = field(default_factory=list)

    def ask(self, asked: ColumnsAsked) -> None:
        """Add a request of a warp, which goes on now or waits."""
        self.queue.append(asked)
        self.release()

    def release(self) -> None:
        """Resume the warps for which enough columns are free now."""
        left: list[ColumnsAsked] = []
        for each in self.queue:
            if any(other.cta == each.cta for other in left) or not each.take():
                left.append(each)
            else:
                self.machine.go(each.pc + 1, each.ids)
        self.queue = left

    def waiting(self) -> list[tuple[int, Ids]]:
        """Return the program counters at which lanes wait, with these lanes, for a deadlock report."""
        places: dict[int, list[Ids]] = {}
        for each in self.queue:
            places.setdefault(each.pc, []).append(each.ids)
        return [(pc, np.sort(np.concatenate(ids))) for pc, ids in places.items()]

    def question(self, lane: int) -> str:
        """Return what a lane waits for here, and the columns that its CTA holds; "" if it does not wait here."""
        for each in self.queue:
            if lane in each.ids:
                where = place(self.machine.code.steps[each.pc].statement)
                held = self.machine.tensor_pipe.memory.spoken(each.cta)
                return f"{where} for {each.columns} columns of tensor memory, of which the block holds {held}"
        return ""
