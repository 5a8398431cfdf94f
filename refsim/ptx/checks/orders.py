"""The orders of a launch: fences, barriers, the barrier of a cluster, and releases that acquires observe; each event also
goes to the journal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from refsim.layouts.holders import WARP
from refsim.ptx.checks import journal
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.knowledge import NOTHING, Key, Knowledge, together
from refsim.ptx.checks.marks import AccessPart
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.access import CLUSTER, GPU, UPDATE, WRITE, Access, Semantics, semantics
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.text.syntax import Statement


@dataclass
class ClusterOrder:
    """The knowledge of the lanes that arrived in each running cluster's current phase, and of its last phase."""

    clocks: Clocks
    alive: Bools
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
        self.clusters = [ClusterOrder(clocks, machine.alive) for clocks in self.clocks]
        self.journal = history.journal
        self.journal.geometry = self.geometry
        self.met = np.zeros(self.geometry.lanes, np.int64)

    # ---- accesses
    def synchronise(self, part: AccessPart) -> None:
        """Record what a strong access acquires and releases, and the chains of releases that other writes end."""
        access, meaning = part.access, self.history.meaning_of(part.access.statement)
        at = part.index * access.width + part.area.base
        self.journal.accessed(access, at, part.area.base, meaning, self.history.now)
        if not (self.strict.matters or meaning.releases):
            return
        lanes = access.threads.ids
        keys = self._keys(part)
        reads = meaning.strong and access.kind != WRITE and meaning.returns
        for clocks in self.clocks:
            if access.kind == UPDATE:
                self._update(clocks, access, keys, meaning)
            elif reads:
                clocks.read(lanes, keys, meaning)
            elif access.kind == WRITE:
                clocks.write(lanes, keys, meaning, self.history.now, update=False)

    def _update(self, clocks: Clocks, access: Access, keys: list[Key], meaning: Semantics) -> None:
        """Record an atomic lane after lane: each lane observes the value of the previous one."""
        lanes = access.threads.ids
        for number, key in enumerate(keys):
            one = lanes[number : number + 1]
            if meaning.returns:
                clocks.read(one, [key], meaning)
            if access.wrote is None or access.wrote[number]:
                clocks.write(one, [key], meaning, self.history.now, update=True)

    def _keys(self, part: AccessPart) -> list[Key]:
        """Return a key for the location of each lane; shared memory is named by its CTA in the grid."""
        at = (part.index * part.access.width + part.area.base).tolist()
        if not part.area.is_shared:
            return [("global", place) for place in at]
        stride, first = self.machine.shared.stride, self.geometry.first
        return [("shared", (place // stride + first) * stride + place % stride) for place in at]

    # ---- meetings
    def fence(self, lanes: Ids, meaning: Semantics, statement: Statement) -> None:
        """Record a fence of lanes: it releases what they did and acquires what they saw."""
        self.journal.add(journal.FENCE, self.history.now, lanes, statement=statement, meaning=meaning)
        for clocks in self.clocks:
            clocks.fence(lanes, meaning, self.history.now)

    def everyone_met(self, lanes: Ids) -> None:
        """Record that all running lanes passed one barrier of their CTAs together."""
        self.journal.add(journal.MEET_CTA, self.history.now, lanes)
        self.met[lanes] = self.history.now
        for clocks in self.clocks:
            clocks.meet_cta(lanes, self.history.now)

    def barriers_met(self, slot: Array, warps: Array, waited: Array, everyone: Array, at: Array) -> bool:
        """Record that warps pass barriers `slot` (CTA * 16 + number); warps that `waited` come after all that arrived
        there. `everyone`: for each barrier, how many warps must wait for the whole CTA to take part. `at`: program
        counters. The result is whether the whole CTA took part in any barrier."""
        self.journal.add(journal.PASSED, self.history.now, warps, detail=(slot, waited, at))
        alive, whole = self.machine.alive, np.bincount(slot[waited], minlength=len(everyone)) == everyone
        for number in np.unique(slot).tolist():
            here, now = slot == number, self.history.now
            lanes = np.flatnonzero(np.isin(self.geometry.warp, warps[here]) & alive)
            waiting = np.flatnonzero(np.isin(self.geometry.warp, warps[here & waited]) & alive)
            self.met[waiting] = now
            for clocks in self.clocks:
                if clocks is self.strict:
                    self._note_barrier(number, lanes, lanes if whole[number] else waiting, whole=bool(whole[number]))
                if whole[number]:
                    clocks.leave(number, lanes)
                    clocks.meet_cta(lanes, now)
                    continue
                clocks.arrive(number, lanes, now)
                if len(waiting):
                    clocks.leave(number, waiting)
        return bool(whole.any())

    def _note_barrier(self, number: int, lanes: Ids, waiting: Ids, *, whole: bool) -> None:
        """Add the arrivals and waits of one barrier to the journal; `whole`: the whole CTA took part."""
        if not whole:
            self.journal.add(journal.ARRIVE, self.history.now, lanes, detail=number)
        if len(waiting):
            self.journal.add(journal.LEAVE, self.history.now, waiting, detail=number)
        if whole:
            self.journal.add(journal.MEET_CTA, self.history.now, lanes)

    def cluster_arrived(self, lanes: Ids, statement: Statement, *, releases: bool) -> None:
        """Record that lanes arrived at the barrier of their cluster; they release what they did if `releases`."""
        meaning, alive = Semantics(releases=releases), self.machine.alive.copy()
        self.journal.add(
            journal.CLUSTER_ARRIVE, self.history.now, lanes, statement=statement, meaning=meaning, detail=alive
        )
        for order in self.clusters:
            order.arrive(lanes, self.history.now, releases=releases)

    def clusters_completed(self, clusters: Array, arrived: Ids) -> None:
        """Record that all threads of these clusters have arrived."""
        self.journal.add(journal.CLUSTER_FINISH, self.history.now, arrived, detail=clusters)
        for order in self.clusters:
            order.finish(clusters, arrived)

    def cluster_waited(self, lanes: Ids) -> None:
        """Record that lanes passed the barrier of their cluster."""
        self.journal.add(journal.CLUSTER_WAIT, self.history.now, lanes)
        self.met[lanes] = self.history.now
        for order in self.clusters:
            order.wait(lanes)

    def warp_met(self, lanes: Ids, group: Array | None, statement: Statement) -> None:
        """Record that lanes met by bar.warp.sync: whole warps (`group` None), or the lanes of each group."""
        verb = journal.MEET_WARPS if group is None else journal.MEET_LANES
        self.journal.add(verb, self.history.now, lanes, statement=statement, detail=group)
        for clocks in self.clocks:
            self._meet(clocks, lanes, group)

    def converged(self, lanes: Ids, group: Array | None) -> None:
        """Record that lanes met by an instruction that does not order memory."""
        if self.loose is not None:
            self._meet(self.loose, lanes, group)

    def _meet(self, clocks: Clocks, lanes: Ids, group: Array | None) -> None:
        if group is None:
            clocks.meet_warps(lanes, self.history.now)
        else:
            clocks.meet_lanes(lanes, group, self.history.now)
