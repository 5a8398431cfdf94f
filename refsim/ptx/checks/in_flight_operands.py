"""Shared bytes that a tensor core still reads as operands: a write comes too early."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW
from refsim.ptx.memory.access import READ, Access
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
RULE = "PTX ISA, wgmma.mma_async: its operands stay as they are until a wgmma.wait_group that covers it"


class Readers(Protocol):
    """The unit that reads operands in flight, numbered from 1 on."""

    @property
    def oldest(self) -> int | None: ...
    def reader_of(self, item: int) -> str | None: ...
    def tear(self, items: Array, error: RefsimError, statement: Statement) -> None: ...


class OperandReads:
    """The number of the newest product that reads each item of shared memory (a core row). An item is in use only if
    that product began no earlier than the oldest product in flight."""

    def __init__(self, machine: Machine, unit: Readers, rule: str = RULE) -> None:
        self.machine, self.unit, self.rule = machine, unit, rule
        self.last = np.zeros(len(machine.shared.bytes) // CORE_ROW + 1, np.int64)

    def begun(self, items: Array, number: int) -> None:
        """Record that product `number` reads these items from now on."""
        self.last[items] = number

    def before(self, access: Access) -> None:
        """Report a write to an item that a product in flight reads."""
        oldest = None if access.kind == READ else self.unit.oldest
        if oldest is None:
            return
        item = access.index * access.width // CORE_ROW
        busy = np.flatnonzero(self.last.take(item) >= oldest)
        for lane in busy.tolist():
            why = self.unit.reader_of(int(item[lane]))
            if why is not None:
                what = f"writes {access.width} B at shared address {int(access.at[lane]):#x}, which are read by {why}"
                error = access.threads.fault("race", lane, what, self.rule)
                self.unit.tear(np.unique(item[busy]), error, access.statement)
                return

    def after(self, access: Access) -> None:
        """Do nothing: an access does not change what is in flight."""
