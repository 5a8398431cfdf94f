"""The probe of cuBLASLt's FP8 GEMM: shapes, operands that every machine can make again, and the recorded outputs.

An operand's code at (row, k) is a hash of both. The GPU therefore fills whole matrices while NumPy makes the few rows
that a recorded output needs. 2 x 4 outputs of each product are recorded, from the first row and column to the last. A
recording has one value per output for each mode (scaling, accumulation, type of output), and the names of the kernels
that ran.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import oracles
from refsim.computations.scale_changes import BLOCK
from refsim.formats import BF16, F32, Format
from refsim.oracles.cublaslt import BLOCKWISE, computed

STEM = "cublaslt"
MOST = (8192, 16384, 16384)
SCALES = np.float32(0.37), np.float32(1.91)
"""The scales of the tensors a and b: neither scale is a power of two, nor is their product."""
SEEDS = {"a": 1, "b": 2, "scale_a": 3, "scale_b": 4}
GRID = 8  # places along M and N among which the recorded outputs are chosen
MULTIPLIERS = 0x9E3779B1, 0x85EBCA77, 0x2C1B3C6D, 0x297A2D39


@dataclass(frozen=True)
class CublasltMode:
    """One way to call the library: "fast_f32" is scaling by tensor, fast accumulation, float32 output."""

    name: str
    scaling: oracles.CublasltScaling
    accumulation: oracles.CublasltAccumulation
    out: Format


MODES = (
    CublasltMode("fast_bf16", "tensor", "fast", BF16),
    CublasltMode("fast_f32", "tensor", "fast", F32),
    CublasltMode("slow_bf16", "tensor", "slow", BF16),
    CublasltMode("slow_f32", "tensor", "slow", F32),
    CublasltMode("block_bf16", "blockwise", "slow", BF16),
    CublasltMode("block_f32", "blockwise", "slow", F32),
)


@dataclass(frozen=True)
class CublasltCase:
    """One shape; M is as given for scaling by tensor, and rounded up to a multiple of 4 for blocks, as in the
    library."""

    number: int
    m: int
    n: int
    k: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """Return the two recorded rows of D."""
        return self._places(self.m, (self.number, 3 * self.number + 5))

    @property
    def columns(self) -> NDArray[np.int64]:
        """Return the four recorded columns of D."""
        return self._places(self.n, tuple(self.number + step for step in (0, 2, 3, 5)))

    def _places(self, extent: int, picks: tuple[int, ...]) -> NDArray[np.int64]:
        return np.linspace(0, extent - 1, GRID).astype(np.int64)[[pick % GRID for pick in picks]]


@cache
def cases() -> tuple[CublasltCase, ...]:
    """Return 500 random shapes, a third of them of any magnitude, and 160 with few outputs, where K may be split."""
    draw = np.random.default_rng(5)
    shapes = []
    for number in range(500):
        if number < 330:
            m = int(draw.integers(1, 8193)) if draw.random() < 0.5 else 16 * int(draw.integers(1, 513))
            shapes.append((m, 16 * int(draw.integers(1, 1025)), 16 * int(draw.integers(1, 1025))))
        else:
            m, n, k = (int(2 ** draw.uniform(0, most)) for most in (13, 10, 10))
            shapes.append((m, 16 * n, 16 * k))
    return tuple(CublasltCase(number, *shape) for number, shape in enumerate([*shapes, *_few_outputs(160)]))


def _few_outputs(count: int) -> list[tuple[int, int, int]]:
    """Return shapes (M, N, K) with few outputs."""
    draw = np.random.default_rng(5)
    shapes = []
    for number in range(count):
        if number % 3 == 0:
            m, n, k = int(2 ** draw.uniform(0, 13)), int(2 ** draw.uniform(0, 10)), int(2 ** draw.uniform(4, 10))
        elif number % 3 == 1:
            m, n, k = int(2 ** draw.uniform(0, 9)), int(2 ** draw.uniform(0, 9)), int(draw.integers(128, 1025))
        else:
            m, n, k = 4 * int(draw.integers(1, 65)), int(draw.integers(1, 1025)), int(draw.integers(64, 1025))
        shapes.append((max(1, m // 4 * 4) if number % 2 else m, 16 * n, 16 * k))
    return shapes


def mixed(row: Any, column: Any, seed: int) -> Any:
    """Return 32 mixed bits of a place, in 64-bit integer arrays of NumPy or PyTorch: mixed(0, 0, 1) is 0xed345605."""
    first, second, third, fourth = MULTIPLIERS
    word = (row * first + column * second + seed) & 0xFFFFFFFF
    word = ((word ^ (word >> 15)) * third) & 0xFFFFFFFF
    word = ((word ^ (word >> 12)) * fourth) & 0xFFFFFFFF
    return word ^ (word >> 15)


def codes(rows: NDArray[np.int64], k: int, name: str) -> NDArray[np.uint8]:
    """Return rows of an operand (rows, k): every E4M3 code except NaN, which becomes the code below it."""
    found = mixed(rows[:, None].astype(np.uint64), np.arange(k, dtype=np.uint64), SEEDS[name]) & 0xFF
    return np.asarray(np.where(found & 0x7F == 0x7F, found - 1, found).astype(np.uint8))


def block_scales(rows: NDArray[np.int64], k: int, name: str) -> NDArray[np.float32]:
    """Return the scales of rows (or blocks of rows) and blocks of K: float32 from 1/8 to 2, with random fractions."""
    found = mixed(rows[:, None].astype(np.uint64), np.arange(-(-k // BLOCK), dtype=np.uint64), SEEDS[name])
    return np.asarray(scale_bits(found)).astype(np.uint32).view(np.float32)


def scale_bits(found: Any) -> Any:
    """Return the float32 patterns of scales made of mixed bits."""
    return (found & 0x7FFFFF) | ((124 + ((found >> 24) & 3)) << 23)


def scales_of(case: CublasltCase, mode: CublasltMode) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scales of the recorded rows and columns of D."""
    if mode.scaling != BLOCKWISE:
        return np.full((1, 1), SCALES[0]), np.full((1, 1), SCALES[1])
    return block_scales(case.rows, case.k, "scale_a"), block_scales(case.columns // BLOCK, case.k, "scale_b")


def modelled(
    case: CublasltCase, mode: CublasltMode, splits: int = 1, change: Callable[..., Any] = computed
) -> NDArray[Any]:
    """Return the model's recorded outputs with K in `splits` ranges: (2, 4) bf16 codes or float32."""
    a, b = codes(case.rows, case.k, "a"), codes(case.columns, case.k, "b")
    return np.asarray(change(a, b, *scales_of(case, mode), mode.scaling, mode.accumulation, splits, mode.out))


def recorded_splits(case: CublasltCase, mode: CublasltMode, region: oracles.CublasltRegion) -> int | None:
    """Return the region's number of ranges of K for a case, or None where it was not recorded."""
    step = region.shapes[mode.scaling][0][2]
    return region.splits(-(-case.m // step) * step, case.n, case.k, mode.scaling)


@dataclass(frozen=True)
class CublasltSpecial:
    """A small product, 8 x 16 x 272, with multiplied scales, and with zeros or NaN codes in a row."""

    name: str
    by_a: float = 1.0
    by_b: float = 1.0
    code: int | None = None

    def operands(self, mode: CublasltMode) -> tuple[NDArray[Any], ...]:
        """Return a, b, and both scales: (1, 1), or (8, 3) and (1, 3). `code` fills row 2 of a, except for one element
        in four."""
        m, n, k = 8, 16, 272
        a, b = codes(np.arange(m), k, "a"), codes(np.arange(n), k, "b")
        if self.code is not None:
            a[2] = np.where(np.arange(k) % 4 == 3, 0, self.code)
        scales = np.full((1, 1), SCALES[0]), np.full((1, 1), SCALES[1])
        if mode.scaling == BLOCKWISE:
            scales = block_scales(np.arange(m), k, "scale_a"), block_scales(np.arange(1), k, "scale_b")
        with np.errstate(all="ignore"):
            return a, b, *(each * np.float32(by) for each, by in zip(scales, (self.by_a, self.by_b), strict=True))

    def modelled(self, mode: CublasltMode) -> NDArray[Any]:
        """Return the result of IEEE arithmetic in the model's order: (8, 16) float32."""
        a, b, by_row, by_column = self.operands(mode)
        if mode.scaling == BLOCKWISE:
            by_column = np.repeat(by_column, len(b), axis=0)
        return np.asarray(computed(a, b, by_row, by_column, mode.scaling, mode.accumulation, 1, mode.out))


SPECIALS = (
    CublasltSpecial("a negative scale", by_a=-1.0),
    CublasltSpecial("a negative scale, a row of zeros", by_a=-1.0, code=0),
    CublasltSpecial("a scale of zero", by_b=0.0),
    CublasltSpecial("a scale of -0", by_b=-0.0),
    CublasltSpecial("an infinite scale", by_a=np.inf),
    CublasltSpecial("an infinite scale, a row of zeros", by_a=np.inf, code=0),
    CublasltSpecial("a NaN scale", by_b=np.nan),
    CublasltSpecial("NaN codes 0x7f", code=0x7F),
    CublasltSpecial("NaN codes 0xff", code=0xFF),
    CublasltSpecial("outputs beyond the largest float32", by_a=2.0**60, by_b=2.0**60),
    CublasltSpecial("subnormal outputs", by_a=2.0**-62, by_b=2.0**-62, code=0x01),
    CublasltSpecial("a subnormal product of scales", by_a=2.0**-68, by_b=2.0**-68),
    CublasltSpecial("subnormal scales", by_a=2.0**-130, by_b=2.0**100),
)
"""Inputs outside the recorded region, to see the library's results."""
