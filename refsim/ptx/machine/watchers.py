"""The observers of a launch's memory and their order: those of the checks, of the kernel and of the user."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from refsim.ptx.async_ops.tensor_products import TensorCore
from refsim.ptx.async_ops.warpgroup_products import TensorCores
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.checks.history import History
from refsim.ptx.checks.in_flight import InFlight
from refsim.ptx.checks.proxies import PROXY_CHECK, Proxies
from refsim.ptx.checks.races import Races
from refsim.ptx.checks.stale_reads import GRID_CHECK, GridDependency, StaleReads, Writers
from refsim.ptx.events import ACCESS, Hear
from refsim.ptx.lowering.blocks import granule
from refsim.ptx.memory.access import Observer
from refsim.ptx.memory.snapshot import TouchedBytes
from refsim.ptx.observers.log import EventLog
from refsim.ptx.observers.steps import AddressWatch
from refsim.ptx.sync.mbarriers import Mbarriers
from refsim.ptx.sync.scheduler import Scheduler


class WatchedMachine(Scheduler, Protocol):
    """A machine with its parts that observe accesses themselves."""

    watching: AddressWatch | None
    log: EventLog | None
    tensor_cores: TensorCores
    tensor_pipe: TensorCore

    @property
    def mbarriers(self) -> Mbarriers: ...


@dataclass(frozen=True)
class MemoryWatchers:
    """The checks that other parts ask too; None for a check that is off or has nothing to do in this kernel."""

    history: History
    races: Races | None
    in_flight: InFlight | None
    proxies: Proxies | None
    dependency: GridDependency | None

    @staticmethod
    def of(machine: Scheduler, history: History, earlier: TouchedBytes | None) -> "MemoryWatchers":
        """Return the checks of a machine; `earlier` is what the previous launch touched if it may still run."""
        checks, code = machine.checks, machine.code
        grain = {space: granule(code, space) for space in ("shared", "global")}
        history.unread, history.volatile = code.unread, code.volatile
        if code.waiting.issuperset(code.strong):
            history.strong.left = 0
        leaves = code.lets_others_begin
        alone = machine.geometry.grid_threads == 1 and not (code.has_async_proxy or earlier or leaves)
        copies = code.is_asynchronous and checks.copies != "off"
        in_flight = InFlight(machine, grain["shared"]) if copies else None
        if checks.races == "off" or alone:
            return MemoryWatchers(history, None, in_flight, None, None)
        races = Races(machine, history, grain, converges=code.converges)
        crosses, depends = code.has_async_proxy, earlier is not None and GRID_CHECK not in checks.off
        return MemoryWatchers(
            history,
            races,
            in_flight,
            Proxies(machine, history, races.orders, grain) if crosses and PROXY_CHECK not in checks.off else None,
            GridDependency(machine, history, races.orders, earlier if depends else None, leaves)
            if depends or leaves
            else None,
        )

    def subscribers(self, machine: WatchedMachine) -> list[Mapping[str, Hear]]:
        """Return what hears the events of each verb, of one check after the other: they hear an event in this order. The
        log of the user hears it first, so that it has the event at which a check stops the launch."""
        phases = None if self.races is None else self.races.phases
        order = self.in_flight, self.races, phases, self.proxies, self.dependency
        log = [] if machine.log is None else [machine.log.hears(machine)]
        return [*log, *(each.hears() for each in order if each is not None)]

    def observers(self, machine: WatchedMachine) -> dict[str, list[Observer]]:
        """Return the observers of each state space, in the order in which they are called."""
        found: dict[str, list[Observer]] = {"shared": [], "global": []}
        if machine.code.has_mbarriers:
            found["shared"].append(machine.mbarriers)
        if self.in_flight is not None:
            found["shared"].append(self.in_flight)
        if machine.tensor_cores.reads is not None:
            found["shared"].append(machine.tensor_cores.reads)
        if machine.tensor_pipe.reads is not None:
            found["shared"].append(machine.tensor_pipe.reads)
        for everywhere in (self.races, self.proxies):
            if everywhere is not None:
                found["shared"].append(everywhere)
                found["global"].append(everywhere)
        if self.dependency is not None:
            found["global"].append(self.dependency)
        if machine.code.read_only and "stale-read" not in machine.checks.off:
            found["global"].append(StaleReads(machine, self.history, machine.code.read_only))
        if machine.checks.banks:
            found["shared"].append(BankCounter(machine.findings.banks))
        if machine.memory.space.writer is not None:
            found["global"].append(Writers(machine.first_thread))
        if machine.watching is not None:
            found.setdefault(machine.watching.stretch.space, []).append(machine.watching)
        if machine.log is not None and ACCESS in machine.log.verbs:
            found["shared"].append(machine.log)
            found["global"].append(machine.log)
        return {name: observers for name, observers in found.items() if observers}
