"""Writes conformance/reports/cublaslt.md: what cuBLASLt returned on each chip beside what the oracle says.

python conformance/cublaslt/report.py
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from refsim import oracles
from refsim.formats import F32
from refsim.silicon import cublaslt_probe as probe
from refsim.silicon.cublaslt_probe import CublasltCase, CublasltMode
from refsim.silicon.vectors import recordings, sidecar

PAGE = Path(__file__).parents[1] / "reports/cublaslt.md"
NOT_RUN = 0xFFFF
SPLIT = "splitK"
FACTS = {"device": "device", "driver": "driver", "torch": "PyTorch", "cublaslt": "cublasLtGetVersion", "date": "date"}


@cache
def words(case: CublasltCase, mode: CublasltMode, splits: int) -> np.ndarray:
    found = probe.modelled(case, mode, splits)
    return found.view(np.uint32) if found.dtype == np.float32 else found


def verdicts(region: oracles.CublasltRegion, mode: CublasltMode) -> Iterator[tuple[CublasltCase, str, str, int]]:
    """Of each case that ran its kernel, what the region says of it, and how many of its words differ from the model.

    Where the region says nothing, the model is that of a product whose K is not split.
    """
    recorded, names = recordings(probe.STEM, region.chip)[mode.name].arrays, sidecar(probe.STEM, region.chip)["kernels"]
    for case in probe.cases():
        if (place := recorded["kernel"][case.number]) == NOT_RUN:
            continue
        splits = probe.recorded_splits(case, mode, region)
        said = "unmodelled" if splits is None else "one range" if splits == 1 else "split"
        differing = int((words(case, mode, splits or 1) != recorded["words"][case.number]).sum())
        yield case, names[place], said, differing


def modes_table() -> list[str]:
    """Of each mode and chip: cases, what the oracle answers, what it refuses, and how the refused ones compare."""
    lines = [
        "| mode | chip | cases that ran | answered | of them split | outputs compared | differing | refused | kernel splits"
        " K | does not, and equals the formula |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mode in probe.MODES:
        for region in oracles.CUBLASLT_REGIONS:
            found = list(verdicts(region, mode))
            said = Counter(each[2] for each in found)
            wrong = sum(differing for _, _, what, differing in found if what != "unmodelled")
            refused = [each for each in found if each[2] == "unmodelled"]
            whole = [each for each in refused if SPLIT not in each[1]]
            equal = sum(not differing for *_, differing in whole)
            answered = said["one range"] + said["split"]
            lines.append(
                f"| {mode.name} | {region.chip.upper()} | {len(found)} | {answered} | {said['split']} | {8 * answered} |"
                f" {wrong} | {len(refused)} | {len(refused) - len(whole)} | {equal} of {len(whole)} |"
            )
    return lines


def kernels_table() -> list[str]:
    lines = ["| chip | kernels that answered cases bore |", "|---|---|"]
    for region in oracles.CUBLASLT_REGIONS:
        seen = {name for mode in probe.MODES for _, name, said, _ in verdicts(region, mode) if said != "unmodelled"}
        lines.append(
            f"| {region.chip.upper()} | {len(seen)} names, {sum(SPLIT in name for name in seen)} of them {SPLIT} |"
        )
    return lines


def departures() -> list[str]:
    """Every refused case whose words are not those of the formula without a split, by its reason."""
    lines = ["| mode | chip | M x N x K | words that differ | kernel |", "|---|---|---|---|---|"]
    for mode in probe.MODES:
        if mode.out is not F32:
            continue  # bf16 hides most of them
        for region in oracles.CUBLASLT_REGIONS:
            for case, name, said, differing in verdicts(region, mode):
                if differing:
                    short = name.removeprefix("nvjet_sm90_")
                    shape = f"{case.m} x {case.n} x {case.k}"
                    lines.append(
                        f"| {mode.name} | {region.chip.upper()} | {shape} | {differing} of 8 | {short}, {said} |"
                    )
    return lines


def refusals() -> list[str]:
    """What the library itself refused to compute."""
    lines = []
    for region in oracles.CUBLASLT_REGIONS:
        for mode, recording in recordings(probe.STEM, region.chip).items():
            for error, count in recording.facts.get("refused", {}).items():
                lines.append(f"- {region.chip.upper()}, {mode}: {count} cases: {error}")
    return lines or ["None in these recordings."]


def specials() -> list[str]:
    """Of each special product the words that are those of IEEE arithmetic; a NaN counts by its bits, then by being one."""
    found = {region.chip: recordings(probe.STEM, region.chip) for region in oracles.CUBLASLT_REGIONS}
    modes = [mode for mode in probe.MODES if f"specials {mode.name}" in found["h200"]]
    if not modes:
        return ["Not recorded yet; the oracle refuses them."]
    columns = [(chip, mode) for chip in found for mode in modes if f"specials {mode.name}" in found[chip]]
    lines = [
        "| 8 x 16 x 272 | " + " | ".join(f"{chip.upper()} {mode.name}" for chip, mode in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for number, special in enumerate(probe.SPECIALS):
        cells = []
        for chip, mode in columns:
            got = found[chip][f"specials {mode.name}"].arrays["words"][number].view(np.float32)
            want = special.modelled(mode)
            same = got.view(np.uint32) == want.view(np.uint32)
            nans = ~same & np.isnan(got) & np.isnan(want)
            cells.append(
                "same" if same.all() else f"{(~same).sum()} differ" + (f", {nans.sum()} NaN both" if nans.any() else "")
            )
        lines.append(f"| {special.name} | " + " | ".join(cells) + " |")
    return lines


BEYOND = """An H200 also ran 1,700 more shapes, 128 outputs of each:

| cases | found |
|---|---|
| K of split products | from 5,152 on |
| outputs of split products | up to 128,896 |
| split, tensor-wise, in a region (236 products, three modes) | every bit as predicted |
| split, blockwise, in a region (208 products, two modes) | every bit as predicted |
| S = 1 in a region (24 tensor-wise, 59 blockwise) | not split |
| split, fast accumulation, float32 output (503 products) | equal to the formula for exactly one S, from 2 to 6 |
| blockwise, any number of tiles (1,107 products) | 2 differ, both with 36 tiles or more |

- 2^18 float32 sums take 1 MiB. PyTorch may have given the library this limit as its workspace. A caller with another
  workspace is therefore outside the measurements.
- Above 12 tiles the number of tiles of the kernel also limits S, to about 132 by the tiles. Only the library knows the
  tile. It may choose another tile for bf16 outputs than for float32. If you know S, pass `splits=S`.
- All blockwise kernels that split K have tiles of 128 x 128.
- Slow accumulation hides the order: a block keeps 14 bits, so most float32 sums are exact. Only fast accumulation with
  float32 output shows the order."""


def regions_table() -> Iterator[str]:
    """A row for each region and scaling."""
    yield "| chip | scaling | M: least, most, step | N | K | S = 1 | else S = min(K // range, sums // (M N)), at least 1 |"
    yield "|---|---|---|---|---|---|---|"
    for region in oracles.CUBLASLT_REGIONS:
        for scaling, shapes in region.shapes.items():
            tiles, rows, columns = region.split_tiles[scaling]
            sides = " | ".join(", ".join(map(str, each)) for each in shapes)
            one = f"K <= {region.unsplit_k} or M N > {region.unsplit_outputs}"
            more = f"at most {tiles} tiles of {rows} x {columns}; range {region.range_k}, sums {region.workspace}"
            yield f"| {region.chip.upper()} | {scaling} | {sides} | {one} | {more} |"


def page() -> str:
    sidecars = [sidecar(probe.STEM, region.chip) for region in oracles.CUBLASLT_REGIONS]
    facts = [f"| {said} | " + " | ".join(str(each[key]) for each in sidecars) + " |" for key, said in FACTS.items()]
    parts = [
        "# cuBLASLt's FP8 GEMM on an H200 and an H100",
        "`python conformance/cublaslt/report.py` writes this page from `conformance/vectors/*/cublaslt.npz`, which\n"
        "`gpu/probes/record_cublaslt.py` recorded. [Scaled GEMM](../../docs/scaled-gemm.md#cublaslt-on-hopper) has the formulas.",
        "\n".join(["| | H200 | H100 |", "|---|---|---|", *facts]),
        "## Regions",
        "The library sums K in S ranges of ceil(T / S) blocks of 128 (blockwise: of the next multiple of 4). The table has the\n"
        "shapes for which `oracles.CUBLASLT_REGIONS` knows S. The oracle raises `unsupported-feature` for every other shape.\n"
        "Between 98 and 99 % of shapes drawn evenly up to these sizes lie in a region. Blockwise calls with another M behave\n"
        "as if rows followed.",
        "\n".join(regions_table()),
        BEYOND,
        "## Outputs",
        "*Answered* cases lie in a region of `oracles.CUBLASLT_REGIONS`. Eight outputs of each case are compared in every bit.\n"
        "In *refused* cases the library may split K, and the oracle raises `unsupported-feature`.",
        "\n".join(modes_table()),
        "\n".join(kernels_table()),
        "## Departures",
        "Refused cases whose float32 outputs differ from the formula with one range. The kernel of each case splits K. The\n"
        "number of ranges depends on the tile that the library chose, and the shape does not determine the tile.",
        "\n".join(departures()),
        "## Calls that the library refused",
        "\n".join(refusals()),
        "## Special values",
        "These operands lie outside the regions. The table counts 32-bit results that differ from IEEE arithmetic in the order\n"
        "of the formula.",
        "\n".join(specials()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(PAGE)
