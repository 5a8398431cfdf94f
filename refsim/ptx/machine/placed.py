"""What all CTAs of a launch share: its code, memory and options."""

from dataclasses import dataclass

from refsim.ptx.checks.open_bits import OpenBits
from refsim.ptx.findings.table import Checks
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.machine.launch_rules import LaunchShape
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import Space
from refsim.ptx.memory.touched import TouchedBytes
from refsim.ptx.observers.accesses import AddressWatch
from refsim.ptx.observers.steps import StepObserver


@dataclass(frozen=True)
class VariablePlacement:
    """The addresses of all names of an entry. `shared_bytes` and `local_bytes` are the memory that a CTA and a lane
    take; `in_shared` names the variables in shared memory."""

    symbols: dict[str, int]
    shared_bytes: int
    local_bytes: int
    in_shared: frozenset[str]


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch with its arguments checked and placed; `text` is its module's PTX."""

    code: Code
    shape: LaunchShape
    memory: GlobalMemory
    parameters: Space
    variables: VariablePlacement
    checks: Checks
    policy: str
    arithmetic: str
    seed: int
    target: str
    text: str
    is_cooperative: bool
    earlier: TouchedBytes | None = None
    observer: StepObserver | None = None
    watching: AddressWatch | None = None
    following: OpenBits | None = None
