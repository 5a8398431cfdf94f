"""The linear layer of kernels/linear.cu, declared: Y = X W^T + R in bf16; linear_fp8_bindings.py stands on it.

A problem says one entry of a kernel, the shape, how the operands lie in memory and what they hold. Around the operands
lie NaNs where the kernel must not look, between the rows of Y bytes that it must leave alone; all of it is checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.computations.accumulating import Reduction
from refsim.errors import RefsimError, unknown
from refsim.formats import BF16, E4M3, format_named
from refsim.kernels import Buffer, Kernel, Launcher, Outputs
from refsim.oracles.linear_layers import product_of
from refsim.reference import linear_layers as slow
from refsim.sources import Publication
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, extents, values
from refsim.testing.recipes import in_range, spelled

products = load_kernel_file(Path(__file__).with_name("products.py"))
SOURCE = Path(__file__).parent / "kernels/linear.cu"
HERE = Publication("gpu-kernels", "gpu/kernels", "", "linear_block.cuh")
MAX_BATCH = 16
NAN = {BF16: 0x7FC1, E4M3: 0x7F}
Codes = NDArray[np.unsignedinteger]


# ---------------------------------------------------------------------------------------------------------------------
# Entries: the table at the end of a kernel file


@dataclass(frozen=True)
class Entry:
    """One entry of a kernel: its tile, its warps, what a launch asks for and how the sum over K is split.

    `shared_bytes` is what the kernel's own linear::Plan counts: the file does not compile where the two differ. `shape` is
    (batch, output, reduction) where an entry is compiled for just one, `decode` how FP8 weights become values.
    """

    name: str
    shared_bytes: int
    stages: int
    output_tile: int
    reduction_tile: int
    warps_n: int
    warps_k: int
    partial: str
    over_blocks: bool
    shape: tuple[int, int, int] | None = None
    decode: str = "exact"

    @property
    def threads(self) -> int:
        return 32 * self.warps_n * self.warps_k

    def reduction(self, blocks: int = 1) -> Reduction:
        """The row that every bit follows, for `blocks` along the reduction."""
        splits = self.warps_k * blocks
        return Reduction(self.name, splits, self.reduction_tile, HERE["arithmetic"], partial_format=self.partial)


MACROS = ("LINEAR", "LINEAR_BLOCKS", "LINEAR_SHAPE")
DECODERS = {"kExact": "exact", "kMultiply": "exact", "kTrick": "mirage"}  # of the file, and the policy of the bits
PARTIALS = {"float": "f32", "__nv_bfloat16": "bf16"}


def entries_of(source: Path) -> dict[str, Entry]:
    """The entries of a kernel file, by name: each is one line `MACRO(word, ...)` of the table that ends the file."""
    lines = [line.rstrip(" )").partition("(") for line in source.read_text("utf-8").splitlines()]
    rows = [(macro, [word.strip() for word in words.split(",")]) for macro, _, words in lines if macro in MACROS]
    entries = [_entry(source.stem, macro, words) for macro, words in rows]
    return {entry.name: entry for entry in entries}


def _entry(kernel: str, macro: str, words: list[str]) -> Entry:
    """A row begins with a name or the three extents, with FP8 weights also with how they are decoded."""
    *head, shared_bytes, stages, output_tile, reduction_tile, warps_n, warps_k, partial = words
    shape = (int(head[0]), int(head[1]), int(head[2])) if macro == "LINEAR_SHAPE" else None
    return Entry(
        f"{kernel}_{'x'.join(map(str, shape)) if shape else head[0]}",
        int(shared_bytes),
        int(stages),
        int(output_tile),
        int(reduction_tile),
        int(warps_n),
        int(warps_k),
        PARTIALS[partial],
        macro == "LINEAR_BLOCKS",
        shape,
        DECODERS.get(head[-1], "exact"),
    )


LINEAR_ENTRIES = entries_of(SOURCE)


# ---------------------------------------------------------------------------------------------------------------------
# What a problem holds


@dataclass(frozen=True, repr=False)
class Placement:
    """How the operands lie: elements off the natural alignment, `gap` elements between the rows of R and Y.

    With `in_place` R is Y's own buffer. With `surrounded` every operand is followed by NaNs that belong to nobody.
    """

    x: int = 0
    w: int = 0
    y: int = 0
    gap: int = 0
    in_place: bool = False
    surrounded: bool = True

    def __post_init__(self) -> None:
        for name in ("x", "w", "y"):
            in_range(f"misalignment of {name}", getattr(self, name), 0, 64)
        in_range("gap", self.gap, 0, 1 << 16)

    def __repr__(self) -> str:
        return spelled(self)


ZEROS, CLOSE = Values(), Placement()


@dataclass(frozen=True, repr=False)
class Linear:
    """Y = X W^T + R on one entry of linear.cu; `blocks` share K where the entry splits it over blocks."""

    batch: int
    output: int
    reduction: int
    x: Values = ZEROS
    w: Values = ZEROS
    r: Values | None = None
    entry: str = "linear_n64_s1"
    blocks: int = 1
    place: Placement = CLOSE

    def __post_init__(self) -> None:
        check_shape(self, LINEAR_ENTRIES)

    def __repr__(self) -> str:
        return spelled(self)


def check_shape(problem: Any, entries: Mapping[str, Entry]) -> None:
    """Raises RefsimError for an entry or a shape that does not exist, or one that its entry is not made for."""
    if problem.entry not in entries:
        raise unknown("entry", str(problem.entry), list(entries))
    entry = entries[problem.entry]
    in_range("batch", problem.batch, 1, MAX_BATCH)
    in_range("output", problem.output, 1, 1 << 20)
    in_range("reduction", problem.reduction, 1, 1 << 20)
    in_range("blocks", problem.blocks, 1, 64 if entry.over_blocks else 1)
    place = problem.place
    if entry.shape and (
        entry.shape != (problem.batch, problem.output, problem.reduction) or any((place.x, place.w, place.y, place.gap))
    ):
        raise RefsimError("bad-recipe", f"{entry.name} is made for {entry.shape}, aligned, without a gap")
    if place.in_place and problem.r is None:
        raise RefsimError("bad-recipe", "in_place needs a residual")


# ---------------------------------------------------------------------------------------------------------------------
# Running: what both kernels share


def upload(launcher: Launcher, name: str, codes: Codes, format: str, misalign: int, *, surrounded: bool) -> Buffer:
    """A contiguous operand, with NaNs after its end."""
    guard = np.full(16 * codes.shape[1] if surrounded else 0, NAN[format_named(format)], codes.dtype)
    flat = np.concatenate([codes.reshape(-1), guard])
    return launcher.upload(flat, name=name, misalign_bytes=misalign * flat.itemsize)


def with_gaps(codes: Codes, gap: int) -> Codes:
    """Rows apart, NaN between them."""
    return np.pad(codes, ((0, 0), (0, gap)), constant_values=NAN[BF16]).reshape(-1)


def run_entry(launcher: Launcher, problem: Any, entry: Entry, operands: list[Any], groups: list[Any]) -> Outputs:
    """Launches an entry: X, W and scales are `operands`, `groups` the arguments after the strides. See `Launch` there."""
    place, stride = problem.place, problem.output + problem.place.gap
    residual = None if problem.r is None else problem.r.codes("bf16", problem.batch, problem.output)
    r: Any = np.uint64(0)
    if residual is not None and place.in_place:
        r = y = launcher.upload(with_gaps(residual, place.gap), name="y", misalign_bytes=2 * place.y, writable=True)
    else:
        if residual is not None:
            r = launcher.upload(with_gaps(residual, place.gap), name="r", misalign_bytes=2 * place.y)
        y = launcher.output(problem.batch * stride, np.uint16, name="y", misalign_bytes=2 * place.y)
    before = launcher.read(y).reshape(problem.batch, stride)
    columns = -(-problem.output // entry.output_tile)
    args = [*operands, r, y]
    if entry.shape is None:
        args += [np.uint32(extent) for extent in (problem.batch, problem.output, problem.reduction, stride)] + groups
    arrivals = None
    if entry.over_blocks:
        splits = problem.blocks * entry.warps_k
        partials = launcher.output(columns * splits * MAX_BATCH * entry.output_tile, np.float32, name="partials")
        arrivals = launcher.upload(np.zeros(columns, np.uint32), name="arrivals", writable=True)
        args += [partials, arrivals]
    grid = (columns, problem.blocks)
    launcher.launch(entry.name, grid, (entry.threads,), args, shared_bytes=entry.shared_bytes)
    after = launcher.read(y).reshape(problem.batch, stride)
    return {
        "y": after[:, : problem.output],
        "gap": (after != before)[:, problem.output :].astype(np.uint8),
        "arrivals": np.zeros(0, np.uint32) if arrivals is None else launcher.read(arrivals),
    }


def outputs_of(y: Any, problem: Any, entry: Entry) -> Outputs:
    """Y as the oracle or the computation has it, nothing between its rows, and counters that are ready for the next launch."""
    counters = -(-problem.output // entry.output_tile) if entry.over_blocks else 0
    gap = np.zeros((problem.batch, problem.place.gap), np.uint8)
    return {"y": y, "gap": gap, "arrivals": np.zeros(counters, np.uint32)}


OUTPUTS = {"y": "bf16", "gap": "", "arrivals": ""}


# ---------------------------------------------------------------------------------------------------------------------
# linear


def run_linear(launcher: Launcher, problem: Linear) -> Outputs:
    place, entry = problem.place, LINEAR_ENTRIES[problem.entry]
    x = problem.x.codes("bf16", problem.batch, problem.reduction)
    w = problem.w.codes("bf16", problem.output, problem.reduction)
    operands = [
        upload(launcher, "x", x, "bf16", place.x, surrounded=place.surrounded),
        upload(launcher, "w", w, "bf16", place.w, surrounded=place.surrounded),
    ]
    return run_entry(launcher, problem, entry, operands, [])


def codes_of(problem: Any) -> tuple[Codes, Codes | None]:
    """X, and R or None."""
    residual = None if problem.r is None else problem.r.codes("bf16", problem.batch, problem.output)
    return problem.x.codes("bf16", problem.batch, problem.reduction), residual


def linear(problem: Linear, target: str) -> Outputs:
    """What the kernel writes."""
    entry, (x, r) = LINEAR_ENTRIES[problem.entry], codes_of(problem)
    w = problem.w.codes("bf16", problem.output, problem.reduction)
    y = oracles.linear(x, w, r, target=target, reduction=entry.reduction(problem.blocks))
    return outputs_of(y, problem, entry)


def computed(problem: Linear, target: str) -> Outputs:
    """What the causes of a failing case are choices of."""
    entry, (x, r) = LINEAR_ENTRIES[problem.entry], codes_of(problem)
    w = problem.w.codes("bf16", problem.output, problem.reduction)
    layer = product_of(x, w, r, entry.reduction(problem.blocks), target).reading(**INPUTS, b_read="w")
    return outputs_of(layer, problem, entry)


INPUTS = {"a_read": "x", "c_read": "r", "accumuland": "r"}
"""What aspects of a product read, by the names of the kernel."""


def output_of(problem: Any, entry: Entry, target: str, at: tuple[int, ...], w: list[int]) -> int | None:
    """One output over fractions: of a row of W as bf16 codes."""
    x = problem.x.codes("bf16", problem.batch, problem.reduction)[at[0]].tolist()
    residual = None if problem.r is None else int(problem.r.codes("bf16", problem.batch, problem.output)[at])
    rounds = format_named(entry.partial) is BF16
    return slow.output(
        x, w, residual, slow.SplitK(entry.warps_k * problem.blocks, entry.reduction_tile, rounds), target
    )


def by_definition(problem: Linear, target: str, name: str, at: tuple[int, ...]) -> int | None:
    if name != "y":
        return None
    w = problem.w.codes("bf16", problem.output, problem.reduction)[at[1]].tolist()
    return output_of(problem, LINEAR_ENTRIES[problem.entry], target, at, w)


def placements() -> st.SearchStrategy[Placement]:
    few = st.sampled_from([0, 1, 2, 4, 8])
    return st.builds(Placement, few, few, few, st.sampled_from([0, 1, 3, 8]), surrounded=st.booleans())


Frame = tuple[str, int, tuple[int, int, int], Values | None, Placement]


@st.composite
def frames(draw: st.DrawFn, table: Mapping[str, Entry], names: tuple[str, ...] | None) -> Frame:
    """Entry, blocks, (batch, output, reduction), residual and placement.

    Every tail: output and reduction around the tiles of the entry, splits of the reduction without a tile included.
    """
    entry = table[draw(st.sampled_from(names or tuple(name for name, entry in table.items() if entry.shape is None)))]
    blocks = draw(st.integers(1, 4)) if entry.over_blocks else 1
    output, reduction = draw(extents(entry.output_tile, 80)), draw(extents(entry.reduction_tile, 400))
    r = draw(st.none() | values("bf16"))
    place = draw(placements())
    in_place = r is not None and draw(st.booleans())
    return (
        entry.name,
        blocks,
        (draw(st.integers(1, MAX_BATCH)), output, reduction),
        r,
        replace(place, in_place=in_place),
    )


@st.composite
def linear_problems(draw: st.DrawFn, entries: tuple[str, ...] | None = None) -> Linear:
    """Problems of the entries of that name, or of all that are not compiled for one shape."""
    entry, blocks, shape, r, place = draw(frames(LINEAR_ENTRIES, entries))
    return Linear(*shape, draw(values("bf16")), draw(values("bf16")), r, entry, blocks, place)


def corpus_shapes(entry: Entry) -> list[tuple[int, int, int]]:
    """One element; one tile of K; a column less, a column more; every warp several tiles and a tail."""
    n, k = entry.output_tile, entry.reduction_tile
    return [(1, 1, 1), (16, n, k), (3, n + 1, k - 1), (2, n - 1, k + 8), (5, n + 3, 2 * k * entry.warps_k + 5)]


def corpus_values(place: int, reduction: int) -> tuple[Values, Values, Values | None]:
    """Fills in turn; deep reductions get ordinary numbers, so that sums of splits round."""
    if reduction > 256:
        return Values("gaussian", place), Values("gaussian", place + 100), Values("gaussian", place + 200)
    fills = ("gaussian", "narrow", "bits", "specials", "log-uniform", "one-hot rows")
    x, w = fills[place % len(fills)], fills[(place + place // len(fills)) % len(fills)]
    return Values(x, place), Values(w, place + 100), Values("gaussian", place + 200) if place % 3 else None


def corpus_placement(entry: Entry, place: int) -> Placement:
    return Placement() if entry.shape else Placement(place % 2, 0, place % 3, 3 * (place % 2))


def blocks_of(entry: Entry) -> int:
    return 3 if entry.over_blocks else 1


def _linear_corpus() -> tuple[Linear, ...]:
    found = []
    for name, entry in LINEAR_ENTRIES.items():
        for shape in [entry.shape] if entry.shape else corpus_shapes(entry):
            x, w, r = corpus_values(len(found), shape[2])
            place = corpus_placement(entry, len(found))
            found.append(Linear(*shape, x, w, r, name, blocks_of(entry), place))
    return tuple(found)


LINEAR = Kernel(
    "linear",
    summary="Y = X W^T + R in bf16 on tensor cores, batch 1 to 16, K split over warps or blocks",
    file=SOURCE,
    entries=tuple(LINEAR_ENTRIES),
    outputs=OUTPUTS,
    recipe=Linear,
    problem=linear_problems(),
    corpus=_linear_corpus(),
    run=run_linear,
    oracle=linear,
    computes=computed,
    definition=by_definition,
    per_target=True,
    conflict_free=("ldmatrix",),
    products=products.linears(Linear, LINEAR_ENTRIES, "bf16"),
)

KERNELS = (LINEAR,)
