"""Recordings of silicon replayed whole, and a page that says when, where and of which commit: python -m conformance.night

Runs the tests that replay recordings under `--refsim-profile night`. Whatever stands behind `--` goes to pytest (`-n 16`).
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

import refsim
from refsim.bringup.state import source_hash

ROOT = Path(__file__).resolve().parents[1]
REPLAYS = tuple(
    f"conformance/test_recorded_{name}.py"
    for name in (
        *("conversions", "scalar", "numerics", "carry_chains", "copy_arithmetic", "layouts", "operand_starts"),
        *("sparse", "wmma"),
    )
)
OUTCOMES = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Night:
    """One run: tests by file and outcome, seconds of all tests of a file, and how long the whole took."""

    outcomes: dict[str, Counter[str]]
    seconds: Counter[str]
    elapsed: float


def read(xml: Path, elapsed: float) -> Night:
    """The run that pytest wrote as JUnit XML; an error in setting a test up counts as failed."""
    outcomes: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        file = f"{case.get('classname', '').replace('.', '/')}.py"
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        outcomes.setdefault(file, Counter())[outcome] += 1
        seconds[file] += float(case.get("time", "0"))
    return Night(outcomes, seconds, elapsed)


def page(night: Night, commit: str, arguments: list[str], when: datetime.datetime) -> str:
    """The committed report."""
    command = " ".join(["python -m conformance.night", "-o conformance/reports/night.md", "--", *arguments]).strip()
    total = sum(night.outcomes.values(), Counter())
    lines = [
        f"| `{file}` | {' | '.join(f'{counts[outcome]:,}' for outcome in OUTCOMES)} | {night.seconds[file]:,.0f} |"
        for file, counts in sorted(night.outcomes.items())
    ]
    return "\n".join(
        (
            "# A night of replays",
            "",
            f"Run {when:%Y-%m-%d} at {when:%H:%M} UTC on commit {commit}, refsim source {source_hash()[:16]}:",
            f"{total['passed']:,} passed, {total['failed']:,} failed, {total['skipped']:,} skipped in {night.elapsed:,.0f} s.",
            f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} processors.",
            "",
            "Every recording of silicon as the night profile replays it, beside the special functions, which have a page",
            "of their own: all stored words, all digests of scalar instructions and of tensor cores, all 2^32 patterns of",
            "FP8 conversions, every 13th chunk of 65,536 of the other 97.",
            "",
            f"    {command}",
            "",
            "| tests | passed | failed | skipped | seconds of all tests |",
            "|---|---:|---:|---:|---:|",
            *lines,
            "",
        )
    )


def commit_of(tree: Path) -> str:
    """The commit that is checked out, shortened, with a plus where files have changed."""
    asked = ["git", "-C", str(tree)]
    head = subprocess.run([*asked, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*asked, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def main() -> int:
    parser = argparse.ArgumentParser(description="replay every recording and write a page about it")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page")
    parser.add_argument("--commit", help="where the tree has no git: the commit that it is of")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    options = parser.parse_args()
    if not options.output.parent.is_dir():
        print(f"{options.output}: there is no such folder", file=sys.stderr)
        return 2
    when = datetime.datetime.now(datetime.UTC)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "night.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--refsim-profile=night", f"--junitxml={xml}"]
        paths = os.pathsep.join(filter(None, (str(Path(refsim.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        subprocess.run(
            [*command, *options.pytest, *REPLAYS], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False
        )
        if not xml.is_file():
            print("pytest wrote no results", file=sys.stderr)
            return 1
        night = read(xml, time.monotonic() - began)
    options.output.write_text(page(night, options.commit or commit_of(ROOT), options.pytest, when), "utf-8")
    return 1 if not night.outcomes or any(counts["failed"] for counts in night.outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
