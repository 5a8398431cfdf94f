"""The order that the barrier of a cluster gives: a lane that waits comes after all that others did before they arrived.

Arrivals release and waits acquire at cluster scope. Whole CTAs and whole warps that arrive together are one stamp; only
a warp that comes in parts is recorded lane by lane. The exit of a CTA is an access to all of its shared memory:
accesses of other CTAs there must happen before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, together
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.semantics import CLUSTER

Array = NDArray[Any]


@dataclass
class ClusterOrder:
    """The knowledge of the lanes that arrived in each running cluster's current phase, and of its last phase."""

    clocks: Clocks
    alive: NDArray[np.bool_]
    arriving: dict[int, Knowledge] = field(default_factory=dict)
    complete: dict[int, Knowledge] = field(default_factory=dict)

    def arrive(self, lanes: Ids, now: int, *, releases: bool) -> None:
        """Record that lanes arrive: they release what they know up to access `now`, or if relaxed, up to their last fence
        of the cluster's scope. Source: PTX ISA, barrier.cluster, .relaxed with an explicit fence."""
        cluster_of = self.clocks.geometry.cta[lanes] // self.clocks.geometry.cluster_ctas
        for cluster in np.unique(cluster_of).tolist():
            here = lanes[cluster_of == cluster]
            known = together(self._of_ctas(here, now)) if releases else self.clocks.at_fences(here, CLUSTER)
            self.arriving[cluster] = self.arriving.get(cluster, NOTHING) | known

    def _of_ctas(self, lanes: Ids, now: int) -> Iterator[Knowledge]:
        """Yield what the lanes of each CTA know together."""
        cta_of = self.clocks.geometry.cta[lanes]
        for cta in np.unique(cta_of).tolist():
            yield self._of_cta(cta, lanes[cta_of == cta], now)

    def finish(self, clusters: Array, arrived: Ids) -> None:
        """Complete the phase of these clusters; `arrived` are the lanes that will wait."""
        for cluster in clusters.tolist():
            self.complete[cluster] = self.arriving.pop(cluster, NOTHING)
        clusters_of = self.clocks.geometry.cta // self.clocks.geometry.cluster_ctas
        self.clocks.share_fences(arrived, clusters_of, spans_ctas=True)

    def wait(self, lanes: Ids) -> None:
        """Let lanes acquire what was released in the phase that completed last."""
        geometry = self.clocks.geometry
        cluster = geometry.cta[lanes] // geometry.cluster_ctas
        for number in np.unique(cluster).tolist():
            self.clocks.learn(lanes[cluster == number], self.complete[number])

    def _of_cta(self, cta: int, lanes: Ids, now: int) -> Knowledge:
        """Return what lanes of one CTA know together, including their own accesses until now."""
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
    """For each running CTA: the newest access of every thread of other CTAs to its shared memory. ~agent stands for the
    reads of a tensor core: for a thread, until one sees their commit complete, then for their mbarrier. `tensor` are
    the clocks in which a fence of tcgen05 makes a relaxed wait an acquire."""

    clocks: Clocks
    tensor: Clocks
    newest: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, owner: Ids, agents: Array, number: int) -> None:
        """Record that threads `agents` of the grid touch the memory of these CTAs by access `number`."""
        for cta, agent in zip(owner.tolist(), agents.tolist(), strict=True):
            self.newest.setdefault(cta, {})[agent] = number

    def read(self, issuer: int, agent: int, number: int) -> None:
        """Record that all reads of a tensor core for a thread are complete for those who come after this access."""
        for held in self.newest.values():
            if held.pop(~issuer, None) is not None:
                held[~agent] = max(held.get(~agent, 0), number)

    def left_behind(
        self, lanes: Ids, alive: NDArray[np.bool_], were_seen: Callable[[int, int, int], bool]
    ) -> tuple[int, int, int] | None:
        """Return a CTA whose threads have all exited, with a remote access that no thread of it comes after; None if
        there is none. `lanes` have just exited. `were_seen` tells whether the CTA observed all accesses of a thread.
        The result is (CTA, thread of the grid, access number). Any thread may exit last, so it suffices if one thread
        comes after the access."""
        geometry = self.clocks.geometry
        for cta in np.unique(geometry.cta[lanes]).tolist():
            own = np.arange(cta * geometry.threads, (cta + 1) * geometry.threads)
            if cta not in self.newest or alive[own].any():
                continue
            for mark, number in self.newest.pop(cta).items():
                agent, clocks = max(mark, ~mark), self.clocks if mark >= 0 else self.tensor
                if clocks.comes_after(int(own[-1]), np.array([agent]), number)[0]:
                    continue  # usually all threads do: one is asked first
                some = np.full(len(own), agent)
                if clocks.is_ordered(own, some, np.full(len(own), number)).any():
                    continue
                if mark < 0 or not were_seen(cta, agent, number):
                    return cta, agent, number
        return None
