"""Bank conflicts of shared memory, counted for each instruction of a launch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.banks import bank_conflicts
from refsim.ptx.lanes import Lanes
from refsim.ptx.syntax import Statement

Array = NDArray[Any]
WARP = 32


@dataclass
class BankUse:
    """What one instruction asked of the banks: `accesses` of a warp took `wavefronts`, `ideal` without conflicts."""

    statement: Statement
    accesses: int = 0
    wavefronts: int = 0
    ideal: int = 0

    @property
    def ways(self) -> float:
        """Wavefronts for each one that is needed: 1 without conflicts, 8 where eight rows share a bank."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


@dataclass(frozen=True)
class BankCounter:
    """Counts into a table by PTX line. Copies of cp.async are not counted: how they meet the banks is not published."""

    table: dict[int, BankUse]

    def count(self, lanes: Lanes, at: Array, width: int) -> None:
        """One executed access: each warp's lanes at shared addresses `at`, `width` bytes each."""
        assert lanes.statement is not None
        found = bank_conflicts(_by_warp(lanes, at), width)
        use = self.table.setdefault(lanes.statement.line, BankUse(lanes.statement))
        use.accesses += len(found.wavefronts)
        use.wavefronts += found.total
        use.ideal += found.wavefronts.size


def _by_warp(lanes: Lanes, at: Array) -> Array:
    """Addresses (warps, lanes); a lane that does not take part repeats the first one that does, which costs nothing."""
    if lanes.in_whole_warps:
        return at.reshape(-1, WARP)
    _, first, warp = np.unique(lanes.warp, return_index=True, return_inverse=True)
    place = np.arange(lanes.count) - first[warp]
    rows = np.repeat(at[first][:, None], place.max() + 1, axis=1)
    rows[warp, place] = at
    return rows
