"""INT8 to f32, bf16 or f16 with a zero point, scale and shift for each row."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import encode
from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, one_of

TO = ("f32", "bf16", "f16")
FIRST = Values("gaussian", 1)
SECOND = Values("gaussian", 2)


@dataclass(frozen=True)
class Dequantise:
    rows: int
    columns: int
    to: str = "f32"
    pad: int = 5
    seed: int = 0
    scale: Values = FIRST
    shift: Values = SECOND

    def __post_init__(self) -> None:
        one_of("output format", self.to, TO)
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            in_range(name, value, 1, 512)
        in_range("pad", self.pad, 0, 64)

    def operands(self) -> tuple[np.ndarray, ...]:
        generator = np.random.default_rng(self.seed)
        q = generator.integers(-128, 128, (self.rows, self.columns + self.pad), dtype=np.int8)
        zero = generator.integers(-128, 128, self.rows, dtype=np.int8)
        rows = (each.codes("f32", 1, self.rows)[0].view(np.float32) for each in (self.scale, self.shift))
        return (q, zero, *rows)


def run(launcher: Launcher, problem: Dequantise) -> Outputs:
    names = ("q", "zero", "scale", "shift")
    uploaded = [launcher.upload(array, name=name) for array, name in zip(problem.operands(), names, strict=True)]
    count = problem.rows * problem.columns
    y = launcher.output(count, format_named(problem.to).code_dtype, name="y")
    extents = [np.uint32(each) for each in (problem.rows, problem.columns, problem.columns + problem.pad)]
    grid = (-(-problem.columns // 32), -(-problem.rows // 8))
    launcher.launch(f"int8_dequant_{problem.to}", grid, (32, 8), [*uploaded, y, *extents])
    return {"y": launcher.read(y).reshape(problem.rows, problem.columns)}


def oracle(problem: Dequantise) -> Outputs:
    q, zero, scale, shift = problem.operands()
    steps = q[:, : problem.columns].astype(np.int32) - zero[:, None]
    with np.errstate(all="ignore"):
        y = steps.astype(np.float32) * scale[:, None] + shift[:, None]  # NumPy rounds product and sum each
    return {"y": encode(y, problem.to, overflow="inf")}


KERNEL = Kernel(
    "int8_dequant",
    summary="(q - zero) * scale + shift by rows, each operation rounded",
    file=Path(__file__).parent / "kernels/int8_dequant.cu",
    entries=tuple(f"int8_dequant_{to}" for to in TO),
    recipe=Dequantise,
    problem=st.builds(
        Dequantise,
        st.integers(1, 20),
        st.integers(1, 70),
        st.sampled_from(TO),
        st.integers(0, 16),
        st.integers(0, 1000),
        values("f32"),
        values("f32"),
    ),
    corpus=(
        *(Dequantise(11, 45, to, seed=place) for place, to in enumerate(TO)),
        *(Dequantise(9, 33, to, 3, 7, Values("specials"), Values("gaussian")) for to in TO),
        Dequantise(16, 64, "f16", 1, 3, Values("log-uniform"), Values("zeros")),
        Dequantise(1, 1, "bf16", 0),
    ),
    run=run,
    oracle=oracle,
    outputs=lambda problem: {"y": problem.to},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
