"""What barriers and meetings ask of the machine beyond what lanes ask: types alone."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.races import Races
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.lowering.blocks import Code


class Scheduler(Machine, Protocol):
    """A machine whose waiting lanes go on: who runs, who rests, what the statement at a counter is."""

    groups: dict[int, Ids]
    resting: dict[int, Ids]
    exit_pc: NDArray[np.int32]

    @property
    def code(self) -> Code: ...
    @property
    def races(self) -> Races | None: ...
    def execute(self, places: list[tuple[int, Lanes]], lanes: Lanes) -> None: ...
