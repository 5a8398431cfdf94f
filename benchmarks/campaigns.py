"""The figures of conformance/reports/campaigns.md: python benchmarks/campaigns.py long|gpus -o FILE.

`long`: 10^5 cases of a small kernel on the simulated GPU by two processes, with the memory of all processes every few seconds.
`gpus`: softmax and RMSNorm on one GPU of this host and on two, by the wall clock, and whether both reports are the same bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KERNEL = """
import numpy as np
from hypothesis import strategies as st
from refsim.testing import Kernel, recipes

CUDA = '''extern "C" __global__ void add(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 3;
}'''

def run(launcher, problem):
    x, y = launcher.upload(problem.codes(), name="x"), launcher.output(problem.n, np.uint32, name="y")
    launcher.launch("add", -(-problem.n // 64), 64, [x, y, np.int32(problem.n)])
    return {"y": launcher.read(y)}

PROBLEMS = st.builds(recipes.Tensor, st.integers(1, 500), st.just("f32"), st.just("bits"), st.integers(0, 1 << 31))
KERNELS = (Kernel("add", lambda p: {"y": p.codes() + np.uint32(3)}, PROBLEMS, run, {"y": ""}, recipes.Tensor, source=CUDA),)
"""
VERIFY = (sys.executable, "-m", "refsim", "verify")
PAGE = os.sysconf("SC_PAGE_SIZE")


def family(root: int) -> set[int]:
    """A process and all that it began, directly or not."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
    found = {root}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def resident(processes: set[int]) -> int:
    """MiB that processes hold, shared pages counted in each."""
    total = 0
    for each in processes:
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total >> 20


def long(cases: int, jobs: int) -> dict[str, Any]:
    """The memory of a campaign of so many cases, once its workers have begun and until they end."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "add.py").write_text(KERNEL)
        options = f"--kernels add.py --device sim:eager --cases {cases} --shard-cases 500 --jobs {jobs} --suspects 0"
        files = "--journal j --report report.json --as json"
        began, memory = time.monotonic(), list[tuple[int, int]]()
        driver = subprocess.Popen([*VERIFY, *options.split(), *files.split()], cwd=folder, stdout=subprocess.PIPE)
        while driver.poll() is None:
            memory.append((round(time.monotonic() - began), resident(family(driver.pid))))
            time.sleep(5)
        assert driver.stdout is not None
        said = json.loads(driver.stdout.read())
        verdict = said["verdicts"][0]
        settled = [each for second, each in memory if second > 20]
        return {
            "command": f"refsim verify {options}",
            "exit_code": driver.returncode,
            "cases": verdict["cases"],
            "elements": verdict["elements"],
            "differing": verdict["differing"],
            "seconds": round(time.monotonic() - began),
            "mebibytes": {"after 20 s": settled[0], "largest": max(settled), "at the end": settled[-2]},
        }


def gpus(cases: int) -> dict[str, Any]:
    """One campaign by one process and by two, a GPU each."""
    kernels = Path(__file__).parents[1] / "gpu/row_functions.py"
    options = f"softmax rms_norm --kernels {kernels} --device cuda --cases {cases} --suspects 0"
    seconds, reports = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for jobs in (1, 2):
            began = time.monotonic()
            end = f"--jobs {jobs} --report {jobs}.json"
            subprocess.run([*VERIFY, *options.split(), *end.split()], cwd=folder, stdout=subprocess.DEVNULL, check=True)
            seconds[jobs] = round(time.monotonic() - began, 1)
            reports.append((Path(folder) / f"{jobs}.json").read_bytes())
        facts = json.loads(reports[0])["records"]
    return {
        "command": f"refsim verify {options.replace(str(kernels), 'gpu/row_functions.py')} --jobs 1 | 2",
        "device": facts[0]["device"].get("device", facts[0]["device"]["name"]),
        "cases": sum(each["cases"] for each in facts),
        "differing": sum(each["differing"] for each in facts),
        "seconds": seconds,
        "times_as_fast": round(seconds[1] / seconds[2], 2),
        "same_report": reports[0] == reports[1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trial", choices=("long", "gpus"))
    parser.add_argument("--cases", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    found = long(given.cases or 100_000, given.jobs) if given.trial == "long" else gpus(given.cases or 1000)
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
