"""Shared bytes that a copy in flight still writes or reads: a read comes too early, a write races with the copy."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.race_reports import EQUAL_RULE, EQUAL_STORES
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.memory.access import READ, UPDATE, Access
from refsim.ptx.memory.space import ITEM, SHARED_BASE

Array = NDArray[Any]
_FLYING = {width: np.frombuffer(b"\xff" * width, item)[0] for width, item in ITEM.items()}
RULE = "PTX ISA, cp.async: its bytes are there once the thread has waited for the group, and for others after a barrier"

SENT_RULE = (
    "PTX ISA, st.async and red.async: their bytes are there for a thread that has seen the phase of the mbarrier complete "
    "that counted them"
)
BULK_RULE = (
    "PTX ISA, cp.async.bulk: its bytes are there for a thread that has seen the phase of the mbarrier complete that counted "
    "them, and its source is free once its thread has waited for its bulk group"
)
_RULES = {"cp.async.bulk": BULK_RULE, "cp.reduce": BULK_RULE, "st.async": SENT_RULE, "red.async": SENT_RULE}


class InFlight:
    """The granules of shared memory that copies in flight write (`flying`) or read (`sources`), from issue to wait.
    `updates` counts reductions in flight by proxy; `granule`: bytes of one entry."""

    def __init__(self, machine: Machine, granule: int) -> None:
        self.machine, self.granule = machine, granule
        self.flying = np.zeros(len(machine.shared.bytes) // granule // 16 * 16 + 16, np.uint8)
        self.sources = np.zeros_like(self.flying)
        self.updates: dict[str, Array] = {}
        self.count = self.reading = 0

    def issued(self, index: Array, width: int, updates: str = "") -> None:
        """Record that a copy in flight writes these items; `updates`: the proxy of a reduction, which others of that
        proxy may overlap."""
        self.again(index, width)
        self.count += len(index)
        if updates:
            counts = self.updates.setdefault(updates, np.zeros(len(self.flying), np.uint16))
            self._rows(width, counts)[index] += 1

    def again(self, index: Array, width: int) -> None:
        """Record that one more copy still writes these items."""
        self._items(width)[index] = _FLYING[width // self.granule]

    def met_by(self, access: Access) -> NDArray[np.bool_]:
        """Return which items of an access a copy in flight writes."""
        return np.asarray(self._items(access.width).take(access.index) != 0)

    def landed(self, index: Array, width: int, updates: str = "") -> None:
        """Record that a copy to these items is complete."""
        self.count -= len(index)
        if updates:
            rows = self._rows(width, self.updates[updates])
            rows[index] -= 1
            index = index[~rows[index].any(axis=1)]
        self._items(width)[index] = 0

    def is_read(self, index: Array, width: int) -> None:
        """Record that a copy reads these items, which do not overlap, until its thread has waited for it."""
        self.reading += 1
        self._rows(width)[index] += 1

    def was_read(self, index: Array, width: int) -> None:
        """Record that a copy has read these items."""
        self.reading -= 1
        self._rows(width)[index] -= 1

    def before(self, access: Access) -> None:
        """Report an access to bytes that a copy in flight writes, or a write to bytes that it reads."""
        if self.count and (hit := self._meets(access, self.met_by(access))).any():
            self.report(access, int(np.argmax(hit)))
        if self.reading and access.kind != READ:
            busy = self._rows(access.width)[access.index].any(axis=1)
            if busy.any():
                self.report(access, int(np.argmax(busy)))

    def _meets(self, access: Access, flying: Array) -> Array:
        """Return which items of an access meet a copy in flight; atomics may meet reductions of their proxy."""
        counts = self.updates.get(access.proxy) if access.kind == UPDATE else None
        if counts is None or not access.semantics.strong:
            return flying
        return flying & ~self._rows(access.width, counts)[access.index].any(axis=1)

    def after(self, access: Access) -> None:
        """Do nothing: an access does not change what is in flight."""

    def _items(self, width: int) -> Array:
        """Return the granules in flight as items of `width` bytes."""
        return self.flying.view(ITEM[width // self.granule])

    def _rows(self, width: int, counts: Array | None = None) -> Array:
        """Return how many copies read each granule (or the given counts), in rows of one item of `width` bytes."""
        count, counted = width // self.granule, self.sources if counts is None else counts
        return counted[: len(counted) // count * count].reshape(-1, count)

    def report(self, access: Access, lane: int, *, equal: bool = False) -> None:
        """Report the access of a lane to bytes in flight; a note if it stores `equal` bytes."""
        at, width = int(access.at[lane]), access.width
        start = int(access.index[lane]) * width
        copy = self.machine.engine.describe(start, width)
        copy = copy or self.machine.copies.describe(start, width, int(access.threads.ids[lane]))
        code, verb = ("read-before-wait", "reads") if access.kind == READ else ("race", "writes")
        rule = next((rule for name, rule in _RULES.items() if name in copy), RULE)
        where = f"{width} B at shared address {at:#x} (byte {at - SHARED_BASE} of shared memory)"
        what = f"{verb} {where} while {copy}"
        error = access.threads.fault(code, lane, what, rule)
        if not equal:
            return self.machine.report(error, access.statement)
        error = replace(error, code=EQUAL_STORES, what=f"{what}; the bytes are the same", rule=EQUAL_RULE)
        self.machine.findings.note(error, access.statement)
