"""The FP8 quantisers by groups, declared: 1 x 128 and 128 x 128, every kind and place of scales.

What they must write is `refsim.scaling.quantize`, its scales where `layouts.scale_layout` puts them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import scaling
from refsim.conversions import encode
from refsim.formats import E8M0, format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import scale_layout
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, extents, values
from refsim.testing.recipes import in_range, of_type, one_of, spelled

SOURCE = Path(__file__).parent / "kernels/fp8_group_quantize.cu"
wide_rows = load_kernel_file(Path(__file__).with_name("wide_rows.py"))
Placement, FILLS, WIDE = wide_rows.Placement, wide_rows.FILLS, wide_rows.WIDE
SCALE_KINDS = tuple(row.name for row in scaling.SCALE_KINDS)  # in the kernel's order: 0, 1, 2
LAYOUTS = {
    row.name: scale_layout("deepgemm_mn_ue8m0" if row.format is E8M0 else "deepgemm_mn_f32")
    for row in scaling.SCALE_KINDS
}
QUOTIENTS = {"reciprocal": "", "divide": "_divide"}
GROUP = 128


@dataclass(frozen=True, repr=False)
class GroupQuantize:
    """X (rows, columns) to codes and scales; `blocks` = 0 for as many as there are tiles, `threads` of groups of 1 x 128."""

    rows: int
    columns: int
    x: Values = wide_rows.ZEROS
    format: str = "bf16"
    group_rows: int = 1
    scale: str = "f32"
    mn_major: bool = False
    quotient: str = "reciprocal"
    eps: float = 1e-4
    threads: int = 256
    blocks: int = 0
    place: Placement = wide_rows.CLOSE

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 1 << 20)
        in_range("columns", self.columns, 1, 1 << 20)
        in_range("threads", self.threads, 32, 1024)
        in_range("blocks", self.blocks, 0, 1 << 16)
        one_of("format", self.format, WIDE)
        one_of("scale kind", self.scale, SCALE_KINDS)
        one_of("quotient", self.quotient, tuple(QUOTIENTS))
        in_range("group_rows", self.group_rows, 1, GROUP)
        one_of("group", f"{self.group_rows}x{GROUP}", ("1x128", "128x128"))
        for name, type in (("mn_major", bool), ("x", Values), ("place", Placement), ("eps", float)):
            of_type(name, getattr(self, name), type)
        in_range("threads of whole warps", self.threads % 32, 0, 0)
        in_range("MN-major scales of groups of 128 x 128", self.mn_major * (self.group_rows - 1), 0, 0)

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def entry(self) -> str:
        return f"fp8_{'group' if self.group_rows == 1 else 'block'}_quantize_{self.format}{QUOTIENTS[self.quotient]}"

    def codes(self) -> NDArray[Any]:
        return self.x.codes(self.format, self.rows, self.columns)


def launch_of(rows: int, columns: int, format: str, group_rows: int, threads: int = 256) -> tuple[int, int]:
    """Blocks and threads, one block a tile: 8192 x 8192 bf16 by 1 x 128 are 8192 blocks of 256 threads."""
    lanes = GROUP // (wide_rows.VECTOR_BYTES // format_named(format).code_dtype.itemsize)
    groups = -(-columns // GROUP)
    if group_rows > 1:
        return max(1, -(-rows // GROUP) * groups), GROUP * lanes // wide_rows.VECTORS
    return max(1, -(-rows // (threads // lanes)) * -(-groups // wide_rows.VECTORS)), threads


def run(launcher: Launcher, problem: GroupQuantize) -> Outputs:
    placed = wide_rows.place_rows(launcher, problem.codes(), problem.format, problem.columns, problem.place)
    shape, scale_kind = scales_of(problem)
    scales = launcher.output(int(np.prod(shape)), scale_kind, name="scales")
    blocks, threads = launch_of(problem.rows, problem.columns, problem.format, problem.group_rows, problem.threads)
    arguments = [*placed.arguments, scales, np.uint32(SCALE_KINDS.index(problem.scale))]
    arguments += [np.uint32(problem.mn_major)] if problem.group_rows == 1 else []
    launcher.launch(problem.entry, (problem.blocks or blocks,), (threads,), [*arguments, np.float32(problem.eps)])
    codes, changed = placed.read(launcher, problem.columns)
    return {"q": codes, "gap": changed, "scales": launcher.read(scales).reshape(shape)}


def scales_of(problem: GroupQuantize) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape of the scales as they lie, and their type: float32, or the codes of E8M0."""
    grid = scaling.scale_grid((problem.rows, problem.columns), (problem.group_rows, GROUP))
    kind = scaling.scale_kind(problem.scale).format
    shape = LAYOUTS[problem.scale].packed_shape(grid) if problem.mn_major else grid
    return shape, np.dtype(np.float32) if kind.array_dtype is not None else kind.code_dtype


def expected(problem: GroupQuantize, **other: Any) -> Outputs:
    """Codes, nothing between their rows, and the scales where they lie; `other` arguments of `scaling.quantize`."""
    arguments = {"quotient": problem.quotient, "eps": problem.eps, "scale": problem.scale} | other
    made = scaling.quantize(problem.codes(), problem.format, group=(problem.group_rows, GROUP), **arguments)
    scales = made.scales
    if problem.mn_major:
        scales = LAYOUTS[problem.scale].shuffle(scales)
    return {"q": made.codes, "gap": expected_gap(problem), "scales": scales}


def expected_gap(problem: GroupQuantize) -> NDArray[np.uint8]:
    """Nothing between the rows of the codes."""
    return np.zeros((problem.rows, problem.place.q_gap), np.uint8)


def outputs(problem: GroupQuantize) -> dict[str, str]:
    return {"q": "e4m3", "gap": "", "scales": scaling.scale_kind(problem.scale).format.name}


MISTAKES: dict[str, Callable[..., Outputs]] = {
    "a NaN does not count among the largest of its group": lambda problem: expected(problem, nan="ignored"),
    "the other of product with the reciprocal and quotient": lambda problem: expected(
        problem, quotient="divide" if problem.quotient == "reciprocal" else "reciprocal"
    ),
}


@st.composite
def group_problems(draw: st.DrawFn, group_rows: int = 1, wide: tuple[str, ...] = WIDE) -> GroupQuantize:
    """Problems of one group: extents around its own and around a span of four, whole rows of vectors or not."""
    format = draw(st.sampled_from(wide))
    rows = draw(st.integers(1, 40)) if group_rows == 1 else draw(extents(GROUP, 260))
    columns = draw(
        st.one_of(extents(GROUP, 1100 if group_rows == 1 else 300), extents(GROUP * wide_rows.VECTORS, 1100))
    )
    return GroupQuantize(
        rows,
        columns if group_rows == 1 else min(columns, 300),
        draw(values(format, fills=FILLS, max_patches=4)),
        format,
        group_rows,
        draw(st.sampled_from(SCALE_KINDS)),
        draw(st.booleans()) if group_rows == 1 else False,
        draw(st.sampled_from(tuple(QUOTIENTS))),
        draw(st.sampled_from([1e-4, 2.0**-149, 1e-12, 3.0])),
        draw(st.sampled_from([256, 32, 64, 1024])),
        draw(st.integers(0, 3)),
        draw(wide_rows.placements()),
    )


def corpus(group_rows: int) -> tuple[GroupQuantize, ...]:
    """Every fill, type, kind of scale and quotient; one element, whole tiles, and tails of both extents; 2.4375 beside 13,
    which the quotient makes a tie and the product with the reciprocal does not."""
    shapes = ((1, 1), (16, 512), (5, 700), (33, 1032)) if group_rows == 1 else ((1, 1), (128, 128), (131, 260))
    variants = list(product(WIDE, SCALE_KINDS, QUOTIENTS))
    found = []
    for place, (fill, (format, scale, quotient)) in enumerate(product(FILLS, variants)):
        if place % 7 and fill != "specials":  # a share of the product, in which every pair still stands
            continue
        rows, columns = shapes[place // 7 % len(shapes)]
        x = Values(fill, place, ((3, 0xFFFFFFFF),) if fill == "narrow" else ())
        mn_major = group_rows == 1 and place // 2 % 2 == 0
        gaps = wide_rows.placement_of(place)
        found.append(GroupQuantize(rows, columns, x, format, group_rows, scale, mn_major, quotient, place=gaps))
    for format, quotient in product(WIDE, QUOTIENTS):
        patches = tuple(enumerate(int(code) for code in encode([13, 2.4375, -2.4375], format)))
        found.append(GroupQuantize(1, 8, Values(patches=patches), format, group_rows, quotient=quotient))
    return tuple(found)


def kernel(name: str, group_rows: int, summary: str) -> Kernel:
    return Kernel(
        name,
        summary=summary,
        file=SOURCE,
        entries=tuple(f"{name}_{wide}{suffix}" for wide in WIDE for suffix in QUOTIENTS.values()),
        recipe=GroupQuantize,
        problem=group_problems(group_rows),
        corpus=corpus(group_rows),
        run=run,
        oracle=expected,
        outputs=outputs,
        suspects=MISTAKES,
        computes=kinds.quantizer(
            "codes",
            f"{group_rows}x{GROUP}",
            x_format=lambda problem: problem.format,
            kind=lambda problem: problem.scale,
            quotient=lambda problem: problem.quotient,
            eps="eps",
            layout=lambda problem: LAYOUTS[problem.scale].name if problem.mn_major else None,
            also={"gap": expected_gap},
        ),
        orderless="nothing is added: the largest magnitude of a block is the same in every order",
    )


FP8_GROUP_QUANTIZE = kernel(
    "fp8_group_quantize", 1, "FP8 codes and scales of groups of 1 x 128, scales K-major or MN-major as TMA reads them"
)
FP8_BLOCK_QUANTIZE = kernel("fp8_block_quantize", 128, "FP8 codes and scales of groups of 128 x 128")

KERNELS = (FP8_GROUP_QUANTIZE, FP8_BLOCK_QUANTIZE)
