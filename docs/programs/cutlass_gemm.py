"""Declare the GEMM of cutlass_gemm.cu; the folder `cutlass` is a checkout of NVIDIA/cutlass."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.numerics import mma
from refsim.testing import Kernel
from refsim.testing.adapters import HostLibrary

HOST = HostLibrary("libgemm.so")


@dataclass(frozen=True)
class Gemm:
    m: int = 64
    n: int = 64
    k: int = 64

    def matrices(self):
        rng = np.random.default_rng(1)
        return [rng.standard_normal((rows, self.k)).astype(np.float16) for rows in (self.m, self.n)]


def run(launcher, problem):
    a, b = (launcher.upload(x.ravel(), name=name) for name, x in zip("ab", problem.matrices(), strict=True))
    d = launcher.output(problem.m * problem.n, np.uint16, name="d")
    size, shared, threads = np.frombuffer(HOST.fill(launcher, "sizes", 12).raw, np.int32).tolist()
    params = HOST.fill(launcher, "make", size, a, b, d, *np.int32([problem.m, problem.n, problem.k]))
    tiles = -(-problem.m // 64) * -(-problem.n // 64)
    launcher.launch("cutlass::device_kernel", tiles, threads, [params], shared, cluster=1)
    return {"d": launcher.read(d).reshape(problem.m, problem.n)}


def oracle(problem):
    a, b = (x.view(np.uint16) for x in problem.matrices())
    return {"d": mma(a, b, unit="wgmma", a_format="f16", b_format="f16").astype(np.float16).view(np.uint16)}


size = st.sampled_from([16, 64, 80, 144])
KERNELS = (
    Kernel(
        "gemm",
        oracle,
        st.builds(Gemm, size, size, size),
        run,
        {"d": "f16"},
        Gemm,
        file=Path("cutlass_gemm.cu"),
        compiler="nvcc",
        include=(Path("cutlass/include"),),
        options=("-std=c++17", "--expt-relaxed-constexpr", "-DNDEBUG"),
        host=HOST,
    ),
)
