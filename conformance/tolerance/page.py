"""The results as Markdown: the report conformance/reports/tolerance.md, and the README's table between its markers."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.tolerance.gates import GATES, Gate
from conformance.tolerance.mutants import BY_ID, LINEAR, MUTANTS, Mutant
from conformance.tolerance.trials import Result

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "conformance/reports/tolerance.md", ROOT / "README.md"
BEGIN, END = "<!-- what tolerance hides -->\n", "<!-- end of what tolerance hides -->"
COMMAND = "python -m conformance.tolerance"
CONTROLS = ("correct", "linear-correct")
README_GATES = {
    "FlashInfer": "cosine > 0.99",
    "DeepGEMM": "calc_diff < 0.001",
    "vLLM": "rtol 0.5, atol 0.15",
    "PyTorch": "rtol 0.07, atol 0.6",
}
README_MUTANTS = ("bf16-cut", "nan-becomes-zero", "subnormals-flushed", "no-meeting", "tail-columns")
Results = dict[str, Result]


def cell(gate: Gate, result: Result) -> str:
    """What a gate says; in bold where it lets a wrong kernel pass."""
    if not result.measures:
        return "no result"
    if not result.passes(gate.name):
        return "caught"
    return "pass" if result.id in CONTROLS else "**PASS**"


def with_measure(gate: Gate, result: Result) -> str:
    """The verdict with the number that decides it: the first beyond its limit, else the first."""
    if not result.measures:
        return "no result"
    measures = result.measures[gate.name]
    limits = [condition.limit for condition in gate.conditions]
    beyond = [each for each, limit in zip(measures, limits, strict=True) if not each <= limit]
    return f"{cell(gate, result)} {(beyond or measures)[0]:.3g}"


def refsim_says(result: Result) -> str:
    """What refsim refuses a mutant by."""
    if result.differing:
        return f"caught: {counted(result.differing)}"
    if result.finding:
        return f"caught: {result.finding}"
    return f"caught: {counted(result.special)} with NaN or edge values" if result.special else "pass"


def counted(elements: int) -> str:
    return f"{elements:,} element{'s' if elements != 1 else ''}"


def named(mutant: Mutant) -> str:
    """Return the mistake as a phrase, with the kernel where it is not the GEMM."""
    return f"{mutant.says} (linear layer)" if mutant.kernel == LINEAR and mutant.edits else mutant.says


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in (head, rule, *rows)
    )


def passing(gate: str, results: Results, ids: Iterable[str]) -> int:
    return sum(results[id].passes(gate) for id in ids)


def wrong(ids: Iterable[str], results: Results) -> list[str]:
    return [id for id in ids if id in results and id not in CONTROLS]


# ---- the README ------------------------------------------------------------------------------------------------------


def readme_table(results: Results) -> str:
    """Return the lines between the markers."""
    gates = [next(gate for gate in GATES if gate.name == name) for name in README_GATES]
    head = ["mistake in a real kernel", *(f"{gate.name}: {README_GATES[gate.name]}" for gate in gates), "refsim"]
    rows = [
        [named(BY_ID[id]), *(cell(gate, results[id]) for gate in gates), refsim_says(results[id])]
        for id in README_MUTANTS
        if id in results
    ]
    mistakes = wrong([mutant.id for mutant in MUTANTS], results)
    through = passing("FlashInfer", results, mistakes)
    opening = (
        f"The gate cosine > 0.99 accepts {through} of {len(mistakes)} wrong kernels. refsim refuses all of them. "
        "[All mistakes and gates](conformance/reports/tolerance.md)"
    )
    return f"{BEGIN}{opening}\n\n{table(head, rows)}\n{END}"


def with_table(readme: str, results: Results) -> str:
    """Return the README with the table of these results."""
    before, marker, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (marker and end):
        raise ValueError(f"{README.name} has no table between its markers {BEGIN.strip()} and {END}")
    return before + readme_table(results) + after


# ---- the page --------------------------------------------------------------------------------------------------------


def page(results: Results, hardware: Results) -> str:
    mistakes = wrong([mutant.id for mutant in MUTANTS], results)
    parts = [introduction(results, mistakes), gates_section(results, mistakes), verdicts_section(results)]
    if hardware:
        parts.append(hardware_section(results, hardware))
    parts.append(edits_section())
    return "\n\n".join(parts) + "\n"


def introduction(results: Results, mistakes: list[str]) -> str:
    used = results["correct"].measures["DeepGEMM"][0] / 1e-3
    return f"""\
# What tolerance hides

    {COMMAND}

writes this report and the table of the README. The command compiles two kernels: `fp8_gemm_1d2d.cu` (FP8 in, scales 1 x 128
and 128 x 128, bf16 out, on Hopper's tensor cores) and `linear_fp8_weight.cu` (FP8 weights, decoded in registers). It then makes
{len(mistakes)} mistakes, one at a time. Each mistake is an edit of a line or two. The command runs the compiled PTX on the
simulated GPU and applies the gates with which published projects accept such kernels. `--device cuda` uses a real GPU.

The operands are those of the projects' own tests: normal numbers in bf16, one seed, quantized. The GEMM is 128 x 576 x 2048. The
linear layer has a batch of 16. Each launch runs in one order, in which copies and products finish as early as they can. Where
the bits agree and no check fires, refsim also runs the special test cases of the kernel: NaN, infinities and edge values.

A tolerance has three weaknesses:

- **It measures the reference's own error.** The correct kernel uses {used:.0%} of DeepGEMM's budget. Quantization costs that much
  against operands that are not quantized. A mistake can hide in the rest.
- **It averages.** calc_diff is `|x - y|^2 / (|x|^2 + |y|^2)` of the whole matrix: 0.2 % of all outputs may be zero. Cosine
  does not see a factor at all.
- **It sees one order of execution and the numbers that were drawn.** These numbers hold no NaN, no infinity and no edge value."""


def gates_section(results: Results, mistakes: list[str]) -> str:
    rows = [
        [gate.name, gate.project, gate.rule, gate.source, f"{passing(gate.name, results, mistakes)} of {len(mistakes)}"]
        for gate in GATES
    ]
    head = ["gate", "project", "accepts, x the result, y the reference", "where", "mistakes accepted"]
    refused = sum(not results[id].is_caught for id in mistakes)
    rows.append(["refsim", "", "equal bits, no finding", "`refsim verify`", f"{refused} of {len(mistakes)}"])
    return f"""\
## Gates

{table(head, rows)}

y is the product of the dequantized operands, rounded to bf16, unless the rule says otherwise. Sums and measures are float64
here and float32 in most of the projects. Memory that a kernel never wrote holds zeros, as fresh memory of a framework does."""


def verdicts_section(results: Results) -> str:
    head = ["the kernel", *(gate.name for gate in GATES), "bits that differ", "simulated GPU finds"]
    rows = [
        [
            named(mutant),
            *(with_measure(gate, results[mutant.id]) for gate in GATES),
            differing(results[mutant.id]),
            results[mutant.id].finding or "nothing",
        ]
        for mutant in MUTANTS
        if mutant.id in results
    ]
    return f"""\
## Verdicts

Each verdict shows the measure that decides it: a calc_diff, 1 - cosine, a mean, or the share of elements beyond rtol and atol.

{table(head, rows)}"""


def differing(result: Result) -> str:
    if result.special:
        return f"none; {result.special:,} of the special test cases"
    return f"{result.differing:,} of {result.total:,}" if result.differing else "none"


def hardware_section(results: Results, hardware: Results) -> str:
    rows = [
        [
            named(BY_ID[id]),
            ", ".join(gate.name for gate in GATES if cell(gate, result) != cell(gate, results[id])) or "none",
            differing(result),
        ]
        for id, result in hardware.items()
    ]
    return f"## On a real GPU\n\n{table(['the kernel', 'gates that say otherwise', 'bits that differ'], rows)}"


def edits_section() -> str:
    parts = []
    for mutant in MUTANTS:
        if mutant.edits:
            files = ", ".join(f"`{file}`" for file in mutant.files())
            parts.append(f"`{mutant.id}`: {mutant.says}. {files}")
            parts.append("\n".join(f"    {line}" for line in mutant.changes()))
    edits = "\n\n".join(parts)
    return f"""\
## The mistakes

Each mistake is an entry of `conformance/tolerance/mutants.py`: lines that go, and lines that come. A tensor core decodes FP8
itself, so mistakes in decoding and in the columns of a fragment are made in the linear layer.

{edits}"""
