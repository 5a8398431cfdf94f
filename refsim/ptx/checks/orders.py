"""The orders of a launch: fences, barriers, the barrier of a cluster, and releases that acquires observe.

One interpreter gives each event its meaning: the launch applies events as they happen, and keeps them in the journal.
The search for repairs applies the events of the journal again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx import events
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, together
from refsim.ptx.checks.marks import AccessPart
from refsim.ptx.events import AccessPlaces, LaunchEvent
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.access import CLUSTER, GPU, UPDATE, WRITE, semantics
from refsim.ptx.memory.arrays import Array, Bools


@dataclass
class ClusterOrder:
    """The knowledge of the lanes that arrived in each running cluster's current phase, and of its last phase."""

    clocks: Clocks
    arriving: dict[int, Knowledge] = field(default_factory=dict)
    complete: dict[int, Knowledge] = field(default_factory=dict)

    def arrive(self, lanes: Ids, now: int, alive: Bools, *, releases: bool) -> None:
        """Record that lanes arrive: they release what they know up to access `now`, or if relaxed, up to their last fence
        of the cluster's scope. `alive`: all living lanes. Source: PTX ISA, barrier.cluster, .relaxed with an explicit
        fence."""
        cluster_of = self.clocks.geometry.cta[lanes] // self.clocks.geometry.cluster_ctas
        for cluster in np.unique(cluster_of).tolist():
            here = lanes[cluster_of == cluster]
            known = together(self._of_ctas(here, now, alive)) if releases else self.clocks.at_fences(here, CLUSTER)
            self.arriving[cluster] = self.arriving.get(cluster, NOTHING) | known

    def _of_ctas(self, lanes: Ids, now: int, alive: Bools) -> Iterator[Knowledge]:
        """Yield what the lanes of each CTA know together."""
        cta_of = self.clocks.geometry.cta[lanes]
        for cta in np.unique(cta_of).tolist():
            yield self._of_cta(cta, lanes[cta_of == cta], now, alive)

    def finish(self, clusters: Array, arrived: Ids) -> None:
        """Complete the phase of these clusters; `arrived` are the lanes that will wait."""
        for cluster in clusters.tolist():
            self.complete[cluster] = self.arriving.pop(cluster, NOTHING)
        clusters_of = self.clocks.geometry.cta // self.clocks.geometry.cluster_ctas
        self.clocks.share_fences(arrived, clusters_of, spans_ctas=True)

    def wait(self, lanes: Ids) -> None:
        """Let lanes acquire what was released in the phase that completed last, if that is known."""
        geometry = self.clocks.geometry
        cluster = geometry.cta[lanes] // geometry.cluster_ctas
        for number in np.unique(cluster).tolist():
            self.clocks.learn(lanes[cluster == number], self.complete.get(number, NOTHING))

    def _of_cta(self, cta: int, lanes: Ids, now: int, alive: Bools) -> Knowledge:
        """Return what lanes of one CTA know together, including their own accesses until now."""
        clocks, geometry = self.clocks, self.clocks.geometry
        rows, number = clocks.rows, cta + geometry.first
        known = together(clocks.known[each] for each in np.unique(rows.foreign[lanes]).tolist())
        of_cta = slice(cta * geometry.threads, (cta + 1) * geometry.threads)
        if len(lanes) == np.count_nonzero(alive[of_cta]):
            return known | Knowledge({number: now})
        warp = geometry.thread[lanes] // WARP
        here = np.bincount(warp, minlength=geometry.warps)
        living = np.bincount(geometry.thread[of_cta][alive[of_cta]] // WARP, minlength=geometry.warps)
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
class ClockedOrder:
    """One happens-before order of the running CTAs: it gives each event its meaning, in a launch and in a replay."""

    clocks: Clocks

    def __post_init__(self) -> None:
        self.clusters = ClusterOrder(self.clocks)

    def apply(self, event: LaunchEvent, now: int) -> None:
        """Apply an event that happens when access `now` is the newest."""
        clocks, lanes = self.clocks, event.lanes
        match event.verb:
            case events.ACCESS:
                self._access(event, now)
            case events.FENCE:
                clocks.fence(lanes, event.meaning, now)
            case events.MEET_CTA:
                clocks.meet_cta(lanes, now)
            case events.MEET_WARPS | events.CONVERGE:
                if event.payload is None:
                    clocks.meet_warps(lanes, now)
                else:
                    clocks.meet_lanes(lanes, event.payload, now)
            case events.ARRIVE:
                clocks.arrive(event.payload, lanes, now)
            case events.LEAVE:
                clocks.leave(event.payload, lanes)
            case events.CLUSTER_ARRIVE:
                self.clusters.arrive(lanes, now, event.payload, releases=event.meaning.releases)
            case events.CLUSTER_FINISH:
                self.clusters.finish(event.payload, lanes)
            case events.CLUSTER_WAIT:
                self.clusters.wait(lanes)

    def _access(self, event: LaunchEvent, now: int) -> None:
        """Apply an access: what it acquires, and the releases that it makes, continues or ends."""
        places, meaning = event.payload, event.meaning
        if places.kind == UPDATE:
            self._update(event, now)
        elif places.kind == WRITE:
            if self.clocks.matters or meaning.releases:
                self.clocks.write(event.lanes, places.keys, meaning, now, update=False)
        elif meaning.strong and meaning.returns:
            self.clocks.read(event.lanes, places.keys, meaning)

    def _update(self, event: LaunchEvent, now: int) -> None:
        """Apply an atomic lane after lane: each lane observes the value of the previous one."""
        places, meaning = event.payload, event.meaning
        for number, key in enumerate(places.keys):
            one = event.lanes[number : number + 1]
            if meaning.returns:
                self.clocks.read(one, [key], meaning)
            if (places.wrote is None or places.wrote[number]) and (self.clocks.matters or meaning.releases):
                self.clocks.write(one, [key], meaning, now, update=True)


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
        self, lanes: Ids, alive: Bools, were_seen: Callable[[int, int, int], bool]
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


class Orders:
    """The clocks of a launch; every synchronization is reported to all of them."""

    def __init__(self, machine: Context, history: History, *, converges: bool) -> None:
        """Make the clocks that the launch needs: tensor memory and convergence have clocks of their own."""
        self.machine, self.history, self.geometry = machine, history, machine.geometry
        strict, loose = history.released
        fences = (semantics(step.statement.opcode) for step in machine.code.steps)
        scopes = {min(fence.scope, GPU) for fence in fences if fence.sequential}
        self.strict = Clocks(self.geometry, strict, scopes=scopes)
        self.loose = Clocks(self.geometry, loose, scopes=scopes) if converges else None
        self.tensor = self.strict
        spans = machine.code.has_tensor_memory and self.geometry.cluster_ctas > 1
        if spans or machine.code.fences_tensor_memory:
            self.tensor = Clocks(self.geometry, {}, ignores_scopes=True, scopes=scopes)
        several = [self.strict] if self.tensor is self.strict else [self.strict, self.tensor]
        self.clocks = several if self.loose is None else [*several, self.loose]
        self.every = [ClockedOrder(clocks) for clocks in self.clocks]
        self.journal = history.journal
        self.journal.geometry = self.geometry
        self.met = np.zeros(self.geometry.lanes, np.int64)

    def apply(self, event: LaunchEvent) -> None:
        """Let every order interpret an event, and keep it in the journal."""
        now = self.history.now
        self.journal.add(now, event)
        for order in self.every:
            order.apply(event, now)

    # ---- accesses
    def synchronise(self, part: AccessPart) -> None:
        """Record what a strong access acquires and releases, and the chains of releases that other writes end."""
        access, meaning = part.access, self.history.meaning_of(part.access.statement)
        at, first = part.index * access.width + part.area.base, self.geometry.first if part.area.is_shared else 0
        places = AccessPlaces(access.kind, access.name, at, access.wrote, first)
        event = LaunchEvent(events.ACCESS, access.threads.ids, access.statement, meaning, places)
        if meaning.strong:
            self.journal.strong.add(part.area.base)
        if part.area.base in self.journal.strong:
            self.journal.add(self.history.now, event)
        if self.strict.matters or meaning.releases:
            for order in self.every:
                order.apply(event, self.history.now)

    # ---- meetings
    def everyone_met(self, event: LaunchEvent) -> None:
        """Record that all running lanes passed one barrier of their CTAs, or that lanes passed that of their cluster."""
        self.met[event.lanes] = self.history.now
        self.apply(event)

    def barriers_met(self, event: LaunchEvent) -> bool:
        """Record that warps pass barriers; return whether the whole CTA took part in any of them."""
        self.apply(event)
        warps, (slot, waited, everyone, _) = event.lanes, event.payload
        alive, whole = self.machine.alive, np.bincount(slot[waited], minlength=len(everyone)) == everyone
        for number in np.unique(slot).tolist():
            here = slot == number
            lanes = np.flatnonzero(np.isin(self.geometry.warp, warps[here]) & alive)
            waiting = np.flatnonzero(np.isin(self.geometry.warp, warps[here & waited]) & alive)
            self.met[waiting] = self.history.now
            for each in barrier_events(number, lanes, lanes if whole[number] else waiting, whole=bool(whole[number])):
                self.apply(each)
        return bool(whole.any())

    def converged(self, event: LaunchEvent) -> None:
        """Record that lanes met by an instruction that does not order memory."""
        self.every[-1].apply(event, self.history.now)


def barrier_events(number: int, lanes: Ids, waiting: Ids, *, whole: bool) -> Iterator[LaunchEvent]:
    """Yield what lanes that pass one barrier do; with the `whole` CTA, all of them wait."""
    if not whole:
        yield LaunchEvent(events.ARRIVE, lanes, payload=number)
    if len(waiting):
        yield LaunchEvent(events.LEAVE, waiting, payload=number)
    if whole:
        yield LaunchEvent(events.MEET_CTA, lanes)
