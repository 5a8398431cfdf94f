"""Softmax in Triton, with a bound for each element."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode
from refsim.kernels import Bounded, Kernel, Launcher, Outputs, Promise
from refsim.testing.adapters import from_triton
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

BLOCK = 256
FUNCTION = load_kernel_file(Path(__file__).parent / "kernels/triton_softmax.py").softmax
CODE = from_triton(FUNCTION, {"x": "*fp32", "y": "*fp32", "n": "i32", "stride": "i32"}, {"BLOCK": BLOCK}, "sm_80")
FILLS = ("gaussian", "zeros", "ones", "narrow", "log-uniform", "subnormals")
U, TINY = 2.0**-24, 2.0**-126  # ex2.approx.ftz: subnormal results are zero
EXP2, QUOTIENT = 2.0**-22, 2.0**-22  # ex2.approx; div.full.f32: 2 ulp (PTX ISA)
GAUSSIAN = Values("gaussian")


@dataclass(frozen=True)
class Rows:
    rows: int
    columns: int
    pad: int = 3
    x: Values = GAUSSIAN

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 64)
        in_range("columns", self.columns, 1, BLOCK)
        in_range("pad", self.pad, 0, 64)

    def floats(self) -> np.ndarray:
        """Values of float16, which leaves room for every difference; the padding holds values too."""
        return decode(self.x.codes("f16", self.rows, self.columns + self.pad), "f16", np.float32)


def run(launcher: Launcher, problem: Rows) -> Outputs:
    x = launcher.upload(problem.floats(), name="x")
    y = launcher.output(problem.rows * problem.columns, np.float32, name="y")
    CODE.launch(launcher, problem.rows, x, y, problem.columns, problem.columns + problem.pad)
    return {"y": launcher.read(y).reshape(problem.rows, problem.columns)}


def oracle(problem: Rows) -> dict[str, Bounded]:
    """Each exponent is off by 3 u of itself (difference, constant, product); a sum of 256 has eight levels."""
    x = problem.floats()[:, : problem.columns].astype(np.float64)
    exponent = (x - x.max(axis=1, keepdims=True)) * np.log2(np.e)
    e = np.exp2(exponent)
    total = e.sum(axis=1, keepdims=True)
    off = np.where(e > 0, np.abs(exponent) * np.log(2) * 3 * U + EXP2, 0)
    relative = off + (e * off).sum(axis=1, keepdims=True) / total + 9 * U + QUOTIENT
    y = e / total
    return {"y": Bounded(y, 1.01 * y * relative + (BLOCK + 2) * TINY)}


KERNEL = Kernel(
    "triton_softmax",
    summary="softmax of rows in Triton, a program a row",
    ptx=CODE.ptx,
    entries=(CODE.entry,),
    recipe=Rows,
    problem=st.builds(
        Rows, st.integers(1, 4), st.integers(1, BLOCK), st.integers(0, 9), values("f16", fills=FILLS, max_patches=0)
    ),
    corpus=(
        Rows(3, 200),
        Rows(1, 1),
        Rows(2, 127, 1, Values("log-uniform")),
        Rows(2, BLOCK, 0, Values("zeros")),
        Rows(2, 129, 7, Values("narrow")),
    ),
    run=run,
    oracle=oracle,
    outputs={"y": "f32"},
    promise=Promise.BOUNDED(
        because="3 u of each exponent, 2^-22 of ex2.approx, one rounding for each level of the sum, 2 ulp of div.full"
    ),
)
KERNELS = (KERNEL,)
