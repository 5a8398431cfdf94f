"""What a process did on the simulated GPU, as data: kernels, what was refused, memory, the tests that asked for it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from refsim.errors import RefsimError


class Fidelity(StrEnum):
    """What the launches of a kernel were, the gravest first: found wrong, not done, bits that are open or another chip's."""

    FINDING = "finding"
    REFUSED = "refused"
    INEXACT = "inexact"
    ASSUMED = "assumed"
    EXACT = "exact"


OUTCOMES = ("", "passed", "skipped", "failed")
"""pytest's words for tests, the gravest last."""
KEPT = 8
"""How many shapes of a kernel, and how many places of allocations, are told apart."""


@dataclass
class Said:
    """A finding, a warning or a refusal as text: what `RefsimError` holds."""

    code: str
    what: str
    where: str = ""
    rule: str = ""
    help: str = ""

    @classmethod
    def of(cls, error: RefsimError) -> "Said":
        return cls(error.code, error.what, error.where, error.rule, error.help)

    def is_of(self, other: "Said") -> bool:
        """Whether both are of one code and place."""
        return bool(self.where) and (self.code, self.where) == (other.code, other.where)

    @property
    def line(self) -> str:
        return f"[{self.code}] {self.what}" + (f", at {self.where}" if self.where else "")


@dataclass
class KernelRecord:
    """All launches of one entry of one module: `launches` of them, `shapes` their grids and blocks, the first few.

    `inexact` and `assumed` are statements whose bits are open (or ptxas's choice), or another chip's; `findings`
    what checks recorded or stopped at, `refused` what the simulator does not do.
    """

    name: str
    package: str
    target: str
    launches: int = 0
    threads: int = 0
    seconds: float = 0.0
    shapes: list[str] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    findings: list[Said] = field(default_factory=list)
    warnings: list[Said] = field(default_factory=list)
    refused: list[Said] = field(default_factory=list)

    @property
    def status(self) -> Fidelity:
        """The gravest word that is true of any launch."""
        true = {
            Fidelity.FINDING: self.findings,
            Fidelity.REFUSED: self.refused,
            Fidelity.INEXACT: self.inexact,
            Fidelity.ASSUMED: self.assumed,
        }
        return next((word for word, said in true.items() if said), Fidelity.EXACT)

    def took(self, shape: str, threads: int, seconds: float) -> None:
        """One launch more."""
        self.launches += 1
        self.threads += threads
        self.seconds += seconds
        if shape not in self.shapes and len(self.shapes) < KEPT:
            self.shapes.append(shape)

    def merge(self, other: "KernelRecord") -> None:
        """What another process saw of the same kernel."""
        for name in ("launches", "threads", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("shapes", "inexact", "assumed", "findings", "warnings", "refused"):
            add(getattr(self, name), getattr(other, name))


@dataclass
class TestRecord:
    """What one test of pytest asked of the GPU; `held_bytes` it allocated and did not give back.

    `findings` are lines, `[race] sum: st.shared.f32 at PTX line 102 (source.cu:4), ...`; `refused` are codes and names. `outcome`
    is pytest's word for it, with what it said of a failure.
    """

    launches: int = 0
    inexact: int = 0
    findings: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    held_bytes: int = 0
    outcome: str = ""
    said: str = ""

    __test__ = False  # pytest takes a class of this name for a group of tests

    def merge(self, other: "TestRecord") -> None:
        for name in ("launches", "inexact", "held_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("findings", "refused"):
            add(getattr(self, name), getattr(other, name))
        self.ended(other.outcome, other.said)

    def ended(self, outcome: str, said: str = "") -> None:
        """A part of it, or the test in another process, ended so: of several words the gravest is its own."""
        if OUTCOMES.index(outcome) > OUTCOMES.index(self.outcome):
            self.outcome, self.said = outcome, said

    @property
    def asked(self) -> bool:
        """Whether it asked anything of the GPU."""
        return bool(self.launches or self.findings or self.refused or self.held_bytes)


@dataclass
class HeldMemory:
    """Device memory that nobody gave back: the package that allocated it, the line of the program, how much."""

    package: str
    place: str
    count: int
    bytes: int


@dataclass
class RunRecord:
    """What one process did; `refused` counts the functions that were asked for and are not simulated, by their names, and
    `by_host` those that the host computed, whose bits need not be a GPU's; `found` and `warned` are what the program's own
    calls did wrong, apart from its kernels: memory freed twice, copies that leave an allocation or read what nobody wrote."""

    target: str
    kernels: list[KernelRecord] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    tests: dict[str, TestRecord] = field(default_factory=dict)
    allocations: int = 0
    allocated_bytes: int = 0
    peak_bytes: int = 0
    held: list[HeldMemory] = field(default_factory=list)
    by_host: dict[str, int] = field(default_factory=dict)
    found: list[Said] = field(default_factory=list)
    warned: list[Said] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Itself as JSON holds it, with the status of each kernel."""
        found = asdict(self)
        for said, kernel in zip(found["kernels"], self.kernels, strict=True):
            said["status"] = kernel.status
        return found

    def count(self, status: str) -> int:
        return sum(kernel.status == status for kernel in self.kernels)


def add(known: list[Any], more: Iterable[Any]) -> None:
    """What is not there yet, in order; of what was said of one place by one code the first is kept, whatever the address."""
    for each in more:
        if not any(each == other or (isinstance(each, Said) and each.is_of(other)) for other in known):
            known.append(each)


def of_json(found: dict[str, Any]) -> RunRecord:
    """What `to_json` wrote."""
    kernels = []
    for row in found["kernels"]:
        lists = {name: [Said(**said) for said in row[name]] for name in ("findings", "warnings", "refused")}
        kernels.append(KernelRecord(**{**{key: row[key] for key in row if key != "status"}, **lists}))
    tests = {name: TestRecord(**row) for name, row in found["tests"].items()}
    held = [HeldMemory(**row) for row in found["held"]]
    own = {name: [Said(**said) for said in found[name]] for name in ("found", "warned")}
    return RunRecord(**{**found, "kernels": kernels, "tests": tests, "held": held, **own})


def merged(records: Sequence[RunRecord], target: str) -> RunRecord:
    """The processes of one run as one; the peak is the largest of any."""
    whole = RunRecord(target)
    known: dict[tuple[str, str, str], KernelRecord] = {}
    for record in records:
        for kernel in record.kernels:
            key = (kernel.package, kernel.name, kernel.target)
            if key in known:
                known[key].merge(kernel)
            else:
                known[key] = kernel
        for into, counted in ((whole.refused, record.refused), (whole.by_host, record.by_host)):
            for name, count in counted.items():
                into[name] = into.get(name, 0) + count
        for name, test in record.tests.items():
            whole.tests.setdefault(name, TestRecord()).merge(test)
        whole.allocations += record.allocations
        whole.allocated_bytes += record.allocated_bytes
        whole.peak_bytes = max(whole.peak_bytes, record.peak_bytes)
        whole.held += record.held
        for name in ("found", "warned"):
            add(getattr(whole, name), getattr(record, name))
    whole.kernels = sorted(known.values(), key=lambda each: (each.package, each.name))
    return whole
