"""Speed of the simulated GPU on the FP8 quantiser: seconds of a warm launch, and the ratio to the NumPy oracle.

    python benchmarks/simulator.py

n = 1,000,003 elements of N(0, 1), sm_90a, one process, median of 9 after two warm-up runs. The outputs are compared with
the oracle before anything is timed.
"""

import statistics
import time
from pathlib import Path

import numpy as np

from refsim import encode, ptx
from refsim.device.compile import compile_ptx
from refsim.oracles import fp8_quantize

N, THREADS, BLOCKS, REPEATS = 1_000_003, 256, 489, 9
SOURCE = Path(__file__).parents[1] / "gpu/kernels/fp8_quantize.cu"


def launches(program: ptx.Program, codes: np.ndarray, kind: str) -> tuple[float, float, np.ndarray]:
    """Seconds of the amax and of the cast launch, and the codes that were written."""
    memory = ptx.GlobalMemory()
    x = memory.allocate(codes.nbytes, "x", initial=codes, writable=False)
    amax = memory.allocate(4, "amax", initial=bytes(4))
    q, scale = memory.allocate(N, "q"), memory.allocate(4, "scale")
    n = np.uint64(N)
    begin = time.perf_counter()
    program.launch(f"fp8_amax_{kind}", (BLOCKS,), (THREADS,), [np.uint64(x), n, np.uint64(amax)], memory=memory)
    middle = time.perf_counter()
    args = [np.uint64(x), n, np.uint64(amax), np.uint64(q), np.uint64(scale), np.float32(1e-12)]
    program.launch(f"fp8_quantize_{kind}_e4m3", (BLOCKS,), (THREADS,), args, memory=memory)
    return middle - begin, time.perf_counter() - middle, memory.read(q, N)


def main() -> None:
    program = ptx.load(compile_ptx(SOURCE, "sm_90a").text)
    values = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    print(f"n = {N:,}, grid {BLOCKS} x {THREADS}, median of {REPEATS}")
    print("input  amax [s]  cast [s]  amax + cast [s]  oracle [s]  simulator / oracle")
    for kind in ("bf16", "f16", "f32"):
        codes = encode(values, kind, overflow="inf")
        begin = time.perf_counter()
        want, _ = fp8_quantize.quantize(codes, kind)
        oracle = time.perf_counter() - begin
        runs = [launches(program, codes, kind) for _ in range(REPEATS + 2)]
        assert all(np.array_equal(q, want) for _, _, q in runs), "the simulator disagrees with the oracle"
        amax, cast = (statistics.median(run[stage] for run in runs[2:]) for stage in (0, 1))
        print(
            f"{kind:5}  {amax:8.3f}  {cast:8.3f}  {amax + cast:15.3f}  {oracle:10.3f}  {(amax + cast) / oracle:18.1f}"
        )


if __name__ == "__main__":
    main()
