"""Tests of other packages, chosen by name before anything ran them, on the simulated GPU: what passes, and why the rest does not.

python -m conformance.foreign_tests run numba_cuda FOLDER RESULTS    the tests of a list, in a folder that holds their files
python -m conformance.foreign_tests table RESULTS                    all that was run, as conformance/reports/foreign_tests.*

The files of the tests are not part of this project: they come from the package's wheel or its public repository. FOLDER holds
them; `run` may be told a few of a list's tests (-k TEXT), and of a test that ran twice the later result counts.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
REPORTS = HERE.parent / "reports"
PACKAGES = tuple(path.stem for path in sorted(HERE.glob("*.txt")))
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"


@dataclass(frozen=True)
class Cause:
    """Why a test does not pass: `pattern` is found in what pytest says of it; the first of a list that fits is its cause."""

    name: str
    pattern: str


CAUSES = (
    Cause("time limit of a test", r"\[test-timeout\]"),
    Cause("grid groups by the device runtime (cudaCGGetIntrinsicHandle)", r"cudaCGGetIntrinsicHandle"),
    Cause("a write behind the test's own array, found by the simulator", r"\[out-of-bounds\] .* at global address"),
    Cause("a load that nvJitLink widened behind shared memory", r"\[out-of-bounds\] 16 B at shared address"),
    Cause("managed memory (cuMemAllocManaged)", r"cuMemAllocManaged is not simulated"),
    Cause("memory of the host that the device maps", r"mapped memory of the host"),
    Cause(
        "several modules of PTX linked into one",
        r"cuda\.core\.Linker is not simulated|DynamicModule|DynamicSourceModule",
    ),
    Cause("compiling CUDA C++ to LTO-IR", r"Program\.compile to ltoir"),
    Cause("memory pools of PyCUDA", r"MemoryPool"),
    Cause("occupancy queries", r"cuOccupancy\w+ is not simulated"),
    Cause("machine code, which is not made", r"nvdisasm|cuobjdump|get_sass|inspect_sass|\[bad-file\]"),
    Cause("another function of the driver", r"is not simulated"),
    Cause(
        "the test is written for another version of the package",
        r"cannot unpack non-iterable value|CompilationError: at [\s\S]*too many indices for tensor of rank 0"
        r"|CompilationError: at [\s\S]*got an unexpected keyword argument"
        r"|\Atest_flip[\s\S]*'<=' not supported between .*'NoneType'",
    ),
    Cause("Triton 3.9 sums bf16 in bf16 (add.bf16 in its PTX), the test in f32", r"\Atest_scan2d\[cumsum-bfloat16"),
    Cause("a package that the test imports is not installed", r"ModuleNotFoundError: No module named"),
)
WRONG = "a wrong result"
"""What is left: a comparison that failed, for which there is no cause among these."""


@dataclass(frozen=True)
class Outcome:
    """How a test ended; `cause` of one that failed, with the last line that pytest says."""

    word: str
    cause: str = ""
    said: str = ""


def listed(package: str) -> list[str]:
    """The chosen tests of a package, one node of pytest each."""
    return [line for line in (HERE / f"{package}.txt").read_text().splitlines() if line and not line.startswith("#")]


def key(node: str) -> tuple[str, ...]:
    """test_a.py::TestB::test_c[d] as ("test_a", "TestB", "test_c[d]")."""
    file, *rest = node.split("::")
    return (Path(file).stem, *rest)


def outcomes(junit: Path) -> dict[tuple[str, ...], Outcome]:
    """What a run of pytest says of each test."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        parts = case.get("classname", "").split(".")
        at = max((place for place, part in enumerate(parts) if part.startswith("test_")), default=0)
        name = (*parts[at:], case.get("name", ""))
        bad = [each for each in case if each.tag in ("failure", "error")]
        skipped = any(each.tag == "skipped" for each in case)
        found[name] = (
            judged(bad[0].text or bad[0].get("message", ""), name[-1])
            if bad
            else Outcome(SKIPPED if skipped else PASSED)
        )
    return found


def judged(text: str, test: str = "") -> Outcome:
    """The cause of a failure of a test."""
    cause = next((each.name for each in CAUSES if re.search(each.pattern, f"{test}\n{text}")), WRONG)
    said = (
        [line[1:].strip() for line in text.splitlines() if line.startswith("E ")] or text.strip().splitlines() or [""]
    )
    line = next((each for each in said if "Error" in each), said[-1])
    return Outcome(FAILED, cause, re.sub(r"(?:/[\w.-]+)+/", "", line)[:200])  # no paths of the machine that ran it


def run(package: str, folder: Path, results: Path, part: str) -> int:
    """Run the chosen tests of a package; each time two files more in RESULTS."""
    results.mkdir(parents=True, exist_ok=True)
    number = len(list(results.glob(f"{package}.*.xml"))) + 1
    name = (results / f"{package}.{number}").absolute()
    names = Path(f"{name}.tests")
    chosen = [node for node in listed(package) if part in node]
    names.write_text("".join(f"{node}\n" for node in chosen))
    command = [
        sys.executable,
        "-m",
        "refsim",
        "run",
        "--test-seconds",
        "60",
        "-o",
        f"{name}.json",
        "--",
        "pytest",
        "-q",
    ]
    options = ["-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={name}.xml"]
    return subprocess.run([*command, *options, f"@{names}"], cwd=folder, check=False).returncode


def of_package(package: str, results: Path) -> dict[str, Outcome]:
    """Every chosen test with how it ended last."""
    found: dict[tuple[str, ...], Outcome] = {}
    for junit in sorted(results.glob(f"{package}.*.xml")):
        found.update(outcomes(junit))
    return {node: found.get(key(node), Outcome(NOT_RUN)) for node in listed(package)}


def page(found: dict[str, dict[str, Outcome]], versions: str = "") -> str:
    """The table, the causes, and each test that did not pass; `versions` are those of the packages where they are others."""
    rows, causes, others = [], Counter[str](), []
    for package, tests in found.items():
        words = Counter(each.word for each in tests.values())
        share = f"{100 * words[PASSED] / len(tests):.1f} %"
        wrong = sum(each.cause == WRONG for each in tests.values())
        rows.append((package, len(tests), words[PASSED], share, words[FAILED], words[SKIPPED], words[NOT_RUN], wrong))
        causes.update(each.cause for each in tests.values() if each.word == FAILED)
        others += [(package, node, each.cause, each.said) for node, each in tests.items() if each.word == FAILED]
    total = ["all", *(sum(int(row[place]) for row in rows) for place in (1, 2))]
    share = f"{100 * total[2] / total[1]:.1f} %"  # type: ignore[operator]
    rows.append((*total, share, *(sum(int(row[place]) for row in rows) for place in range(4, 8))))  # type: ignore[arg-type]
    heads = ("package", "chosen", "passed", "share", "failed", "skipped", "not run", "wrong results")
    return "\n".join(
        (
            "# Tests of other packages on the simulated GPU" + (f": {versions}" if versions else ""),
            "",
            f"Made by `python -m conformance.foreign_tests table RESULTS{_asked(versions)}`, after `run` of each package. "
            "The lists in",
            "`conformance/foreign_tests/` were committed before anything ran them.",
            "",
            *table(heads, rows),
            "",
            "## Why the rest does not pass",
            "",
            *table(("cause", "tests"), causes.most_common()),
            "",
            *table(("package", "test", "cause", "what it says"), others),
            "",
        )
    )


def _asked(versions: str) -> str:
    return f' --versions "{versions}"' if versions else ""


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in ([*heads], ["---"] * len(heads), *cells)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="act", required=True)
    of_run, of_table = parts.add_parser("run"), parts.add_parser("table")
    of_run.add_argument("package", choices=PACKAGES)
    of_run.add_argument("folder", type=Path)
    of_run.add_argument("results", type=Path)
    of_run.add_argument("-k", dest="part", default="", help="only tests whose name has this text")
    of_table.add_argument("results", type=Path)
    of_table.add_argument(
        "--versions", default="", help='a table beside the usual one, of what RESULTS has: "Triton 3.6.0"'
    )
    asked = parser.parse_args()
    if asked.act == "run":
        return run(asked.package, asked.folder, asked.results, asked.part)
    chosen = [each for each in PACKAGES if not asked.versions or any(asked.results.glob(f"{each}.*.xml"))]
    found = {package: of_package(package, asked.results) for package in chosen}
    plain = {package: {node: vars(each) for node, each in tests.items()} for package, tests in found.items()}
    name = "_".join(["foreign_tests", *asked.versions.lower().split()])
    (REPORTS / f"{name}.json").write_text(json.dumps(plain, indent=1) + "\n")
    (REPORTS / f"{name}.md").write_text(page(found, asked.versions))
    print("\n".join(page(found, asked.versions).splitlines()[:12]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
