"""The GEMM of kernels/fp8_gemm_1d2d_splits.cu, declared: few rows of A, K in parts, A and B swapped.

What a problem has in common with the GEMM of whole tiles (operands, placement, launch) is in gemm_1d2d.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from refsim import oracles
from refsim.conversions import round_bits
from refsim.kernels import Kernel, Launcher, Outputs, Struct
from refsim.numerics import ieee
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, extents, values
from refsim.testing.recipes import in_range, spelled

gemm = load_kernel_file(Path(__file__).with_name("gemm_1d2d.py"))
SOURCE = Path(__file__).parent / "kernels/fp8_gemm_1d2d_splits.cu"
ENTRIES = gemm.entries_of(SOURCE)
Entry = Any

# Nanoseconds for a block of K and for a tile, fitted as gemm_1d2d.COSTS.
COSTS: dict[str, tuple[float, float]] = {
    "fp8_gemm_1d2d_splits_64x128": (281, 1250),
    "fp8_gemm_1d2d_splits_128x128_1x2": (415, 2970),
    "fp8_gemm_1d2d_splits_64x8_swapped": (148, 430),
    "fp8_gemm_1d2d_splits_64x16_swapped": (152, 550),
    "fp8_gemm_1d2d_splits_64x32_swapped": (170, 650),
    "fp8_gemm_1d2d_splits_64x64_swapped": (224, 980),
    "fp8_gemm_1d2d_splits_128x8_swapped": (247, 500),
    "fp8_gemm_1d2d_splits_128x16_swapped": (254, 620),
    "fp8_gemm_1d2d_splits_128x32_swapped": (278, 790),
    "fp8_gemm_1d2d_splits_128x64_swapped": (324, 1570),
}
# B must come from device memory for each tile of rows: bytes in a nanosecond, and nanoseconds for any B. Of 4050, 4500 and 5000
# bytes, 4500 chose best at the shapes of the fit; 2000 is an estimate.
MEMORY = 4500, 2000
PART_BYTES = 1500  # of partial sums in a nanosecond, written and read in the L2 cache: an estimate


def parts_of(k: int, splits: int) -> tuple[int, int]:
    """How many parts of K have a block, and blocks in each: parts_of(896, 4) is (4, 2), of seven blocks; (1024, 5) is (4, 2)."""
    blocks = -(-k // gemm.BLOCK)
    width = -(-blocks // splits)
    return -(-blocks // width), width


def busiest(
    entry: Entry, m: int, n: int, k: int, splits: int = 1, multiprocessors: int = gemm.MULTIPROCESSORS
) -> float:
    """Nanoseconds that the busiest block of an entry of either file is expected to take."""
    step, tile = {**gemm.COSTS, **COSTS}[entry.name]
    parts, width = parts_of(k, splits)
    turns = -(-entry.units(m, n) * parts // max(1, multiprocessors // entry.blocks))
    added = 0 if parts == 1 else 8 * m * n * parts / PART_BYTES
    return float(turns * (width * step + tile) + added)


def cost(entry: Entry, m: int, n: int, k: int, splits: int = 1, multiprocessors: int = gemm.MULTIPROCESSORS) -> float:
    """Nanoseconds that an entry is expected to take: its busiest block, or the bytes of B, read for each tile of rows."""
    bytes_read = -(-m // (entry.rows * entry.down)) * n * k
    return max(busiest(entry, m, n, k, splits, multiprocessors), bytes_read / MEMORY[0] + MEMORY[1])


def chosen(m: int, n: int, k: int, splits: int = 1, multiprocessors: int = gemm.MULTIPROCESSORS) -> Entry:
    """The entry of the least cost of both files: 8 x 7168 x 16384 takes tiles of 64 rows of B and 8 of A.

    Where the bytes of B decide, that of the least work. With `splits` only entries that add parts.
    """
    candidates = [*(gemm.ENTRIES.values() if splits == 1 else ()), *ENTRIES.values()]
    work = m, n, k, splits, multiprocessors
    return min(gemm.fitting(candidates, m), key=lambda entry: (cost(entry, *work), busiest(entry, *work)))


def fastest(m: int, n: int, k: int) -> dict[str, Any]:
    """The entry of this file and the parts of K of the least cost, as a server would choose them: both change with M."""
    tried = [(splits, entry) for splits in (1, 2, 4, 8) for entry in gemm.fitting(ENTRIES.values(), m)]
    splits, entry = min(tried, key=lambda each: cost(each[1], m, n, k, each[0]))
    return {"entry": entry.name, "splits": splits}


# ---------------------------------------------------------------------------------------------------------------------
# Problems


@dataclass(frozen=True, repr=False)
class Gemm1D2DInParts(gemm.Gemm1D2D):  # type: ignore[misc, name-defined]  # a module that is loaded by path
    """D (m, n) of A (m, k) and B (n, k) on one entry of fp8_gemm_1d2d_splits.cu, K in `splits` parts, the oracle's."""

    entry: str = "fp8_gemm_1d2d_splits_64x16_swapped"
    splits: int = 1
    entries: ClassVar[Mapping[str, Entry]] = ENTRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("splits", self.splits, 1, 1 << 20)

    def __repr__(self) -> str:
        return spelled(self)


def workspace(entry: Entry, m: int, n: int, parts: int) -> tuple[int, int]:
    """Floats of partial sums, and counters that are 0 before and after."""
    tiles = entry.units(m, n) * entry.blocks
    return tiles * parts * entry.block_m * entry.block_n, tiles * 4 * entry.groups


def splits_struct(partials: int, arrivals: int, k: int, splits: int) -> Struct:
    """The kernel's Splits, of two addresses."""
    return Struct(
        np.array([partials, arrivals], np.uint64).tobytes() + np.array(parts_of(k, splits), np.uint32).tobytes(), 8
    )


def run(launcher: Launcher, problem: Gemm1D2DInParts) -> Outputs:
    entry = ENTRIES[problem.entry]
    parts, _ = parts_of(problem.k, problem.splits)
    floats, counters = workspace(entry, problem.m, problem.n, parts)
    partials = launcher.output(floats if parts > 1 else 4, np.float32, name="partials")
    arrivals = launcher.upload(np.zeros(counters, np.uint32), name="arrivals", writable=True)
    struct = splits_struct(partials.address, arrivals.address, problem.k, problem.splits)
    return {**gemm.run(launcher, problem, parts, (struct,)), "arrivals": launcher.read(arrivals)}


def expected(problem: Gemm1D2DInParts, **other: Any) -> Outputs:
    parts, _ = parts_of(problem.k, problem.splits)
    _, counters = workspace(ENTRIES[problem.entry], problem.m, problem.n, parts)
    found = gemm.expected(problem, **{"splits": problem.splits, **other})
    return {**found, "arrivals": np.zeros(counters, np.uint32)}


def by_definition(problem: Gemm1D2DInParts, name: str, at: tuple[int, ...]) -> int | None:
    """One output over fractions, its parts added in their order."""
    return int(gemm.output_of(problem.operands, at, problem.splits)) if name == "d" else None


def from_the_last(problem: Gemm1D2DInParts) -> Outputs:
    """The parts added in the order of their arrival, were it from the last to the first."""
    a, b, scale_a, scale_b = problem.operands
    parts, width = parts_of(problem.k, problem.splits)
    ranges = [slice(first, first + width) for first in range(0, parts * width, width)]
    sums = [
        oracles.fp8_gemm_1d2d(
            a[:, each.start * gemm.BLOCK : each.stop * gemm.BLOCK],
            b[:, each.start * gemm.BLOCK : each.stop * gemm.BLOCK],
            scale_a[:, each],
            scale_b[:, each],
            out="f32",
        )
        for each in reversed(ranges)
    ]
    total = sums[0]
    for later in sums[1:]:
        total = ieee.add(total, later)
    return {**expected(problem), "d": round_bits(total, "bf16").astype(np.uint16)}


MISTAKES = {
    "each scale multiplied into the sum by itself, that of A first": partial(expected, promotion="a_then_b"),
    "K summed in one": partial(expected, splits=1),
    "parts added from the last to the first": from_the_last,
}


@st.composite
def splits_problems(draw: st.DrawFn, entries: tuple[str, ...] = tuple(ENTRIES)) -> Gemm1D2DInParts:
    """Few rows, tiles and their edges, one part and several, more parts than blocks of K."""
    entry = ENTRIES[draw(st.sampled_from(entries))]
    m = draw(extents(max(8, entry.rows), 2 * max(8, entry.rows)))
    n = 8 * -(-draw(extents(entry.columns, 2 * entry.columns * entry.across)) // 8)
    gaps = st.integers(0, 3)
    return Gemm1D2DInParts(
        m,
        n,
        draw(extents(gemm.BLOCK, 768)),
        draw(values("e4m3", fills=gemm.FILLS)),
        draw(values("e4m3", fills=gemm.FILLS)),
        draw(values("f32")),
        draw(values("f32")),
        gemm.Gaps(draw(gaps), draw(gaps), draw(gaps)),
        entry.name,
        draw(st.none() | st.integers(1, 3)),
        draw(st.sampled_from([16, 1, 3])),
        draw(st.sampled_from([1, 2, 3, 8])),
    )


# Scales of two rows and three blocks of K, of which the second takes away what the first added: 2**24, -2**24, 1.015625.
CANCELLING = Values("ones", patches=tuple(enumerate((0x4B800000, 0xCB800000, 0x3F820000) * 2)))


def _corpus() -> tuple[Gemm1D2DInParts, ...]:
    """Each entry: edges in every direction in parts, one of which is shorter; parts whose order shows; then rows beside the
    tile's, and special values."""
    found = []
    for name, entry in ENTRIES.items():
        drawn = partial(Gemm1D2DInParts, entry=name)
        a, b, seed = Values("gaussian", 2 * len(found)), Values("gaussian", 2 * len(found) + 1), len(found)
        distinct = Values("distinct", seed), Values("distinct", seed + 1)
        gaps = gemm.Gaps(1, 2, 1)
        found.append(drawn(entry.rows - 1, entry.columns * entry.across + 8, 656, a, b, *distinct, gaps, splits=3))
        found.append(drawn(2, 24, 384, gemm.ONES, gemm.ONES, CANCELLING, splits=3))
        found.append(drawn(1, entry.columns - 8, 80, a, b, *distinct, gaps, splits=2))
        alone = 1 if entry.blocks == 1 else None
        found.append(drawn(entry.rows + 1, entry.columns, 384, a, b, *distinct, clusters=alone, splits=9))
        special = Values("bits", seed), Values("specials", seed)
        found.append(drawn(7, 24, 384, *special, *distinct, splits=2))
        found.append(drawn(entry.rows, entry.columns, 272, a, b, *distinct))
    return tuple(found)


FP8_GEMM_1D2D_SPLITS = Kernel(
    "fp8_gemm_1d2d_splits",
    summary="the FP8 GEMM with block scales for few rows: K in parts, A and B swapped",
    file=SOURCE,
    entries=tuple(ENTRIES),
    outputs={"d": "bf16", "gap": "", "arrivals": ""},
    recipe=Gemm1D2DInParts,
    problem=splits_problems(),
    corpus=_corpus(),
    run=run,
    oracle=expected,
    suspects=MISTAKES,
    definition=by_definition,
    products=gemm.products.gemms(Gemm1D2DInParts, {"fastest": fastest, "in_2": lambda *_: {"splits": 2}}, ENTRIES),
)

KERNELS = (FP8_GEMM_1D2D_SPLITS,)
