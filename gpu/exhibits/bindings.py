"""The exhibits, declared: kernels that are wrong on purpose, one defect each, with what they were meant to write.

refsim verify --kernels gpu/exhibits/bindings.py fails for every one of them and names the cause.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.conversions import convert, decode, round_bits
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.numerics import ieee
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, spelled

FOLDER = Path(__file__).parent
GROUP, WARPS = 64, 4
ZEROS, ONES, GAUSSIAN = Values(), Values("ones"), Values("gaussian")
Codes = NDArray[np.unsignedinteger]
Floats = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class Layer:
    """Y = X W^T without a residual, contiguous; `scales` are used by one exhibit."""

    batch: int
    output: int
    reduction: int
    x: Values = GAUSSIAN
    w: Values = GAUSSIAN
    scales: Values = ONES

    def __post_init__(self) -> None:
        in_range("batch", self.batch, 1, 16)
        in_range("output", self.output, 1, 1 << 16)
        in_range("reduction", self.reduction, 1, 1 << 16)

    def __repr__(self) -> str:
        return spelled(self)


@dataclass(frozen=True)
class Exhibit:
    """What tells one exhibit from another: its launch, the format of W and the multiples its shape must have."""

    name: str
    columns: int = 32
    threads: int = 32
    w_format: str = "bf16"
    reduction: int = 1
    shared_bytes: Callable[[Layer], int] = lambda layer: 0
    has_scales: bool = False
    whole_columns: bool = False

    def x(self, layer: Layer) -> Codes:
        return layer.x.codes("bf16", layer.batch, layer.reduction)

    def w(self, layer: Layer) -> Codes:
        return layer.w.codes(self.w_format, layer.output, layer.reduction)

    def scales(self, layer: Layer) -> Codes:
        return layer.scales.codes("f32", layer.output, layer.reduction // GROUP)

    def run(self, launcher: Launcher, layer: Layer) -> Outputs:
        if layer.reduction % self.reduction or (self.whole_columns and layer.output % self.columns):
            raise RefsimError("bad-recipe", f"{self.name} does not take {layer}")
        operands = [launcher.upload(self.x(layer), name="x"), launcher.upload(self.w(layer), name="w")]
        if self.has_scales:
            operands.append(launcher.upload(self.scales(layer).view(np.float32), name="scales"))
        y = launcher.output(layer.batch * layer.output, np.uint16, name="y")
        extents = [np.uint32(extent) for extent in (layer.batch, layer.output, layer.reduction)]
        grid = (-(-layer.output // self.columns),)
        launcher.launch(self.name, grid, (self.threads,), [*operands, y, *extents], self.shared_bytes(layer))
        return {"y": launcher.read(y).reshape(layer.batch, layer.output)}

    def problems(self) -> st.SearchStrategy[Layer]:
        """Small shapes of the multiples that the exhibit is made for; in one dimension each, the smallest is one tile."""
        output = st.integers(1, 2).map(lambda count: count * self.columns) if self.whole_columns else st.integers(1, 40)
        reduction = st.integers(1, 3 if self.reduction > 1 else 40).map(lambda count: count * self.reduction)
        fills = ("ones", "gaussian", "narrow", "one-hot rows")
        w = values(
            self.w_format,
            fills=("zeros", *fills, "bits") if format_named(self.w_format).bits == 8 else fills,
            max_patches=0,
        )
        x, scales = values("bf16", fills=fills, max_patches=0), values("f32", fills=("distinct",), max_patches=0)
        return st.builds(
            Layer, st.integers(1, 4), output, reduction, x, w, scales if self.has_scales else st.just(ONES)
        )


# ---------------------------------------------------------------------------------------------------------------------
# What they were meant to write


def widened(codes: Codes) -> Floats:
    return decode(codes, "bf16", np.float32)


def chain(x: Floats, w: Floats) -> Floats:
    """The chain of fmaf over K from +0: x (batch, K), w (output, K)."""
    total = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for k in range(x.shape[1]):
        total = ieee.fma(x[:, None, k], w[None, :, k], total)
    return total


def bf16(total: Floats) -> Outputs:
    return {"y": round_bits(total, "bf16").astype(np.uint16)}


def one_chain(exhibit: Exhibit, layer: Layer) -> Outputs:
    return bf16(chain(widened(exhibit.x(layer)), widened(exhibit.w(layer))))


def four_chains(exhibit: Exhibit, layer: Layer, counted: tuple[int, ...] = tuple(range(WARPS))) -> Outputs:
    """A quarter of K for each warp, summed in order; `counted` are the warps that count."""
    x, w = widened(exhibit.x(layer)), widened(exhibit.w(layer))
    share = -(-layer.reduction // WARPS)
    parts = [chain(x[:, at : at + share], w[:, at : at + share]) for at in range(0, WARPS * share, share)]
    total = parts[counted[0]]
    for warp in counted[1:]:
        total = ieee.add(total, parts[warp])
    return bf16(total)


def shifted_rows(exhibit: Exhibit, layer: Layer) -> Outputs:
    """Row n of X taken from element n on."""
    flat = exhibit.x(layer).ravel()
    x = np.array([flat[row : row + layer.reduction] for row in range(layer.batch)])
    return bf16(chain(widened(x), widened(exhibit.w(layer))))


def scaled_chains(exhibit: Exhibit, layer: Layer) -> Outputs:
    x, w, scales = widened(exhibit.x(layer)), widened(exhibit.w(layer)), exhibit.scales(layer).view(np.float32)
    total = np.zeros((layer.batch, layer.output), np.float32)
    for group in range(layer.reduction // GROUP):
        part = slice(group * GROUP, (group + 1) * GROUP)
        total = ieee.fma(np.broadcast_to(scales[:, group], total.shape), chain(x[:, part], w[:, part]), total)
    return bf16(total)


def decoded(exhibit: Exhibit, layer: Layer, policy: str = "exact") -> Outputs:
    w = convert(f"{policy}.bf16.e4m3", exhibit.w(layer))
    return bf16(chain(widened(exhibit.x(layer)), widened(w)))


def on_tensor_cores(exhibit: Exhibit, layer: Layer, target: str, *, exchanged: bool = False) -> Outputs:
    """One chain of mma; `exchanged`: the halves of each 64 columns change places in rows 4 to 7 of every 8 of X."""
    x = exhibit.x(layer)
    if exchanged:
        columns, rows = np.arange(layer.reduction), np.arange(layer.batch)
        x = np.where((rows % 8 >= 4)[:, None], x[:, columns ^ 32], x)
    return {"y": oracles.linear(x, exhibit.w(layer), target=target)}


def declared(
    exhibit: Exhibit,
    oracle: Callable[..., Outputs],
    corpus: tuple[Layer, ...],
    summary: str,
    suspects: Mapping[str, Callable[..., Outputs]] | None = None,
    **more: Any,
) -> Kernel:
    bound = {name: partial(function, exhibit) for name, function in (suspects or {}).items()}
    return Kernel(
        exhibit.name,
        summary=summary,
        file=FOLDER / f"{exhibit.name}.cu",
        entries=(exhibit.name,),
        recipe=Layer,
        problem=exhibit.problems(),
        corpus=corpus,
        run=exhibit.run,
        oracle=partial(oracle, exhibit),
        outputs={"y": "bf16"},
        suspects=bound,
        **more,
    )


FIRST = {"only the first split of the reduction counts": partial(four_chains, counted=(0,))}
LAST = {"only the last split of the reduction counts": partial(four_chains, counted=(WARPS - 1,))}

SPLIT_REDUCTION_MISSING = declared(
    Exhibit("split_reduction_missing", threads=128, shared_bytes=lambda layer: (WARPS + 1) * layer.batch * 128),
    four_chains,
    (Layer(2, 33, 40),),
    "nobody adds the sums of the four warps",
    FIRST | LAST,
)
PARTIAL_ROWS = declared(
    Exhibit("partial_rows", threads=128, shared_bytes=lambda layer: WARPS * layer.batch * 128),
    four_chains,
    (Layer(1, 33, 40), Layer(3, 33, 40)),
    "partial sums of several rows overlap",
    FIRST | LAST,
)
ROW_OFFSET = declared(
    Exhibit("row_offset"),
    one_chain,
    (Layer(1, 20, 30), Layer(4, 20, 30)),
    "rows of X one element apart",
    {"row n of X taken from element n on": shifted_rows},
)
MISSING_WAIT = declared(
    Exhibit("missing_wait", reduction=64, shared_bytes=lambda layer: 8192, whole_columns=True),
    one_chain,
    (Layer(2, 32, 192), Layer(2, 32, 64)),
    "no wait for the copy of a single tile",
)
SCALE_BEFORE_WAIT = declared(
    Exhibit(
        "scale_before_wait",
        reduction=GROUP,
        shared_bytes=lambda layer: 128 * layer.reduction // GROUP,
        has_scales=True,
        whole_columns=True,
    ),
    scaled_chains,
    (Layer(2, 32, 128, scales=Values("distinct")),),
    "the first scale is read while it is copied",
)
ZERO_DECODED = declared(
    Exhibit("zero_decoded", w_format="e4m3"),
    decoded,
    (Layer(2, 20, 30, w=Values("one-hot rows")), Layer(1, 3, 8, w=ZEROS)),
    "E4M3 zero becomes 2^-7",
    {"zero, subnormal and NaN codes decoded by adding 120 to the exponent": partial(decoded, policy="mirage")},
)
UNSWIZZLED = declared(
    Exhibit("unswizzled", columns=8, reduction=64),
    on_tensor_cores,
    (Layer(3, 9, 128),),
    "eight rows begin in one bank",
    per_target=True,
    conflict_free=("ldmatrix",),
)
SWIZZLE_MISMATCH = declared(
    Exhibit("swizzle_mismatch", columns=8, reduction=64),
    on_tensor_cores,
    (Layer(3, 9, 64), Layer(8, 9, 128)),
    "written by one swizzle, read by another",
    {"halves of each 64 columns of X exchanged in rows 4 to 7 of 8": partial(on_tensor_cores, exchanged=True)},
    per_target=True,
)

KERNELS = (
    SPLIT_REDUCTION_MISSING,
    PARTIAL_ROWS,
    ROW_OFFSET,
    MISSING_WAIT,
    SCALE_BEFORE_WAIT,
    ZERO_DECODED,
    UNSWIZZLED,
    SWIZZLE_MISMATCH,
)
