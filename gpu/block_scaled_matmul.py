"""The products of kernels/block_scaled_matmul_*.cu, declared: D = (A scaled) (B scaled)^T, blocks of K share a scale.

A problem says one entry, the shape, how the operands lie in memory and what they hold. Codes lie dense; between rows of A and B
lie bytes that the kernel must not read, what pads the shuffled scales is NaN, and bytes between rows of D stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles, pack
from refsim.errors import RefsimError, unknown
from refsim.formats import Format, format_named
from refsim.kernels import Buffer, Kernel, Launcher, Outputs, Struct
from refsim.layouts import scale_layout
from refsim.oracles.block_scaled import BLOCKS
from refsim.reference import block_scaled as slow
from refsim.reference.group_quantize import SINGLE_GRID
from refsim.reference.rational_float import mul
from refsim.targets import target_named
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import DRAWN_FILLS, Values, extents, values
from refsim.testing.recipes import in_range, spelled

products = load_kernel_file(Path(__file__).with_name("products.py"))
mistakes = load_kernel_file(Path(__file__).with_name("block_scaled_mistakes.py"))
KERNEL_FILES = Path(__file__).parent / "kernels"
ENTRIES = KERNEL_FILES / "block_scaled/entries.cuh"
SHUFFLED = scale_layout("nvidia_128x4")
VECTOR = 16  # bytes to which rows of A and B are aligned
POISON = 0xFF  # NaN as a scale and as FP8; the largest magnitude of FP4 and FP6
TILE = 64  # rows, and columns, of D of a block
THREADS = 128
ROWS = 128  # of a tile of scales
Codes = NDArray[np.uint8]


# ---------------------------------------------------------------------------------------------------------------------
# Entries: the table that the kernel files include


@dataclass(frozen=True)
class Entry:
    """One entry: the types of its operands and of their scales, by their names in PTX."""

    name: str
    a: str
    b: str
    scale: str

    @property
    def stored(self) -> Format:
        """The format of the scales."""
        return format_named({"ue8m0": "e8m0"}.get(self.scale, self.scale))

    @property
    def block(self) -> int:
        """Elements of K that share a scale."""
        return BLOCKS[self.stored]

    @property
    def k_unit(self) -> int:
        """What K is a multiple of."""
        return self.block


def entries_of(file: str) -> dict[str, Entry]:
    """The entries of a kernel file, by name: each is one line BLOCK_SCALED(word, ..., a, b, scale) of the table that all have."""
    lines = [line.strip(" )\\").partition("(") for line in ENTRIES.read_text("utf-8").splitlines()]
    rows = [[word.strip() for word in words.split(",")] for macro, _, words in lines if macro == "BLOCK_SCALED"]
    entries = [Entry(f"{file}_{row[0]}", *row[-3:]) for row in rows]
    return {entry.name: entry for entry in entries}


SM120 = entries_of("block_scaled_matmul_sm120")
SM90 = entries_of("block_scaled_matmul_sm90")


# ---------------------------------------------------------------------------------------------------------------------
# What a problem holds


@dataclass(frozen=True, repr=False)
class Scales:
    """Codes of scales, made from a seed. "distinct": neighbours all differ, as many as leave sums finite; "near": those of
    one; "bits": every code, NaN and zero among them; "ends": the least and the largest."""

    fill: str = "near"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fill not in SCALE_FILLS:
            raise unknown("fill", str(self.fill), list(SCALE_FILLS))
        in_range("seed", self.seed, 0, (1 << 64) - 1)

    def __repr__(self) -> str:
        return spelled(self)

    def codes(self, row: Format, rows: int, columns: int) -> Codes:
        generator = np.random.Generator(np.random.Philox(self.seed))
        found: Codes = SCALE_FILLS[self.fill](generator, row, rows, columns).astype(np.uint8)
        return found


def _finite(row: Format) -> tuple[int, int]:
    """The codes of scales whose products float32 holds, the last one left out."""
    return (0, row.code_limit - 1) if row.mantissa_bits else (67, 187)


def _near(generator: np.random.Generator, row: Format, *shape: int) -> NDArray[Any]:
    middle = sum(_finite(row)) // 2
    return generator.integers(middle - 4, middle + 5, shape)


def _distinct(generator: np.random.Generator, row: Format, *shape: int) -> NDArray[Any]:
    low, high = _finite(row)
    order = generator.permutation(np.arange(low, high))
    return order[np.arange(int(np.prod(shape))) % len(order)].reshape(shape)


def _bits(generator: np.random.Generator, row: Format, *shape: int) -> NDArray[Any]:
    return generator.integers(0, row.code_limit, shape)


def _ends(generator: np.random.Generator, row: Format, *shape: int) -> NDArray[Any]:
    return generator.integers(-3, 3, shape) % row.code_limit


SCALE_FILLS: dict[str, Callable[..., NDArray[Any]]] = {
    "near": _near,
    "distinct": _distinct,
    "bits": _bits,
    "ends": _ends,
}


@dataclass(frozen=True, repr=False)
class Gaps:
    """16-byte vectors between the rows of A and of B, elements between those of D."""

    a: int = 0
    b: int = 0
    d: int = 0

    def __post_init__(self) -> None:
        for name in ("a", "b", "d"):
            in_range(f"gap of {name}", getattr(self, name), 0, 64)


ZEROS, NEAR, DENSE = Values(), Scales(), Gaps()


@dataclass(frozen=True, repr=False)
class BlockScaled:
    """D (m, n) of A (m, k) and B (n, k) on one entry; `factor` is the product of the per-tensor scales."""

    m: int
    n: int
    k: int
    entry: str
    a: Values = ZEROS
    b: Values = ZEROS
    scale_a: Scales = NEAR
    scale_b: Scales = NEAR
    gaps: Gaps = DENSE
    factor: float = 1.0
    entries: ClassVar[Mapping[str, Entry]] = SM120

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            in_range(name, getattr(self, name), 1, 1 << 20)
        if self.entry not in self.entries:
            raise unknown("entry", self.entry, list(self.entries))
        if self.k % self.entries[self.entry].k_unit:
            raise RefsimError(
                "bad-recipe", f"k is {self.k}", rule=f"{self.entry}: a multiple of {self.entries[self.entry].k_unit}"
            )

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def row(self) -> Entry:
        return self.entries[self.entry]

    @cached_property
    def operands(self) -> tuple[Codes, Codes, Codes, Codes]:
        """A, B and their scales (m, k / block), (n, k / block)."""
        row, blocks = self.row, self.k // self.row.block
        a, b = self.a.codes(row.a, self.m, self.k), self.b.codes(row.b, self.n, self.k)
        scales = self.scale_a.codes(row.stored, self.m, blocks), self.scale_b.codes(row.stored, self.n, blocks)
        return a.astype(np.uint8), b.astype(np.uint8), *scales


@dataclass(frozen=True, repr=False)
class BlockScaledSm90(BlockScaled):
    """A problem of block_scaled_matmul_sm90.cu."""

    entries: ClassVar[Mapping[str, Entry]] = SM90


# ---------------------------------------------------------------------------------------------------------------------
# A launch


def in_rows(codes: Codes, type: str, gap: int) -> tuple[Codes, int]:
    """Dense codes, rows aligned and `gap` vectors apart, and the bytes from row to row; between rows lies poison."""
    packed = pack(codes, type).astype(np.uint8)
    pitch = (-(-packed.shape[1] // VECTOR) + gap) * VECTOR
    return np.pad(packed, ((0, 0), (0, pitch - packed.shape[1])), constant_values=POISON), pitch


def operand(launcher: Launcher, name: str, codes: Codes, type: str, scales: Codes, gap: int) -> Struct:
    """The kernel's Operand: addresses of codes and shuffled scales, rows, pitch."""
    packed, pitch = in_rows(codes, type, gap)
    of_codes = launcher.upload(packed.reshape(-1), name=name)
    of_scales = launcher.upload(SHUFFLED.shuffle(scales, fill=POISON).reshape(-1).astype(np.uint8), name=f"sf{name}")
    raw = np.array([of_codes.address, of_scales.address], np.uint64).tobytes()
    return Struct(raw + np.array([len(codes), pitch], np.uint32).tobytes(), 8)


def run(launcher: Launcher, problem: BlockScaled) -> Outputs:
    """A block for 64 x 64 of D; operands by pointer."""
    row, (a, b, scale_a, scale_b) = problem.row, problem.operands
    of_a = operand(launcher, "a", a, row.a, scale_a, problem.gaps.a)
    of_b = operand(launcher, "b", b, row.b, scale_b, problem.gaps.b)

    def launch(d: Buffer, shape: Struct) -> None:
        grid = -(-problem.n // TILE), -(-problem.m // TILE)
        launcher.launch(row.name, grid, (THREADS,), [of_a, of_b, d, np.float32(problem.factor), shape])

    return with_result(launcher, problem, launch)


def with_result(launcher: Launcher, problem: BlockScaled, launch: Callable[[Buffer, Struct], None]) -> Outputs:
    """D of a launch that gets its buffer and the kernel's Problem; which bytes between its rows changed."""
    pitch = problem.n + problem.gaps.d
    d = launcher.output(problem.m * pitch, np.uint32, name="d")
    before = launcher.read(d).reshape(problem.m, -1)
    launch(d, Struct(np.array([problem.m, problem.n, problem.k, pitch], np.uint32).tobytes(), 4))
    after = launcher.read(d).reshape(problem.m, -1)
    return {"d": after[:, : problem.n], "gap": (after != before)[:, problem.n :].astype(np.uint8)}


# ---------------------------------------------------------------------------------------------------------------------
# What it must write


def product_of(problem: BlockScaled, target: str, a: Codes, b: Codes, scale_a: Codes, scale_b: Codes) -> NDArray[Any]:
    row = problem.row
    return oracles.block_scaled_matmul(
        a,
        b,
        scale_a,
        scale_b,
        a_format=row.a,
        b_format=row.b,
        scale_format=row.stored,
        block=row.block,
        global_scale=problem.factor,
        target=target,
    )


def expected(problem: BlockScaled, target: str) -> Outputs:
    """D as float32's codes, and nothing between its rows."""
    d = product_of(problem, target, *problem.operands).view(np.uint32)
    return {"d": d, "gap": expected_gap(problem)}


def expected_gap(problem: BlockScaled) -> NDArray[np.uint8]:
    """Nothing between the rows of D."""
    return np.zeros((problem.m, problem.gaps.d), np.uint8)


def by_definition(problem: BlockScaled, target: str, name: str, at: tuple[int, ...]) -> int | None:
    """One output over fractions: of a unit with block scales, or of Hopper's, which multiplies what was scaled into bf16."""
    row, number = problem.row, target_named(target).number
    if name != "d" or number < 90:
        return None
    a, b, scale_a, scale_b = (
        operand[place].tolist() for operand, place in zip(problem.operands, (*at, *at), strict=True)
    )
    kind = row.stored.name
    if number < 100:
        smallest = Fraction(1, 1 << 127)
        wide = [
            slow.in_bf16(codes, format, scales, kind, smallest)
            for codes, format, scales in ((a, row.a, scale_a), (b, row.b, scale_b))
        ]
        ascending = [list(range(first, first + slow.HOPPER_BF16.length)) for first in range(0, problem.k, 16)]
        found = slow.wide(*wide, ascending, slow.HOPPER_BF16)
    else:
        narrow = all(format_named(each).bits == 4 for each in (row.a, row.b))
        step = slow.BLACKWELL_FP4 if narrow else slow.BLACKWELL
        found = slow.native((a, b), (row.a, row.b), (scale_a, scale_b), kind, step)
    total = SINGLE_GRID.decode(found)
    factor = SINGLE_GRID.decode(int(np.float32(problem.factor).view(np.uint32)))
    return SINGLE_GRID.encode(mul(total, factor))


def mistaken(mistake: "mistakes.Mistake", problem: BlockScaled, target: str) -> Outputs:
    """What a kernel that makes it would write."""
    row, (a, b, scale_a, scale_b) = problem.row, problem.operands
    stand = mistake(
        mistakes.Operands((a, b), (scale_a, scale_b), (row.a, row.b), row.stored, row.block, problem.factor)
    )
    total = oracles.block_scaled_matmul(
        *stand.codes,
        *stand.scales,
        a_format=stand.formats[0],
        b_format=stand.formats[1],
        scale_format=stand.stored,
        block=stand.block,
        global_scale=stand.factor,
        target=target,
        upcast=stand.upcast,
    )
    return {"d": total.view(np.uint32), "gap": expected_gap(problem)}


MISTAKES: dict[str, Callable[..., Outputs]] = {
    name: partial(mistaken, mistake) for name, mistake in mistakes.MISTAKES.items()
}


def problems(of: type[BlockScaled], entries: tuple[str, ...]) -> st.SearchStrategy[BlockScaled]:
    """Edges of tiles in both directions, K of one block and of several stages, scales of every code."""

    @st.composite
    def drawn(draw: st.DrawFn) -> BlockScaled:
        entry = of.entries[draw(st.sampled_from(entries))]
        gaps, fills = st.integers(0, 3), tuple(fill for fill in DRAWN_FILLS if fill != "subnormals")
        scales = st.builds(Scales, st.sampled_from(list(SCALE_FILLS)), st.integers(0, 99))
        return of(
            draw(extents(TILE, ROWS + 8)),
            draw(extents(TILE, ROWS + 8)),
            entry.k_unit * draw(st.integers(1, 352 // entry.k_unit)),
            entry.name,
            draw(values(entry.a, fills=fills)),
            draw(values(entry.b, fills=fills)),
            draw(scales),
            draw(scales),
            Gaps(draw(gaps), draw(gaps), draw(gaps)),
            draw(st.sampled_from([1.0, 0.3, -2.5e-7])),
        )

    return drawn()


def corpus_of(of: type[BlockScaled]) -> tuple[BlockScaled, ...]:
    """For each entry: edges in every direction, a stage and a tail of one block; more rows than a tile of scales has, an odd
    number of tiles along K; then scales of every code, special values, and one block of the least and the largest scales."""
    found = []
    for name, entry in of.entries.items():
        unit, seed = entry.k_unit, len(found)
        bits, normal = Values("bits", seed), Values("gaussian", seed)
        distinct = Scales("distinct", seed), Scales("distinct", seed + 1)
        of_b = bits if format_named(entry.b).bits == 4 else normal
        found.append(of(37, 29, 128 + unit, name, normal, of_b, *distinct, Gaps(1, 2, 3)))
        found.append(of(133, 97, 9 * unit, name, normal, normal, *distinct, factor=0.3))
        found.append(of(65, 130, 512 + unit, name, normal, normal, Scales("bits", seed), Scales("near", seed)))
        found.append(of(1, 7, unit, name, bits, Values("specials", seed), *distinct, Gaps(0, 0, 1)))
        found.append(of(19, 9, unit, name, normal, normal, Scales("ends", seed), Scales("near", seed)))
    return tuple(found)


def declared(of: type[BlockScaled], file: str, summary: str, run: Callable[[Launcher, Any], Outputs] = run) -> Kernel:
    """The kernel of a file."""
    return Kernel(
        file,
        summary=summary,
        file=KERNEL_FILES / f"{file}.cu",
        entries=tuple(of.entries),
        outputs={"d": "f32", "gap": ""},
        recipe=of,
        problem=problems(of, tuple(of.entries)),
        corpus=corpus_of(of),
        run=run,
        oracle=expected,
        suspects=MISTAKES,
        computes=kinds.block_scaled_product(
            *map(products.operand, range(4)),
            a_format=lambda problem: problem.row.a,
            b_format=lambda problem: problem.row.b,
            scale_format=lambda problem: problem.row.stored,
            global_scale="factor",
            also={"gap": expected_gap},
        ),
        per_target=True,
        definition=by_definition,
        products=products.block_scaled(of, of.entries),
    )


BLOCK_SCALED_SM120 = declared(
    BlockScaled,
    "block_scaled_matmul_sm120",
    "D = (A scaled) (B scaled)^T by mma.sync with scales by block, into float32",
)

BLOCK_SCALED_SM90 = declared(
    BlockScaledSm90, "block_scaled_matmul_sm90", "D = (A scaled) (B scaled)^T in bf16 by wgmma, scaled in registers"
)

KERNELS = (BLOCK_SCALED_SM120, BLOCK_SCALED_SM90)
