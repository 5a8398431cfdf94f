"""Block-scaled products on problems that are ragged in every direction, counted: python -m conformance.block_scaled_campaign"""

import argparse
import fnmatch
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import refsim.device
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import values

matmul = load_kernel_file(bundled_kernels("block_scaled_matmul.py"))
tensor = load_kernel_file(bundled_kernels("block_scaled_matmul_sm100.py"))
KERNELS = {kernel.name: kernel for kernel in (*tensor.KERNELS, *matmul.KERNELS)}
TARGETS = {name: f"sm_{name.rpartition('_sm')[2]}a" for name in KERNELS}
TILE, ROWS, GROUP = 64, 128, 4  # the least of the kernels' tiles; rows and blocks of K of a tile of scales
FILLS = ("gaussian", "log-uniform", "bits", "narrow", "distinct")
COLUMNS = ("entry", "device", "problems", "elements", "differing", "odd", "tiles", "all distinct", "numbers", "source")
COMMAND = "python -m conformance.block_scaled_campaign -o conformance/reports/block_scaled.md"
INTRODUCTION = f"""# Block-scaled products, ragged in every direction

Each problem of `gpu/kernels/block_scaled_matmul_*.cu` here has M and N that are no multiple of a tile, a K that ends within four
blocks (K / VS is no multiple of 4), scales of A and of B of which no two of any 120 in a row are the same code, NaN in every
byte that pads the shuffled scales, and FP8's NaN or the largest code between the rows of A and B. D and the bytes between its
rows must be the oracle's. The simulated GPU runs each launch under the schedules of `refsim verify`, or under the one that
stands beside the target, all checks on.

*odd*: problems whose ceil(K / VS / 4) is odd; *tiles*: those with more rows of A or B than a tile of scales has; *all distinct*:
those in which every scale of A, and of B, is another code; *numbers*: the elements of D that are finite and not zero. *source*
is the beginning of the SHA-256 of the kernel and its headers.

    {COMMAND}

writes this page; kernels or entries by name (or pattern) are tried again alone with the same `-o`, and only their rows change.
`--seconds 800` ends after the entry that is then being tried, and goes on where the page ends; `--device sim:eager`
takes one schedule, `--device cuda` a GPU.
"""


# ---------------------------------------------------------------------------------------------------------------------
# Problems


def ragged(most: int) -> st.SearchStrategy[int]:
    """Rows, or columns, of D: no multiple of a tile; few, so that all scales can differ, or around a tile of scales."""
    rows = st.one_of(st.integers(1, 12), st.integers(1, 20), st.integers(1, most), st.integers(ROWS + 1, most))
    return rows.filter(lambda count: count % TILE != 0)


@st.composite
def problems(draw: st.DrawFn, recipe: Any, name: str) -> Any:
    """Problems of an entry as the page describes them."""
    entry = recipe.entries[name]
    groups = draw(st.sampled_from([1, 3, 2, 3] if entry.k_unit == 32 else [1, 3, 5, 2, 4]))
    blocks = GROUP * (groups - 1) + draw(st.integers(1, GROUP - 1))
    seeds = st.integers(0, 1 << 20)
    gaps = st.integers(0, 3)
    return recipe(
        draw(ragged(ROWS + 8)),
        draw(ragged(ROWS + 8)),
        entry.k_unit * blocks,
        name,
        draw(values(entry.a, fills=FILLS)),
        draw(values(entry.b, fills=FILLS)),
        matmul.Scales("distinct", draw(seeds)),
        matmul.Scales("distinct", draw(seeds)),
        matmul.Gaps(draw(gaps), draw(gaps), draw(gaps)),
        draw(st.sampled_from([1.0, 0.3, -2.5e-7])),
    )


@dataclass(frozen=True)
class Traits:
    """What one problem is a case of; `distinct` of one whose scales are all different."""

    ragged: bool
    odd: bool
    tiles: bool
    distinct: bool


def traits_of(problem: Any) -> Traits:
    blocks = problem.k // problem.row.block
    return Traits(
        all(extent % TILE for extent in (problem.m, problem.n)) and blocks % GROUP != 0,
        -(-blocks // GROUP) % 2 == 1,
        max(problem.m, problem.n) > ROWS,
        all(np.unique(scales).size == scales.size for scales in problem.operands[2:]),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Running


@dataclass
class Seen:
    """What a campaign's launches were of, as they are run: the problems, and D's elements that are numbers."""

    problems: dict[Any, Traits]
    numbers: dict[Any, int]

    def run(self, kernel: Kernel, launcher: Launcher, problem: Any) -> Outputs:
        outputs = kernel.run(launcher, problem)
        d = np.asarray(outputs["d"]).view(np.float32)
        self.problems[problem] = traits_of(problem)
        self.numbers[problem] = int((np.isfinite(d) & (d != 0)).sum())
        return outputs


def tried(kernel: Kernel, entry: str, device: str, cases: int) -> tuple[str, ...]:
    """The row of one entry; SystemExit with the verdict where it does not pass."""
    seen = Seen({}, {})
    variant = replace(kernel, corpus=(), problem=problems(kernel.recipe, entry), run=partial(seen.run, kernel))
    simulated, _, order = device.partition(":")
    is_simulated = simulated == "sim"
    opened = refsim.device.open(device, TARGETS[kernel.name] if is_simulated else None)
    verdict = run_campaign(variant, opened, cases=cases + cases // 10)  # a few are drawn twice
    if not verdict:
        raise SystemExit(str(verdict))
    rows = list(seen.problems.values())
    if len(rows) < cases or not all(row.ragged for row in rows):
        raise SystemExit(f"{entry}: {verdict.cases} problems, of them {len(rows)} different")
    elements = sum(problem.m * problem.n for problem in seen.problems)
    counted = (sum(row.odd for row in rows), sum(row.tiles for row in rows), sum(row.distinct for row in rows))
    source = next((value for name, value in verdict.device.items() if name.endswith("source_sha256")), "")
    where = " ".join((TARGETS[kernel.name], order)).strip() if is_simulated else verdict.device["device"]
    numbers = f"{sum(seen.numbers.values()) / elements:.0%}"
    cells = (entry, where, len(rows), elements, verdict.differing, *counted, numbers, source[:12])
    return tuple(str(cell) for cell in cells)


# ---------------------------------------------------------------------------------------------------------------------
# The page


def rows_of(page: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The rows of a page by entry and device."""
    lines = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page.splitlines() if "|" in line]
    return {cells[:2]: cells for cells in lines if len(cells) == len(COLUMNS) and cells[0].startswith("block_scaled")}


def page(rows: Mapping[tuple[str, ...], tuple[str, ...]]) -> Iterable[str]:
    yield INTRODUCTION
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    yield from (f"| {' | '.join(cells)} |" for _, cells in sorted(rows.items()))
    yield ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.block_scaled_campaign", description=__doc__)
    parser.add_argument("only", nargs="*", help="kernels or entries, by name or pattern; all of them if left out")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page")
    parser.add_argument("--cases", type=int, default=200, help="problems of an entry")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no entry is begun after so long")
    parser.add_argument("--device", default="sim")
    given = parser.parse_args()
    kept = rows_of(given.output.read_text("utf-8")) if given.output.exists() else {}
    started = time.monotonic()
    for kernel in KERNELS.values():
        for entry in kernel.entries:
            wanted = not given.only or any(fnmatch.fnmatch(entry, f"*{each}*") for each in given.only)
            goes_on = given.seconds != float("inf")
            if not wanted or (goes_on and _done(kept, entry, given.device, given.cases)):
                continue
            if time.monotonic() - started > given.seconds:
                return 0
            cells = tried(kernel, entry, given.device, given.cases)
            kept[cells[:2]] = cells
            given.output.write_text("\n".join(page(kept)), "utf-8")
            print("  ".join(cells), file=sys.stderr, flush=True)
    return 0


def _done(rows: Mapping[tuple[str, ...], tuple[str, ...]], entry: str, device: str, cases: int) -> bool:
    """Whether the page has as many problems of an entry, on that kind of device."""
    simulated = [cells[1].startswith("sm_") for cells in rows.values() if cells[0] == entry and int(cells[2]) >= cases]
    return device.startswith("sim") in simulated


if __name__ == "__main__":
    sys.exit(main())
