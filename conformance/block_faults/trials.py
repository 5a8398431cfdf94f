"""One mutant tried: what the suite says, which suspects are named, what every gate of the field measures."""

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import refsim
from conformance.block_faults.gates import Subject, gates_of
from conformance.block_faults.mutants import NEVER, QUANTISER, SM90, SM100, SM120, Mutant
from conformance.tolerance.gates import Gate, References
from conformance.tolerance.trials import unchecked
from refsim.compare import Mismatch
from refsim.device import open as open_device
from refsim.errors import Kind, RefsimError
from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.scaling.block_formats import block_format
from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.suspects.feeding import Feeding
from refsim.testing.verdicts import Verdict

quantisers = load_kernel_file(bundled_kernels("block_scale.py"))
matmul = load_kernel_file(bundled_kernels("block_scaled_matmul.py"))
tensor = load_kernel_file(bundled_kernels("block_scaled_matmul_sm100.py"))
TARGETS = {QUANTISER: "sm_90a", SM90: "sm_90a", SM120: "sm_120a", SM100: "sm_100a"}
PRODUCTS = {kernel.name: kernel for kernel in (*matmul.KERNELS, *tensor.KERNELS)}
SPECIAL_ROWS = 64


@dataclass(frozen=True)
class Result:
    """What was seen of a mutant: `differing` of `total` words of the first problem that fails, the suspects that explain all
    of it, and what each gate measures on normal numbers. `where`: "normal" numbers, or "special" problems of the corpus."""

    id: str
    where: str
    differing: int
    total: int
    finding: str
    suspects: tuple[str, ...]
    measures: dict[str, tuple[float, ...]]

    @property
    def is_caught(self) -> bool:
        return bool(self.differing or self.finding)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(record: dict[str, Any]) -> "Result":
        measures = {name: tuple(found) for name, found in record["measures"].items()}
        return Result(**{**record, "suspects": tuple(record["suspects"]), "measures": measures})


@dataclass(frozen=True)
class Held:
    """Codes of a matrix, or of its scales; it stands where a recipe of values does."""

    found: Any

    def codes(self, format: Any, rows: int, columns: int) -> Any:
        assert self.found.shape == (rows, columns), (format, self.found.shape)
        return self.found


def normal(seed: int, rows: int, columns: int) -> Any:
    """Codes of bf16."""
    return refsim.encode(np.random.Generator(np.random.Philox(seed)).standard_normal((rows, columns)), "bf16")


def kernel_of(mutant: Mutant) -> Kernel:
    if mutant.kernel == QUANTISER:
        return next(each for each in quantisers.KERNELS if each.name == f"{mutant.format}_quantize")
    return PRODUCTS[mutant.kernel]


def problem_of(mutant: Mutant) -> Any:
    """Normal numbers: 133 rows and an odd count of tiles along K, unless the mistake needs others."""
    width = block_format(mutant.format).width
    if mutant.kernel == QUANTISER:
        usual = {"rows": 133, "columns": 9 * width, "recipe": "te" if mutant.format == "nvfp4" else "rceil"}
        chosen = usual | mutant.changes
        x = Held(normal(0, chosen["rows"], chosen["columns"]))
        return quantisers.BlockQuantize(x=x, wide="bf16", format=mutant.format, **chosen)
    usual = {"m": 133, "n": 97, "k": 9 * width, "factor": 0.3}
    return scaled_problem(mutant, **(usual | mutant.changes))


@dataclass(frozen=True)
class Wide:
    """Operands of bf16 and their blocks."""

    a: Any
    b: Any
    format: str

    @cached_property
    def blocks(self) -> tuple[Any, Any]:
        return tuple(refsim.quantize(x, self.format, input_format="bf16") for x in (self.a, self.b))


def scaled_problem(mutant: Mutant, m: int, n: int, k: int, factor: float) -> Any:
    a, b = Wide(normal(1, m, k), normal(2, n, k), mutant.format).blocks
    entry = f"{mutant.kernel}_{mutant.format}"
    return PRODUCTS[mutant.kernel].recipe(
        m, n, k, entry, Held(a.codes), Held(b.codes), Held(a.scales), Held(b.scales), factor=factor
    )


def special_problems(mutant: Mutant) -> list[Any]:
    """The small ones of the kernel's corpus."""
    corpus = kernel_of(mutant).corpus
    if mutant.kernel != QUANTISER:
        return [problem for problem in corpus if problem.entry == f"{mutant.kernel}_{mutant.format}"]
    return [problem for problem in corpus if problem.wide == "bf16" and problem.rows <= SPECIAL_ROWS]


def changed_run(kernel: Kernel, mutant: Mutant) -> Any:
    """The host function, which lays out what the mutant says."""
    if mutant.uploads is None:
        return kernel.run

    def run(launcher: Launcher, problem: Any) -> Outputs:
        def change(name: str, array: Any) -> Any:
            return mutant.uploads(name, array, problem)

        return kernel.run(Feeding(launcher, change), problem)

    return run


def tried(mutant: Mutant) -> Result:
    """Runs a mutant on normal numbers, and on special problems where none of these differs."""
    device, kernel = open_device("sim", TARGETS[mutant.kernel]), kernel_of(mutant)
    first = problem_of(mutant)
    with tempfile.TemporaryDirectory(prefix="refsim-faults-") as folder:
        file = mutant.source(Path(folder))
        entries = tuple(name for name in kernel.entries if name in (getattr(first, "entry", ""),))
        broken = replace(kernel, file=file, entries=entries, run=changed_run(kernel, mutant), corpus=(first,))
        verdict, where = run_campaign(broken, device, cases=0, suspect_seconds=0), "normal"
        if verdict:
            where = "special"
            broken = replace(broken, corpus=tuple(special_problems(mutant)))
            verdict = run_campaign(broken, device, cases=0, suspect_seconds=0)
        measures = measured(replace(broken, suspects={}), mutant, first, unchecked(device))
    found = [each for each in verdict.mismatches if each]
    total = sum(each.total for each in found)
    finding = "" if verdict or found else verdict.finding.partition("]")[0][1:]
    return Result(mutant.id, where, verdict.differing, total, finding, named(found, verdict), measures)


def named(found: Iterable[Mismatch], verdict: Verdict) -> tuple[str, ...]:
    """The suspects that explain every output that differs; what nobody wrote is said by the report."""
    lists = [tuple(line.partition(": bit for bit")[0] for line in each.suspects) for each in found]
    agreed = [name for name in (lists[0] if lists else ()) if all(name in each for each in lists)]
    unwritten = any(each.first is not None and NEVER in (each.first.owner or "") for each in found)
    return (*([NEVER] if unwritten else []), *agreed)


def measured(kernel: Kernel, mutant: Mutant, problem: Any, device: Any) -> dict[str, tuple[float, ...]]:
    """What each gate measures of normal numbers; none where the launch leaves no result."""
    try:
        outputs = laws.observe(kernel, problem, device).outputs
    except RefsimError as error:
        if error.kind is not Kind.FAULT:
            raise
        return {}
    return judged(mutant, problem, outputs)


def judged(mutant: Mutant, problem: Any, outputs: Outputs) -> dict[str, tuple[float, ...]]:
    """What each gate measures of these outputs."""
    if mutant.kernel == QUANTISER:
        values, references = of_tensor(problem, outputs)
    else:
        values, references = outputs["d"].view(np.float32).astype(np.float64), of_product(problem, mutant)
    return {gate.name: gate.measures(values, references) for gate in gates_for(mutant)}


def gates_for(mutant: Mutant) -> tuple[Gate, ...]:
    subject: Subject = "tensor" if mutant.kernel == QUANTISER else "product"
    return gates_of(subject, format_named(block_format(mutant.format).element).bits)


def of_tensor(problem: Any, outputs: Outputs) -> tuple[Any, References]:
    """What the codes and scales stand for, beside X and what the right ones stand for."""
    made, columns = quantisers.quantized(problem), problem.columns
    scales = quantisers.LAYOUT.unshuffle(outputs["scales"], made.scales.shape)
    codes = np.pad(outputs["q"], ((0, 0), (0, made.codes.shape[1] - outputs["q"].shape[1])))
    if made.format.two_levels:
        scales = scales & 0x7F
    got = replace(made, codes=codes, scales=scales).dequantize(np.float64)[:, :columns]
    right = made.dequantize(np.float64)[:, :columns]
    return got, References(np.asarray(refsim.decode(problem.codes(), "bf16"), np.float64), right)


def of_product(problem: Any, mutant: Mutant) -> References:
    a, b = Wide(normal(1, problem.m, problem.k), normal(2, problem.n, problem.k), mutant.format).blocks
    wide = [
        np.asarray(refsim.decode(normal(seed, rows, problem.k), "bf16"))
        for seed, rows in ((1, problem.m), (2, problem.n))
    ]
    # Scales of NVFP4 stand for 1 / S more, which the factor of D has in a whole product.
    factors = problem.factor / (float(a.factor) * float(b.factor))
    narrow = [each.dequantize(np.float64) for each in (a, b)]
    return References(factors * (wide[0] @ wide[1].T), factors * (narrow[0] @ narrow[1].T))
