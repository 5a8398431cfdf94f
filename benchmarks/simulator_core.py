"""Waiting, contention and issue of the simulated GPU: seconds of single launches, and ratios to another checkout.

    python benchmarks/simulator_core.py [--against CHECKOUT]

Each row is one launch, warm, checks on; least of 5 after one that is not counted, in CPU seconds of the process. With
`--against` the same rows run in turn with another checkout's package (a worktree of an older commit, say), three rounds of
each, and the last column is the ratio of the medians. sm_80.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SOURCE = r"""
extern "C" __global__ void handshake(unsigned* y, unsigned rounds) {
    __shared__ volatile unsigned flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    for (unsigned i = 0; i < rounds; ++i) {
        if (threadIdx.x == 0) {
            while (flag != 2 * i + 1) {}
            flag = 2 * i + 2;
        } else if (threadIdx.x == 32) {
            flag = 2 * i + 1;
            while (flag != 2 * i + 2) {}
        }
    }
    if (threadIdx.x == 0) *y = flag;
}
extern "C" __global__ void cas_add(unsigned* y) {
    unsigned old = *(volatile unsigned*)y, assumed;
    do {
        assumed = old;
        old = atomicCAS(y, assumed, assumed + 1);
    } while (assumed != old);
}
extern "C" __global__ void spin_lock(unsigned* y, unsigned* lock, unsigned turns) {
    if (threadIdx.x % 32) return;
    for (unsigned i = 0; i < turns; ++i) {
        while (atomicCAS(lock, 0u, 1u) != 0u) {}
        __threadfence();
        *y += 1;
        __threadfence();
        atomicExch(lock, 0u);
    }
}
extern "C" __global__ void last_block(unsigned* part, unsigned* count, unsigned* y) {
    __shared__ unsigned last;
    part[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(count, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last) {
        __threadfence();
        unsigned s = 0;
        for (unsigned i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x) s += part[i];
        y[threadIdx.x] = s;
    }
}
extern "C" __global__ void releases(unsigned* y, unsigned* n) {
    unsigned mine;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(mine) : "l"(n) : "memory");
    y[mine] = threadIdx.x;
}
extern "C" __global__ void flags(unsigned* y, volatile unsigned* flag) {
    unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    y[t] = t;
    __threadfence();
    flag[t] = 1;
    while (flag[t ^ 33] == 0) {}
    __threadfence();
    y[t + 4096] = y[t ^ 33];
}
extern "C" __global__ void grid_barrier(unsigned* y, unsigned* count) {
    unsigned t = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    y[t] = t;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(count, 1u);
        while (*(volatile unsigned*)count < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
    y[n + t] = y[n - 1 - t];
}
extern "C" __global__ void serial(const float* x, float* y, unsigned n) {
    float s = 0;
#pragma unroll 1
    for (unsigned i = 0; i < n; ++i) s += x[i];
    y[threadIdx.x] = s;
}
#include <cuda_fp16.h>
// D (64 x 64) = A B^T with K = 1024 by 4 warps, 16 rows each; fragments straight from memory, row by row.
extern "C" __global__ void products(const unsigned* a, const unsigned* b, float* d) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
    float acc[8][4] = {};
    for (unsigned k = 0; k < 1024; k += 16) {
        const unsigned* pa = a + (row * 1024 + k) / 2 + lane % 4;
        unsigned fa[4] = {pa[0], pa[8 * 512], pa[4], pa[8 * 512 + 4]};
#pragma unroll
        for (unsigned n = 0; n < 8; ++n) {
            const unsigned* pb = b + ((8 * n + lane / 4) * 1024 + k) / 2 + lane % 4;
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
                : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(pb[0]), "r"(pb[4]));
        }
    }
    for (unsigned n = 0; n < 8; ++n)
        for (unsigned i = 0; i < 4; ++i)
            d[(row + 8 * (i / 2)) * 64 + 8 * n + 2 * (lane % 4) + i % 2] = acc[n][i];
}
"""
ROUNDS, TRIPS, LEAST_OF = 20, 512, 5


def rows() -> dict[str, float]:
    """CPU seconds of each row: of one handshake, one trip of the loop, else of one launch."""
    from refsim import ptx
    from refsim.device.compile import compile_ptx

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "core.cu"
        file.write_text(SOURCE, "utf-8")
        program = ptx.load(compile_ptx(file, "sm_80").text)
    rng = np.random.default_rng(1)
    half = [rng.standard_normal((64, 1024)).astype(np.float16).view(np.uint32) for _ in range(2)]
    ones, d = np.ones(TRIPS, np.float32), np.zeros((64, 64), np.float32)

    def least(entry: str, grid: int, block: int, *args: object) -> float:
        times = []
        for _ in range(LEAST_OF + 1):
            fresh = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in args]
            begin = time.process_time()
            program.launch(entry, (grid,), (block,), fresh)
            times.append(time.process_time() - begin)
        last[:] = fresh
        return min(times[1:])

    last: list[object] = []
    word, wide = np.zeros(1, np.uint32), np.zeros(4096, np.uint32)
    found = {"handshake of two warps, each": least("handshake", 1, 64, word, np.uint32(ROUNDS)) / (2 * ROUNDS)}
    found["CAS-add on one word, 4,096 threads"] = least("cas_add", 4, 1024, word)
    assert last[0][0] == 4096
    found["spin lock, 32 warps x 4 turns"] = least("spin_lock", 1, 1024, word, word, np.uint32(4))
    assert last[0][0] == 128
    found["last of 1,024 blocks adds up"] = least("last_block", 1024, 128, np.zeros(1 << 17, np.uint32), word, wide)
    assert last[2].sum() == 1024 * 127 * 64
    found["4,096 threads release and acquire a word"] = least("releases", 4, 1024, wide, word)
    assert last[1][0] == 4096
    found["4,096 threads hand over by a flag each"] = least("flags", 4, 1024, np.zeros(8192, np.uint32), wide)
    assert (last[0][4096:] == np.arange(4096) ^ 33).all()
    found["grid barrier of 132 x 1,024 threads"] = least(
        "grid_barrier", 132, 1024, np.zeros(2 * 132 << 10, np.uint32), word
    )
    assert (last[0][132 << 10 :] == np.arange(132 << 10)[::-1]).all()
    found["serial loop of one warp, a trip"] = least("serial", 1, 32, ones, ones[:32], np.uint32(TRIPS)) / TRIPS
    assert (last[1] == TRIPS).all()
    found["4 warps, mma 64x64, K = 1024"] = least("products", 1, 128, *half, d)
    return found


def measured(checkout: Path) -> dict[str, float]:
    """The rows of another process with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    out = subprocess.run(
        [sys.executable, __file__, "--rows"], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(out.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with in turn")
    parser.add_argument("--rows", action="store_true", help="the rows of this process alone, as JSON")
    asked = parser.parse_args()
    if asked.rows:
        print(json.dumps(rows()))
        return
    here = Path(__file__).parents[1]
    mine, other = [], []
    for _ in range(3 if asked.against else 1):
        mine.append(measured(here))
        if asked.against:
            other.append(measured(asked.against))
    for name in mine[0]:
        seconds = statistics.median(each[name] for each in mine)
        line = f"{name:42} {1e3 * seconds:10.3f} ms"
        if other:
            before = statistics.median(each[name] for each in other)
            line += f"   {1e3 * before:10.3f} ms before   ratio {seconds / before:.2f}"
        print(line)
    print(f"largest memory of a process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
