"""INT8 by rows, with cooperative groups."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

GAUSSIAN = Values("gaussian")


@dataclass(frozen=True)
class Rows:
    rows: int
    columns: int
    x: Values = GAUSSIAN

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 64)
        in_range("columns", self.columns, 1, 4096)


def run(launcher: Launcher, problem: Rows) -> Outputs:
    x = launcher.upload(problem.x.codes("f32", problem.rows, problem.columns).view(np.float32), name="x")
    q = launcher.output(problem.rows * problem.columns, np.int8, name="q")
    scales = launcher.output(problem.rows, np.float32, name="scales")
    launcher.launch("group_quantise", (problem.rows,), (128,), [x, q, scales, np.uint32(problem.columns)])
    return {"q": launcher.read(q).reshape(problem.rows, problem.columns), "scales": launcher.read(scales)}


def oracle(problem: Rows) -> Outputs:
    """NaN converts to 0; a row of zeros, or of values too small for their scale, is all 0."""
    x = problem.x.codes("f32", problem.rows, problem.columns).view(np.float32)
    with np.errstate(all="ignore"):
        scales = np.max(np.abs(x), axis=1) / np.float32(127)  # NumPy's max keeps NaN
        steps = np.rint(x / scales[:, None])
        steps = np.where(np.isnan(steps) | (scales[:, None] == 0), 0, np.clip(steps, -127, 127))
    return {"q": steps.astype(np.int8), "scales": scales}


KERNEL = Kernel(
    "group_quantise",
    summary="rows as INT8 under a scale of their own",
    file=Path(__file__).parent / "kernels/group_quantise.cu",
    entries=("group_quantise",),
    recipe=Rows,
    problem=st.builds(Rows, st.integers(1, 4), st.integers(1, 300), values("f32")),
    corpus=(
        Rows(3, 300),
        Rows(1, 1, Values("ones")),
        Rows(2, 200, Values("gaussian", 4, ((70, 0x7FC00000),))),
        Rows(2, 130, Values("specials")),
        Rows(2, 64, Values("subnormals")),
        Rows(2, 129),
    ),
    run=run,
    oracle=oracle,
    outputs={"q": "", "scales": "f32"},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
