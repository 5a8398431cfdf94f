"""What the barrier of a cluster orders: whoever waits comes after all that the others did before they arrived.

Arrivals release and waits acquire at the scope of the cluster. Whole CTAs and whole warps that arrive together are one
stamp; only the lanes of a warp that comes in parts are told one by one. The exit of a CTA is an access to all of its shared
memory: what others of the cluster do there has to happen before it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, together
from refsim.ptx.execution.geometry import Ids

Array = NDArray[Any]


@dataclass
class ClusterOrder:
    """For each cluster that runs: what those that arrived in its current phase knew, and what all of the last one knew."""

    clocks: Clocks
    alive: NDArray[np.bool_]
    arriving: dict[int, Knowledge] = field(default_factory=dict)
    complete: dict[int, Knowledge] = field(default_factory=dict)

    def arrive(self, lanes: Ids, now: int) -> None:
        """These lanes arrive and release what they know up to access `now`."""
        geometry = self.clocks.geometry
        for cta in np.unique(geometry.cta[lanes]).tolist():
            cluster = cta // geometry.cluster_ctas
            known = self._of_cta(cta, lanes[geometry.cta[lanes] == cta], now)
            self.arriving[cluster] = self.arriving.get(cluster, NOTHING) | known

    def finish(self, clusters: Array, arrived: Ids) -> None:
        """All threads of these clusters have arrived; `arrived` are those that will wait."""
        geometry = self.clocks.geometry
        for cluster in clusters.tolist():
            self.complete[cluster] = self.arriving.pop(cluster, NOTHING)
        if self.clocks.fenced.is_used:
            self.clocks.fenced.share(arrived, geometry.cta[arrived] // geometry.cluster_ctas)

    def wait(self, lanes: Ids) -> None:
        """These lanes go on behind the phase that was completed last."""
        geometry = self.clocks.geometry
        cluster = geometry.cta[lanes] // geometry.cluster_ctas
        for number in np.unique(cluster).tolist():
            self.clocks.learn(lanes[cluster == number], self.complete[number])

    def _of_cta(self, cta: int, lanes: Ids, now: int) -> Knowledge:
        """What lanes of one CTA know together, and that they were there until now."""
        clocks, geometry = self.clocks, self.clocks.geometry
        rows, number = clocks.rows, cta + geometry.first
        known = together(clocks.known[each] for each in np.unique(rows.foreign[lanes]).tolist())
        of_cta = slice(cta * geometry.threads, (cta + 1) * geometry.threads)
        if len(lanes) == np.count_nonzero(self.alive[of_cta]):
            return known | Knowledge({number: now})
        warp = geometry.thread[lanes] // WARP
        here = np.bincount(warp, minlength=geometry.warps)
        living = np.bincount(geometry.thread[of_cta][self.alive[of_cta]] // WARP, minlength=geometry.warps)
        stamps = {number * geometry.warps + int(each): now for each in np.flatnonzero((here == living) & (here > 0))}
        if rows.warps is not None:
            for each in np.flatnonzero(rows.warps[lanes].max(axis=0)).tolist():
                name = number * geometry.warps + each
                stamps[name] = max(stamps.get(name, 0), int(rows.warps[lanes, each].max()))
        known = known | Knowledge({number: int(rows.cta[lanes].max())}, stamps)
        for lane in lanes[(here != living)[warp]].tolist():
            known = known | clocks.snapshot(rows, lane, now)
        return known


@dataclass
class RemoteAccesses:
    """For each CTA that runs, the newest access of every thread of another CTA to its shared memory."""

    clocks: Clocks
    newest: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, owner: Ids, agents: Array, number: int) -> None:
        """Threads `agents` of the grid touch the memory of these CTAs by access `number`."""
        for cta, agent in zip(owner.tolist(), agents.tolist(), strict=True):
            self.newest.setdefault(cta, {})[agent] = number

    def left_behind(self, lanes: Ids, alive: NDArray[np.bool_]) -> tuple[int, int, int] | None:
        """Lanes have exited: a CTA of theirs that is gone, a thread and its access there that no thread of the CTA comes
        after; None if there is none. The last to exit is whoever it may be, so one that comes after it is enough."""
        geometry = self.clocks.geometry
        for cta in np.unique(geometry.cta[lanes]).tolist():
            own = np.arange(cta * geometry.threads, (cta + 1) * geometry.threads)
            if cta not in self.newest or alive[own].any():
                continue
            for agent, number in self.newest.pop(cta).items():
                if self.clocks.comes_after(int(own[-1]), np.array([agent]), number)[0]:
                    continue  # as a rule all do, so that one is asked before them
                some = np.full(len(own), agent)
                if not self.clocks.is_ordered(own, some, np.full(len(own), number)).any():
                    return cta, agent, number
        return None
