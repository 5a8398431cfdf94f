"""The interface of the machine that barriers and meetings use, in addition to the interface of lanes."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.lowering.blocks import Code


class Scheduler(Machine, Protocol):
    """A machine that can resume waiting lanes. `groups`: running lanes by program counter; `resting`: lanes that poll
    memory; `exit_pc`: where each lane exited."""

    groups: dict[int, Ids]
    resting: dict[int, Ids]
    exit_pc: NDArray[np.int32]

    @property
    def code(self) -> Code: ...
    def wake(self) -> bool: ...
    def execute(self, places: list[tuple[int, Lanes]], lanes: Lanes) -> None: ...
