"""Bytes that copy engines bring, counted at mbarriers: each in the phase in which it was asked for."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.sync import mbarriers as objects
from refsim.ptx.sync.mbarrier_word import MOST_ARRIVALS


class Counted(Protocol):
    """What a copy engine moves, as far as an mbarrier counts it."""

    barrier: int
    phase: int
    amount: int
    lanes: Lanes


@dataclass(frozen=True)
class TransferCounts:
    """The mbarriers of one machine, for its copy engine."""

    mbarriers: objects.Mbarriers

    def counted(self, one: Lanes, at: int) -> tuple[int, int]:
        """The object at a position of the shared memory that a lane means, which will count bytes: where it lies in the flat
        memory, and its phase now."""
        state, owner = one.space("shared")
        access = self.mbarriers.machine.port.intend(one, "shared", state, np.array([at]), owner, objects.BYTES)
        found = objects.Object(int(access.index[0]) * objects.BYTES, one, np.zeros(1, np.int64), access)
        barrier = self.mbarriers.barrier(found, 0)
        self.mbarriers.touch(found)
        return found.flat, barrier.phase

    def arrived(self, transfer: Counted) -> None:
        """The bytes of a transfer have come. The phase may be complete without them, if expect_tx announced too few."""
        barrier, lanes, amount = self.mbarriers.live.get(transfer.barrier), transfer.lanes, transfer.amount
        if barrier is None:
            raise lanes.fault(
                objects.CODE, 0, f"{amount} bytes arrive at an mbarrier that was ended meanwhile", objects.RULE
            )
        if barrier.phase != transfer.phase:
            what = (
                f"{amount} bytes arrive in phase {barrier.phase} of an mbarrier, asked for in phase {transfer.phase}: that was "
                "complete without them, as expect_tx announced too few bytes"
            )
            raise lanes.fault(objects.CODE, 0, what, objects.RULE)
        barrier.transactions -= amount
        if abs(barrier.transactions) > MOST_ARRIVALS:
            raise lanes.fault(
                objects.CODE, 0, f"a tx-count of {barrier.transactions}, beyond {MOST_ARRIVALS}", objects.RULE
            )
        barrier.counted.append(transfer)
        barrier.complete()
        self.mbarriers.keep(transfer.barrier)
