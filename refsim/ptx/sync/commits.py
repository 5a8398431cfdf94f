"""Arrivals of tcgen05.commit at mbarriers: a thread requests them, and they happen once its operations are complete."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.memory.space import with_rank
from refsim.ptx.sync import mbarriers as objects

Array = NDArray[Any]
_ONE = np.ones(1, np.int64)
_RANKS = 16


@dataclass(frozen=True)
class CommitArrivals:
    """The mbarriers of one machine, as its tensor cores use them."""

    mbarriers: objects.Mbarriers

    def asked(self, one: Lanes, space: str, address: Array, mask: int | None) -> list[objects.Delayed]:
        """Return the arrivals that a commit requests: one at each object, with the current knowledge of the issuing
        lane. `mask` selects the CTAs of a multicast by rank; None means the object at `address` alone."""
        owner, found = self.mbarriers, []
        ranks = [np.array([rank]) for rank in range(_RANKS) if mask is not None and mask >> rank & 1]
        for at in [address] if mask is None else [with_rank(address, rank) for rank in ranks]:
            for each in owner.objects(one, space, at):
                owner.barrier(each, 0)
                owner.touch(each)
                notes = None if owner.order is None else owner.order.note(one.ids, each.flat)
                found.append(objects.Delayed(one, each.flat, each.access, 0, notes))
        return found

    def come(self, arrivals: list[objects.Delayed], committed: Any) -> None:
        """Make the arrivals, as the operations are complete; a thread that sees the phase complete knows that
        `committed` is over."""
        owner = self.mbarriers
        for first in arrivals:
            found = objects.Object(first.flat, first.lanes, np.zeros(1, np.int64), first.access)
            barrier = owner.barrier(found, 0)
            owner.check(found, barrier, _ONE, np.array([barrier.pending]), completes=True)
            if owner.order is not None and first.notes is not None:
                owner.order.arrive_noted(first.flat, first.notes)
            barrier.pending -= 1
            barrier.counted.append(committed)
            owner.arrivals.note(first.flat, barrier.phase, first.lanes.ids, first.access.statement)
            barrier.complete()
            owner.keep(first.flat)
