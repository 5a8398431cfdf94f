"""Tries a newcomer's kernels and the mistakes in them, and writes the table: python -m conformance.newcomer -o FILE"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from conformance.newcomer.trials import (
    KERNELS,
    SUSPECTED,
    Bug,
    Outcome,
    is_caught,
    naming,
    read_bugs,
    tried_as_it_is,
    tried_with,
)
from refsim.testing.verdicts import PASS

COMMAND = "python -m conformance.newcomer -o conformance/reports/newcomer.md"
Cells = tuple[str, ...]
RIGHT = ("kernel", "status", "problems", "named")
WRONG = ("kernel", "mistake", "cause", "caught", "by", "suspects", "named")
INTRODUCTION = f"""# Twelve kernels of a newcomer, and forty mistakes

A person who had read only the README wrote twelve kernels in `conformance/newcomer/`. They are CUDA, a CUDA string as CuPy
takes it, Triton for two targets, and numba. Each kernel has its own oracle in NumPy. The oracle is exact where the arithmetic
is determined; elsewhere it has a bound for each element.

`bugs.toml` lists forty mistakes, each of them a small edit. The list was committed before the candidate causes that refsim
tries were written. Ten mistakes have a cause that no candidate covers, so refsim must not name a cause for them.

    {COMMAND}

The command above writes this report. It runs every kernel unchanged and then with each mistake, on the simulated GPU, special
test cases first. Name kernels or mistakes to run only those; with the same `-o` only their entries change. The column *named*
says whether the candidate causes in the report are the real cause: right, wrong or none.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.newcomer", description=__doc__)
    parser.add_argument("only", nargs="*", help="kernels and ids of mistakes; all of them if left out")
    parser.add_argument("-o", "--output", type=Path, help="a Markdown file; the terminal if left out")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    bugs = [bug for bug in read_bugs() if not given.only or {bug.id, bug.kernel} & set(given.only)]
    names = [name for name in KERNELS if not given.only or name in given.only]
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        later = pool.map(tried_as_it_is, names), pool.map(tried_with, bugs)
        right, wrong = dict(zip(names, later[0], strict=True)), dict(zip(bugs, later[1], strict=True))
    kept = rows_of(given.output.read_text("utf-8")) if given.only and given.output and given.output.exists() else []
    text = "\n".join(page(right, wrong, kept))
    if given.output:
        given.output.write_text(text, "utf-8")
    print(text)
    missed = [bug.id for bug in bugs if not is_caught(bug, wrong[bug])]
    refused = [name for name in names if any(each.status != PASS for each in right[name])]
    misnamed = [bug.id for bug in bugs if naming(bug, wrong[bug]) == "wrong"]
    return 1 if missed or refused or misnamed else 0


def page(
    right: dict[str, tuple[Outcome, ...]], wrong: dict[Bug, tuple[Outcome, ...]], kept: list[Cells]
) -> Iterable[str]:
    """The page in lines; rows of an earlier one are `kept` for what was not run again."""
    yield INTRODUCTION
    passed = {
        each.kernel: (each.kernel, each.status, str(each.cases), "; ".join(each.suspects) or "none")
        for outcomes in right.values()
        for each in outcomes
    }
    yield from table(
        RIGHT,
        ({cells[0]: cells for cells in kept if len(cells) == len(RIGHT)} | passed).values(),
    )
    yield ""
    held = {cells[1]: cells for cells in kept if len(cells) == len(WRONG)}
    held |= {bug.id: row(bug, outcomes) for bug, outcomes in wrong.items()}
    rows = [held[bug.id] for bug in read_bugs() if bug.id in held]
    yield from table(WRONG, rows)
    suspected = sum(cells[2] in SUSPECTED for cells in rows)
    counts = {word: sum(cells[-1] == word for cells in rows) for word in ("right", "wrong")}
    caught = sum(cells[3] == "yes" for cells in rows)
    yield f"\nCaught: {caught} of {len(rows)}. Named: {counts['right']} of the {suspected} that a suspect stands for;"
    yield f"wrongly: {counts['wrong']}.\n"


def rows_of(text: str) -> list[Cells]:
    """The rows of a page's tables, without their heads."""
    rows = [
        tuple(cell.strip() for cell in line[2:-2].split(" | ")) for line in text.splitlines() if line.startswith("| ")
    ]
    return [cells for cells in rows if cells not in (RIGHT, WRONG)]


def row(bug: Bug, outcomes: tuple[Outcome, ...]) -> tuple[str, ...]:
    by = dict.fromkeys(each.code if each.status != PASS else PASS for each in outcomes)
    suspects = dict.fromkeys(suspect for each in outcomes for suspect in each.suspects)
    is_seen = "yes" if is_caught(bug, outcomes) else "no"
    return bug.kernel, bug.id, bug.cause, is_seen, ", ".join(by), "; ".join(suspects), naming(bug, outcomes)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for cells in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
