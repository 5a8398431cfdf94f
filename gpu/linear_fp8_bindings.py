"""The linear layer with FP8 weights of kernels/linear_fp8_weight.cu, declared: Y = X V^T + R, V decoded and scaled.

What a problem has in common with the layer in bf16 (entries, placement, launch) is in linear_bindings.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.errors import RefsimError
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import scale_layout
from refsim.oracles.linear_layers import weight_product_of
from refsim.reference.linear_layers import weight
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, spelled

bf16 = load_kernel_file(Path(__file__).with_name("linear_bindings.py"))
Placement = bf16.Placement
SOURCE = Path(__file__).parent / "kernels/linear_fp8_weight.cu"
ENTRIES = bf16.entries_of(SOURCE)
SHUFFLE = scale_layout("mirage_fp8_16x16")
STEP = 16
ZEROS, ONES, CLOSE = Values(), Values("ones"), Placement()
Codes = NDArray[np.unsignedinteger]


@dataclass(frozen=True, repr=False)
class LinearFp8Weight:
    """Y = X V^T + R on one entry of linear_fp8_weight.cu, V = RNE_bf16(decode(W) * S) in groups of wb_n x wb_k.

    `padding` is the code that fills the shuffled weights up to multiples of 16: no entry may let it through.
    """

    batch: int
    output: int
    reduction: int
    x: Values = ZEROS
    w: Values = ZEROS
    scales: Values = ONES
    r: Values | None = None
    wb_n: int = 128
    wb_k: int = 128
    padding: int = 0x7F
    entry: str = "linear_fp8_weight_n64_s1"
    blocks: int = 1
    place: Placement = CLOSE

    def __post_init__(self) -> None:
        bf16.check_shape(self, ENTRIES)
        in_range("wb_n", self.wb_n, 1, 1 << 20)
        in_range("wb_k", self.wb_k, STEP, 1 << 20)
        in_range("padding", self.padding, 0, 0xFF)
        if self.wb_k % STEP or (ENTRIES[self.entry].shape and (self.wb_n, self.wb_k) != (128, 128)):
            raise RefsimError(
                "bad-recipe",
                f"groups of {self.wb_n} x {self.wb_k} on {self.entry}",
                rule="wb_k is a multiple of 16; an entry of one shape has groups of 128 x 128",
            )

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def grid(self) -> tuple[int, int]:
        """The shape of the scales."""
        return -(-self.output // self.wb_n), -(-self.reduction // self.wb_k)


def shuffled(problem: LinearFp8Weight, codes: Codes) -> Codes:
    """The weights as the kernel reads them, `padding` up to multiples of 16."""
    rows, columns = (-extent % STEP for extent in codes.shape)
    padded = np.pad(codes, ((0, rows), (0, columns)), constant_values=np.uint8(problem.padding))
    return np.asarray(SHUFFLE.shuffle(padded))


def run_linear_fp8_weight(launcher: Launcher, problem: LinearFp8Weight) -> Outputs:
    place, entry = problem.place, ENTRIES[problem.entry]
    x = problem.x.codes("bf16", problem.batch, problem.reduction)
    w = shuffled(problem, problem.w.codes("e4m3", problem.output, problem.reduction))
    scales = problem.scales.codes("bf16", *problem.grid)
    operands = [
        bf16.upload(launcher, "x", x, "bf16", place.x, surrounded=place.surrounded),
        bf16.upload(launcher, "w", w, "e4m3", place.w, surrounded=place.surrounded),
        bf16.upload(launcher, "scales", scales, "bf16", 0, surrounded=place.surrounded),
    ]
    groups = [np.uint32(problem.wb_k), np.uint32(problem.wb_n)]
    return bf16.run_entry(launcher, problem, entry, operands, groups)


def linear_fp8_weight(problem: LinearFp8Weight, target: str, weights: Codes | None = None) -> Outputs:
    """What the kernel writes, or would write with other weights."""
    entry, (x, r) = ENTRIES[problem.entry], bf16.codes_of(problem)
    w = problem.w.codes("e4m3", problem.output, problem.reduction) if weights is None else weights
    scales, group = problem.scales.codes("bf16", *problem.grid), (problem.wb_n, problem.wb_k)
    how: dict[str, Any] = {"target": target, "reduction": entry.reduction(problem.blocks), "decode": entry.decode}
    y = oracles.linear_fp8_weight(x, w, scales, r, group=group, **how)
    return bf16.outputs_of(y, problem, entry)


def computed(problem: LinearFp8Weight, target: str) -> Outputs:
    """What the causes of a failing case are choices of."""
    entry, (x, r) = ENTRIES[problem.entry], bf16.codes_of(problem)
    w = problem.w.codes("e4m3", problem.output, problem.reduction)
    scales, group = problem.scales.codes("bf16", *problem.grid), (problem.wb_n, problem.wb_k)
    layer = weight_product_of(x, w, scales, r, group, entry.decode, entry.reduction(problem.blocks), target)
    layer.product.reading(**bf16.INPUTS)
    return bf16.outputs_of(layer.reading(ordered="w", weight_read="w", scale_read="scales"), problem, entry)


def by_definition(problem: LinearFp8Weight, target: str, name: str, at: tuple[int, ...]) -> int | None:
    if name != "y":
        return None
    entry = ENTRIES[problem.entry]
    codes = problem.w.codes("e4m3", problem.output, problem.reduction)[at[1]].tolist()
    scales = problem.scales.codes("bf16", *problem.grid)[at[1] // problem.wb_n].tolist()
    adds = entry.decode != "exact"
    w = [weight(code, scales[k // problem.wb_k], adds_to_exponent=adds) for k, code in enumerate(codes)]
    return bf16.output_of(problem, entry, target, at, w)


def read_in_order(problem: LinearFp8Weight, target: str) -> Outputs:
    """What comes out if the shuffled weights are taken for weights in their places."""
    w = problem.w.codes("e4m3", problem.output, problem.reduction)
    return linear_fp8_weight(problem, target, shuffled(problem, w)[: w.shape[0], : w.shape[1]])


MISTAKES: dict[str, Callable[..., Outputs]] = {"shuffled weights read as if they were in order": read_in_order}


@st.composite
def linear_fp8_weight_problems(draw: st.DrawFn, entries: tuple[str, ...] | None = None) -> LinearFp8Weight:
    """As linear_problems, with groups smaller and larger than a tile, and scales that tell groups apart."""
    entry, blocks, shape, r, place = draw(bf16.frames(ENTRIES, entries))
    scales = values("bf16", fills=("ones", "distinct", "gaussian", "bits", "specials"))
    return LinearFp8Weight(
        *shape,
        draw(values("bf16")),
        draw(values("e4m3")),
        draw(scales),
        r,
        draw(st.sampled_from([128, 1, 3, 16, 64])),
        draw(st.sampled_from([128, 16, 32, 48, 64, 512])),
        draw(st.sampled_from([0x7F, 0xFF, 0x7E, 0x00])),
        entry,
        blocks,
        place,
    )


def _corpus() -> tuple[LinearFp8Weight, ...]:
    """Beside the shapes: every code in one row of weights, and zero weights, which the trick makes 2^-7."""
    found = []
    for name, entry in ENTRIES.items():
        for shape in [entry.shape] if entry.shape else bf16.corpus_shapes(entry):
            x, w, r = bf16.corpus_values(len(found), shape[2])
            group = (128, 128) if entry.shape else ((128, 128), (3, 16), (64, 48))[len(found) % 3]
            scales, place = Values("distinct", len(found)), bf16.corpus_placement(entry, len(found))
            found.append(LinearFp8Weight(*shape, x, w, scales, r, *group, 0x7F, name, bf16.blocks_of(entry), place))
        if entry.shape is None:
            counting = Values("zeros", patches=tuple((code, code) for code in range(256) if code % 128 != 127))
            hot = Values("one-hot rows", len(found))
            found.append(LinearFp8Weight(16, 16, 16, hot, counting, entry=name, blocks=bf16.blocks_of(entry)))
            found.append(LinearFp8Weight(2, 24, 256, ONES, entry=name, blocks=bf16.blocks_of(entry)))
    return tuple(found)


LINEAR_FP8_WEIGHT = Kernel(
    "linear_fp8_weight",
    summary="Y = X V^T + R on tensor cores, V decoded from E4M3 and scaled by groups in registers",
    file=SOURCE,
    entries=tuple(ENTRIES),
    outputs=bf16.OUTPUTS,
    recipe=LinearFp8Weight,
    problem=linear_fp8_weight_problems(),
    corpus=_corpus(),
    run=run_linear_fp8_weight,
    oracle=linear_fp8_weight,
    suspects=MISTAKES,
    computes=computed,
    definition=by_definition,
    per_target=True,
    conflict_free=("ldmatrix", "ld.shared.v2.b32"),
    products=bf16.products.linears(LinearFp8Weight, ENTRIES, "e4m3", scales=Values("ones")),
)

KERNELS = (LINEAR_FP8_WEIGHT,)
