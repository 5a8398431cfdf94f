"""SiLU, then E4M3 in groups of 32 under UE8M0 scales."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode, encode
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.numerics import ieee
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range

GROUP, WARPS = 32, 4
F = np.float32
GAUSSIAN = Values("gaussian")


@dataclass(frozen=True)
class Groups:
    groups: int
    x: Values = GAUSSIAN

    def __post_init__(self) -> None:
        in_range("groups", self.groups, 1, 4096)


def run(launcher: Launcher, problem: Groups) -> Outputs:
    x = launcher.upload(problem.x.codes("bf16", problem.groups, GROUP), name="x")
    q = launcher.output(problem.groups * GROUP, np.uint8, name="q")
    scales = launcher.output(problem.groups, np.uint8, name="scales")
    args = [x, q, scales, np.uint32(problem.groups)]
    launcher.launch("silu_ue8m0", (-(-problem.groups // WARPS),), (32 * WARPS,), args)
    return {"q": launcher.read(q).reshape(problem.groups, GROUP), "scales": launcher.read(scales)}


def exponential(x: np.ndarray) -> np.ndarray:
    """x = k ln 2 + r by two FMAs (ln 2 = 0.693359375 - 2.12194442e-4), then Horner's rule by FMA, then 2^k."""
    k = np.rint(x * F(1.44269502))
    r = ieee.fma(k, F(2.12194442e-4), ieee.fma(k, F(-0.693359375), x))
    p = F(1.38888892e-3)
    for coefficient in (8.33333377e-3, 4.16666679e-2, 0.166666672, 0.5, 1, 1):
        p = ieee.fma(p, r, F(coefficient))
    return p * np.exp2(k)


def oracle(problem: Groups) -> Outputs:
    x = decode(problem.x.codes("bf16", problem.groups, GROUP), "bf16", F)
    with np.errstate(all="ignore"):
        e = exponential(np.where(np.isnan(x), F(0), np.clip(-x, F(-87), F(87))))
        y = x / (F(1) + e)
        amax = np.max(np.where(np.isnan(y), F(0), np.abs(y)), axis=1)
        scales = encode(amax / F(448), "e8m0", rounding="up")
        q = encode(y / decode(scales, "e8m0", F)[:, None], "e4m3")
    return {"q": q, "scales": scales}


KERNEL = Kernel(
    "silu_ue8m0",
    summary="SiLU as E4M3 under the least UE8M0 scale that holds each group of 32",
    file=Path(__file__).parent / "kernels/silu_ue8m0.cu",
    entries=("silu_ue8m0",),
    recipe=Groups,
    problem=st.builds(Groups, st.integers(1, 12), values("bf16")),
    corpus=(
        Groups(13),
        Groups(1, Values("ones")),
        Groups(16, Values("specials")),
        Groups(8, Values("log-uniform")),
        Groups(8, Values("subnormals")),
        Groups(8, Values("bits")),
        Groups(128, Values("gaussian", 1)),
    ),
    run=run,
    oracle=oracle,
    outputs={"q": "e4m3", "scales": "e8m0"},
)
KERNELS = (KERNEL,)
