"""The accesses that the observers of memory see when a transfer begins: its reads and its future writes."""

from dataclasses import dataclass
from functools import partial

from refsim.ptx.async_ops.ends import Ends, changed
from refsim.ptx.async_ops.repeated import repeats
from refsim.ptx.async_ops.transfers import Transfer, TransferHost
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.memory.access import UPDATE, Access


@dataclass
class TransferWatchers:
    """The observers of one machine, as its copy engine calls them."""

    machine: TransferHost
    ends: Ends

    def read(self, flight: Transfer, access: Access) -> None:
        """Show the bytes that the transfer reads until its thread has waited for the read."""
        seen = self.ends.coarse(access)
        if seen is None:
            return
        for observer in self.machine.port.observers.get(access.name, ()):
            if not isinstance(observer, BankCounter):
                observer.before(seen)
                observer.after(seen)
        if access.name == "shared" and self.machine.in_flight is not None:
            self.machine.in_flight.is_read(seen.index, seen.width)
            flight.reads = seen

    def landing(self, flight: Transfer, access: Access) -> None:
        """Show the shared bytes that the transfer writes until a thread has observed its completion."""
        machine = self.machine
        for observer in machine.port.observers.get("shared", ()):
            if observer not in (machine.races, machine.proxies) and not isinstance(observer, BankCounter):
                observer.before(access)
        if machine.proxies is not None:
            machine.proxies.before(access)
        if machine.races is not None:
            machine.races.transfer_issued(access, lambda: changed(access), flight.lane)
        if machine.in_flight is not None:
            machine.in_flight.issued(access.index, access.width, access.proxy if access.kind == UPDATE else "")
        access.space.mark_written(access.index, access.width)
        flight.writes = access

    def sent(self, flight: Transfer, access: Access, flying: list[Transfer]) -> None:
        """Show the global bytes that the transfer writes; threads may rely on them after a wait for the group."""
        machine, seen = self.machine, self.ends.coarse(access)
        access.items = changed(access)
        for observer in machine.port.observers.get("global", ()):
            if observer not in (machine.races, machine.proxies):
                observer.before(access)
                observer.after(access)
        if seen is None:
            return
        if machine.proxies is not None:
            machine.proxies.before(seen)
        if machine.races is not None:
            seen.items = changed(seen)
            flight.stamp = machine.races.transfer_sent(seen, partial(repeats, flight, flying, seen.space))
