"""One mutant tried: what each gate says of the result, which bits differ from the oracle, what the simulated GPU finds."""

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import refsim
from conformance.tolerance.gates import GATES
from conformance.tolerance.mutants import Mutant
from conformance.tolerance.problems import KERNELS, problem_of, special_problems
from refsim.device import Device
from refsim.device import open as open_device
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.ptx.findings.table import CHECKS, NOTE, WARNING
from refsim.testing import laws, run_campaign

UNCHECKED = tuple(check.name for check in CHECKS if check.severity not in (NOTE, WARNING))


@dataclass(frozen=True)
class Result:
    """What was seen of a mutant. `measures`: those of each gate by its name, none where the launch left no result.

    `differing` of `total` words are not the oracle's on normal numbers, `special` of those of the kernel's special problems,
    which are tried where nothing else shows. `finding`: the code of what the simulated GPU found first, or "".
    """

    id: str
    entry: str
    shape: tuple[int, int, int]
    measures: dict[str, tuple[float, ...]]
    differing: int
    total: int
    finding: str
    special: int

    @property
    def is_caught(self) -> bool:
        """Whether refsim refuses it, by whatever it is."""
        return bool(self.differing or self.finding or self.special)

    def passes(self, gate: str) -> bool:
        row = next(each for each in GATES if each.name == gate)
        return gate in self.measures and row.passes(self.measures[gate])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(record: dict[str, Any]) -> "Result":
        measures = {name: tuple(found) for name, found in record["measures"].items()}
        return Result(**{**record, "shape": tuple(record["shape"]), "measures": measures})


def tried(mutant: Mutant, device: Device, extents: tuple[int, int, int] | None = None) -> Result:
    """Runs a mutant on normal numbers, and where nothing shows on the special problems of its kernel."""
    problem = problem_of(mutant, extents)
    with tempfile.TemporaryDirectory(prefix="refsim-tolerance-") as folder:
        kernel = replace(KERNELS[mutant.kernel], file=mutant.source(Path(folder)), suspects={})
        words, finding = observed(kernel, problem, device)
        want = kernel.expected(problem, device.target)[output_of(kernel, problem)]
        differing = 0 if words is None else int((words != want).sum())
        if words is not None:
            words = np.where((words != want) & np.isin(words, unwritten(kernel, device)), np.uint16(0), words)
        special = 0
        if not (differing or finding):
            special, finding = on_special_problems(kernel, mutant, problem.entry, device)
    measures = {} if words is None else measured(words, problem)
    shape = extents or mutant.extents
    return Result(mutant.id, problem.entry, shape, measures, differing, want.size, finding, special)


def output_of(kernel: Kernel, problem: Any) -> str:
    """The name of the first output; the others say what lies around it."""
    return next(iter(kernel.output_formats(problem)))


def unwritten(kernel: Kernel, device: Device) -> NDArray[np.uint16]:
    """What an output holds where no kernel has written."""
    with device.launcher(kernel.code) as launcher:
        return np.unique(launcher.read(launcher.output(2, np.uint16, name="unwritten")))


def observed(kernel: Kernel, problem: Any, device: Device) -> tuple[NDArray[Any] | None, str]:
    """The first output and the code of what was found; where that ends the launch, the output of one without checks."""
    name, finding = output_of(kernel, problem), ""
    for tried_on in (device, unchecked(device)):
        try:
            return laws.observe(kernel, problem, tried_on).outputs[name], finding
        except RefsimError as error:
            if error.kind is not Kind.FAULT:
                raise
            finding = finding or error.code
    return None, finding


def unchecked(device: Device) -> Device:
    """The same device, which goes on where it can: a real one never looks."""
    return open_device(device.name, device.target, without=UNCHECKED) if device.is_simulated else device


def on_special_problems(kernel: Kernel, mutant: Mutant, entry: str, device: Device) -> tuple[int, str]:
    """How many words of the special problems of an entry differ, or the code of the finding that ends one."""
    problems = special_problems(mutant, entry)
    verdict = run_campaign(replace(kernel, corpus=problems), device, cases=0, suspect_seconds=0)
    fault = "" if verdict or verdict.mismatch else verdict.finding.partition("]")[0][1:]
    return verdict.differing, fault


def measured(words: NDArray[Any], problem: Any) -> dict[str, tuple[float, ...]]:
    """What each gate measures. Memory that the kernel never wrote holds zeros, as fresh memory of a framework does."""
    values = np.asarray(refsim.decode(words, "bf16"), np.float64)
    references = problem.references
    return {gate.name: gate.measures(values, references) for gate in GATES}
