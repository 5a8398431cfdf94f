"""Declare the product of thunderkittens_matmul.cu; `ThunderKittens` is a checkout of HazyResearch/ThunderKittens."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.conversions import encode
from refsim.numerics import mma
from refsim.testing import Kernel
from refsim.testing.adapters import HostLibrary

HOST = HostLibrary("libmatmul.so")


@dataclass(frozen=True)
class Matrices:
    n: int = 64

    def matrices(self):
        return encode(np.random.default_rng(1).standard_normal((2, self.n, self.n)), "bf16")


def run(launcher, problem):
    n, (a, b) = problem.n, problem.matrices()
    a, b = launcher.upload(a.ravel(), name="a"), launcher.upload(b.ravel(), name="b")
    c = launcher.output(n * n, np.uint16, name="c")
    size, threads = np.frombuffer(HOST.fill(launcher, "sizes", 8).raw, np.int32).tolist()
    params = HOST.fill(launcher, "make", size, a, b, c, np.int32(n))
    launcher.launch("kernel", (n // 64, n // 64), threads, [params], 100_000)
    return {"c": launcher.read(c).reshape(n, n)}


def oracle(problem):
    a, b = problem.matrices()
    c = np.zeros((problem.n, problem.n), np.float32)
    for k in range(0, problem.n, 64):  # the kernel adds one product for each tile of K
        c += mma(a[:, k : k + 64], b[k : k + 64].T, unit="wgmma", a_format="bf16", b_format="bf16")
    return {"c": encode(c, "bf16")}


KERNELS = (
    Kernel(
        "matmul",
        oracle,
        st.builds(Matrices, st.sampled_from([64, 128, 192])),
        run,
        {"c": "bf16"},
        Matrices,
        file=Path("thunderkittens_matmul.cu"),
        compiler="nvcc",
        include=(Path("ThunderKittens/include"),),
        host=HOST,
        options=(
            "-std=c++20",
            "--expt-relaxed-constexpr",
            "--expt-extended-lambda",
            "--use_fast_math",
            "-DKITTENS_HOPPER",
        ),
    ),
)
