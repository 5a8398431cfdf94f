"""Sums of rows in numba, in a stated order."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.adapters import from_numba
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

THREADS = 64
FUNCTION = load_kernel_file(Path(__file__).parent / "kernels/numba_reduction.py").row_sums
CODE = from_numba(FUNCTION, "void(float32[:, ::1], float32[::1], int32)", "sm_80")
GAUSSIAN = Values("gaussian")


@dataclass(frozen=True)
class Rows:
    rows: int
    columns: int
    x: Values = GAUSSIAN

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 64)
        in_range("columns", self.columns, 1, 4096)

    def floats(self) -> np.ndarray:
        return self.x.codes("f32", self.rows, self.columns).view(np.float32)


def run(launcher: Launcher, problem: Rows) -> Outputs:
    x = launcher.upload(problem.floats(), name="x")
    y = launcher.output(problem.rows, np.float32, name="y")
    CODE.launch(launcher, problem.rows, THREADS, (x, (problem.rows, problem.columns)), y, problem.columns)
    return {"y": launcher.read(y)}


def oracle(problem: Rows) -> Outputs:
    x = problem.floats()
    padded = np.zeros((problem.rows, -(-problem.columns // THREADS) * THREADS), np.float32)
    padded[:, : problem.columns] = x
    partial = np.zeros((problem.rows, THREADS), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, padded.shape[1], THREADS):
            partial = partial + padded[:, first : first + THREADS]
        while partial.shape[1] > 1:
            half = partial.shape[1] // 2
            partial = partial[:, :half] + partial[:, half:]
    return {"y": partial[:, 0]}


KERNEL = Kernel(
    "numba_reduction",
    summary="sums of rows in numba, in an order of their own",
    ptx=CODE.ptx,
    entries=(CODE.entry,),
    recipe=Rows,
    problem=st.builds(Rows, st.integers(1, 4), st.integers(1, 300), values("f32")),
    corpus=(
        Rows(3, 200),
        Rows(1, 1, Values("ones")),
        Rows(2, 129, Values("specials")),
        Rows(2, 64, Values("log-uniform")),
    ),
    run=run,
    oracle=oracle,
    outputs={"y": "f32"},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
