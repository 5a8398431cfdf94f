"""The GEMM of kernels/fp8_gemm_1d2d.cu, declared: D = (A scaled 1x128) (B scaled 128x128)^T, E4M3 into bf16.

A problem says one entry, the shape, how the operands lie in memory and what they hold. Around A, B and D, between their rows,
lie bytes that the kernel must not read (NaN) or write; scales begin where NaNs end.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.errors import RefsimError
from refsim.kernels import Kernel, Launcher, Outputs, Struct
from refsim.layouts import scale_layout
from refsim.layouts.tma import SwizzleMode, TensorMap, tensor_map
from refsim.reference import gemm_1d2d as slow
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import DRAWN_FILLS, Values, extents, values
from refsim.testing.recipes import in_range, of_type, one_of, spelled

products = load_kernel_file(Path(__file__).with_name("products.py"))
SOURCE = Path(__file__).parent / "kernels/fp8_gemm_1d2d.cu"
SFA = scale_layout("deepgemm_mn_f32")
BLOCK = 128  # columns of K of one scale, and bytes of a swizzled row
VECTOR = 16  # bytes to which rows of A, B and D are aligned
NAN_CODE = 0x7F
SWIZZLES: dict[int, SwizzleMode] = {128: "128B", 64: "64B", 32: "32B"}  # by the bytes of a row of a piece of D
MULTIPROCESSORS = 132  # of an H200


# ---------------------------------------------------------------------------------------------------------------------
# Entries: the table at the end of the kernel file, and what each costs


@dataclass(frozen=True)
class Entry:
    """One entry: the tile of a block, and the cluster of `down` x `across` blocks that share rows of B and of A."""

    name: str
    shared_bytes: int
    groups: int
    block_m: int
    block_n: int
    stages: int
    down: int
    across: int
    staged: int
    swapped: int = 0  # the rows of its tile are those of B
    masked: int = 0  # of gemm_1d2d_experts: the layout

    @property
    def rows(self) -> int:
        """Of A, in a tile."""
        return self.block_n if self.swapped else self.block_m

    @property
    def columns(self) -> int:
        """Of D, in a tile."""
        return self.block_m if self.swapped else self.block_n

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.down * self.across

    @property
    def piece(self) -> int:
        """Columns of D that are stored together: those of a swizzled row, or of a warp."""
        return 16 if self.swapped else int(np.gcd(64, self.block_n))

    @property
    def box_rows(self) -> int:
        """Rows of D that are stored together: those of a warpgroup of whole tiles that stages all that it has, else of a warp."""
        together = not any(word in self.name for word in ("_splits_", "_experts_"))
        staged = self.staged == self.block_n * (self.block_m // self.groups // 64)
        return 64 if together and staged else min(16, self.rows)

    def units(self, m: int, n: int) -> int:
        """How many clusters' worth of tiles D has."""
        return -(-m // (self.rows * self.down)) * -(-n // (self.columns * self.across))


def entries_of(source: Path) -> dict[str, Entry]:
    """The entries of the kernel file, by name: each is one line FP8_GEMM(word, ...) of the table that ends it."""
    lines = [line.rstrip(" )").partition("(") for line in source.read_text("utf-8").splitlines()]
    rows = [[word.strip() for word in words.split(",")] for macro, _, words in lines if macro == "FP8_GEMM"]
    entries = [Entry(f"{source.stem}_{name}", *map(int, numbers)) for name, *numbers in rows]
    return {entry.name: entry for entry in entries}


ENTRIES = entries_of(SOURCE)

# Nanoseconds for one block of K, and for a tile in addition, with all multiprocessors busy: fitted to an H200 by
# benchmarks/gemm_costs.py, which prints this table for the chip that it runs on. Other chips take it as the nearest. The tiles of
# 64 rows are of its 90 random shapes, the others of an earlier run at 60. A tile of 256x128 was fitted to 3320; at 15 more shapes
# the entries chosen so were slower.
COSTS: dict[str, tuple[float, float]] = {
    "fp8_gemm_1d2d_64x64": (205, 770),
    "fp8_gemm_1d2d_64x112": (284, 1250),
    "fp8_gemm_1d2d_64x128": (280, 1200),
    "fp8_gemm_1d2d_128x128_1x2": (411, 2900),
    "fp8_gemm_1d2d_128x128_2x1": (407, 2610),
    "fp8_gemm_1d2d_128x176": (580, 3220),
    "fp8_gemm_1d2d_128x192": (560, 3160),
    "fp8_gemm_1d2d_256x128": (743, 4300),
    "fp8_gemm_1d2d_256x128_1x2": (726, 4020),
}


def cost(entry: Entry, m: int, n: int, k: int, multiprocessors: int = MULTIPROCESSORS) -> float:
    """Nanoseconds that an entry is expected to take: the tiles of the busiest block, one after the other."""
    step, tile = COSTS[entry.name]
    turns = -(-entry.units(m, n) // max(1, multiprocessors // entry.blocks))
    return turns * (-(-k // BLOCK) * step + tile)


def fitting(entries: Iterable[Entry], m: int) -> list[Entry]:
    """Those of whose rows M fills more than half, where there are such: for 64 rows none of 128. Costs are of full tiles."""
    rows = {entry: entry.rows * entry.down for entry in entries}
    least = min(rows.values())
    return [entry for entry in rows if rows[entry] < 2 * max(m, least)]


def chosen(m: int, n: int, k: int, multiprocessors: int = MULTIPROCESSORS) -> Entry:
    """The entry of the least cost: 64 x 7168 x 16384 takes tiles of 64 x 64, 4096 x 2112 x 7168 those of 128 x 192."""
    return min(fitting(ENTRIES.values(), m), key=lambda entry: cost(entry, m, n, k, multiprocessors))


# ---------------------------------------------------------------------------------------------------------------------
# What a problem holds


@dataclass(frozen=True, repr=False)
class Gaps:
    """16-byte vectors between the rows of A, B and D."""

    a: int = 0
    b: int = 0
    d: int = 0

    def __post_init__(self) -> None:
        for name in ("a", "b", "d"):
            in_range(f"gap of {name}", getattr(self, name), 0, 64)


def whole_vectors(n: int) -> None:
    """Refuses an `n` that D cannot have."""
    if n % 8:
        raise RefsimError("bad-recipe", f"n is {n}", rule="rows of D are whole 16-byte vectors: n is a multiple of 8")


def check_operands(problem: Any) -> None:
    """Refuses operands that are no recipes."""
    for name in ("a", "b", "scale_a", "scale_b"):
        of_type(name, getattr(problem, name), Values)
    of_type("gaps", problem.gaps, Gaps)


DENSE, ZEROS, ONES = Gaps(), Values(), Values("ones")


@dataclass(frozen=True, repr=False)
class Gemm1D2D:
    """D (m, n) of A (m, k) and B (n, k) on one entry of fp8_gemm_1d2d.cu; n is a multiple of 8.

    `clusters`: how many work, None for all that have a unit of tiles. `together`: rows of tiles that are taken together.
    """

    m: int
    n: int
    k: int
    a: Values = ZEROS
    b: Values = ZEROS
    scale_a: Values = ONES
    scale_b: Values = ONES
    gaps: Gaps = DENSE
    entry: str = "fp8_gemm_1d2d_128x128_1x2"
    clusters: int | None = None
    together: int = 16
    entries: ClassVar[Mapping[str, Entry]] = ENTRIES

    def __post_init__(self) -> None:
        in_range("m", self.m, 1, 1 << 20)
        in_range("n", self.n, 8, 1 << 20)
        in_range("k", self.k, 1, 1 << 20)
        in_range("together", self.together, 1, 1 << 20)
        in_range("clusters", 1 if self.clusters is None else self.clusters, 1, MULTIPROCESSORS)
        whole_vectors(self.n)
        check_operands(self)
        one_of("entry", self.entry, tuple(self.entries))

    def __repr__(self) -> str:
        return spelled(self)

    @cached_property
    def operands(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
        """A, B and their scales (m, ceil(k / 128)), (ceil(n / 128), ceil(k / 128))."""
        blocks = -(-self.k // BLOCK)
        a, b = self.a.codes("e4m3", self.m, self.k), self.b.codes("e4m3", self.n, self.k)
        scale_a = self.scale_a.codes("f32", self.m, blocks).view(np.float32)
        scale_b = self.scale_b.codes("f32", -(-self.n // BLOCK), blocks).view(np.float32)
        return a.astype(np.uint8), b.astype(np.uint8), scale_a, scale_b


# ---------------------------------------------------------------------------------------------------------------------
# A launch


def pitch_of(row_bytes: int, gap: int) -> int:
    """Bytes from row to row."""
    return (-(-row_bytes // VECTOR) + gap) * VECTOR


def codes_map(address: int, shape: tuple[int, int], pitch: int, rows: int) -> TensorMap:
    """A matrix of codes, boxes of `rows` x 128: each row is 128 bytes, swizzled."""
    height, width = shape
    return tensor_map(
        "uint8", (width, height), (BLOCK, rows), strides=(pitch,), address=address, swizzle="128B", l2_promotion="256B"
    )


def maps(
    entry: Entry,
    shape: tuple[int, int, int],
    addresses: tuple[int, int, int, int],
    pitches: tuple[int, int, int],
    matrices: tuple[int, int] = (1, 1),
) -> list[TensorMap]:
    """The tensor maps of A, B, the scales of A and D; a box of A or B is what a tile reads of one block of K.

    `matrices`: how many of A, and of B, lie one after another. The kernel's first map is that of the rows of its tiles: a
    swapped entry takes B and A.
    """
    m, n, k = shape
    a, b, sfa, d = addresses
    steps, rows, piece = -(-k // BLOCK), matrices[0] * m, entry.piece
    of_a = codes_map(a, (rows, k), pitches[0], entry.rows)
    of_b = codes_map(b, (matrices[1] * n, k), pitches[1], entry.columns)
    return [
        *((of_b, of_a) if entry.swapped else (of_a, of_b)),
        tensor_map("float32", (m, matrices[0] * steps), (entry.rows, 1), strides=(-(-m // 4) * 16,), address=sfa),
        tensor_map(
            "bfloat16",
            (n, rows),
            (piece, entry.box_rows),
            strides=(pitches[2],),
            address=d,
            swizzle=SWIZZLES[2 * piece],
        ),
    ]


def shape_of(entry: Entry, m: int, n: int, k: int, together: int) -> Struct:
    """The kernel's Problem: the rows of a swapped entry's tiles are those of B."""
    rows, columns = (n, m) if entry.swapped else (m, n)
    return Struct(np.array([rows, columns, k, together], np.uint32).tobytes(), 4)


def with_gaps(matrix: NDArray[Any], pitch: int) -> NDArray[Any]:
    """The rows `pitch` bytes apart, NaN codes between them."""
    return np.pad(matrix, ((0, 0), (0, pitch - matrix.shape[1])), constant_values=NAN_CODE).reshape(-1)


def run(launcher: Launcher, problem: Gemm1D2D, parts: int = 1, more: tuple[Any, ...] = ()) -> Outputs:
    """`parts` blocks compute each tile; `more` arguments of the kernel."""
    entry, gaps = problem.entries[problem.entry], problem.gaps
    m, n, k = problem.m, problem.n, problem.k
    a, b, scale_a, scale_b = problem.operands
    pitches = pitch_of(k, gaps.a), pitch_of(k, gaps.b), pitch_of(2 * n, gaps.d)
    on_device = [
        launcher.upload(with_gaps(a, pitches[0]), name="a"),
        launcher.upload(with_gaps(b, pitches[1]), name="b"),
        launcher.upload(SFA.shuffle(scale_a).reshape(-1), name="sfa"),
        launcher.output(m * pitches[2] // 2, np.uint16, name="d"),
    ]
    sfb = launcher.upload(scale_b.reshape(-1), name="sfb")
    before = launcher.read(on_device[3]).reshape(m, -1)
    addresses = on_device[0].address, on_device[1].address, on_device[2].address, on_device[3].address
    arguments = [*maps(entry, (m, n, k), addresses, pitches), sfb, shape_of(entry, m, n, k, problem.together), *more]
    launch(launcher, entry, entry.units(m, n) * parts, problem.clusters, arguments)
    after = launcher.read(on_device[3]).reshape(m, -1)
    return {"d": after[:, :n], "gap": (after != before)[:, n:].astype(np.uint8)}


def launch(launcher: Launcher, entry: Entry, units: int, clusters: int | None, arguments: list[Any]) -> None:
    """As many clusters as have something to do, at most `clusters`."""
    launcher.launch(
        entry.name,
        (min(clusters or MULTIPROCESSORS // entry.blocks, units) * entry.blocks,),
        (entry.threads,),
        arguments,
        entry.shared_bytes,
        cluster=(entry.blocks,) if entry.blocks > 1 else None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What it must write


def expected(problem: Gemm1D2D, **other: Any) -> Outputs:
    """D, and nothing between its rows; `other` arguments of the oracle."""
    return {"d": oracles.fp8_gemm_1d2d(*problem.operands, **other), "gap": expected_gap(problem)}


def expected_gap(problem: Gemm1D2D) -> NDArray[np.uint8]:
    """Nothing between the rows of D."""
    return np.zeros((problem.m, pitch_of(2 * problem.n, problem.gaps.d) // 2 - problem.n), np.uint8)


def by_definition(problem: Gemm1D2D, name: str, at: tuple[int, ...]) -> int | None:
    """One output over fractions."""
    return output_of(problem.operands, at) if name == "d" else None


def output_of(operands: tuple[NDArray[Any], ...], at: tuple[int, ...], splits: int = 1) -> int:
    """D's code of one row of A and one of B, K in parts."""
    a, b, scale_a, scale_b = operands
    codes = a[at[0]].tolist(), b[at[1]].tolist()
    scales = scale_a[at[0]].view(np.uint32).tolist(), scale_b[at[1] // BLOCK].view(np.uint32).tolist()
    return slow.output(*codes, *scales, "scale_product", splits)[1]


def with_scales(change: Callable[[NDArray[np.float32]], NDArray[np.float32]], which: int, problem: Gemm1D2D) -> Outputs:
    """What comes out with other scales of A (2) or of B (3)."""
    operands = list(problem.operands)
    operands[which] = np.ascontiguousarray(change(operands[which]))
    return {**expected(problem), "d": oracles.fp8_gemm_1d2d(*operands)}


MISTAKES: dict[str, Callable[..., Outputs]] = {
    "each scale multiplied into the sum by itself, that of A first": partial(expected, promotion="a_then_b"),
    "each scale multiplied into the sum by itself, that of B first": partial(expected, promotion="b_then_a"),
    "scales of A taken one block of K late": partial(with_scales, lambda scales: np.roll(scales, 1, 1), 2),
    "scales of B taken one block of K late": partial(with_scales, lambda scales: np.roll(scales, 1, 1), 3),
    "every column scaled as the first 128": partial(
        with_scales, lambda scales: np.repeat(scales[:1], scales.shape[0], axis=0), 3
    ),
}

FILLS = (*DRAWN_FILLS, "near-overflow")


@st.composite
def gemm_problems(draw: st.DrawFn, entries: tuple[str, ...] = tuple(ENTRIES)) -> Gemm1D2D:
    """Tiles and their edges in every direction, one block of K and several, tiles that are taken by few clusters."""
    entry = ENTRIES[draw(st.sampled_from(entries))]
    m = draw(extents(entry.block_m, 2 * entry.block_m * entry.down))
    n = 8 * -(-draw(extents(entry.block_n, 2 * entry.block_n * entry.across)) // 8)
    gaps = st.integers(0, 3)
    return Gemm1D2D(
        m,
        n,
        draw(extents(BLOCK, 512)),
        draw(values("e4m3", fills=FILLS)),
        draw(values("e4m3", fills=FILLS)),
        draw(values("f32")),
        draw(values("f32")),
        Gaps(draw(gaps), draw(gaps), draw(gaps)),
        entry.name,
        draw(st.none() | st.integers(1, 3)),
        draw(st.sampled_from([16, 1, 3])),
    )


def _corpus() -> tuple[Gemm1D2D, ...]:
    """Each entry: one whole unit of tiles, edges in every direction with one block of K, several tiles for one cluster; then
    special values, and zero blocks; more blocks of K than a warp has lanes."""
    found = []
    for name, entry in ENTRIES.items():
        m, n = entry.block_m * entry.down, entry.block_n * entry.across
        drawn = partial(Gemm1D2D, entry=name)
        a, b, seed = Values("gaussian", 2 * len(found)), Values("gaussian", 2 * len(found) + 1), len(found)
        distinct = Values("distinct", seed), Values("distinct", seed + 1)
        found.append(drawn(m, n, 256, a, b, *distinct))
        found.append(drawn(m + 3, n + 8, 80, a, b, *distinct, gaps=Gaps(1, 2, 1)))
        found.append(drawn(entry.block_m - 1, 2 * n - 8, 400, a, b, *distinct, clusters=1, together=1))
        special = Values("bits", seed), Values("specials", seed)
        found.append(drawn(7, entry.block_n - 8, 384, *special, *distinct))
        found.append(drawn(9, 24, 130, a, Values("zeros"), Values("specials", seed), Values("bits", seed)))
        found.append(drawn(5, entry.block_n - 8, 34 * BLOCK - 48, a, b, *distinct))
    return tuple(found)


FP8_GEMM_1D2D = Kernel(
    "fp8_gemm_1d2d",
    summary="D = (A scaled 1x128) (B scaled 128x128)^T on Hopper's tensor cores, E4M3 into bf16",
    file=SOURCE,
    entries=tuple(ENTRIES),
    outputs={"d": "bf16", "gap": ""},
    recipe=Gemm1D2D,
    problem=gemm_problems(),
    corpus=_corpus(),
    run=run,
    oracle=expected,
    suspects=MISTAKES,
    computes=kinds.scaled_product(*map(products.operand, range(4)), also={"gap": expected_gap}),
    definition=by_definition,
    products=products.gemms(Gemm1D2D, {"chosen": lambda *mnk: {"entry": chosen(*mnk).name}}, ENTRIES),
)

KERNELS = (FP8_GEMM_1D2D,)
