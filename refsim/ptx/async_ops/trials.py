"""Much asynchronous work shown at once, on trial, to those who watch memory: nobody says anything then. Who would, stops the
trial, and the same is shown again piece by piece.
"""

from collections.abc import Callable, Sequence

from refsim.errors import RefsimError
from refsim.ptx.async_ops.transfers import TransferHost
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.findings.faults import DoubtError
from refsim.ptx.memory.access import Access, Observer


def watching(machine: TransferHost, name: str) -> list[Observer]:
    """Those who watch a state space, but for the one who counts the banks that threads use."""
    return [each for each in machine.port.observers.get(name, ()) if not isinstance(each, BankCounter)]


def others_watching(machine: TransferHost, name: str) -> list[Observer]:
    """Those of them who are not asked by themselves about what copies write."""
    return [each for each in watching(machine, name) if each is not machine.races and each is not machine.proxies]


def on_trial(machine: Machine, look: Callable[[], None]) -> bool:
    """Let those who watch look at something; whether none of them has anything to say."""
    machine.is_on_trial = True
    try:
        look()
    except (DoubtError, RefsimError):
        return False
    finally:
        machine.is_on_trial = False
    return True


def look(observers: Sequence[Observer], access: Access) -> None:
    """Those who watch see an access that is about to be made."""
    for observer in observers:
        observer.before(access)
