"""Bytes of copy engines, counted at mbarriers: each transfer in the phase in which it was issued."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.memory.access import WRITE
from refsim.ptx.sync import mbarriers as objects
from refsim.ptx.sync.mbarrier_word import MOST_ARRIVALS


class Counted(Protocol):
    """A transfer of a copy engine as an mbarrier counts it: `amount` bytes at object `barrier` in phase `phase`."""

    barrier: int
    phase: int
    amount: int
    lanes: Lanes


@dataclass(frozen=True)
class TransferCounts:
    """The mbarriers of one machine, as its copy engine uses them."""

    mbarriers: objects.Mbarriers

    def counted(self, one: Lanes, at: int) -> tuple[int, int]:
        """Return the mbarrier object that will count the bytes of a transfer: its byte in the flat shared memory, and
        its phase. `at`: its position in the shared memory of the issuing lane `one`."""
        state, owner = one.space("shared")
        access = self.mbarriers.machine.port.plan(WRITE, one, "shared", state, np.array([at]), owner, objects.BYTES)
        found = objects.Object(int(access.index[0]) * objects.BYTES, one, np.zeros(1, np.int64), access)
        barrier = self.mbarriers.barrier(found, 0)
        self.mbarriers.touch(found)
        return found.flat, barrier.phase

    def arrived(self, transfer: Counted) -> None:
        """Count the bytes of a complete transfer. Raises a fault if the phase completed without them."""
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
