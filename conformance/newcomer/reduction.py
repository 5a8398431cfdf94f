"""A sum in a stated order, by two launches of one entry."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing import strategies as rst
from refsim.testing.recipes import Tensor, in_range

THREADS = 128


@dataclass(frozen=True)
class Sum:
    x: Tensor
    chunk: int = 512

    def __post_init__(self) -> None:
        in_range("chunk", self.chunk, 1, 1 << 20)


def run(launcher: Launcher, problem: Sum) -> Outputs:
    n, chunk = problem.x.n, problem.chunk
    blocks = max(1, -(-n // chunk))
    x = launcher.upload(problem.x.codes(), name="x")
    sums = launcher.output(blocks, np.float32, name="sums")
    total = launcher.output(1, np.float32, name="total")
    launcher.launch("reduction", (blocks,), (THREADS,), [x, sums, np.uint32(n), np.uint32(chunk)])
    launcher.launch("reduction", (1,), (THREADS,), [sums, total, np.uint32(blocks), np.uint32(blocks)])
    return {"sums": launcher.read(sums), "total": launcher.read(total)}


def block_sum(x: np.ndarray) -> np.float32:
    padded = np.zeros(-(-max(x.size, 1) // THREADS) * THREADS, np.float32)
    padded[: x.size] = x
    partial = np.zeros(THREADS, np.float32)
    for row in padded.reshape(-1, THREADS):
        partial = partial + row
    while partial.size > 1:
        partial = partial[: partial.size // 2] + partial[partial.size // 2 :]
    return np.float32(partial[0])


def oracle(problem: Sum) -> Outputs:
    x = problem.x.codes().view(np.float32)
    with np.errstate(all="ignore"):
        starts = range(0, max(x.size, 1), problem.chunk)
        sums = np.array([block_sum(x[start : start + problem.chunk]) for start in starts], np.float32)
        return {"sums": sums, "total": np.array([block_sum(sums)])}


KERNEL = Kernel(
    "reduction",
    summary="the sum of float32 in an order of its own",
    file=Path(__file__).parent / "kernels/reduction.cu",
    entries=("reduction",),
    recipe=Sum,
    problem=st.builds(Sum, rst.tensors("f32", max_misalign=0), st.sampled_from([512, 128, 100, 2000])),
    corpus=(
        Sum(Tensor(1999, "f32", "gaussian")),
        Sum(Tensor(0, "f32")),
        Sum(Tensor(1, "f32", "ones")),
        Sum(Tensor(700, "f32", "specials"), 300),
        Sum(Tensor(600, "f32", "log-uniform"), 200),
    ),
    run=run,
    oracle=oracle,
    outputs={"sums": "f32", "total": "f32"},
    promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD,
)
KERNELS = (KERNEL,)
