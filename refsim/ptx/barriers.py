"""Named barriers of a CTA: who has arrived, who waits, and when they go on."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.lanes import Ids, Lanes
from refsim.ptx.translate import put

if TYPE_CHECKING:
    from refsim.ptx.machine import Machine

BARRIERS = 16
RULE = "PTX ISA, bar: barrier 0 to 15, the thread count a multiple of the warp size"


class Barriers:
    """The 16 barriers of every CTA that runs.

    A barrier without a count completes when all threads of the CTA that have not exited are there; with a count, when
    that many threads are, each warp counting 32. `bar.arrive` adds a warp without making it wait.
    """

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        lanes, slots = machine.geometry.lanes, machine.geometry.count * BARRIERS
        self.slot = np.full(lanes, -1, np.int64)
        self.pc = np.zeros(lanes, np.int64)
        self.value = np.zeros(lanes, np.bool_)
        self.arrived_warps = np.zeros(slots, np.int64)
        self.expected = np.zeros(slots, np.int64)

    def arrive(
        self, lanes: Lanes, number: NDArray[np.uint32], count: NDArray[np.uint32] | None, *, wait: bool,
        value: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Warps arrive at barrier `number` expecting `count` threads (None: all of the CTA)."""
        barrier = lanes.full(number).astype(np.int64)
        if (barrier >= BARRIERS).any():
            raise lanes.fault(
                "barrier-misuse", int(np.argmax(barrier >= BARRIERS)), f"barrier {barrier.max()} of 16", RULE
            )
        slot = lanes.cta * BARRIERS + barrier
        expected = np.zeros(1, np.int64) if count is None else count.astype(np.int64)
        if (expected % 32 != 0).any():
            raise lanes.fault("barrier-misuse", 0, f"a thread count of {int(expected[0])}", RULE)
        self.expected[slot] = expected
        if wait:
            self.slot[lanes.ids], self.pc[lanes.ids] = slot, lanes.pc
            if value is not None:
                self.value[lanes.ids] = value
        else:
            _, first = np.unique(lanes.warp, return_index=True)
            np.add.at(self.arrived_warps, slot[first], 1)
            self.machine.go(lanes.pc + 1, lanes.ids)
        self.release()

    def release(self) -> None:
        """Let go every barrier that is complete."""
        waiting = np.flatnonzero(self.slot >= 0)
        if not len(waiting):
            return
        complete = self.complete(waiting)
        leaving = waiting[complete[self.slot[waiting]]]
        if not len(leaving):
            return
        slots = np.unique(self.slot[leaving])
        self.arrived_warps[slots] = 0
        for pc in np.unique(self.pc[leaving]):
            self.finish(int(pc), leaving[self.pc[leaving] == pc], leaving)
        self.slot[leaving] = -1

    def complete(self, waiting: Ids) -> NDArray[np.bool_]:
        """Which barrier slots have everybody they expect."""
        geometry, machine = self.machine.geometry, self.machine
        slots = len(self.expected)
        threads = np.bincount(self.slot[waiting], minlength=slots)
        pairs = np.unique(self.slot[waiting] * geometry.warps * geometry.count + geometry.warp[waiting])
        warps = np.bincount(pairs // (geometry.warps * geometry.count), minlength=slots) + self.arrived_warps
        living = np.bincount(geometry.cta[np.flatnonzero(machine.alive)], minlength=geometry.count)
        all_there = (threads == np.repeat(living, BARRIERS)) & (threads > 0)
        return np.where(self.expected > 0, warps * 32 >= self.expected, all_there)

    def finish(self, pc: int, ids: Ids, everyone: Ids) -> None:
        """Lanes that waited at one instruction go on; a reduction gets its result over everyone at its barrier."""
        machine = self.machine
        step = machine.code.steps[pc]
        lanes = Lanes(machine, ids, step.statement)
        reduce = step.bound.modifiers.get("reduction")
        if reduce:
            counts = np.bincount(self.slot[everyone], weights=self.value[everyone], minlength=len(self.expected))
            totals = np.bincount(self.slot[everyone], minlength=len(self.expected))
            count, total = counts[self.slot[ids]], totals[self.slot[ids]]
            value = {"popc": count.astype(np.uint32), "and": count == total, "or": count > 0}[reduce]
            result = step.results[0][0]
            if isinstance(result, int):
                put(lanes, result, value)
        machine.go(pc + 1, ids)

    def waiting(self) -> list[tuple[int, Ids]]:
        """Program counters and the lanes that wait there, for a deadlock report."""
        ids = np.flatnonzero(self.slot >= 0)
        return [(int(pc), ids[self.pc[ids] == pc]) for pc in np.unique(self.pc[ids])]
