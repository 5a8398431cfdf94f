"""A string of CUDA, as CuPy's RawKernel takes it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.adapters import from_cupy
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

SOURCE = load_kernel_file(Path(__file__).parent / "kernels/unpack_transpose.py").SOURCE
CODE = from_cupy(SOURCE, "unpack_transpose")
BITS = Values("bits")


@dataclass(frozen=True)
class Matrix:
    rows: int
    columns: int
    x: Values = BITS
    gain: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 512)
        in_range("columns", self.columns, 1, 512)


def run(launcher: Launcher, problem: Matrix) -> Outputs:
    rows, columns = problem.rows, problem.columns
    x = launcher.upload(problem.x.codes("e4m3", rows, columns), name="x")
    y = launcher.output(rows * columns, np.float32, name="y")
    args = [x, y, np.float32(problem.gain), np.float32(problem.offset), np.int32(rows), np.int32(columns)]
    CODE.launch(launcher, (-(-columns // 32), -(-rows // 32)), (32, 8), args)
    return {"y": launcher.read(y).reshape(columns, rows)}


def oracle(problem: Matrix) -> Outputs:
    x = decode(problem.x.codes("e4m3", problem.rows, problem.columns), "e4m3", np.float32)
    return {"y": (x * np.float32(problem.gain) + np.float32(problem.offset)).T}


KERNEL = Kernel(
    "unpack_transpose",
    summary="E4M3 decoded by hand, a gain and an offset, transposed",
    source=CODE.source,
    options=CODE.options,
    entries=("unpack_transpose",),
    recipe=Matrix,
    problem=st.builds(
        Matrix,
        st.integers(1, 70),
        st.integers(1, 70),
        values("e4m3"),
        st.sampled_from([1.0, 0.3, -1.7]),
        st.sampled_from([0.0, 0.1]),
    ),
    corpus=(
        Matrix(32, 32),
        Matrix(40, 40, Values("bits", 1), 0.3, 0.1),
        Matrix(33, 65, Values("bits", 2)),
        Matrix(70, 20, Values("specials")),
        Matrix(1, 1, Values("ones")),
    ),
    run=run,
    oracle=oracle,
    outputs={"y": "f32"},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
