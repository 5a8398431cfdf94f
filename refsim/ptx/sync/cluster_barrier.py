"""The barrier of a cluster (barrier.cluster): threads arrive, then wait until all of the cluster have arrived."""

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place

RULE = "PTX ISA, barrier.cluster: each thread arrives once, then waits, in each phase"
IDLE, ARRIVED, COMPLETE = range(3)


class ClusterBarrier:
    """The state of each lane in the current phase of its cluster's barrier; without clusters, each CTA is its own
    cluster. `state`: IDLE, ARRIVED or COMPLETE for each lane; `pc`: the statement at which a lane waits, -1 if it does
    not wait."""

    def __init__(self, machine: Scheduler) -> None:
        self.machine = machine
        self.state = np.zeros(machine.geometry.lanes, np.int8)
        self.pc = np.full(machine.geometry.lanes, -1, np.int64)

    def arrive(self, lanes: Lanes, *, releases: bool) -> None:
        """Record that lanes arrive, and let them go on; `releases` is False for `.relaxed`."""
        again = self.state[lanes.ids] != IDLE
        if again.any():
            raise lanes.fault("barrier-misuse", int(np.argmax(again)), "a second arrival without a wait between", RULE)
        self.state[lanes.ids] = ARRIVED
        if self.machine.races is not None:
            self.machine.races.orders.cluster_arrived(lanes.ids, lanes.statement, releases=releases)
        self.machine.go(lanes.pc + 1, lanes.ids)
        self.release()

    def wait(self, lanes: Lanes) -> None:
        """Let lanes that have arrived wait for the other lanes of their cluster."""
        state = self.state[lanes.ids]
        if (idle := state == IDLE).any():
            raise lanes.fault("barrier-misuse", int(np.argmax(idle)), "a wait without an arrival before it", RULE)
        self.pc[lanes.ids] = lanes.pc
        self._go_on(lanes.ids[state == COMPLETE])

    def release(self) -> None:
        """Complete the phase of each cluster whose threads have all arrived or exited, and resume its waiting lanes."""
        machine, geometry = self.machine, self.machine.geometry
        arrived = self.state == ARRIVED
        if not arrived.any():
            return
        cluster = geometry.cta // geometry.cluster_ctas
        clusters = geometry.count // geometry.cluster_ctas
        missing = np.bincount(cluster[machine.alive & ~arrived], minlength=clusters)
        here = np.bincount(cluster[arrived], minlength=clusters)
        complete = (missing == 0) & (here > 0)
        if not complete.any():
            return
        going = np.flatnonzero(complete[cluster] & arrived)
        self.state[going] = COMPLETE
        if machine.races is not None:
            machine.races.clusters_completed(np.flatnonzero(complete), going)
        self._go_on(going[self.pc[going] >= 0])

    def _go_on(self, ids: Ids) -> None:
        if not len(ids):
            return
        if self.machine.races is not None:
            self.machine.races.orders.cluster_waited(ids)
        self.state[ids] = IDLE
        for pc in np.unique(self.pc[ids]).tolist():
            self.machine.go(pc + 1, ids[self.pc[ids] == pc])
        self.pc[ids] = -1

    def waiting(self) -> list[tuple[int, Ids]]:
        """Return the program counters at which lanes wait, with these lanes, for a deadlock report."""
        ids = np.flatnonzero(self.pc >= 0)
        return [(int(pc), ids[self.pc[ids] == pc]) for pc in np.unique(self.pc[ids])]

    def question(self, lane: int) -> str:
        """Return what a waiting lane waits for: how many threads have arrived, and the first that has not."""
        if self.pc[lane] < 0:
            return ""
        geometry = self.machine.geometry
        cluster = geometry.cta // geometry.cluster_ctas
        living = self.machine.alive & (cluster == cluster[lane])
        absent = np.flatnonzero(living & (self.state == IDLE))
        statement = self.machine.code.steps[int(self.pc[lane])].statement
        arrived = f"{np.count_nonzero(living) - len(absent)} of the {np.count_nonzero(living)} threads of the cluster"
        who = f", {geometry.describe(int(absent[0]))} has not" if len(absent) else ""
        return f"{place(statement)}: {arrived} have arrived{who}"
