"""Columns of tensor memory that warps of a CTA ask for: one for whom there are none waits until others give them back."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.tensor_cells import ColumnsAsked
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place


@dataclass
class TensorColumns:
    """Who waits for columns, the longest first: of one CTA nobody overtakes another."""

    machine: Scheduler
    queue: list[ColumnsAsked] = field(default_factory=list)

    def ask(self, asked: ColumnsAsked) -> None:
        """A warp goes on now, or waits."""
        self.queue.append(asked)
        self.release()

    def release(self) -> None:
        """Let those go on for whom there are columns now."""
        left: list[ColumnsAsked] = []
        for each in self.queue:
            if any(other.cta == each.cta for other in left) or not each.take():
                left.append(each)
            else:
                self.machine.go(each.pc + 1, each.ids)
        self.queue = left

    def waiting(self) -> list[tuple[int, Ids]]:
        """Program counters and the lanes that wait there, for a deadlock report."""
        places: dict[int, list[Ids]] = {}
        for each in self.queue:
            places.setdefault(each.pc, []).append(each.ids)
        return [(pc, np.sort(np.concatenate(ids))) for pc, ids in places.items()]

    def question(self, lane: int) -> str:
        """What a lane waits for that stands here, with what its CTA holds; "" where it waits elsewhere."""
        for each in self.queue:
            if lane in each.ids:
                where = place(self.machine.code.steps[each.pc].statement)
                held = self.machine.tensor_pipe.memory.spoken(each.cta)
                return f"{where} for {each.columns} columns of tensor memory, of which the block holds {held}"
        return ""
