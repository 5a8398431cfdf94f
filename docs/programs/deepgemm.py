"""Declare an FP8 GEMM of DeepGEMM; the folders `DeepGEMM` and `cutlass` are checkouts of the two projects."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import encode, layouts, oracles
from refsim.testing import Kernel

SOURCE = """#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
using namespace deep_gemm;
auto gemm = &sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, 0, 0, 1, 64, 128, 128, 128, 128, 128, 8, 128, 128,
    1, false, 4, GemmType::Normal, cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>;
"""


@dataclass(frozen=True)
class Gemm:
    m: int
    n: int
    k: int
    seed: int

    def operands(self):  # codes and scales of A and B
        rng = np.random.default_rng(self.seed)
        blocks = -(-self.k // 128)
        a, b = (encode(rng.standard_normal((rows, self.k)), "e4m3") for rows in (self.m, self.n))
        return a, b, *(rng.random((rows, blocks), np.float32) + 0.5 for rows in (self.m, -(-self.n // 128)))


def run(launcher, problem):
    m, n, k = problem.m, problem.n, problem.k
    a, b, sa, sb = problem.operands()
    sa = np.pad(sa.T, ((0, 0), (0, -m % 4)))  # one row for each block of K, a multiple of 16 bytes
    a, b, sa, sb = (
        launcher.upload(np.ascontiguousarray(x), name=name) for name, x in zip("ABST", (a, b, sa, sb), strict=True)
    )
    d = launcher.output(m * n, np.uint16, name="D")
    maps = (
        layouts.tensor_map("uint8", (k, m), (128, 64), strides=(k,), address=a.address, swizzle="128B"),
        layouts.tensor_map("uint8", (k, n), (128, 128), strides=(k,), address=b.address, swizzle="128B"),
        layouts.tensor_map("bfloat16", (n, m), (64, 64), strides=(2 * n,), address=d.address, swizzle="128B"),
        layouts.tensor_map("float32", (m + -m % 4, -(-k // 128)), (64, 1), address=sa.address),
    )
    shape = [np.uint32(size) for size in (m, n, k)]
    launcher.launch("sm90_fp8_gemm_1d2d_impl", 4, 256, [sb, np.uint64(0), *shape, *maps], 227 * 1024)
    return {"D": launcher.read(d)}


def oracle(problem):
    return {"D": oracles.fp8_gemm_1d2d(*problem.operands()).reshape(-1)}


SIZES = st.builds(Gemm, st.integers(1, 150), st.sampled_from([8, 128, 200]), st.sampled_from([128, 304]), st.just(0))
KERNELS = (
    Kernel(
        "deep_gemm",
        oracle,
        SIZES,
        run,
        {"D": "bf16"},
        Gemm,
        source=SOURCE,
        compiler="nvcc",
        include=(Path("DeepGEMM/deep_gemm/include"), Path("cutlass/include")),
        options=("-std=c++20", "--expt-relaxed-constexpr"),
        without=("unfinished-store@copy_sm90_tma.hpp:995",),
    ),
)
