"""The kernels of this directory, declared: what each is given, how it is launched, what it must write.

This is the file that `[tool.refsim] kernels` names. Your own looks the same: a recipe (a frozen dataclass that prints,
shrinks and travels as JSON), a strategy that draws it, a function that runs it on any device, and an oracle.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.oracles import fp8_quantize
from refsim.testing import strategies as rst
from refsim.testing.recipes import COVERING, MAX_MISALIGN, Launch, Tensor, corpus_tensors, in_range, one_of

SOURCE = Path(__file__).parent / "kernels/fp8_quantize.cu"
WIDE, NARROW = ("bf16", "f16", "f32"), ("e4m3", "e5m2")
ONE, LARGEST, INFINITY, NAN = 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000  # float32 patterns


# ---------------------------------------------------------------------------------------------------------------------
# fp8_amax: the largest magnitude of a tensor


@dataclass(frozen=True)
class Amax:
    x: Tensor
    launch: Launch = COVERING

    def __post_init__(self) -> None:
        one_of("input format", self.x.format, WIDE)


def run_amax(launcher: Launcher, problem: Amax) -> Outputs:
    x = launcher.upload(problem.x.codes(), name="x", misalign_bytes=problem.x.misalign_bytes)
    amax_bits = launcher.upload(np.zeros(1, np.uint32), name="amax_bits", writable=True)
    problem.launch.run(launcher, f"fp8_amax_{problem.x.format}", problem.x.n, x, np.uint64(problem.x.n), amax_bits)
    return {"amax_bits": launcher.read(amax_bits)}


def amax_problems(wide: tuple[str, ...] = WIDE) -> st.SearchStrategy[Amax]:
    return st.builds(Amax, rst.tensors(wide), rst.launches())


FP8_AMAX = Kernel(
    "fp8_amax",
    summary="the largest magnitude of a tensor as a float32 pattern, NaN ignored",
    file=SOURCE,
    entries=tuple(f"fp8_amax_{wide}" for wide in WIDE),
    recipe=Amax,
    problem=amax_problems(),
    corpus=tuple(Amax(x) for wide in WIDE for x in corpus_tensors(wide)),
    run=run_amax,
    oracle=lambda problem: {"amax_bits": np.array([fp8_quantize.amax(problem.x.codes(), problem.x.format)])},
    outputs={"amax_bits": "f32"},
    orderless="it takes the largest magnitude, which is the same in every order: nothing is added",
)


# ---------------------------------------------------------------------------------------------------------------------
# fp8_quantize: scale and cast; without a given amax the one that fp8_amax finds


@dataclass(frozen=True)
class Quantize:
    x: Tensor
    to: str = "e4m3"
    amax_bits: int | None = None
    eps: float = fp8_quantize.EPS
    misalign_q: int = 0
    launch: Launch = COVERING

    def __post_init__(self) -> None:
        one_of("input format", self.x.format, WIDE)
        one_of("FP8 format", self.to, NARROW)
        in_range("amax_bits", self.amax_bits or 0, 0, 0xFFFFFFFF)
        in_range("misalign_q", self.misalign_q, 0, MAX_MISALIGN)


def run_quantize(launcher: Launcher, problem: Quantize) -> Outputs:
    wide, n = problem.x.format, problem.x.n
    given = np.array([problem.amax_bits or 0], np.uint32)
    x = launcher.upload(problem.x.codes(), name="x", misalign_bytes=problem.x.misalign_bytes)
    amax_bits = launcher.upload(given, name="amax_bits", writable=problem.amax_bits is None)
    q = launcher.output(n, np.uint8, name="q", misalign_bytes=problem.misalign_q)
    scale = launcher.output(1, np.float32, name="scale")
    if problem.amax_bits is None:
        problem.launch.run(launcher, f"fp8_amax_{wide}", n, x, np.uint64(n), amax_bits)
    args = (x, np.uint64(n), amax_bits, q, scale, np.float32(problem.eps))
    problem.launch.run(launcher, f"fp8_quantize_{wide}_{problem.to}", n, *args)
    return {"q": launcher.read(q), "scale": launcher.read(scale)}


def quantized(problem: Quantize) -> Outputs:
    codes = problem.x.codes()
    q, scale = fp8_quantize.quantize(codes, problem.x.format, problem.to, problem.eps, problem.amax_bits)
    return {"q": q, "scale": np.array([scale])}


def quantize_problems(wide: tuple[str, ...] = WIDE, narrow: tuple[str, ...] = NARROW) -> st.SearchStrategy[Quantize]:
    """Most of them with an amax that is not the tensor's own: the scaled values then overflow or vanish."""
    amax_bits = st.none() | st.sampled_from([ONE, LARGEST, INFINITY, NAN]) | rst.bit_patterns("f32")
    eps = st.sampled_from([fp8_quantize.EPS, 0.0, 1.0])
    drawn = [
        st.builds(
            Quantize, rst.tensors(wide, target=to), st.just(to), amax_bits, eps, rst.misalignments(), rst.launches()
        )
        for to in narrow
    ]
    return st.one_of(drawn)


FP8_QUANTIZE = Kernel(
    "fp8_quantize",
    summary="per-tensor FP8 quantisation: scale = MAX / max(amax, eps), q = satfinite(x * scale), 1 / scale",
    file=SOURCE,
    entries=tuple(f"fp8_quantize_{wide}_{to}" for wide in WIDE for to in NARROW),
    recipe=Quantize,
    problem=quantize_problems(),
    corpus=tuple(
        Quantize(x, to, amax_bits, misalign_q=x.misalign_elements)
        for wide in WIDE
        for to in NARROW
        for x in corpus_tensors(wide, to, large=to == NARROW[0])
        for amax_bits in ((None, ONE) if x.fill in ("near-overflow", "specials") else (None,))
    ),
    run=run_quantize,
    oracle=quantized,
    outputs=lambda problem: {"q": problem.to, "scale": "f32"},
    orderless="each element is scaled and rounded by itself: nothing is added",
)


# ---------------------------------------------------------------------------------------------------------------------
# fp8_dequantize: the inverse


@dataclass(frozen=True)
class Dequantize:
    q: Tensor
    to: str = "bf16"
    scale_bits: int = ONE
    misalign_y: int = 0
    launch: Launch = COVERING

    def __post_init__(self) -> None:
        one_of("FP8 format", self.q.format, NARROW)
        one_of("output format", self.to, WIDE)
        in_range("scale_bits", self.scale_bits, 0, 0xFFFFFFFF)
        in_range("misalign_y", self.misalign_y, 0, MAX_MISALIGN)


def run_dequantize(launcher: Launcher, problem: Dequantize) -> Outputs:
    n, wide = problem.q.n, format_named(problem.to).code_dtype
    q = launcher.upload(problem.q.codes(), name="q", misalign_bytes=problem.q.misalign_bytes)
    scale = launcher.upload(np.array([problem.scale_bits], np.uint32).view(np.float32), name="scale")
    y = launcher.output(n, wide, name="y", misalign_bytes=problem.misalign_y * wide.itemsize)
    problem.launch.run(launcher, f"fp8_dequantize_{problem.q.format}_{problem.to}", n, q, np.uint64(n), scale, y)
    return {"y": launcher.read(y)}


def dequantized(problem: Dequantize) -> Outputs:
    scale = np.array(problem.scale_bits, np.uint32).view(np.float32)[()]
    return {"y": fp8_quantize.dequantize(problem.q.codes(), scale, problem.q.format, problem.to)}


def dequantize_problems(
    narrow: tuple[str, ...] = NARROW, wide: tuple[str, ...] = WIDE
) -> st.SearchStrategy[Dequantize]:
    scale_bits = rst.bit_patterns("f32")
    return st.builds(
        Dequantize, rst.tensors(narrow), st.sampled_from(wide), scale_bits, rst.misalignments(), rst.launches()
    )


FP8_DEQUANTIZE = Kernel(
    "fp8_dequantize",
    summary="the inverse of fp8_quantize: y = round(q * scale)",
    file=SOURCE,
    entries=tuple(f"fp8_dequantize_{narrow}_{wide}" for narrow in NARROW for wide in WIDE),
    recipe=Dequantize,
    problem=dequantize_problems(),
    corpus=tuple(
        Dequantize(q, wide, scale_bits, misalign_y=place % 4)
        for narrow in NARROW
        for wide in WIDE
        for place, q in enumerate(corpus_tensors(narrow, narrow, large=narrow == NARROW[0]))
        for scale_bits in ((ONE, 0x3B924925, LARGEST, INFINITY, NAN) if q.fill == "specials" else (0x3B924925,))
    ),
    run=run_dequantize,
    oracle=dequantized,
    outputs=lambda problem: {"y": problem.to},
    orderless="each element is scaled and rounded by itself: nothing is added",
)

KERNELS = (FP8_AMAX, FP8_QUANTIZE, FP8_DEQUANTIZE)
