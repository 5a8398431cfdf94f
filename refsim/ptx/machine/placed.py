"""What all CTAs of a launch share: its code, memory and options, and the clusters that have not started, which waves start
and running blocks may take over."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.async_ops.queue import SchedulePolicy
from refsim.ptx.checks.history import History
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import Checks
from refsim.ptx.isa.definedness.tracking import OpenBits, Tracking
from refsim.ptx.isa.products import Arithmetic
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.machine.launch_rules import LaunchRequest, LaunchShape
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.snapshot import TouchedBytes
from refsim.ptx.memory.space import Space
from refsim.ptx.observers.log import EventLog
from refsim.ptx.observers.steps import AddressWatch, StepObserver


@dataclass(frozen=True)
class VariablePlacement:
    """The addresses of all names of an entry. `shared_bytes` and `local_bytes` are the memory that a CTA and a lane
    take; `in_shared` names the variables in shared memory."""

    symbols: dict[str, int]
    shared_bytes: int
    local_bytes: int
    in_shared: frozenset[str]


@dataclass(frozen=True)
class SimulationOptions:
    """The simulator's own options of a launch, as `Program.launch` takes them; they are no part of its request."""

    policy: SchedulePolicy = "eager"
    arithmetic: Arithmetic = "silicon"
    checks: Checks = field(default_factory=Checks)
    seed: int = 0
    observer: StepObserver | None = None
    watching: AddressWatch | None = None
    following: OpenBits | None = None
    events: EventLog | None = None


@dataclass(frozen=True)
class PlacedLaunch:
    """A request with its arguments checked and placed; `text` is its module's PTX."""

    request: LaunchRequest
    options: SimulationOptions
    code: Code
    shape: LaunchShape
    memory: GlobalMemory
    parameters: Space
    variables: VariablePlacement
    target: str
    text: str
    earlier: TouchedBytes | None


_RANDOM_SHARE = 0.75
_STREAM = 0xC1C  # apart from the random numbers of the waves' machines


@dataclass
class PendingClusters:
    """The CTAs [first, end) in the order in which they run; `cluster` CTAs start, or are cancelled, together.

    A request to cancel succeeds or fails, as hardware chooses. "eager" grants every request while a cluster is left, and
    "lazy" none. "random" grants three of four, takes the first or the last cluster left, and draws the size of waves.
    """

    first: int
    end: int
    cluster: int
    policy: str
    seed: int

    def __post_init__(self) -> None:
        self.choice = np.random.Generator(np.random.Philox((self.seed << 12) + _STREAM))

    def start(self, most: int, *, leaves_some: bool) -> tuple[int, int]:
        """Return the first CTA and the number of CTAs of the next wave, at most `most`. With `leaves_some`, half of the
        clusters wait for a later wave, or a random number of them."""
        left = (self.end - self.first) // self.cluster
        clusters = min(most // self.cluster, left)
        if leaves_some and self.policy == "random":
            clusters = int(self.choice.integers(1, clusters + 1))
        elif leaves_some:
            clusters = min(clusters, -(-left // 2))
        first, self.first = self.first, self.first + clusters * self.cluster
        return first, self.first - first

    def cancel(self) -> int | None:
        """Return the first CTA of a cluster that will not start any more; None if the request fails."""
        is_random = self.policy == "random"
        if self.first == self.end or self.policy == "lazy" or (is_random and self.choice.random() >= _RANDOM_SHARE):
            return None
        if is_random and self.choice.random() < 0.5:
            self.end -= self.cluster
            return self.end
        self.first += self.cluster
        return self.first - self.cluster


@dataclass(frozen=True)
class Attempt:
    """One run of all CTAs of a launch, which may be repeated: what its waves share. `pending` are the clusters whose
    work running blocks may take over, None if no block does so."""

    findings: LaunchFindings
    deadline: float
    tracking: Tracking | None = None
    pending: PendingClusters | None = None
    history: History = field(default_factory=History)
