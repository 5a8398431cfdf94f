"""What a process did on the simulated GPU, as data: kernels, refused functions, memory, and tests."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from refsim.errors import RefsimError


class Fidelity(StrEnum):
    """The status of a kernel, the gravest first: wrong, refused, unspecified bits, or unverified on this target."""

    FINDING = "finding"
    REFUSED = "refused"
    INEXACT = "inexact"
    ASSUMED = "assumed"
    EXACT = "exact"


OUTCOMES = ("", "passed", "skipped", "failed")
"""pytest's outcomes of a test, the gravest last."""
KEPT = 8
"""The most shapes of a kernel that are kept."""


@dataclass
class Said:
    """The text of a finding, a warning or a refusal: the fields of `RefsimError`."""

    code: str
    what: str
    where: str = ""
    rule: str = ""
    help: str = ""

    @classmethod
    def of(cls, error: RefsimError) -> "Said":
        """Return the text of an error."""
        return cls(error.code, error.what, error.where, error.rule, error.help)

    def is_of(self, other: "Said") -> bool:
        """Return whether two messages have equal codes and equal, known places."""
        return bool(self.where) and (self.code, self.where) == (other.code, other.where)

    @property
    def line(self) -> str:
        """Return the message as one line: [code] what, at where."""
        return f"[{self.code}] {self.what}" + (f", at {self.where}" if self.where else "")


@dataclass
class KernelRecord:
    """All launches of one entry of one module: `launches` counts them, `shapes` holds the first grids and blocks.

    `inexact` lists statements whose bits are unspecified (or ptxas's choice), `assumed` statements unverified on
    this target; `findings` what checks recorded or stopped at, `refused` what the simulator does not do, `nans`
    where NaN and infinities come from, a role as code.
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
    nans: list[Said] = field(default_factory=list)

    @property
    def status(self) -> Fidelity:
        """Return the gravest status of any launch."""
        true = {
            Fidelity.FINDING: self.findings,
            Fidelity.REFUSED: self.refused,
            Fidelity.INEXACT: self.inexact,
            Fidelity.ASSUMED: self.assumed,
        }
        return next((word for word, said in true.items() if said), Fidelity.EXACT)

    def took(self, shape: str, threads: int, seconds: float) -> None:
        """Add one launch with its shape, its number of threads and its seconds."""
        self.launches += 1
        self.threads += threads
        self.seconds += seconds
        if shape not in self.shapes and len(self.shapes) < KEPT:
            self.shapes.append(shape)

    def merge(self, other: "KernelRecord") -> None:
        """Add another process's record of this kernel."""
        add_up(self, other)


@dataclass
class TestRecord:
    """What one test of pytest did on the GPU; it left `held_bytes` allocated.

    `findings` are lines, such as `[race] sum: st.shared.f32 at PTX line 102 (source.cu:4), ...`; `refused` are
    codes and names. `outcome` is pytest's, and `said` the last line of a failure.
    """

    launches: int = 0
    inexact: int = 0
    findings: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    held_bytes: int = 0
    outcome: str = ""
    said: str = ""

    __test__ = False  # else pytest collects a class of this name as tests

    def merge(self, other: "TestRecord") -> None:
        """Add another process's record of this test."""
        add_up(self, other)
        self.ended(other.outcome, other.said)

    def ended(self, outcome: str, said: str = "") -> None:
        """Set the outcome of a phase of the test, or of the test in another process; the gravest outcome is kept."""
        if OUTCOMES.index(outcome) > OUTCOMES.index(self.outcome):
            self.outcome, self.said = outcome, said

    @property
    def asked(self) -> bool:
        """Return whether the test used the GPU in any way."""
        return bool(self.launches or self.findings or self.refused or self.held_bytes)


@dataclass
class HeldMemory:
    """Device memory that was never freed: the package that allocated it, the program's line, allocations and bytes."""

    package: str
    place: str
    count: int
    bytes: int


@dataclass
class RunRecord:
    """What one process did. `refused` counts functions that are not simulated, by name; `by_host` counts functions that
    the host computed, whose bits need not be a GPU's. `found` and `warned` hold mistakes of the program's own calls,
    outside its kernels: memory freed twice, copies that leave an allocation, reads of uninitialized memory."""

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
        """Return the record as a JSON object, with the status of each kernel."""
        found = asdict(self)
        for said, kernel in zip(found["kernels"], self.kernels, strict=True):
            said["status"] = kernel.status
        return found

    def count(self, status: str) -> int:
        """Return how many kernels have a status."""
        return sum(kernel.status == status for kernel in self.kernels)


def add(known: list[Any], more: Iterable[Any]) -> None:
    """Append what is not known yet, in order; of messages with one code and one place only the first is kept."""
    for each in more:
        if not any(each == other or (isinstance(each, Said) and each.is_of(other)) for other in known):
            known.append(each)


def add_up(into: Any, other: Any) -> None:
    """Add the numbers and the lists of one record to those of another; texts stay."""
    for name, held in vars(into).items():
        if isinstance(held, list):
            add(held, getattr(other, name))
        elif not isinstance(held, str):
            setattr(into, name, held + getattr(other, name))


def of_json(found: dict[str, Any]) -> RunRecord:
    """Return the record that `to_json` wrote."""
    kernels = []
    for row in found["kernels"]:
        lists = {name: [Said(**said) for said in row[name]] for name in ("findings", "warnings", "refused", "nans")}
        kernels.append(KernelRecord(**{**{key: row[key] for key in row if key != "status"}, **lists}))
    tests = {name: TestRecord(**row) for name, row in found["tests"].items()}
    held = [HeldMemory(**row) for row in found["held"]]
    own = {name: [Said(**said) for said in found[name]] for name in ("found", "warned")}
    return RunRecord(**{**found, "kernels": kernels, "tests": tests, "held": held, **own})


def merged(records: Sequence[RunRecord], target: str) -> RunRecord:
    """Return the records of all processes of a run as one; the peak is the largest of any process."""
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
