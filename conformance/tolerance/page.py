"""The results as Markdown: the page docs/what-tolerance-hides.md, and the table of the README between its markers."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.tolerance.gates import GATES, Gate
from conformance.tolerance.mutants import BY_ID, LINEAR, MUTANTS, Mutant
from conformance.tolerance.trials import Result

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs/what-tolerance-hides.md", ROOT / "README.md"
BEGIN, END = "<!-- what tolerance hides -->\n", "<!-- end of what tolerance hides -->"
COMMAND = "python -m conformance.tolerance"
CONTROLS = ("correct", "linear-correct")
README_GATES = {
    "DeepGEMM": "calc_diff < 0.001",
    "FlashInfer": "cosine > 0.99",
    "vLLM": "rtol 0.5, atol 0.15",
    "PyTorch": "rtol 0.07, atol 0.6",
    "Triton": "max 0.02, rms 0.004",
    "aiter": "0.01 for 95 %",
}
README_MUTANTS = (
    "correct",
    "mul-then-add",
    "bf16-cut",
    "nan-becomes-zero",
    "subnormals-flushed",
    "exponent-added",
    "no-syncwarp",
    "one-sign",
    "tail-columns",
    "zeros-in-a-row",
    "columns-swapped",
    "previous-scale",
    "doubled",
)
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
    return f"caught: {counted(result.special)} of NaN and edges" if result.special else "pass"


def counted(words: int) -> str:
    return f"{words:,} word{'s' if words != 1 else ''}"


def named(mutant: Mutant) -> str:
    """A mistake in words; which kernel, where that is not the GEMM."""
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
    """The lines between the markers."""
    mistakes = wrong(README_MUTANTS, results)
    gates = [gate for gate in GATES if gate.name in README_GATES]
    head = ["the kernel", *(f"{gate.name}: {README_GATES[gate.name]}" for gate in gates), "refsim"]
    rows = [
        [named(BY_ID[id]), *(cell(gate, results[id]) for gate in gates), refsim_says(results[id])]
        for id in README_MUTANTS
        if id in results
    ]
    lets = [f"**{passing(gate.name, results, mistakes)}**" for gate in gates]
    caught = sum(not results[id].is_caught for id in mistakes)
    rows.append([f"**let through, of {len(mistakes)} wrong kernels**", *lets, f"**{caught}**"])
    return f"{BEGIN}{opening(results)}\n\n{table(head, rows)}\n{END}"


def opening(results: Results) -> str:
    mistakes = wrong([mutant.id for mutant in MUTANTS], results)
    through = passing("FlashInfer", results, mistakes)
    everywhere = sum(all(results[id].passes(name) for name in README_GATES) for id in mistakes)
    return f"""\
**If cosine > 0.99 has accepted your kernel, it would also have accepted one** that doubles every output, one that never
writes its last columns, one that multiplies the wrong columns, and one that scales its tail by the scale beside it. Of
{len(mistakes)} mistakes in real kernels, compiled and run, that gate lets {through} through, and {everywhere} pass every gate
below at once. What no tolerance sees is what waits: a rounding that drifts, a NaN that becomes zero, a race that is
won today."""


def with_table(readme: str, results: Results) -> str:
    """The README with the table of these results."""
    before, marker, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (marker and end):
        raise ValueError(f"{README.name} has no table between its markers {BEGIN.strip()} and {END}")
    return before + readme_table(results) + after


# ---- the page --------------------------------------------------------------------------------------------------------


def page(results: Results, silicon: Results) -> str:
    mistakes = wrong([mutant.id for mutant in MUTANTS], results)
    parts = [introduction(results, mistakes), gates_section(results, mistakes), verdicts_section(results)]
    if silicon:
        parts.append(silicon_section(results, silicon))
    parts.append(edits_section())
    return "\n\n".join(parts) + "\n"


def introduction(results: Results, mistakes: list[str]) -> str:
    used = results["correct"].measures["DeepGEMM"][0] / 1e-3
    return f"""\
# What tolerance hides

    {COMMAND}

writes this page and the table of the README. It compiles `fp8_gemm_1d2d.cu` (FP8 in, scales 1 x 128 and 128 x 128, bf16 out, on
Hopper's tensor cores) and `linear_fp8_weight.cu` (FP8 weights, decoded in registers) as they are, then with {len(mistakes)} \
mistakes, each an
edit of a line or two, runs the compiled PTX on the simulated GPU, and asks the gates by which such kernels are accepted in
the field. `--device cuda` asks them of a real GPU.

The operands are those of the field's tests: normal numbers in bf16, one seed, quantised. The GEMM is 128 x 576 x 2048, the linear
layer has a batch of 16. Launches run in one order, in which copies and products are as fast as they can be: a lucky day.
Where bits agree and nothing is found, refsim goes on to the special problems of the kernel's corpus: NaN, infinities, edges.

What a tolerance cannot see:

- **It measures the reference's own error.** The correct kernel uses {used:.0%} of DeepGEMM's budget: that is what quantisation
  costs against operands that were not quantised, and a mistake has the rest to hide in.
- **It averages.** calc_diff is `|x - y|^2 / (|x|^2 + |y|^2)` of the whole matrix: 0.2 % of all outputs may be zero. Cosine
  does not even see a factor.
- **It sees one order of execution**, and the numbers that were drawn: never NaN, never infinite, never at an edge."""


def gates_section(results: Results, mistakes: list[str]) -> str:
    rows = [
        [gate.name, gate.project, gate.rule, gate.source, f"{passing(gate.name, results, mistakes)} of {len(mistakes)}"]
        for gate in GATES
    ]
    head = ["gate", "project", "accepts, x the result, y the reference", "where", "mistakes let through"]
    refused = sum(not results[id].is_caught for id in mistakes)
    rows.append(["refsim", "", "equal bits, no finding", "`refsim verify`", f"{refused} of {len(mistakes)}"])
    return f"""\
## Gates

{table(head, rows)}

y is the product of the dequantised operands unless the rule says otherwise, rounded to bf16 as the projects' references are.
Sums and measures are float64 here, float32 in most of the projects. Memory that a kernel never wrote holds zeros, as fresh
memory of a framework does."""


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

Beside each verdict stands the measure that decides it: a calc_diff, 1 - cosine, a mean, or the share of elements beyond rtol
and atol.

{table(head, rows)}"""


def differing(result: Result) -> str:
    if result.special:
        return f"none; {result.special:,} of the special problems"
    return f"{result.differing:,} of {result.total:,}" if result.differing else "none"


def silicon_section(results: Results, silicon: Results) -> str:
    rows = [
        [
            named(BY_ID[id]),
            ", ".join(gate.name for gate in GATES if cell(gate, result) != cell(gate, results[id])) or "none",
            differing(result),
        ]
        for id, result in silicon.items()
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

Each is a row of `conformance/tolerance/mutants.py`: lines that go, and lines that come. A tensor core decodes FP8 by itself, so
mistakes in decoding, and columns that change places within a fragment, stand in the linear layer.

{edits}"""
