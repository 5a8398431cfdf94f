"""cuBLASLt's FP8 GEMM, as PyTorch calls it, held to its oracle: somebody else's kernel, plugged in by the public API.

refsim verify --kernels conformance/cublaslt/kernels.py --device cuda
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, one_of

FILLS = ("gaussian", "narrow", "log-uniform", "subnormals", "one-hot rows", "distinct", "zeros", "ones")
FIRST, SECOND = Values("gaussian", 1), Values("gaussian", 2)


def multiply(problem, a, b, scale_a, scale_b, d):
    """The third-party kernel: one call of the library on device arrays, its answer left in `d`."""
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    a, b, scale_a, scale_b, d = map(torch.from_dlpack, (a, b, scale_a, scale_b, d))
    a, b = (x.view(torch.float8_e4m3fn).reshape(-1, problem.k) for x in (a, b))
    out = torch.bfloat16 if problem.out == "bf16" else torch.float32
    if problem.scaling == "tensor":
        fast = problem.accumulation == "fast"
        found = torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=out, use_fast_accum=fast)
    else:
        by_row, by_block = scale_a.reshape(-1, problem.m).t(), scale_b.reshape(-(-problem.n // 128), -1).t()
        kinds = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        found = scaled_mm(a, b.t(), by_row, kinds[0], by_block, kinds[1], output_dtype=out)
    d.copy_(found.reshape(-1).view(d.dtype))


@dataclass(frozen=True)
class Product:
    """D (M, N) of A (M, K) and B (N, K); of block scales those of A lie MN-major, those of B in rows of whole 16 bytes."""

    m: int
    n: int
    k: int
    scaling: str = "tensor"
    accumulation: str = "fast"
    out: str = "bf16"
    a: Values = FIRST
    b: Values = SECOND
    seed: int = 0

    def __post_init__(self) -> None:
        for name, step in (("m", 4 if self.scaling == "blockwise" else 1), ("n", 16), ("k", 16)):
            in_range(name, getattr(self, name), 1, 4096)
            in_range(f"{name} beyond steps of {step}", getattr(self, name) % step, 0, 0)
        one_of("scaling", self.scaling, ("tensor", "blockwise"))
        one_of("accumulation", self.accumulation, ("fast", "slow"))
        one_of("out", self.out, ("bf16", "f32"))

    def operands(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
        """Codes without NaN, and positive scales of several binades."""
        a, b = self.a.codes("e4m3", self.m, self.k), self.b.codes("e4m3", self.n, self.k)
        blocks, draw = -(-self.k // 128), np.random.default_rng(self.seed)
        shapes = ((1, 1), (1, 1)) if self.scaling == "tensor" else ((self.m, blocks), (-(-self.n // 128), blocks))
        by_row, by_column = (np.exp2(draw.uniform(-9, 3, shape)).astype(np.float32) for shape in shapes)
        return a, b, by_row, by_column


def run(launcher: Launcher, problem: Product) -> Outputs:
    a, b, by_row, by_block = problem.operands()
    if problem.scaling == "blockwise":
        by_row, by_block = by_row.T, np.pad(by_block, ((0, 0), (0, -by_block.shape[1] % 4)))
    given = {"a": a, "b": b, "scale_a": by_row, "scale_b": by_block}
    buffers = [launcher.upload(np.ascontiguousarray(array).reshape(-1), name=name) for name, array in given.items()]
    d = launcher.output(problem.m * problem.n, np.int16 if problem.out == "bf16" else np.int32, name="d")
    launcher.call(problem, *buffers, d)
    return {
        "d": launcher.read(d).view(np.uint16 if problem.out == "bf16" else np.float32).reshape(problem.m, problem.n)
    }


def oracle(problem: Product) -> Outputs:
    how = {"scaling": problem.scaling, "accumulation": problem.accumulation, "out": problem.out}
    return {"d": oracles.cublaslt_fp8(*problem.operands(), **how)}


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Extents on and beside the tiles of the library's kernels; blockwise K from 144 on, where it is proven."""
    scaling, accumulation = draw(st.sampled_from(["tensor fast", "tensor slow", "blockwise fast"])).split()
    step, least = (4, 9) if scaling == "blockwise" else (1, 1)
    m, n = step * draw(st.integers(1, 300 // step)), 16 * draw(st.integers(1, 24))
    k = 16 * draw(st.integers(least, 80))
    matrices = draw(values("e4m3", fills=FILLS, max_patches=0)), draw(values("e4m3", fills=FILLS, max_patches=0))
    out = draw(st.sampled_from(["bf16", "f32"]))
    return Product(m, n, k, scaling, accumulation, out, *matrices, draw(st.integers(0, 2**16)))


KERNELS = (
    Kernel(
        "cublaslt_fp8",
        summary="the FP8 GEMM of cuBLASLt through PyTorch: tensor-wise fast and slow, blockwise",
        oracle=oracle,
        problem=products(),
        run=run,
        outputs=lambda problem: {"d": problem.out},
        recipe=Product,
        corpus=tuple(
            Product(m, n, k, *how, out)
            for m, n, k in ((4, 16, 144), (64, 384, 1024), (128, 128, 4096), (300, 272, 528))
            for how in (("tensor", "fast"), ("tensor", "slow"), ("blockwise", "fast"))
            for out in ("bf16", "f32")
        ),
        call=multiply,
    ),
)
