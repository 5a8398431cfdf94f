"""Removes and weakens single statements of our kernels' synchronisation and writes the table: python -m conformance.sync_sweep"""

import argparse
import fnmatch
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from conformance.sync_sweep.edits import REMOVED
from conformance.sync_sweep.equivalents import Equivalent, equivalents
from conformance.sync_sweep.subjects import subjects
from conformance.sync_sweep.trials import Outcome, all_tried

COMMAND = "python -m conformance.sync_sweep -o conformance/reports/sync_sweep.md"
Cells = tuple[str, ...]
TRIED = ("kernel", "statements", "edit", "edits", "caught", "by")
SPARE = ("reason", "kernel", "edits", "because")
INTRODUCTION = f"""# Synchronization of our kernels, removed one statement at a time

    {COMMAND}

The command above writes this report. It edits the PTX of the FP8 GEMM, the linear layers, the quantizers, the
block-scaled product for sm_100, and the kernels of `tests/ptx`. It removes every wait, arrival, expect_tx, fence,
barrier and commit, one at a time; a removed wait passes at once. It also weakens each statement, except in the GEMM
and in kernels with tensor memory.

The small test cases of `conformance/sync_sweep/subjects.py` run under the default campaign: an eager, a lazy and a
random schedule with all checks on. An edit is *caught* if it ends in a finding or in bits that differ from the
oracle. An edit that is not caught is either equivalent to the kernel, with a reason in
`conformance/sync_sweep/equivalents.toml`, or it shows a gap in the checks.

Two of the nine entries of the GEMM are swept, which share one source. The entries for clusters are not;
`cluster_ring` and `relaxed_ring` sweep the statements that they add. Two of the eight entries of the block-scaled
product are swept; `tensor_ring` and similar kernels sweep the other statements of tcgen05. Name kernels or patterns
to try only those; with the same `-o` only their entries change.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.sync_sweep", description=__doc__)
    parser.add_argument("only", nargs="*", help="kernels, by name or pattern; all of them if left out")
    parser.add_argument("-o", "--output", type=Path, help="a Markdown file; the terminal if left out")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    names = [name for name in subjects() if not given.only or any(fnmatch.fnmatch(name, each) for each in given.only)]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for name, found in zip(names, pool.map(all_tried, names), strict=True):
            outcomes += found
            print(
                f"{name}: {sum(each.is_caught for each in found)} of {len(found)} caught", file=sys.stderr, flush=True
            )
    kept = rows_of(given.output.read_text("utf-8")) if given.only and given.output and given.output.exists() else []
    text = "\n".join(page(outcomes, [cells for cells in kept if not set(names) & set(cells)]))
    if given.output:
        given.output.write_text(text, "utf-8")
    print(text)
    return 1 if any(reason_for(each) is None for each in outcomes if not each.is_caught) else 0


def reason_for(outcome: Outcome) -> Equivalent | None:
    """The row that says why an edit changes nothing; None for one that was caught, or where no row does."""
    return None if outcome.is_caught else next((row for row in equivalents() if row.covers(outcome)), None)


def page(outcomes: list[Outcome], kept: list[Cells]) -> Iterable[str]:
    """The page in lines; rows of an earlier one are `kept` for kernels that were not tried again."""
    tried = [*(cells for cells in kept if len(cells) == len(TRIED)), *rows(outcomes)]
    yield INTRODUCTION
    yield from summary(tried)
    yield "\n## Removed, by target\n"
    yield from table(("target", "kernels", "edits", "caught"), by_target(tried))
    yield "\n## What survived\n"
    spare = Counter({cells[:2]: int(cells[2]) for cells in kept if len(cells) == len(SPARE)})
    spare.update((row.name, each.subject) for each in outcomes if (row := reason_for(each)))
    reasons = {row.name: row.because for row in equivalents()}
    found = ((*key, str(count), reasons.get(key[0], "listed no longer")) for key, count in sorted(spare.items()))
    yield from table(SPARE, found)
    holes = [each for each in outcomes if not each.is_caught and reason_for(each) is None]
    yield from (f"- not explained: {each.subject}, {each.edit.name}, {each.edit.location}" for each in holes)
    yield "\n## By kernel\n"
    yield from table(TRIED, sorted(tried))
    yield ""


def rows(outcomes: list[Outcome]) -> Iterable[Cells]:
    """One row for each kernel, kind of statement and edit."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault((each.subject, each.edit.rule.family, each.edit.rule.change), []).append(each)
    for key, found in groups.items():
        codes = Counter(each.code for each in found if each.is_caught)
        by = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        yield *key, str(len(found)), str(codes.total()), by


def summary(tried: list[Cells]) -> Iterable[str]:
    """All kernels together, by kind of statement: first what was removed, then what was weakened."""
    for title, chosen in (("Removed", True), ("Weakened", False)):
        some = [cells for cells in tried if (cells[2] == REMOVED) == chosen]
        if not some:
            continue
        total, caught = (sum(int(cells[at]) for cells in some) for at in (3, 4))
        yield f"\n## {title}: {caught} of {total} caught ({100 * caught / total:.1f} %)\n"
        groups: dict[Cells, list[Cells]] = {}
        for cells in some:
            groups.setdefault(cells[1:3], []).append(cells)
        yield from table(
            TRIED[1:],
            (
                (*key, *(str(sum(int(cells[at]) for cells in found)) for at in (3, 4)), codes_of(found))
                for key, found in sorted(groups.items())
            ),
        )


def by_target(tried: list[Cells]) -> Iterable[Cells]:
    """What was removed from the kernels for each target, and how much of it was caught."""
    groups: dict[str, list[Cells]] = {}
    for cells in tried:
        if cells[2] == REMOVED and cells[0] in subjects():
            groups.setdefault(subjects()[cells[0]].target, []).append(cells)
    for target, found in sorted(groups.items()):
        total, caught = (sum(int(cells[at]) for cells in found) for at in (3, 4))
        names = {cells[0] for cells in found}
        yield target, str(len(names)), str(total), f"{caught} ({100 * caught / total:.1f} %)"


def codes_of(found: list[Cells]) -> str:
    """What caught the edits of some rows, the most frequent first."""
    codes = Counter[str]()
    for cells in found:
        for part in filter(None, cells[5].split(", ")):
            code, _, count = part.rpartition(" ")
            codes[code] += int(count)
    return ", ".join(f"{code} {count}" for code, count in codes.most_common())


def rows_of(text: str) -> list[Cells]:
    """The rows of kernels in a page's tables."""
    tables = text.partition("\n## What survived\n")[2]
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in line[2:-2].split(" | ")) for line in lines]
    return [cells for cells in found if cells not in (TRIED, SPARE)]


def table(header: Cells, cells_of_rows: Iterable[Cells]) -> Iterable[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for cells in cells_of_rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
