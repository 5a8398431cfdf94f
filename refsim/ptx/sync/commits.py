"""The asynchronous work that mbarriers count: bytes of copy engines, each transfer in the phase in which it was issued,
and tcgen05.commit, whose arrivals happen once the operations of its thread are complete."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from refsim.ptx.events import MBARRIER_ASK, MBARRIER_COME
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.memory.access import WRITE
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import with_rank
from refsim.ptx.sync import mbarriers as objects

_ONE = np.ones(1, np.int64)
_RANKS = 16


class Counted(Protocol):
    """A transfer of a copy engine as an mbarrier counts it: `amount` bytes at object `barrier` in phase `phase`."""

    barrier: int
    phase: int
    amount: int
    lanes: Lanes


@dataclass(frozen=True)
class TransferCounts:
    """The mbarriers of one machine, as its copy engine and its tensor cores use them."""

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
        if abs(barrier.transactions) > objects.MOST_ARRIVALS:
            raise lanes.fault(
                objects.CODE, 0, f"a tx-count of {barrier.transactions}, beyond {objects.MOST_ARRIVALS}", objects.RULE
            )
        barrier.counted.append(transfer)
        barrier.complete()
        self.mbarriers.keep(transfer.barrier)

    # ---- commits
    def asked(self, one: Lanes, space: str, address: Array, mask: int | None) -> list[objects.Delayed]:
        """Return the arrivals that a commit requests: one at each object, with the current knowledge of the issuing
        lane. `mask` selects the CTAs of a multicast by rank; None means the object at `address` alone."""
        owner, found = self.mbarriers, []
        ranks = [np.array([rank]) for rank in range(_RANKS) if mask is not None and mask >> rank & 1]
        for at in [address] if mask is None else [with_rank(address, rank) for rank in ranks]:
            for each in owner.objects(one, space, at):
                owner.barrier(each, 0)
                owner.touch(each)
                found.append(objects.Delayed(one, each.flat, each.access, 0))
                one.emit(MBARRIER_ASK, payload=(each.flat, found[-1]))
        return found

    def come(self, arrivals: list[objects.Delayed], committed: Any) -> None:
        """Make the arrivals, as the operations are complete; a thread that sees the phase complete knows that
        `committed` is over."""
        owner = self.mbarriers
        for first in arrivals:
            found = objects.Object(first.flat, first.lanes, np.zeros(1, np.int64), first.access)
            barrier = owner.barrier(found, 0)
            owner.check(found, barrier, _ONE, np.array([barrier.pending]), completes=True)
            first.lanes.emit(MBARRIER_COME, payload=(first.flat, first))
            barrier.pending -= 1
            barrier.counted.append(committed)
            owner.arrivals.note(first.flat, barrier.phase, first.lanes.ids, first.access.statement)
            barrier.complete()
            owner.keep(first.flat)
