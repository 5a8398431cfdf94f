"""The results as Markdown, conformance/reports/block_faults.md, and as the lines that the command prints."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.block_faults.catalogue import CLASSES, NOT_HERE
from conformance.block_faults.gates import ALLCLOSE, COSINE, gates_of
from conformance.block_faults.mutants import BY_ID, MUTANTS, NEVER, Mutant
from conformance.block_faults.trials import Result, gates_for

PAGE = Path(__file__).parents[1] / "reports/block_faults.md"
COMMAND = "python -m conformance.block_faults"
HEAD = ("class", "mutant", "the kernel", "caught by", COSINE, ALLCLOSE, "gates that accept it", "suspect")
Results = dict[str, Result]


def passing(mutant: Mutant, result: Result) -> list[str]:
    """The gates that accept it."""
    return [gate.name for gate in gates_for(mutant) if result.measures and gate.passes(result.measures[gate.name])]


def cell(mutant: Mutant, result: Result, gate: str) -> str:
    if not result.measures:
        return "no result"
    return "**PASS**" if gate in passing(mutant, result) else "caught"


def caught(result: Result) -> str:
    if result.finding:
        return result.finding
    if not result.differing:
        return "NOT CAUGHT"
    where = "normal numbers" if result.where == "normal" else "special values of the corpus"
    return f"{result.differing:,} of {result.total:,} words, {where}"


def suspect(mutant: Mutant, result: Result) -> str:
    """The suspect that names the class, or that none does."""
    return next((name for name in mutant.named if name in result.suspects), "NOT NAMED")


def row(mutant: Mutant, result: Result) -> tuple[str, ...]:
    accepted = passing(mutant, result)
    said = f"{len(accepted)} of {len(gates_for(mutant))}"
    gates = cell(mutant, result, COSINE), cell(mutant, result, ALLCLOSE)
    return mutant.of, mutant.id, mutant.kernel, caught(result), *gates, said, suspect(mutant, result)


def lines(results: Results) -> list[str]:
    """The table for a terminal: a mutant a line."""
    rows = [HEAD, *(row(BY_ID[id], result) for id, result in results.items())]
    widths = [max(len(each[at].replace("**", "")) for each in rows) for at in range(len(HEAD))]
    return [
        "  ".join(text.replace("**", "").ljust(width) for text, width in zip(each, widths, strict=True)).rstrip()
        for each in rows
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def page(results: Results) -> str:
    accepted = {id: passing(BY_ID[id], result) for id, result in results.items()}
    through = sum(COSINE in each for each in accepted.values())
    everywhere = sum(len(accepted[id]) == len(gates_for(BY_ID[id])) for id in results)
    rows = [row(BY_ID[id], result) for id, result in results.items()]
    order = [each.id for each in CLASSES]
    rows.sort(key=lambda cells: order.index(cells[0]))
    here = {mutant.of for mutant in MUTANTS}
    classes = [
        (each.id, each.says, str(sum(mutant.of == each.id for mutant in MUTANTS)), each.threads) for each in CLASSES
    ]
    elsewhere = [(each.id, each.elsewhere) for each in CLASSES if each.elsewhere]
    says = "\n".join(f"- `{mutant.id}`: {mutant.says}." for mutant in MUTANTS)
    return f"""\
# Faults of block scaling

    {COMMAND}

writes this page and prints its table. It takes the kernels of block scaling (`block_scale_quantize.cu`, and the products for
sm_120 and sm_100), makes in each copy one mistake of the field, an edit of the CUDA text or a host that lays scales out wrongly,
runs it on the simulated GPU, and says by what the campaign refuses it, which suspect explains every differing bit, and what the
gates of the field say of the same run on normal numbers.

{len(results)} mutants of {len(here)} classes: {sum(each.is_caught for each in results.values())} are caught, \
{sum(suspect(BY_ID[id], each) != "NOT NAMED" for id, each in results.items())} are named. Cosine similarity accepts {through} of\
 them, and {everywhere} pass every gate of their kind at once.

"{NEVER}" is said by the report of the first element that differs: nobody stored it. Every other suspect is bit for bit what a
kernel with that mistake writes, in every output that differs.

{table(HEAD, rows)}

{says}

## Gates

{table(("of", "gate", "project", "accepts", "where"), _gate_rows())}

y is what the right codes and scales stand for, or the product of that, unless the rule says that it was not quantised; sums are
float64.

## Classes

{table(("class", "what it is", "mutants", "threads"), classes)}

What of a class stands elsewhere:

{table(("class", "where"), elsewhere)}

What is no mutant of these kernels:

{table(("class", "why"), NOT_HERE)}
"""


def _gate_rows() -> list[tuple[str, ...]]:
    found = []
    for subject, name in (("tensor", "quantised tensors"), ("product", "products")):
        for gate in gates_of(subject, 4):  # type: ignore[arg-type]
            rule = gate.rule if gate.name != COSINE else f"{gate.rule}; 0.99 for elements of 8 bits"
            found.append((name, gate.name, gate.project, rule, gate.source))
    return found
