"""What was seen on which chip, when, with which driver, in which file: python -m conformance.chips writes reports/chips.md

Read from the recordings of conformance/vectors, the reports of conformance/reports and the rows of tensor cores; nothing on the
page is typed.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from refsim.bringup.report import read_report
from refsim.numerics.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[1]
VECTORS, REPORTS = ROOT / "conformance" / "vectors", ROOT / "conformance" / "reports"
PAGE, PUBLISHED = REPORTS / "chips.md", REPORTS / "published_dot_products.md"
CHIPS = ("h200", "h100")
COUNTS = ("cases", "elements", "differing")
DECLARED = {
    "attention_sm90": "gpu/attention.py",
    "block_scale_quantize": "gpu/block_scale.py",
    "block_scaled_matmul_sm90": "gpu/block_scaled_matmul.py",
    "fp8_gemm_1d2d": "gpu/gemm_1d2d.py",
    "fp8_gemm_1d2d_experts": "gpu/gemm_1d2d_experts.py",
    "fp8_gemm_1d2d_splits": "gpu/gemm_1d2d_splits.py",
    "row_functions": "gpu/row_functions.py",
}
"""What `refsim verify` is told for kernels that it does not run by itself, by its name or that of the report."""
HEAD = """# What was seen on which chip

`python -m conformance.chips` writes this page from the recordings and reports that it names. [Evidence](../../docs/evidence.md)
has the same results by fact, with the number of patterns. The last column of a recording replays it on any machine. Kernels
ran on the chip with `--device cuda`; an entry adds up all runs of a kernel. The linked report has `--cases` and `--seed`.
"""
RECORDED = ("recorded", "forms", "when", "driver", "compiler", "file", "replayed by")
RAN = ("run", "cases", "compared", "differing", "driver", "file", "command there")


def row(*cells: object) -> str:
    return f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in cells)} |"


def headed(head: tuple[str, ...], rows: Iterator[str]) -> Iterator[str]:
    yield row(*head)
    yield "|" + "---|" * len(head)
    yield from rows
    yield ""


def recorded(chip: str) -> Iterator[str]:
    """A row for each recording file of a chip; one equal to another chip's keeps digests alone."""
    for path in sorted((VECTORS / chip).glob("*.json")):
        held = json.loads(path.read_text("utf-8"))
        forms = held.get("recordings") or held["recordings_equal"]
        count = forms if isinstance(forms, int) else len(forms)
        what = path.stem.replace("_", " ") + (
            f", equal to the {held['equal_to'].upper()}'s" if "equal_to" in held else ""
        )
        compiler = held.get("compiler") or held.get("assembler") or f"torch {held['torch']}"
        file = f"`{path.relative_to(ROOT)}`"
        replay = f"`pytest conformance/test_recorded_{path.stem}.py`"
        yield row(
            what, count, held["date"], held["driver"], re.sub(".* release [0-9.]+, V", "nvcc ", compiler), file, replay
        )


def ran(chip: str) -> Iterator[str]:
    """The bring-up of a chip, then a row for each kernel of each verdict file."""
    report = read_report(REPORTS / chip / "bringup.json")
    words, differing = (sum(getattr(case, name) for case in report.cases) for name in ("words", "differing"))
    link = f"[`{chip}/bringup.json`]({chip}/bringup.json)"
    counts = (len(report.cases), f"{words:,} words", differing)
    yield row(
        "bring-up", *counts, report.facts["driver"], link, "`refsim bringup --device cuda --discover --exhaustive fp8`"
    )
    for path in sorted(REPORTS.glob("*/*.verify.json")):
        link = f"[`{path.parent.name}/{path.name}`]({path.parent.name}/{path.name})"
        found: dict[str, Counter[str]] = {}
        for device, verdict in verdicts(json.loads(path.read_text("utf-8"))):
            if chip in device.lower():
                found.setdefault(verdict["kernel"], Counter()).update({name: verdict[name] for name in COUNTS})
        for kernel, total in found.items():
            declared = DECLARED.get(kernel, DECLARED.get(path.name.partition(".")[0]))
            kernels = f"{kernel} --kernels {declared}" if declared else kernel
            counts = (total["cases"], f"{total['elements']:,} elements", total["differing"])
            yield row(kernel, *counts, report.facts["driver"], link, f"`refsim verify {kernels} --device cuda`")


def verdicts(held: Any, device: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every verdict of a file with the device that stands beside it, or beside a list of such runs."""
    if isinstance(held, dict):
        beside = held.get("chip") or held.get("device", device)
        device = beside.get("device", device) if isinstance(beside, dict) else beside
        if "kernel" in held and "cases" in held:
            yield device, held
        for each in held.values():
            yield from verdicts(each, device)
    elif isinstance(held, list):
        for each in held:
            yield from verdicts(each, device)


def published() -> Iterator[str]:
    """Published outputs by chip: instructions and dot products, and how many of these differ."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for line in PUBLISHED.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == 9 and re.fullmatch(r"sm_\w+", cells[1]):
            counts = found.setdefault((cells[0], cells[1]), Counter())
            counts.update(forms=1, products=int(cells[7].replace(",", "")), differing=int(cells[8].replace(",", "")))
    for (chip, target), counts in found.items():
        yield row(chip, target, *(counts[name] for name in ("forms", "products", "differing")))


def by_target() -> Iterator[str]:
    """The rows of tensor cores of each target by what they rest on."""
    for target in dict.fromkeys(profile.target for profile in PROFILES):
        rests = Counter(str(profile.evidence) for profile in PROFILES if profile.target == target)
        for what, count in rests.items():
            yield row(target, count, what)


def page() -> str:
    """conformance/reports/chips.md."""
    parts = [HEAD]
    for chip in CHIPS:
        parts.append(f"## {read_report(REPORTS / chip / 'bringup.json').facts['device']}, sm_90a\n")
        parts += [*headed(RECORDED, recorded(chip)), *headed(RAN, ran(chip))]
    parts.append("## Chips whose published outputs the rows reproduce\n")
    parts.append(
        "`python -m conformance.published_dot_products FOLDER` compares them; a sample is in `conformance/vectors/published`"
    )
    parts.append("([report](published_dot_products.md)). Only the H200 and the H100 were also run here.\n")
    parts += headed(("chip", "target", "forms", "dot products", "differing"), published())
    parts.append("## Tensor cores of every target\n")
    parts.append("The evidence for each entry of `refsim numerics list`. No CDNA chip was run here.\n")
    parts += headed(("target", "rows", "rest on"), by_target())
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
