"""The GEMM of kernels/fp8_gemm_1d2d_experts.cu, declared: each row of A by the B of its expert; an entry is of one layout,
contiguous or masked.

What a problem has in common with the GEMM of one B (entries, placement, launch) is in gemm_1d2d.py. Rows that nobody counts
keep what they held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.errors import RefsimError
from refsim.kernels import Kernel, Launcher, Outputs, Struct
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, extents, values
from refsim.testing.recipes import in_range, of_type, one_of, spelled

gemm = load_kernel_file(Path(__file__).with_name("gemm_1d2d.py"))
splits = load_kernel_file(Path(__file__).with_name("gemm_1d2d_splits.py"))
SOURCE = Path(__file__).parent / "kernels/fp8_gemm_1d2d_experts.cu"
ENTRIES = gemm.entries_of(SOURCE)
Entry, Gaps = Any, gemm.Gaps
GROUP_ROWS = 128  # DeepGEMM's alignment of the contiguous layout
NOBODY = -1

# Nanoseconds for a block of K and for a tile: those of the entries of the same tile for one B. Here tiles of 128x192 took 1.01 to
# 1.05 of the time of 128x128_1x2 on an H200, where the costs of one B are equal.
COSTS: dict[str, tuple[float, float]] = {
    name: {**gemm.COSTS, **splits.COSTS, "fp8_gemm_1d2d_128x192": (570, 4800)}[
        name.replace("experts_masked_" if entry.masked else "experts_contiguous_", "splits_" if entry.swapped else "")
    ]
    for name, entry in ENTRIES.items()
}


def units(entry: Entry, counts: Sequence[int], n: int) -> int:
    """Clusters' worth of tiles that have a row that counts."""
    return sum(int(entry.units(count, n)) for count in counts if count)


def busiest(entry: Entry, counts: Sequence[int], n: int, k: int, multiprocessors: int = gemm.MULTIPROCESSORS) -> float:
    """Nanoseconds that the busiest block of an entry is expected to take for experts of so many rows."""
    step, tile = COSTS[entry.name]
    turns = -(-units(entry, counts, n) // max(1, multiprocessors // entry.blocks))
    return turns * (-(-k // gemm.BLOCK) * step + tile)


def cost(entry: Entry, counts: Sequence[int], n: int, k: int, multiprocessors: int = gemm.MULTIPROCESSORS) -> float:
    """Nanoseconds that an entry is expected to take for experts of so many rows: its busiest block, or the bytes of their B."""
    weights = sum(1 for count in counts if count) * n * k
    return max(busiest(entry, counts, n, k, multiprocessors), weights / splits.MEMORY[0] + splits.MEMORY[1])


def candidates(group_rows: int | None = None) -> list[Entry]:
    """The entries of a layout: contiguous with `group_rows`, which its tiles divide; else masked."""
    masked = [entry for entry in ENTRIES.values() if entry.masked]
    contiguous = [entry for entry in ENTRIES.values() if not entry.masked and (group_rows or 1) % entry.rows == 0]
    return masked if group_rows is None else contiguous


def chosen(
    counts: Sequence[int], n: int, k: int, group_rows: int | None = None, multiprocessors: int = gemm.MULTIPROCESSORS
) -> Entry:
    """The candidate of the least cost. Where the bytes of B decide, that of the least work."""
    work = counts, n, k, multiprocessors
    return min(candidates(group_rows), key=lambda entry: (cost(entry, *work), busiest(entry, *work)))


# ---------------------------------------------------------------------------------------------------------------------
# Problems


@dataclass(frozen=True, repr=False)
class ExpertsGemm1D2D:
    """D of A and B (experts, n, k) on one entry of fp8_gemm_1d2d_experts.cu: expert i multiplies counts[i] rows.

    contiguous: A (m, k), the rows of experts one after another, each expert's from a multiple of `group_rows` on, the others
    nobody's. masked: A (experts, m, k). The entry has one of these layouts. Else as Gemm1D2D.
    """

    counts: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Values = gemm.ZEROS
    b: Values = gemm.ZEROS
    scale_a: Values = gemm.ONES
    scale_b: Values = gemm.ONES
    gaps: Gaps = gemm.DENSE
    entry: str = "fp8_gemm_1d2d_experts_contiguous_128x128_1x2"
    clusters: int | None = None
    together: int = 16
    group_rows: int = GROUP_ROWS

    def __post_init__(self) -> None:
        of_type("counts", self.counts, tuple)
        in_range("experts", len(self.counts), 1, 1 << 10)
        in_range("m", self.m, 1, 1 << 20)
        in_range("n", self.n, 8, 1 << 20)
        in_range("k", self.k, 1, 1 << 20)
        in_range("together", self.together, 1, 1 << 20)
        in_range("clusters", 1 if self.clusters is None else self.clusters, 1, gemm.MULTIPROCESSORS)
        gemm.whole_vectors(self.n)
        gemm.check_operands(self)
        one_of("entry", self.entry, tuple(ENTRIES))
        for count in self.counts:
            in_range("rows of an expert", count, 0, self.m)
        in_range("group_rows", self.group_rows, 1, 1 << 20)
        rows = ENTRIES[self.entry].rows
        if not self.is_masked and self.group_rows % rows:
            what = f"experts are aligned to {self.group_rows} rows, tiles have {rows}"
            raise RefsimError("bad-recipe", what, rule="a tile has one expert")
        if not self.is_masked and self._end() > self.m:
            raise RefsimError("bad-recipe", f"the last expert ends at row {self._end()} of {self.m}")

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def is_masked(self) -> bool:
        return bool(ENTRIES[self.entry].masked)

    def _starts(self) -> list[int]:
        """The first row of each expert in the contiguous layout."""
        sizes = [-(-count // self.group_rows) * self.group_rows for count in self.counts]
        return [sum(sizes[:expert]) for expert in range(len(sizes))]

    def _end(self) -> int:
        return max(
            start + count for start, count in zip(self._starts(), self.counts, strict=True) if count or not start
        )

    @cached_property
    def groups(self) -> NDArray[np.int32]:
        """What the kernel and the oracle are told: the expert of each row, or how many rows count."""
        if self.is_masked:
            return np.array(self.counts, np.int32)
        owner = np.full(self.m, NOBODY, np.int32)
        for expert, (start, count) in enumerate(zip(self._starts(), self.counts, strict=True)):
            owner[start : start + count] = expert
        return owner

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows of D count, all matrices one after another."""
        return ~oracles.open_rows(self.groups, self.m if self.is_masked else None).reshape(-1)

    @cached_property
    def operands(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
        """A (m, k) or (experts, m, k), B (experts, n, k) and their scales, as the oracle takes them."""
        experts, steps, blocks = len(self.counts), -(-self.k // gemm.BLOCK), -(-self.n // gemm.BLOCK)
        of_a = (experts, self.m) if self.is_masked else (self.m,)
        rows = int(np.prod(of_a))
        a = self.a.codes("e4m3", rows, self.k).astype(np.uint8).reshape(*of_a, self.k)
        b = self.b.codes("e4m3", experts * self.n, self.k).astype(np.uint8).reshape(experts, self.n, self.k)
        scale_a = self.scale_a.codes("f32", rows, steps).view(np.float32).reshape(*of_a, steps)
        scale_b = self.scale_b.codes("f32", experts * blocks, steps).view(np.float32).reshape(experts, blocks, steps)
        return a, b, scale_a, scale_b


def experts_struct(groups: int, d: int, pitch: int, experts: int) -> Struct:
    """The kernel's Experts, of two addresses; `pitch`: elements from row to row of D."""
    return Struct(np.array([groups, d], np.uint64).tobytes() + np.array([pitch, experts], np.uint32).tobytes(), 8)


def run(launcher: Launcher, problem: ExpertsGemm1D2D) -> Outputs:
    entry, gaps = ENTRIES[problem.entry], problem.gaps
    m, n, k, experts = problem.m, problem.n, problem.k, len(problem.counts)
    matrices = experts if problem.is_masked else 1
    a, b, scale_a, scale_b = problem.operands
    pitches = gemm.pitch_of(k, gaps.a), gemm.pitch_of(k, gaps.b), gemm.pitch_of(2 * n, gaps.d)
    scales = [gemm.SFA.shuffle(each).reshape(-1) for each in scale_a.reshape(matrices, m, -1)]
    on_device = [
        launcher.upload(gemm.with_gaps(a.reshape(-1, k), pitches[0]), name="a"),
        launcher.upload(gemm.with_gaps(b.reshape(-1, k), pitches[1]), name="b"),
        launcher.upload(np.concatenate(scales), name="sfa"),
        launcher.output(matrices * m * pitches[2] // 2, np.uint16, name="d"),
    ]
    sfb = launcher.upload(scale_b.reshape(-1), name="sfb")
    groups = launcher.upload(problem.groups, name="groups")
    before = launcher.read(on_device[3]).reshape(matrices * m, -1)
    addresses = on_device[0].address, on_device[1].address, on_device[2].address, on_device[3].address
    maps = gemm.maps(entry, (m, n, k), addresses, pitches, (matrices, experts))
    of_experts = experts_struct(groups.address, on_device[3].address, pitches[2] // 2, experts)
    arguments = [*maps, sfb, gemm.shape_of(entry, m, n, k, problem.together), of_experts]
    work = units(entry, problem.counts, n) if problem.is_masked else entry.units(m, n)
    gemm.launch(launcher, entry, max(1, work), problem.clusters, arguments)
    after = launcher.read(on_device[3]).reshape(matrices * m, -1)
    return results(problem, after[:, :n], after != before)


def results(problem: ExpertsGemm1D2D, d: NDArray[np.uint16], changed: NDArray[np.bool_]) -> Outputs:
    """The rows that count; and of every other element whether it changed."""
    counted = problem.counted
    others = np.concatenate([changed[~counted].reshape(-1), changed[counted][:, problem.n :].reshape(-1)])
    return {"d": np.ascontiguousarray(d[counted]), "others": others.astype(np.uint8)}


def expected(problem: ExpertsGemm1D2D, **other: Any) -> Outputs:
    """D where rows count, and nothing elsewhere; `other` arguments of the oracle."""
    arguments = {"groups": problem.groups, "group_rows": problem.group_rows, **other}
    d = oracles.fp8_gemm_1d2d(*problem.operands, **arguments).reshape(-1, problem.n)
    width = gemm.pitch_of(2 * problem.n, problem.gaps.d) // 2
    return results(problem, d, np.zeros((len(d), width), np.bool_))


def by_definition(problem: ExpertsGemm1D2D, name: str, at: tuple[int, ...]) -> int | None:
    """One output over fractions, of a row that counts and the B of its expert."""
    if name != "d":
        return None
    a, b, scale_a, scale_b = problem.operands
    row = [place for place, counts in enumerate(problem.counted.tolist()) if counts][at[0]]
    expert = row // problem.m if problem.is_masked else int(problem.groups[row])
    rows = a.reshape(-1, problem.k), b[expert], scale_a.reshape(-1, scale_a.shape[-1]), scale_b[expert]
    return int(gemm.output_of(rows, (row, at[1])))


def with_b(change: Any, problem: ExpertsGemm1D2D) -> Outputs:
    """What comes out with the B or the scales of B of other experts."""
    a, b, scale_a, scale_b = problem.operands
    b, scale_b = change(b, scale_b)
    d = oracles.fp8_gemm_1d2d(a, b, scale_a, scale_b, groups=problem.groups, group_rows=problem.group_rows)
    return {**expected(problem), "d": d.reshape(-1, problem.n)[problem.counted]}


MISTAKES = {
    "every row multiplied by the B of expert 0": partial(
        with_b, lambda b, scales: (np.repeat(b[:1], len(b), 0), np.repeat(scales[:1], len(scales), 0))
    ),
    "the scales of expert 0 for all": partial(with_b, lambda b, scales: (b, np.repeat(scales[:1], len(scales), 0))),
    "the B of the next expert": partial(with_b, lambda b, scales: (np.roll(b, -1, 0), np.roll(scales, -1, 0))),
    "each scale multiplied into the sum by itself, that of A first": partial(expected, promotion="a_then_b"),
}


@st.composite
def experts_problems(draw: st.DrawFn, entries: tuple[str, ...] = tuple(ENTRIES)) -> ExpertsGemm1D2D:
    """Empty experts, whole tiles and their edges, more rows than any expert has."""
    entry = ENTRIES[draw(st.sampled_from(entries))]
    most = max(8, entry.rows + entry.rows // 2)
    counts = draw(st.lists(st.one_of(st.just(0), extents(min(entry.rows, most), most)), min_size=1, max_size=4))
    aligned = sum(-(-count // entry.rows) * entry.rows for count in counts)
    least = max(1, *counts) if entry.masked else max(1, aligned)
    gaps = st.integers(0, 3)
    return ExpertsGemm1D2D(
        tuple(counts),
        least + draw(st.sampled_from([0, 1, entry.rows])),
        8 * -(-draw(extents(entry.columns, 2 * entry.columns * entry.across)) // 8),
        draw(extents(gemm.BLOCK, 400)),
        draw(values("e4m3", fills=gemm.FILLS)),
        draw(values("e4m3", fills=gemm.FILLS)),
        draw(values("f32")),
        draw(values("f32")),
        Gaps(draw(gaps), draw(gaps), draw(gaps)),
        entry.name,
        draw(st.none() | st.integers(1, 3)),
        draw(st.sampled_from([16, 1, 3])),
        entry.rows,
    )


def _corpus() -> tuple[ExpertsGemm1D2D, ...]:
    """Each entry: an expert that has no rows and edges in every direction, more tiles than are handed over at once, all for one
    cluster; nobody at all; contiguous, tiles of nobody between those of experts; masked, special values."""
    found = []
    for name, entry in ENTRIES.items():
        rows, seed = entry.rows, len(found)
        drawn = partial(ExpertsGemm1D2D, entry=name, group_rows=rows)
        a, b = Values("gaussian", 2 * seed), Values("gaussian", 2 * seed + 1)
        distinct = Values("distinct", seed), Values("distinct", seed + 1)
        special = Values("bits", seed), Values("specials", seed)
        n, gaps = entry.columns * entry.across + 8, Gaps(1, 2, 1)
        if entry.masked:
            found.append(drawn((3, 0, rows + 1), rows + 3, n, 144, a, b, *distinct, gaps, clusters=1))
            found.append(drawn((0, 0), 1, 24, 130, a, b, *distinct))
            found.append(drawn((1, 7), 7, 40, 256, *special, *distinct))
        else:
            found.append(drawn((rows - 1, 0, 5), rows + 6, n, 272, a, b, *distinct, gaps, clusters=1))
            found.append(drawn((0, 0), rows, 24, 130, a, b, *distinct))
            two = partial(drawn, clusters=2, together=1, group_rows=2 * rows)
            found.append(two((0, rows, 3), 4 * rows, 24, 80, a, b, *distinct))
    return tuple(found)


FP8_GEMM_1D2D_EXPERTS = Kernel(
    "fp8_gemm_1d2d_experts",
    summary="the FP8 GEMM with block scales of a mixture of experts: contiguous and masked rows",
    file=SOURCE,
    entries=tuple(ENTRIES),
    outputs={"d": "bf16", "others": ""},
    recipe=ExpertsGemm1D2D,
    problem=experts_problems(),
    corpus=_corpus(),
    run=run,
    oracle=expected,
    suspects=MISTAKES,
    definition=by_definition,
    products=gemm.products.experts(ExpertsGemm1D2D, ENTRIES),
)

KERNELS = (FP8_GEMM_1D2D_EXPERTS,)
