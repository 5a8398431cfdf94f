"""The FP8 GEMM on the simulated Hopper: CPU seconds and memory of one launch, under one policy with the default checks.

    python benchmarks/simulated_gemm.py [--against CHECKOUT] [--only TEXT]

Each row is a process: `run` of the kernel's declaration (arguments, tensor maps, the launch, the result read back), warm, after
its bits were compared with the oracle's once; least of 5, in CPU seconds. "silicon" sums as Hopper's tensor core does,
with numba's loops ("fast") or in NumPy alone; "exact" sums exactly. With `--against` the same rows run in turn with
another checkout's package (a worktree of an older commit, say), and the last column is the ratio. sm_90a.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LEAST_OF, WARM = 5, 2
SHAPES = ((1, 8, 16), (64, 128, 256), (512, 512, 1024))
HOW = (("exact", True), ("silicon", True), ("silicon", False))
POLICIES = ("eager", "lazy", "random")
LOOPS = "refsim.numerics.fast.kernels"


def rows() -> dict[str, list[object]]:
    """What is measured, by name: M, N and K, the arithmetic, whether with numba, the policy."""
    found: dict[str, list[object]] = {}
    for shape in SHAPES:
        for arithmetic, fast in HOW:
            words = f"{arithmetic}{'' if arithmetic == 'exact' else ', fast' if fast else ', NumPy alone'}"
            for policy in POLICIES if shape == SHAPES[1] and fast else POLICIES[:1]:
                found[f"{'x'.join(map(str, shape))} {words}, {policy}"] = [*shape, arithmetic, fast, policy]
    return found


def measured(m: int, n: int, k: int, arithmetic: str, fast: bool, policy: str) -> tuple[float, float]:
    """CPU seconds of one launch, and the largest memory of this process in MiB."""
    if not fast:
        sys.modules[LOOPS] = None  # type: ignore[assignment]
    from refsim.device.sim import SimDevice
    from refsim.numerics.fast import compiled
    from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
    from refsim.testing.matrices import Values

    gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
    kernel, drawn = gemm.FP8_GEMM_1D2D, (Values("gaussian", 1), Values("gaussian", 2))
    entry = gemm.chosen(m, n, k).name
    problem = gemm.Gemm1D2D(m, n, k, *drawn, Values("distinct", 3), Values("distinct", 4), entry=entry)
    simulated = SimDevice(policy=policy, arithmetic=arithmetic)
    compiled.left_to_numpy.products = compiled.COMPILED_FROM  # what a campaign has done long before it ends

    def once() -> dict[str, np.ndarray]:
        with simulated.launcher(kernel.file) as launcher:
            found: dict[str, np.ndarray] = kernel.run(launcher, problem)
        return found

    want, got = kernel.oracle(problem), once()
    if arithmetic == "silicon":
        assert all(np.array_equal(got[name], want[name]) for name in want), "the simulator disagrees with the oracle"
    for _ in range(WARM - 1):
        once()
    times = []
    for _ in range(LEAST_OF):
        begin = time.process_time()
        once()
        times.append(time.process_time() - begin)
    return min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def of_checkout(checkout: Path, row: list[object]) -> tuple[float, float]:
    """A row in another process with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, "--row", json.dumps(row)]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, mebibytes = json.loads(out.stdout)
    return seconds, mebibytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with in turn")
    parser.add_argument("--only", default="", help="the rows whose names contain this")
    parser.add_argument("--row", type=json.loads, help="one row in this process, as JSON")
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(measured(*asked.row)))
        return
    here = Path(__file__).parents[1]
    for name, row in rows().items():
        if asked.only not in name:
            continue
        seconds, mebibytes = of_checkout(here, row)
        line = f"{name:42} {1e3 * seconds:9.1f} ms {mebibytes:6.0f} MiB"
        if asked.against:
            before, _ = of_checkout(asked.against, row)
            line += f"   {1e3 * before:9.1f} ms before   ratio {seconds / before:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
