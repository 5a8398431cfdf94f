"""Single launches on the simulated GPU in CPU seconds, each in a process of its own: what the benchmarks of kernels share."""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LEAST_OF, WARM = 5, 2
LOOPS = "refsim.numerics.fast.kernels"
Row = list[Any]
Figures = tuple[float, float]


def without_numba() -> None:
    """From now on this process multiplies in NumPy alone; before `refsim` is imported."""
    sys.modules[LOOPS] = None  # type: ignore[assignment]


def measured(kernel: Any, problem: Any, simulated: Any) -> Figures:
    """CPU seconds of one launch, `run` of a kernel's declaration, warm; and the largest memory of this process in MiB. Silicon
    arithmetic is compared with the oracle once."""
    from refsim.numerics.fast import compiled

    compiled.left_to_numpy.products = compiled.COMPILED_FROM  # what a campaign has done long before it ends

    def once() -> dict[str, np.ndarray]:
        with simulated.launcher(kernel.file) as launcher:
            found: dict[str, np.ndarray] = kernel.run(launcher, problem)
        return found

    got = once()
    if simulated.arithmetic == "silicon":
        want = kernel.oracle(problem, simulated.target) if kernel.per_target else kernel.oracle(problem)
        assert all(np.array_equal(got[name], want[name]) for name in want), "the simulator disagrees with the oracle"
    for _ in range(WARM - 1):
        once()
    times = []
    for _ in range(LEAST_OF):
        begin = time.process_time()
        once()
        times.append(time.process_time() - begin)
    return min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def of_checkout(script: str, checkout: Path, row: Row) -> Figures:
    """A row of a benchmark in another process with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, script, "--row", json.dumps(row)]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, mebibytes = json.loads(out.stdout)
    return seconds, mebibytes


def tabulated(script: str, description: str | None, rows: dict[str, Row], of_row: Callable[..., Figures]) -> None:
    """The command line of a benchmark: its rows, beside another checkout's where that is asked."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with in turn")
    parser.add_argument("--only", default="", help="the rows whose names contain this")
    parser.add_argument("--row", type=json.loads, help="one row in this process, as JSON")
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(of_row(*asked.row)))
        return
    here = Path(__file__).parents[1]
    for name, row in rows.items():
        if asked.only not in name:
            continue
        seconds, mebibytes = of_checkout(script, here, row)
        line = f"{name:42} {1e3 * seconds:9.1f} ms {mebibytes:6.0f} MiB"
        if asked.against:
            before, _ = of_checkout(script, asked.against, row)
            line += f"   {1e3 * before:9.1f} ms before   ratio {seconds / before:.2f}"
        print(line, flush=True)
