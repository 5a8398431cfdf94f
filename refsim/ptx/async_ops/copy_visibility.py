"""Copies that have landed for the thread that waited for them, and for no other thread of its warp yet.

A wait makes the bytes of cp.async visible to the waiting thread alone; a barrier, of the warp or of the CTA, makes them
visible to those that meet there. Between two warps that is a race like any other; within a warp it is found here.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes

if TYPE_CHECKING:
    from refsim.ptx.machine.scheduler import Machine

Array = NDArray[Any]

LISTED = 64


class Landings:
    """What has landed since its thread last met others: listed, and entered into a map only when somebody reads before,
    or when the list is long."""

    def __init__(self, machine: "Machine", granule: int) -> None:
        self.machine, self.granule = machine, granule
        self.recent: list[tuple[Ids, Array, int]] = []
        self.copier: NDArray[np.int32] | None = None

    def __bool__(self) -> bool:
        return bool(self.recent) or self.copier is not None

    def add(self, lanes: Lanes, index: Array, width: int) -> None:
        """Lanes have waited for their copies to these items."""
        self.recent.append((lanes.ids, index, width))
        if len(self.recent) > LISTED:
            self._enter()

    def forget(self, ids: Ids | None = None) -> None:
        """These lanes (None: all) met others: what they waited for is everybody's."""
        if not self:
            return
        if ids is None or len(ids) == np.count_nonzero(self.machine.alive):
            self.recent, self.copier = [], None
            return
        met = np.zeros(self.machine.geometry.lanes, np.bool_)
        met[ids] = True
        rest = [(owners, index, width, ~met[owners]) for owners, index, width in self.recent]
        self.recent = [(owners[left], index[left], width) for owners, index, width, left in rest if left.any()]
        if self.copier is not None:
            self.copier[(self.copier > 0) & met[self.copier - 1]] = 0
            self.copier = self.copier if self.copier.any() else None

    def overwrite(self, index: Array, width: int) -> None:
        """Something else is written to these items."""
        self._enter()
        assert self.copier is not None
        self.copier[self._granules(index, width)] = 0

    def foreign(self, lanes: Lanes, index: Array, width: int) -> tuple[int, int] | None:
        """The first lane that reads what another lane of its warp copied, and that other lane."""
        self._enter()
        assert self.copier is not None
        owner = self.copier[self._granules(index, width)].astype(np.int64) - 1
        warp = self.machine.geometry.warp
        found = (owner >= 0) & (owner != lanes.ids[:, None]) & (warp[owner] == lanes.warp[:, None])
        if not found.any():
            return None
        lane, byte = (int(at[0]) for at in np.nonzero(found))
        return lane, int(owner[lane, byte])

    def _enter(self) -> None:
        if self.copier is None:
            self.copier = np.zeros(len(self.machine.shared.bytes) // self.granule, np.int32)
        for owners, index, width in self.recent:
            self.copier[self._granules(index, width)] = owners[:, None] + 1
        self.recent = []

    def _granules(self, index: Array, width: int) -> Array:
        count = width // self.granule
        return index[:, None] * count + np.arange(count)
