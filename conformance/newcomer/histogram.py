"""A histogram of bytes in 64 classes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import strategies as rst
from refsim.testing.recipes import in_range

BINS = 64


@dataclass(frozen=True)
class Bytes:
    n: int
    blocks: int = 2
    seed: int = 0
    spread: int = 256

    def __post_init__(self) -> None:
        in_range("n", self.n, 0, 1 << 16)
        in_range("blocks", self.blocks, 1, 16)
        in_range("spread", self.spread, 1, 256)

    def bytes(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, self.spread, self.n).astype(np.uint8)


def run(launcher: Launcher, problem: Bytes) -> Outputs:
    x = launcher.upload(problem.bytes(), name="x")
    counts = launcher.upload(np.zeros(BINS, np.uint32), name="counts", writable=True)
    launcher.launch("histogram", (problem.blocks,), (128,), [x, counts, np.uint32(problem.n)])
    return {"counts": launcher.read(counts)}


def oracle(problem: Bytes) -> Outputs:
    return {"counts": np.bincount(problem.bytes() // 4, minlength=BINS).astype(np.uint32)}


KERNEL = Kernel(
    "histogram",
    summary="how often each of 64 classes of bytes occurs",
    file=Path(__file__).parent / "kernels/histogram.cu",
    entries=("histogram",),
    recipe=Bytes,
    problem=st.builds(
        Bytes, rst.sizes(1500), st.integers(1, 4), st.integers(0, 1000), st.sampled_from([256, 1, 5, 64])
    ),
    corpus=(Bytes(1000), Bytes(0), Bytes(1), Bytes(1027, 3, 1), Bytes(515, 1, 2, 3)),
    run=run,
    oracle=oracle,
    outputs={"counts": ""},
)
KERNELS = (KERNEL,)
