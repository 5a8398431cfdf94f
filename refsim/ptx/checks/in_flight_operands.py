"""Shared bytes that a tensor core still reads: whoever writes them comes too early."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW
from refsim.ptx.memory.access import READ, Access

Array = NDArray[Any]
RULE = "PTX ISA, wgmma.mma_async: its operands stay as they are until a wgmma.wait_group that covers it"


class OperandReads:
    """How many products in flight read each chunk of shared memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.readers = np.zeros(len(machine.shared.bytes) // CORE_ROW + 1, np.int32)
        self.count = 0

    def begun(self, items: Array) -> None:
        np.add.at(self.readers, items, 1)
        self.count += 1

    def finished(self, items: Array) -> None:
        np.subtract.at(self.readers, items, 1)
        self.count -= 1

    def before(self, access: Access) -> None:
        """Nobody writes what is being read."""
        if not self.count or access.kind == READ:
            return
        first = access.index * access.width // CORE_ROW
        reading = self.readers.take(first)
        if reading.any():
            lane = int(np.argmax(reading != 0))
            why = self.machine.tensor_cores.reader_of(int(np.broadcast_to(first, reading.shape)[lane]))
            what = f"writes {access.width} B at shared address {int(access.at[lane]):#x}, which are read by {why}"
            self.machine.report(access.threads.fault("race", lane, what, RULE), access.statement)

    def after(self, access: Access) -> None:
        """A product in flight stays one."""
