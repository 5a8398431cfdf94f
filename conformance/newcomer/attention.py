"""Attention over one head in f16, with a bound for each element."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode
from refsim.kernels import Bounded, Kernel, Launcher, Outputs, Promise
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

DEPTH, TILE = 32, 16
FILLS = ("gaussian", "narrow", "ones", "zeros", "one-hot rows")
U, EXP2 = 2.0**-24, 2.0**-22
P_ROUNDING, P_TINY = 2.0**-11, 2.0**-25  # float32 to float16
MMA = 17 * 2.0**-24 + 2 * U  # 16 products and C, each cut below 2^-24 of the largest, and the result cut
FIRST = Values("gaussian", 1)
SECOND = Values("gaussian", 2)
THIRD = Values("gaussian", 3)


@dataclass(frozen=True)
class Head:
    length: int
    causal: bool = True
    q: Values = FIRST
    k: Values = SECOND
    v: Values = THIRD

    def __post_init__(self) -> None:
        in_range("length", self.length, 1, 1024)

    def codes(self) -> list[np.ndarray]:
        return [each.codes("f16", self.length, DEPTH) for each in (self.q, self.k, self.v)]


def run(launcher: Launcher, problem: Head) -> Outputs:
    operands = [launcher.upload(codes, name=name) for codes, name in zip(problem.codes(), "qkv", strict=True)]
    o = launcher.output(problem.length * DEPTH, np.float32, name="o")
    args = [*operands, o, np.uint32(problem.length), np.uint32(problem.causal)]
    launcher.launch("attention", (-(-problem.length // TILE),), (32,), args)
    return {"o": launcher.read(o).reshape(problem.length, DEPTH)}


def oracle(problem: Head) -> dict[str, Bounded]:
    """The exact result in float64; the bound follows a weight from its score to the quotient.

    A score is two products of 16 and C, then a product with the scale (3 u with its constant); a difference of scores and
    its exponential shift the weight by ln 2 times that. Each tile rescales what came before: an exponential, a product.
    """
    q, k, v = (decode(codes, "f16") for codes in problem.codes())
    scale = np.log2(np.e) / np.sqrt(DEPTH)
    seen = np.tri(problem.length, dtype=bool) if problem.causal else np.ones((problem.length,) * 2, bool)
    score = np.where(seen, q @ k.T * scale, -np.inf)
    weight = np.exp2(score - score.max(axis=1, keepdims=True))
    below = weight.sum(axis=1, keepdims=True)

    size = np.abs(q) @ np.abs(k).T * scale
    tiles = -(-problem.length // TILE)
    shift = np.log(2) * (size * (2 * MMA + 3 * U) + 2 * size.max(axis=1, keepdims=True) * U) + EXP2
    rescaled = tiles * (EXP2 + 3 * U + np.log(2) * 2 * size.max(axis=1, keepdims=True) * (2 * MMA + 4 * U))
    off = shift + rescaled + (tiles + 6) * U
    mean_off = (weight * off).sum(axis=1, keepdims=True) / below
    above = (weight * (off + mean_off + P_ROUNDING + (tiles + 1) * MMA + U)) @ np.abs(v)
    bound = (above + P_TINY * seen @ np.abs(v)) / below
    return {"o": Bounded(weight @ v / below, 1.02 * bound + 2.0**-149)}


KERNEL = Kernel(
    "attention",
    summary="softmax(q k^T / sqrt(32)) v in tiles of 16 keys that cp.async brings",
    file=Path(__file__).parent / "kernels/attention.cu",
    entries=("attention",),
    recipe=Head,
    problem=st.builds(
        Head, st.integers(1, 70), st.booleans(), *(values("f16", fills=FILLS, max_patches=0) for _ in range(3))
    ),
    corpus=(
        Head(48),
        Head(37, causal=False),
        Head(1),
        Head(20, True, Values("narrow"), Values("narrow", 1), Values("one-hot rows")),
    ),
    run=run,
    oracle=oracle,
    outputs={"o": "f32"},
    promise=Promise.BOUNDED(
        because="weights rounded to float16 (2^-11), tensor-core sums cut at 2^-24 of their largest term, exp2f to 2 ulp; "
        "each carried to the quotient"
    ),
)
KERNELS = (KERNEL,)
