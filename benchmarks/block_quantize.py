"""Seconds to quantise 8192 x 8192 bf16 into blocks, wall and of all threads: `python benchmarks/block_quantize.py`."""

import time

import ml_dtypes
import numpy as np

import refsim

SIDE, REPEATS = 8192, 5


def main() -> None:
    drawn = np.random.default_rng(0).standard_normal((SIDE // 8, SIDE)).astype(np.float32).astype(ml_dtypes.bfloat16)
    x = np.tile(drawn, (8, 1))
    for format in ("mxfp8", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"):
        taken = []
        for _ in range(REPEATS):
            wall, processor = time.perf_counter(), time.process_time()
            refsim.quantize(x, format)
            taken.append((time.perf_counter() - wall, time.process_time() - processor))
        walls, processors = zip(*taken, strict=True)
        print(f"{format:12} {min(walls):6.2f} s   {min(processors):6.2f} s of processors   (least of {REPEATS})")


if __name__ == "__main__":
    main()
