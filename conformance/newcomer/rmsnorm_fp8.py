"""RMSNorm with an E4M3 result."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode, encode
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.numerics import ieee
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

LANES, WARPS = 32, 4
GAUSSIAN = Values("gaussian")
FIRST = Values("gaussian", 1)


@dataclass(frozen=True)
class Norm:
    rows: int
    columns: int
    x: Values = GAUSSIAN
    weight: Values = FIRST
    eps: float = 1e-5
    scale: float = 16.0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 64)
        in_range("columns", self.columns, 1, 4096)

    def floats(self) -> tuple[np.ndarray, np.ndarray]:
        x = self.x.codes("bf16", self.rows, self.columns)
        weight = self.weight.codes("bf16", 1, self.columns)[0]
        return decode(x, "bf16", np.float32), decode(weight, "bf16", np.float32)


def run(launcher: Launcher, problem: Norm) -> Outputs:
    rows, columns = problem.rows, problem.columns
    x = launcher.upload(problem.x.codes("bf16", rows, columns), name="x")
    weight = launcher.upload(problem.weight.codes("bf16", 1, columns), name="weight")
    q = launcher.output(rows * columns, np.uint8, name="q")
    rstd = launcher.output(rows, np.float32, name="rstd")
    args = [x, weight, q, rstd, np.uint32(rows), np.uint32(columns), np.float32(problem.eps), np.float32(problem.scale)]
    launcher.launch("rmsnorm_fp8", (-(-rows // WARPS),), (LANES * WARPS,), args)
    return {"q": launcher.read(q).reshape(rows, columns), "rstd": launcher.read(rstd)}


def oracle(problem: Norm) -> Outputs:
    """Squares along each lane's columns by FMA, 32 lanes by halves, then one rounding an operation."""
    x, weight = problem.floats()
    padded = np.zeros((problem.rows, -(-problem.columns // LANES) * LANES), np.float32)
    padded[:, : problem.columns] = x
    sums = np.zeros((problem.rows, LANES), np.float32)
    for first in range(0, padded.shape[1], LANES):
        lanes = padded[:, first : first + LANES]
        in_use = np.arange(first, first + LANES) < problem.columns
        sums = np.where(in_use, ieee.fma(lanes, lanes, sums), sums)
    with np.errstate(all="ignore"):
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        mean = sums[:, 0] / np.float32(problem.columns)
        rstd = np.float32(1) / np.sqrt(mean + np.float32(problem.eps))
        y = (x * rstd[:, None]) * weight * np.float32(problem.scale)
    return {"q": encode(y, "e4m3"), "rstd": rstd}


KERNEL = Kernel(
    "rmsnorm_fp8",
    summary="x / rms(x) * weight * scale as E4M3, and 1 / rms of each row",
    file=Path(__file__).parent / "kernels/rmsnorm_fp8.cu",
    entries=("rmsnorm_fp8",),
    recipe=Norm,
    problem=st.builds(
        Norm,
        st.integers(1, 6),
        st.sampled_from([1, 8, 31, 33, 64, 200]),
        values("bf16"),
        values("bf16"),
        st.sampled_from([1e-5, 1e-6, 0.0]),
        st.sampled_from([1.0, 16.0, 300.0]),
    ),
    corpus=(
        Norm(5, 515),
        Norm(1, 1),
        Norm(9, 64, Values("specials"), Values("ones")),
        Norm(4, 256, scale=400.0),
        Norm(3, 40, Values("subnormals"), eps=1e-6),
        Norm(16, 512, Values("gaussian", 3), Values("ones")),
    ),
    run=run,
    oracle=oracle,
    outputs={"q": "e4m3", "rstd": "f32"},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
