"""The core of refsim under other Pythons, NumPys, ml_dtypes and NVRTCs: `make matrix`, or python -m tests.matrix

A row is an environment of its own with the packages of one place in the matrix. It runs `CORE` (formats, conversions, numerics,
the command line's recorded answers, CUDA that its NVRTC compiles for the simulated GPU) and verifies one kernel, compiled by that
NVRTC too. `-o FILE` keeps what was seen, with versions; a row whose Python is not on this machine is kept as such. Ends with 1
where a row fails, with 4 where one that was named with --row could not run.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
CORE = (
    "tests/test_formats.py",
    "tests/test_elements.py",
    "tests/test_typed_arrays.py",
    "tests/test_policies.py",
    "tests/test_conversions.py",
    "tests/numerics/test_dot.py",
    "tests/numerics/test_multiply.py",
    "tests/cli/test_golden.py",
    "tests/device/test_compile.py",
    "tests/device/test_headers.py::test_the_headers_of_c_and_cxx_give_their_bits",
    "tests/ptx/test_half_intrinsics.py",
    "tests/ptx/test_cuda_intrinsics.py",
)
KERNEL = "fp8_dequantize"
REPORT, PAGE = ROOT / "conformance/reports/matrix.json", ROOT / "conformance/reports/versions.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->"
PINNED, NEWEST_CUDA = "13.0", "13.5"
"""What `refsim[sim]` installs, and the newest that rows ask for: it writes PTX 9.5."""
CUDA = ("nvrtc", "runtime", "crt", "nvcc")
HEADERS = {PINNED: "nvidia-cuda-cccl==13.0.*", NEWEST_CUDA: "nvidia-cuda-cccl==13.*"}
"""CCCL counts its releases by itself."""
SHOWN = ("numpy", "ml_dtypes", "click", "hypothesis", "pytest", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc")
SECONDS = 1200


@dataclass(frozen=True)
class Row:
    """One environment: a Python, the newest packages or the least that pyproject.toml admits, and a release of CUDA."""

    python: str
    packages: str
    cuda: str

    @property
    def name(self) -> str:
        """As --row takes it: 3.13-newest-13.5."""
        return f"{self.python}-{self.packages}-{self.cuda}"

    def requirements(self) -> list[str]:
        """What pip is asked for: ["numpy>=2.0", ..., "nvidia-cuda-nvrtc==13.5.*"]."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        ours = [*project["dependencies"], *project["optional-dependencies"]["testing"]]
        least = self.packages == "least"
        return [
            *(each.replace(">=", "==") if least else each for each in ours),
            *(f"nvidia-cuda-{part}=={self.cuda}.*" for part in CUDA),
            HEADERS[self.cuda],
        ]


ROWS = (
    Row("3.11", "least", PINNED),
    *(Row(python, "newest", cuda) for python in ("3.11", "3.12", "3.13", "3.14") for cuda in (PINNED, NEWEST_CUDA)),
)


def interpreters(named: Sequence[Path]) -> dict[str, Path]:
    """Pythons by their release ("3.12"): those that are named, this one, those on PATH and those that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = (shutil.which(f"python{row.python}") for row in ROWS)
    candidates = [
        *named,
        Path(sys.executable),
        *(Path(each) for each in on_path if each),
        *kept.glob("3.*/bin/python3"),
    ]
    found: dict[str, Path] = {}
    for candidate in candidates:
        asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, check=False)
        if answer.returncode == 0:  # pyenv's stand-ins on PATH may have nothing behind them
            found.setdefault(answer.stdout.strip(), candidate)
    return found


def environment(row: Row, python: Path, folder: Path) -> Path:
    """An environment with the packages of a row; returns its Python. pip is that of the one which runs this."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    inside = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(inside), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *row.requirements()], check=True)
    return inside


def counts(xml: Path) -> dict[str, int]:
    """passed, failed and skipped of what pytest wrote as JUnit XML; an error counts as failed."""
    found = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(xml).getroot().iter("testcase") if xml.is_file() else ():
        tags = {child.tag for child in case}
        found["failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"] += 1
    return found


def versions(python: Path) -> dict[str, str]:
    """What an environment holds: {"python": "3.13.0", "numpy": "2.5.5", ...}."""
    asked = f"import json, platform; from importlib.metadata import version; names = {SHOWN}; "
    asked += "print(json.dumps({'python': platform.python_version(), **{name: version(name) for name in names}}))"
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout))


def run(row: Row, python: Path, folder: Path) -> dict[str, Any]:
    """What a row came to: versions, tests by outcome, seconds, the kernel's verdict and the PTX that was made for it."""
    inside = environment(row, python, folder / "environment")
    around = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    began = time.monotonic()
    tests = [inside, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "refsim.testing.plugin"]
    subprocess.run(
        [*tests, f"--junitxml={folder / 'tests.xml'}", *CORE], cwd=ROOT, env=around, check=False, timeout=SECONDS
    )
    verify = [inside, "-m", "refsim", "verify", KERNEL, "--device", "sim", "--cases", "1", "--as", "json"]
    answer = subprocess.run(verify, cwd=ROOT, env=around, capture_output=True, text=True, check=False, timeout=SECONDS)
    said = json.loads(answer.stdout) if answer.stdout else {}
    return {
        "row": row.name,
        **versions(inside),
        **counts(folder / "tests.xml"),
        "kernel": KERNEL,
        "verdict": said["verdicts"][0]["status"] if said else answer.stderr.strip()[-400:],
        "ptx": ptx_written(inside, around),
        "seconds": round(time.monotonic() - began),
    }


def seen(row: Row, python: Path | None) -> dict[str, Any]:
    """What a row came to in an environment that goes away with it, or that there is no such Python."""
    if python is None:
        return {"row": row.name, "absent": f"no Python {row.python} on this machine"}
    with tempfile.TemporaryDirectory() as folder:
        return run(row, python, Path(folder))


def ptx_written(python: Path, around: dict[str, str]) -> str:
    """The PTX version that a row's NVRTC writes: "9.5"."""
    asked = "from refsim.device.compile import compile_ptx; print(compile_ptx('gpu/probes/doctor.cu', 'sm_90a').text)"
    answer = subprocess.run([python, "-c", asked], cwd=ROOT, env=around, capture_output=True, text=True, check=True)
    found = re.search(r"^\.version (\S+)", answer.stdout, re.MULTILINE)
    return found[1] if found else ""


def sound(result: dict[str, Any]) -> bool:
    """Whether a row ran and nothing of it failed."""
    major, minor = (int(part) for part in str(result["nvidia-cuda-nvrtc"]).split(".")[:2])
    by_its_own = result["ptx"] == f"{major - 4}.{minor}"  # CUDA 13.5 writes PTX 9.5; bundled PTX is older
    return bool(result.get("passed")) and not result["failed"] and result["verdict"] == "pass" and by_its_own


def chosen(names: Sequence[str]) -> Iterator[Row]:
    """Rows by name; "here" stands for this Python with the newest of everything."""
    here = Row(f"{sys.version_info[0]}.{sys.version_info[1]}", "newest", NEWEST_CUDA)
    known = {**{row.name: row for row in ROWS}, "here": here}
    for name in names:
        if name not in known:
            raise SystemExit(f"no row is called {name}; rows: {', '.join(known)}")
        yield known[name]


def line(result: dict[str, Any]) -> str:
    """A row in one line, as it is printed."""
    if "absent" in result:
        return f"{result['row']:18} {result['absent']}"
    held = ", ".join(f"{name} {result[name]}" for name in ("python", "numpy", "ml_dtypes"))
    tests = ", ".join(f"{result[name]} {name}" for name in ("passed", "failed", "skipped"))
    ended = f"{KERNEL} {result['verdict']}, {result['seconds']} s"
    return f"{result['row']:18} {held}, NVRTC {result['nvidia-cuda-nvrtc']} (PTX {result['ptx']}): {tests}; {ended}"


def table(report: dict[str, Any]) -> str:
    """The rows of a report as the page shows them."""
    head = ("Python", "NumPy", "ml_dtypes", "NVRTC", "PTX", "passed", "failed", "skipped", f"`{KERNEL}`", "seconds")
    names = (
        "python",
        "numpy",
        "ml_dtypes",
        "nvidia-cuda-nvrtc",
        "ptx",
        "passed",
        "failed",
        "skipped",
        "verdict",
        "seconds",
    )
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|---|---:|---:|---:|---|---:|"]
    for row in report["rows"]:
        held = [f"{row[name]:,}" if isinstance(row.get(name), int) else row.get(name, "") for name in names]
        lines.append(
            f"| {' | '.join(held)} |" if "absent" not in row else f"| {row['row']} | {row['absent']} |" + " |" * 8
        )
    return "\n".join((f"Run {report['when']} on commit {report['commit']}:", "", *lines, ""))


def renewed(page: str, report: dict[str, Any]) -> str:
    """A page with the table of a report between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table(report)}{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="the core of refsim in other environments")
    parser.add_argument("--row", action="append", help='one row, or "here": this Python, the newest of all else')
    parser.add_argument("--python", action="append", type=Path, default=[], help="an interpreter that is not on PATH")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument("-o", "--output", type=Path, help="keep the rows as JSON")
    parser.add_argument("--page", action="store_true", help="run nothing: write the table of the page from the report")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(renewed(PAGE.read_text("utf-8"), json.loads(REPORT.read_text("utf-8"))), "utf-8")
        return 0
    found = interpreters(options.python)
    rows = list(chosen(options.row or [row.name for row in ROWS]))
    with ThreadPoolExecutor(options.jobs) as workers:
        results = []
        for result in workers.map(lambda row: seen(row, found.get(row.python)), rows):
            results.append(result)
            print(line(result), flush=True)
    if options.output:
        head = {"when": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", "commit": commit()}
        options.output.write_text(json.dumps({**head, "tests": CORE, "rows": results}, indent=2) + "\n", "utf-8")
    if any("absent" in result for result in results) and options.row:
        return 4
    return 0 if all("absent" in result or sound(result) for result in results) else 1


def commit() -> str:
    """The commit of this checkout, with a plus where files of it have changed."""
    asked = ["git", "-C", str(ROOT)]
    head = subprocess.run([*asked, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*asked, "status", "--porcelain"], capture_output=True, text=True, check=True)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
