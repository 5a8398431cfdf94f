"""Shared bytes that a tensor core still reads: whoever writes them comes too early."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW
from refsim.ptx.memory.access import READ, Access

Array = NDArray[Any]
RULE = "PTX ISA, wgmma.mma_async: its operands stay as they are until a wgmma.wait_group that covers it"


class Readers(Protocol):
    """What reads operands in flight, by number from 1 on."""

    @property
    def oldest(self) -> int | None: ...
    def reader_of(self, item: int) -> str | None: ...


class OperandReads:
    """Which product read each item of shared memory last, by number: where none that is in flight began before it, none
    reads it now."""

    def __init__(self, machine: Machine, unit: Readers, rule: str = RULE) -> None:
        self.machine, self.unit, self.rule = machine, unit, rule
        self.last = np.zeros(len(machine.shared.bytes) // CORE_ROW + 1, np.int64)

    def begun(self, items: Array, number: int) -> None:
        """A product reads these items from now on."""
        self.last[items] = number

    def before(self, access: Access) -> None:
        """Nobody writes what is being read."""
        oldest = None if access.kind == READ else self.unit.oldest
        if oldest is None:
            return
        item = access.index * access.width // CORE_ROW
        for lane in np.flatnonzero(self.last.take(item) >= oldest).tolist():
            why = self.unit.reader_of(int(item[lane]))
            if why is not None:
                what = f"writes {access.width} B at shared address {int(access.at[lane]):#x}, which are read by {why}"
                self.machine.report(access.threads.fault("race", lane, what, self.rule), access.statement)
                return

    def after(self, access: Access) -> None:
        """A product in flight stays one."""
