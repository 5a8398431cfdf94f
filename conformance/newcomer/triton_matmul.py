"""A matrix product in Triton, for sm_80 and sm_89."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import numerics
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.adapters import TritonKernel, from_triton
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

FUNCTION = load_kernel_file(Path(__file__).parent / "kernels/triton_matmul.py").matmul
TILE = {"BM": 32, "BN": 32, "BK": 32}
FILLS = ("gaussian", "narrow", "one-hot rows", "distinct")
FIRST = Values("gaussian", 1)
SECOND = Values("gaussian", 2)


@dataclass(frozen=True)
class Product:
    m: int
    n: int
    k: int
    pad: int = 0
    a: Values = FIRST
    b: Values = SECOND

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            in_range(name, getattr(self, name), 1, 1024)
        in_range("pad", self.pad, 0, 64)

    def codes(self) -> tuple[np.ndarray, np.ndarray]:
        """Both with `pad` more columns than the product uses."""
        return self.a.codes("bf16", self.m, self.k + self.pad), self.b.codes("bf16", self.k, self.n + self.pad)


def run(code: TritonKernel, launcher: Launcher, problem: Product) -> Outputs:
    a, b = (launcher.upload(codes, name=name) for codes, name in zip(problem.codes(), "ab", strict=True))
    c = launcher.output(problem.m * problem.n, np.float32, name="c")
    extents = (problem.m, problem.n, problem.k, problem.k + problem.pad, problem.n + problem.pad, problem.n)
    grid = (-(-problem.m // TILE["BM"]), -(-problem.n // TILE["BN"]))
    code.launch(launcher, grid, a, b, c, *extents)
    return {"c": launcher.read(c).reshape(problem.m, problem.n)}


def oracle(problem: Product, target: str) -> Outputs:
    """The tensor core's chain over K, 16 at a time in ascending order; what is missing of a tile is zero."""
    a, b = problem.codes()
    more = -problem.k % TILE["BK"]
    a, b = np.pad(a[:, : problem.k], ((0, 0), (0, more))), np.pad(b[:, : problem.n], ((0, more), (0, 0)))
    zeros = np.zeros((problem.m, problem.n), np.float32)
    return {"c": numerics.mma(a, b.T, zeros, unit="mma.sync", a_format="bf16", b_format="bf16", k=16, target=target)}


def declared(capability: int) -> Kernel:
    types = {"a": "*bf16", "b": "*bf16", "c": "*fp32"} | dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32")
    code = from_triton(FUNCTION, types, TILE, f"sm_{capability}")
    return Kernel(
        f"triton_matmul_sm_{capability}",
        summary=f"a product of bf16 matrices in Triton, for sm_{capability}",
        ptx=code.ptx,
        entries=(code.entry,),
        recipe=Product,
        problem=st.builds(
            Product,
            st.integers(1, 40),
            st.integers(1, 40),
            st.integers(1, 80),
            st.integers(0, 9),
            values("bf16", fills=FILLS),
            values("bf16", fills=FILLS),
        ),
        corpus=(Product(40, 40, 72), Product(33, 20, 70, 5), Product(32, 32, 64), Product(1, 1, 1)),
        run=partial(run, code),
        oracle=oracle,
        outputs={"c": "f32"},
        per_target=True,
        promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
    )


KERNELS = (declared(80), declared(89))
