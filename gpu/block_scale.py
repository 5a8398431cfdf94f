"""The quantisers of block scaling, declared: MXFP8, MXFP4 and NVFP4, their scales as tensor cores read them.

What they must write is `refsim.quantize`, its scales where `layouts.scale_layout("nvidia_128x4")` puts them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import refsim
from refsim import scaling
from refsim.conversions import decode, encode, unpack
from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import scale_layout
from refsim.reference.two_level_quantize import ordinary_block
from refsim.scaling.block_formats import block_format
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values, extents, values
from refsim.testing.recipes import in_range, one_of, spelled

mistakes = load_kernel_file(Path(__file__).with_name("block_scale_mistakes.py"))
SOURCE = Path(__file__).parent / "kernels/block_scale_quantize.cu"
wide_rows = load_kernel_file(Path(__file__).with_name("wide_rows.py"))
Placement, FILLS, WIDE = wide_rows.Placement, wide_rows.FILLS, wide_rows.WIDE
ONE_LEVEL = ("floor", "even", "ceil", "rceil", "te", "triton", "aiter", "deepgemm")  # in the kernel's order
TWO_LEVELS = ("te", "te_cpp", "te_cpp_2d")
POLICY = "cuda.satfinite"  # the conversion of the elements that the kernel has
FORMATS = ("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4")
LAYOUT = scale_layout("nvidia_128x4")
TILE_ROWS, TILE_BLOCKS, WARP = 128, 4, 32


def order_of(format: str) -> tuple[str, ...]:
    """The recipes as the kernel numbers them."""
    return TWO_LEVELS if block_format(format).two_levels else ONE_LEVEL


def recipes_of(format: str) -> tuple[str, ...]:
    """The recipes of a format that the kernel has."""
    mine = {row.name for row in scaling.recipes_of(format) if row.policy == POLICY}
    return tuple(name for name in order_of(format) if name in mine)


@dataclass(frozen=True, repr=False)
class BlockQuantize:
    """X (rows, columns) to codes and scales by a recipe; `blocks` = 0 for as many as there are tiles.

    `tensor_scale` is the S of NVFP4, 0 for that of X.
    """

    rows: int
    columns: int
    x: Values = wide_rows.ZEROS
    wide: str = "bf16"
    format: str = "mxfp8"
    recipe: str = "floor"
    tensor_scale: float = 0.0
    threads: int = 256
    blocks: int = 0
    place: Placement = wide_rows.CLOSE

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 1 << 20)
        in_range("columns", self.columns, 1, 1 << 20)
        in_range("threads", self.threads, WARP, 1024)
        in_range("threads of whole warps", self.threads % WARP, 0, 0)
        in_range("blocks", self.blocks, 0, 1 << 16)
        one_of("format of X", self.wide, WIDE)
        one_of("format", self.format, FORMATS)
        one_of("recipe", self.recipe, recipes_of(self.format))

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def entry(self) -> str:
        return f"{self.format}_quantize_{self.wide}"

    @property
    def row_bytes(self) -> int:
        """Bytes of the codes of a row: an odd count of E2M1 ends with half a byte."""
        return -(-self.columns * block_format(self.format).element.bits // 8)

    def codes(self) -> NDArray[Any]:
        return self.x.codes(self.wide, self.rows, self.columns)


def launch_of(rows: int, columns: int, wide: str, format: str, threads: int = 256) -> tuple[int, int]:
    """Blocks and threads that quantise all tiles at once: 8192 x 8192 bf16 to MXFP8 are 8192 blocks of 256."""
    block = block_format(format)
    lanes = TILE_BLOCKS * block.width * format_named(wide).code_dtype.itemsize // wide_rows.VECTOR_BYTES
    tiles = -(-rows // TILE_ROWS) * -(-columns // (TILE_BLOCKS * block.width))
    return max(1, -(-tiles * TILE_ROWS * lanes // (wide_rows.VECTORS * threads))), threads


def run(launcher: Launcher, problem: BlockQuantize) -> Outputs:
    block = block_format(problem.format)
    placed = wide_rows.place_rows(launcher, problem.codes(), problem.wide, problem.row_bytes, problem.place)
    scales = launcher.output(LAYOUT.size_bytes(grid_of(problem)), np.uint8, name="scales")
    blocks, threads = launch_of(problem.rows, problem.columns, problem.wide, problem.format, problem.threads)
    arguments: list[Any] = [*placed.arguments, scales, np.uint32(order_of(problem.format).index(problem.recipe))]
    if block.two_levels:
        kept = np.array([quantized(problem).tensor_scale], np.float32)
        arguments += [launcher.upload(kept, name="tensor_scale")]
    launcher.launch(problem.entry, (problem.blocks or blocks,), (threads,), arguments)
    codes, changed = placed.read(launcher, problem.row_bytes)
    return {"q": unpack(codes, block.element), "gap": changed, "scales": launcher.read(scales)}


def grid_of(problem: BlockQuantize) -> tuple[int, int]:
    """The shape of the scales before they are shuffled."""
    return problem.rows, -(-problem.columns // block_format(problem.format).width)


def quantized(problem: BlockQuantize, **other: Any) -> scaling.Blocks:
    """The model's answer, zeros filling the last block of a row; `other` arguments of `refsim.quantize`."""
    width = block_format(problem.format).width
    x = np.pad(problem.codes(), ((0, 0), (0, -problem.columns % width)))
    arguments = {"recipe": problem.recipe, "tensor_scale": problem.tensor_scale or None} | other
    return refsim.quantize(x, problem.format, input_format=problem.wide, **arguments)


def expected(problem: BlockQuantize, **other: Any) -> Outputs:
    """Codes, the nibble that ends an odd row too, nothing between rows, and the scales shuffled, their pads zeros."""
    made = quantized(problem, **other)
    return written(problem, made.codes, LAYOUT.shuffle(made.scales))


def written(problem: BlockQuantize, codes: NDArray[Any], scales: NDArray[Any]) -> Outputs:
    held = problem.row_bytes * 8 // block_format(problem.format).element.bits
    return {"q": codes[:, :held], "gap": expected_gap(problem), "scales": scales}


def expected_gap(problem: BlockQuantize) -> NDArray[np.uint8]:
    """Nothing between the rows of the codes."""
    return np.zeros((problem.rows, problem.place.q_gap), np.uint8)


def outputs(problem: BlockQuantize) -> dict[str, str]:
    row = block_format(problem.format)
    return {"q": row.element.name, "gap": "", "scales": row.scale.name}


# ---------------------------------------------------------------------------------------------------------------------
# A scale a second time, from the block whose scale tensor cores read there; codes are computed again without being asked.


def block_of(problem: BlockQuantize, at: int) -> tuple[int, int]:
    """Row and block of a place among the scales: tiles of 128 rows and four blocks, of which 32 times four rows lie beside
    each other."""
    tile, inside = divmod(at, TILE_ROWS * TILE_BLOCKS)
    down, across = divmod(tile, -(-grid_of(problem)[1] // TILE_BLOCKS))
    group, place = divmod(inside, WARP // 2)
    row, block = divmod(place, TILE_BLOCKS)
    return down * TILE_ROWS + row * WARP + group, across * TILE_BLOCKS + block


def by_definition(problem: BlockQuantize, name: str, at: tuple[int, ...]) -> int | None:
    """A scale over fractions; None of blocks that are not ordinary."""
    if name != "scales":
        return None
    (row, block), width = block_of(problem, at[0]), block_format(problem.format).width
    if row >= problem.rows or block >= grid_of(problem)[1]:
        return 0
    codes = problem.codes()
    members = decode(codes[row, block * width : (block + 1) * width], problem.wide).tolist()
    amax = float(np.abs(decode(codes, problem.wide).astype(np.float64)).max())
    found = ordinary_block(members, amax, problem.recipe, problem.format, problem.tensor_scale or None)
    return found[-1] if found else None


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes of the field, as what a kernel that makes them would write.


def given(problem: BlockQuantize) -> "mistakes.Quantising":
    """What a mistake is made of."""
    width = block_format(problem.format).width
    x = np.pad(problem.codes(), ((0, 0), (0, -problem.columns % width)))
    return mistakes.Quantising(x, problem.wide, problem.columns, quantized(problem))


def mistaken(mistake: "mistakes.Mistake", problem: BlockQuantize) -> Outputs:
    return written(problem, *mistake(given(problem)))


MISTAKES: dict[str, Callable[[BlockQuantize], Outputs]] = {
    name: partial(mistaken, mistake) for name, mistake in mistakes.MISTAKES.items()
}


# ---------------------------------------------------------------------------------------------------------------------
# Problems


@st.composite
def block_problems(draw: st.DrawFn, format: str, wide: tuple[str, ...] = WIDE) -> BlockQuantize:
    """Problems of one format: extents around a block and a tile of scales, whole rows of vectors or not."""
    held, width = draw(st.sampled_from(wide)), block_format(format).width
    return BlockQuantize(
        draw(st.one_of(st.integers(1, 8), extents(TILE_ROWS, 260))),
        draw(extents(width, 300)),
        draw(values(held, fills=FILLS, max_patches=4)),
        held,
        format,
        draw(st.sampled_from(recipes_of(format))),
        draw(st.sampled_from([0.0, 0.0, 1.0, 2688.0, 2.0**-140, 3e38])) if block_format(format).two_levels else 0.0,
        draw(st.sampled_from([256, 32, 64, 1024])),
        draw(st.integers(0, 3)),
        draw(wide_rows.placements()),
    )


def corpus(format: str) -> tuple[BlockQuantize, ...]:
    """Every recipe with every type, and with every fill; one element, a whole tile, tails of both extents, an odd count
    of tiles along K behind 128 rows, a k that ends within a byte."""
    width = block_format(format).width
    shapes = ((1, 1), (128, 4 * width), (5, 3 * width + 8), (130, 9 * width), (3, width + 3))
    found = []
    for place, (fill, recipe) in enumerate(product(FILLS, recipes_of(format))):
        if (FILLS.index(fill) + place) % 3:  # a share of the product, in which every fill still stands
            continue
        rows, columns = shapes[place // 3 % len(shapes)]
        if place % 5 and rows > TILE_ROWS:
            rows = 2
        wide = WIDE[place % 7 % 3]
        x = Values(fill, place, ((3, 0xFFFFFFFF),) if fill == "narrow" else ())
        gaps = wide_rows.placement_of(place)
        found.append(BlockQuantize(rows, columns, x, wide, format, recipe, place=gaps))
    for wide, recipe in product(WIDE, recipes_of(format)):
        found.append(BlockQuantize(9, 4 * width, Values("specials", 1), wide, format, recipe))
        found.append(edge_of_scales(wide, format, recipe))
    found.append(BlockQuantize(130, 9 * width, Values("log-uniform", 2), "bf16", format, recipes_of(format)[0]))
    if block_format(format).two_levels:  # what order the rounded products are taken in shows in one of a hundred
        gaussian = Values("gaussian", 3)
        found += [BlockQuantize(64, 256, gaussian, "bf16", format, recipe) for recipe in recipes_of(format)]
    return tuple(found)


def edge_of_scales(wide: str, format: str, recipe: str) -> BlockQuantize:
    """A row for each of the largest magnitudes at which recipes part: powers of two, MAX and beside them, zero, NaN alone and
    beside numbers, infinity, the smallest number; a minus zero in each."""
    row, held = block_format(format), format_named(wide)
    most = float(row.element.max_value)
    peaks = encode([1, 1.75, 1.875, 2, most, most * (1 + 2**-7), 2 * most, 3.0, np.inf, np.nan, 0.75], held)
    one, infinity = int(encode(1, held)), int(encode(np.inf, held))
    patches: list[tuple[int, int]] = []
    codes = [int(code) for code in peaks] + [0, 1, 2, 3, infinity - 1, infinity - held.code_limit // 64]
    for at, code in enumerate([*codes, int(encode(np.nan, held))]):
        patches += [(at * row.width + 5, code), (at * row.width + 7, held.sign_mask)]
    patches.append(((len(codes)) * row.width + 9, one))
    return BlockQuantize(len(codes) + 1, row.width, Values(patches=tuple(patches)), wide, format, recipe)


def kernel(format: str) -> Kernel:
    row = block_format(format)
    return Kernel(
        f"{format}_quantize",
        summary=f"{row.element} codes, {row.scale} scales of {row.width} elements in the order of tensor cores",
        file=SOURCE,
        entries=tuple(f"{format}_quantize_{wide}" for wide in WIDE),
        recipe=BlockQuantize,
        problem=block_problems(format),
        corpus=corpus(format),
        run=run,
        oracle=expected,
        outputs=outputs,
        suspects=MISTAKES,
        computes=kinds.quantizer(
            "codes",
            format,
            x_format=lambda problem: problem.wide,
            recipe=lambda problem: problem.recipe,
            tensor_scale=lambda problem: problem.tensor_scale or None,
            layout=LAYOUT.name,
            also={"gap": expected_gap},
        ),
        definition=by_definition,
        orderless="nothing is added: the largest magnitude of a block is the same in every order",
    )


KERNELS = tuple(kernel(format) for format in FORMATS)
MXFP8_QUANTIZE, MXFP8_E5M2_QUANTIZE, MXFP4_QUANTIZE, NVFP4_QUANTIZE = KERNELS
