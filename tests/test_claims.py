"""Figures of README.md and of the evidence are those of committed reports and recordings; each row has a command or a report.

A figure is a number with a comma: 574,890,368. It stands in a report of conformance/reports, or is counted here from what such a
report or a recording holds, or is among `ELSEWHERE` with the command that prints it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from refsim.bringup.report import read_report
from refsim.numerics.profiles import MEASURED_WORDS
from refsim.silicon.operand_starts import START_FORMS
from refsim.silicon.vectors import recordings
from refsim.testing.kernel_files import load_kernel_file

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "conformance" / "reports"
SUITE = load_kernel_file(ROOT / "tests/ptx/suite/table.py")
PAGES = ("README.md", "docs/evidence.md", "conformance/reports/how_sure.md")
FIGURE = re.compile(r"(?<![\d,.^])\d{1,3}(?:,\d{3})+(?![\d,])")
GENERATED = re.compile(r"<!-- what tolerance hides -->.*<!-- end of what tolerance hides -->", re.DOTALL)
"""Written by a command, and held to its own report by conformance/test_tolerance.py."""
COMMAND = re.compile(
    r"`(?:PYTHONPATH=\. )?(?:python -m|python|pytest|refsim) ?[^`]*`|\]\([^)]*reports/[^)]*\)|`[^`]*reports/[^`]*`|the same"
)
RUNS = (
    "block_faults",
    "block_scaled",
    "cublaslt",
    "foreign_tests",
    "foreign_tests_triton_3.6.0",
    "mutants",
    "night",
    "published_dot_products",
    "sync_sweep",
)
"""Reports of runs that belong to no chip; other pages beside them are lists and accounts, which rest on those."""
ELSEWHERE = {
    "live, `pytest -m peers tests/peers` prints them": (
        "7,463,360 1,998,592 4,231,680 602,880 608,640 608,960 1,411,200 802,560 1,196,032 102,400"
    ),
    "tests/test_cuda_headers.py and tests/test_policies.py print them": "277,116 262,144",
    "`pytest conformance/test_recorded_layouts.py`: products that the recorder made": "426,259,456",
    "`python conformance/triton_on_device.py run FILE` on a GPU": "10,036,500",
    "sizes that the text says: 2^16, 2^20, tables": "65,536 1,024 942,080",
    "`python -m tests.fuzz` prints them": "400,014 20,000 2,000,016 80,000 5,631",
    "`conformance.block_scaled_campaign --cases 250 --device cuda` prints them": "2,077 7,918,017",
}


def figures(text: str) -> set[int]:
    return {int(each.replace(",", "")) for each in FIGURE.findall(text)}


COUNTS = ("cases", "elements", "different")


def counts_in(part: object) -> Iterator[dict[str, int]]:
    """What a verdict, or a list of some, says of cases and elements: each alone, and lists together."""
    if isinstance(part, dict):
        if "cases" in part and "elements" in part:
            yield {key: int(part[key]) for key in COUNTS if key in part}
        for each in part.values():
            yield from counts_in(each)
    elif isinstance(part, list):
        found = [count for each in part for count in counts_in(each)]
        yield from found
        if found:
            yield {key: sum(count.get(key, 0) for count in found) for key in COUNTS}


@cache
def in_reports() -> frozenset[int]:
    """Every figure of a page; of each verdict cases and elements, and those of all verdicts of a file."""
    found: set[int] = set()
    for page in REPORTS.rglob("*.md"):
        if page.parent != REPORTS or page.stem in RUNS:
            found |= figures(page.read_text("utf-8"))
    for file in REPORTS.rglob("*.verify.json"):
        for count in counts_in(json.loads(file.read_text("utf-8"))):
            found |= set(count.values())
    return frozenset(found)


def words_of(stem: str) -> int:
    """The stored words of a recording file."""
    return sum(array.size for recording in recordings(stem).values() for array in recording.arrays.values())


def of_bringups() -> Iterator[int]:
    """Words of both reports; those compared with a recording alone, and with the model."""
    for device in ("h200", "h100"):
        report = read_report(REPORTS / device / "bringup.json")
        words = sum(case.words for case in report.cases)
        recorded = sum(case.recorded for case in report.cases)
        yield from (words, recorded, words - recorded)


def of_block_scaled() -> Iterator[int]:
    """Problems and elements of the block-scaled campaign, by target and kind of device."""
    totals: Counter[tuple[str, str, str]] = Counter()
    for line in (REPORTS / "block_scaled.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if cells[0].startswith("block_scaled_matmul_"):
            kind = cells[1] if cells[1].startswith("NVIDIA") else "simulated"
            target = cells[0].removeprefix("block_scaled_matmul_").partition("_")[0]
            totals[target, kind, "problems"] += int(cells[2].replace(",", ""))
            totals[target, kind, "elements"] += int(cells[3].replace(",", ""))
    yield from totals.values()


def of_functions() -> Iterator[int]:
    """Problems and elements of softmax, RMSNorm and attention together."""
    files = [REPORTS / "h200" / f"{stem}.verify.json" for stem in ("row_functions", "attention_sm90")]
    verdicts = [each for file in files for each in json.loads(file.read_text("utf-8"))["verdicts"]]
    yield from (sum(each[key] for each in verdicts) for key in ("cases", "elements"))


@cache
def counted() -> frozenset[int]:
    replays = (ROOT / "conformance/test_recorded_scalar.py").read_text("utf-8")
    closed = int(re.findall(r"len\(CLOSED\) == (\d+)", replays)[0])  # that test holds which forms are open
    chains = recordings("carry_chains")["chains"].arrays
    return frozenset(
        {
            sum(MEASURED_WORDS.values()),
            closed,
            closed - 3,
            max(len(array) for array in chains.values() if array.ndim > 1 and len(array) > 1000),
            *(words_of(stem) for stem in ("sparse", "copy_arithmetic")),
            *of_bringups(),
            *of_functions(),
            *of_block_scaled(),
        }
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_that_of_a_report(page: str) -> None:
    text = re.sub(GENERATED, "", (ROOT / page).read_text("utf-8"))
    known = in_reports() | counted() | figures(" ".join(ELSEWHERE.values()))
    assert sorted(figures(text) - known) == []


def test_what_stands_elsewhere_is_still_said_and_in_no_report() -> None:
    said = set().union(*(figures((ROOT / page).read_text("utf-8")) for page in PAGES))
    assert figures(" ".join(ELSEWHERE.values())) - said == set()


def tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """Header and rows of each table."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.splitlines()
        yield lines[0], lines[2:]


def test_every_row_of_the_tables_of_proof_has_a_command_or_a_report() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        text = text[text.index("## How far to trust it") :] if page == "README.md" else text
        proof = [(head, rows) for head, rows in tables(text) if "command" in head or "seen by" in head]
        assert proof, page
        bare = [
            row
            for _, rows in proof
            for row in rows
            if not COMMAND.search(row) and "formula" not in row and "their sources alone" not in row
        ]
        assert [row for row in bare if "not run here" not in row] == []


def test_files_and_tests_that_the_pages_name_exist() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        named = set(re.findall(r"`(?:[^`\s]* )*?((?:tests|conformance|properties|gpu|benchmarks)/[\w./]+)", text))
        assert sorted(name for name in named if not (ROOT / name.rstrip("./,")).exists()) == []
        modules = set(re.findall(r"python -m ((?:conformance|tests)\.\w+)", text))
        paths = [ROOT / name.replace(".", "/") for name in modules]
        assert [path for path in paths if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_small_figures_are_counted() -> None:
    """Cases of both bring-ups, instructions, right and wrong kernels of the suite."""
    readme, evidence = ((ROOT / page).read_text("utf-8") for page in PAGES[:2])
    passed = {device: read_report(REPORTS / device / "bringup.json").counts["pass"] for device in ("h200", "h100")}
    assert passed["h200"] == passed["h100"] + len(START_FORMS)  # which the H100 was not asked for
    assert [device for device in passed if f"{device} {passed[device]} pass, 0 differ" not in evidence] == []
    assert f"| {len(recordings('numerics'))} dense instructions of sm_90; not s4" in evidence
    assert (
        f"| wrong kernels of the suite, under ten random schedules | {len(SUITE.WRONG)} | {len(SUITE.WRONG)} |"
        in evidence
    )
    assert f"| {len(SUITE.RIGHT)} right and {len(SUITE.WRONG)} wrong kernels |" in readme
