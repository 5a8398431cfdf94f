"""Requests of warps for columns of tensor memory (tcgen05.alloc); a warp waits for enough free columns."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.tensor_cells import ColumnsAsked
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place


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
