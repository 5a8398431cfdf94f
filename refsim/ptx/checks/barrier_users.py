"""Reuse of a named barrier by other warps (`shared-barrier`).

A phase counts arrivals, whichever warps arrive. If nothing orders two uses, warps of the second use may complete the
phase of the first.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import BARRIERS
from refsim.ptx.checks.history import History
from refsim.ptx.checks.orders import Orders
from refsim.ptx.execution.context import Context
from refsim.ptx.findings.faults import fault

Array = NDArray[Any]
CODE = "shared-barrier"
RULE = "PTX ISA, bar: a barrier completes when as many threads have arrived as it expects, whichever these are"


@dataclass
class _Phases:
    """The warps of the last complete phase and of the current phase of a barrier, each with its arrival number."""

    last: dict[int, int] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)


@dataclass
class BarrierUsers:
    """The warps that used each barrier (CTA * 16 + number) of the running CTAs."""

    machine: Context
    history: History
    orders: Orders
    phases: dict[int, _Phases] = field(default_factory=dict)

    def met(self, slot: Array, warps: Array, waited: Array, everyone: Array, at: Array) -> None:
        """Record that warps arrive at barriers, or pass them where they `waited`, and report unordered uses. The
        arguments are those of `Orders.barriers_met`."""
        for number in np.unique(slot).tolist():
            here = slot == number
            phases = self.phases.setdefault(number, _Phases())
            if np.count_nonzero(here & waited) == everyone[number]:
                self.phases[number] = _Phases()  # all warps have passed: what they do next comes after
                continue
            for warp, pc in zip(warps[here].tolist(), at[here].tolist(), strict=True):
                if warp in phases.current:
                    self._report(number, warp, pc, "again before the phase is complete in which it has arrived")
                elif len(phases.last) > 1 and warp not in phases.last:  # a single warp passes alone
                    self._compare(number, warp, pc, phases.last)
                phases.current[warp] = self.history.number(self.machine.code.steps[pc].statement, 0)
            if waited[here].any():
                phases.last, phases.current = phases.current, {}

    def _compare(self, number: int, warp: int, pc: int, before: dict[int, int]) -> None:
        """Report a warp that may have come before all warps of the last phase had passed."""
        geometry = self.machine.geometry
        lanes = np.flatnonzero((geometry.warp == warp) & self.machine.alive)
        for other, stamp in before.items():
            agents = np.flatnonzero(geometry.warp == other) + geometry.first * geometry.threads
            asked = np.repeat(lanes, len(agents)), np.tile(agents, len(lanes))
            stamps = np.full(len(asked[0]), stamp)
            if any(clocks.is_ordered(*asked, stamps).any() for clocks in self.orders.clocks):
                continue  # one of its lanes comes after a lane of the other warp
            users = ", ".join(str(each % geometry.warps) for each in sorted(before))
            order = f"nothing orders it after warp {other % geometry.warps}"
            self._report(
                number, warp, pc, f"where warps {users} were before it; {order}: it could have completed their phase"
            )
            return

    def _report(self, number: int, warp: int, pc: int, how: str) -> None:
        geometry, statement = self.machine.geometry, self.machine.code.steps[pc].statement
        lane = int(np.flatnonzero(geometry.warp == warp)[0])
        what = f"warp {warp % geometry.warps} comes to barrier {number % BARRIERS} {how}"
        self.machine.report(fault(CODE, what, statement, geometry.describe(lane), RULE), statement)
