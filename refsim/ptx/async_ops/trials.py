"""Trials: much asynchronous work is shown to the observers at once, and none of them reports anything.

An observer that would report something stops the trial. The work is then shown again piece by piece.
"""

from collections.abc import Callable, Sequence

from refsim.errors import RefsimError
from refsim.ptx.async_ops.transfers import TransferHost
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.findings.faults import DoubtError
from refsim.ptx.memory.access import Access, Observer


def watching(machine: Machine, name: str) -> list[Observer]:
    """Return the observers of a state space, except the counter of bank conflicts."""
    return [each for each in machine.port.observers.get(name, ()) if not isinstance(each, BankCounter)]


def others_watching(machine: TransferHost, name: str) -> list[Observer]:
    """Return the observers of a state space, except the checks that are asked separately about writes of copies."""
    return [each for each in watching(machine, name) if each is not machine.races and each is not machine.proxies]


def on_trial(machine: Machine, look: Callable[[], None]) -> bool:
    """Let the observers look at something; return whether none of them has anything to report."""
    return doubt(machine, look) is None


def doubt(machine: Machine, look: Callable[[], None]) -> RefsimError | None:
    """Let the observers look at something; return the first finding that one of them would report, or None."""
    machine.is_on_trial = True
    try:
        look()
    except DoubtError as error:
        return error.finding
    except RefsimError as error:
        return error
    finally:
        machine.is_on_trial = False
    return None


def look(observers: Sequence[Observer], access: Access) -> None:
    """Show an access that is about to be made to the observers."""
    for observer in observers:
        observer.before(access)
