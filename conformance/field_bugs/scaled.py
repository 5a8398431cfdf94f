"""Quantisers, scales and sums with a bug of the field each, and their right twins: NAME is wrong, NAME.right is not."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import fragment
from refsim.numerics import ieee
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, spelled

KERNELS_OF = Path(__file__).parent / "kernels"
Floats = NDArray[np.float32]
Array = NDArray[Any]
GAUSSIAN, SPREAD = Values("gaussian"), Values("log-uniform", 1)


@dataclass(frozen=True, repr=False)
class Rows:
    """Numbers in rows, or in blocks, with a scale for each; `misalign` elements behind their alignment."""

    rows: int
    x: Values = GAUSSIAN
    s: Values = SPREAD
    t: Values = SPREAD
    misalign: int = 0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 4096)
        in_range("misalign", self.misalign, 0, 3)

    def __repr__(self) -> str:
        return spelled(self)


@dataclass(frozen=True)
class Scaled:
    """A kernel over rows: what it is given, how it is launched, what it writes and what that is to be."""

    name: str
    given: Callable[[Rows], tuple[Array, ...]]
    grid: Callable[[Rows], tuple[int, ...]]
    wanted: Callable[..., dict[str, Array]]
    outputs: dict[str, str]
    threads: int = 32
    numbers: Callable[[Rows], tuple[int, ...]] = lambda rows: ()
    step: int = 1

    def run(self, launcher: Launcher, rows: Rows) -> Outputs:
        arrays = self.given(rows)
        args: list[Any] = [
            launcher.upload(array, name=name, misalign_bytes=array.itemsize * rows.misalign if name == "x" else 0)
            for name, array in zip("xst", arrays, strict=False)
        ]
        shapes = self.wanted(*arrays)
        written = {name: launcher.output(array.size, array.dtype, name=name) for name, array in shapes.items()}
        args += [*written.values(), *map(np.uint32, self.numbers(rows))]
        launcher.launch(self.name, self.grid(rows), self.threads, args)
        return {name: launcher.read(buffer).reshape(shapes[name].shape) for name, buffer in written.items()}

    def oracle(self, rows: Rows) -> Outputs:
        return self.wanted(*self.given(rows))


def both(scaled: Scaled, summary: str, *corpus: Rows, **drawn: Any) -> tuple[Kernel, Kernel]:
    """The kernel with its bug, and without."""
    fills = {
        name: drawn.get(name, values("f32", fills=("ones", "gaussian", "log-uniform"), max_patches=1)) for name in "xst"
    }
    wrong, right = (
        Kernel(
            scaled.name + (".right" if is_right else ""),
            summary=summary + (", mended" if is_right else ""),
            file=KERNELS_OF / f"{scaled.name}.cu",
            defines={"RIGHT": 1} if is_right else {},
            entries=(scaled.name,),
            recipe=Rows,
            problem=st.builds(Rows, st.integers(1, 5).map(scaled.step.__mul__), **fills),
            corpus=corpus,
            run=scaled.run,
            oracle=scaled.oracle,
            outputs=scaled.outputs,
        )
        for is_right in (False, True)
    )
    return wrong, right


def numbers(columns: int, *more: str) -> Callable[[Rows], tuple[Array, ...]]:
    """x (rows, columns) in float32, then s and t, one a row, in the formats named."""

    def given(rows: Rows) -> tuple[Array, ...]:
        scales = tuple(
            chosen.codes(format, rows.rows, 1).reshape(-1)
            for chosen, format in zip((rows.s, rows.t), more, strict=False)
        )
        found = (rows.x.codes("f32", rows.rows, columns), *scales)
        return tuple(array.view(np.float32) if array.dtype == np.uint32 else array for array in found)

    return given


def of_rows(rows: Rows) -> tuple[int, ...]:
    return (rows.rows,)


def largest(x: Floats) -> Floats:
    return np.maximum(np.fmax.reduce(np.abs(x), axis=1), np.float32(1e-12))


def quantised(x: Floats, scale: Floats) -> Array:
    return np.asarray(encode(ieee.mul(x, scale[:, None]), "e4m3", overflow="saturate"), np.uint8)


def fast_scale(x: Floats) -> dict[str, Array]:
    scale = ieee.div(np.float32(448), largest(x))
    return {"q": quantised(x, scale), "scales": ieee.div(np.float32(1), scale)}


def scale_of_scale(x: Floats) -> dict[str, Array]:
    amax = largest(x)
    return {"q": quantised(x, ieee.div(np.float32(448), amax)), "scales": ieee.div(amax, np.float32(448))}


def nan_row(x: Floats) -> dict[str, Array]:
    amax = np.maximum(np.maximum.reduce(np.abs(x), axis=1), np.float32(1e-12))
    scales = ieee.div(amax, np.float32(448))
    scales.view(np.uint32)[np.isnan(scales)] = 0x7FFFFFFF
    return {"scales": scales}


def times(x: Floats, scale: Floats) -> dict[str, Array]:
    return {"y": ieee.mul(x, np.broadcast_to(scale.reshape(-1, 1), x.shape))}


def times_f16(x: Floats, codes: Array) -> dict[str, Array]:
    return times(x, np.asarray(decode(codes, "f16", np.float32), np.float32))


def times_e8m0(x: Floats, codes: Array) -> dict[str, Array]:
    return times(x, np.asarray(decode(codes, "e8m0"), np.float32))


def doubled(x: Floats) -> dict[str, Array]:
    return {"y": ieee.mul(x, np.float32(2))}


def copied(x: Array) -> dict[str, Array]:
    return {"y": x}


def tile_of_codes(rows: Rows) -> tuple[Array, ...]:
    return (rows.x.codes("e4m3", 8, 128),)


def scales_of_groups(rows: Rows) -> tuple[Array, ...]:
    return (rows.s.codes("f32", rows.rows, 1).reshape(-1).view(np.float32),)


def of_their_rows(scales: Floats) -> dict[str, Array]:
    return {"y": scales[np.arange(-(-scales.size // 4) * 128) // 32 % scales.size]}


def padded_columns(rows: Rows) -> tuple[Array, ...]:
    """Five blocks of 32 columns, scales padded to eight by NaN."""
    scales = np.full((rows.rows, 8), np.nan, np.float32)
    scales[:, :5] = rows.s.codes("f32", rows.rows, 5).view(np.float32)
    return rows.x.codes("f32", rows.rows, 160).view(np.float32), scales


def of_five_blocks(x: Floats, scales: Floats) -> dict[str, Array]:
    return {"y": ieee.mul(x, np.repeat(scales[:, :5], 32, axis=1))}


def padded_rows(rows: Rows) -> tuple[Array, ...]:
    """Two matrices, the scales of each padded to 128 by NaN."""
    scales = np.full((2, -(-rows.rows // 128) * 128), np.nan, np.float32)
    scales[:, : rows.rows] = rows.s.codes("f32", 2, rows.rows).view(np.float32)
    return rows.x.codes("f32", 2 * rows.rows, 32).view(np.float32).reshape(2, rows.rows, 32), scales


def of_their_matrix(x: Floats, scales: Floats) -> dict[str, Array]:
    return {"y": ieee.mul(x, np.broadcast_to(scales[:, : x.shape[1], None], x.shape))}


def summed(partials: Floats, scales: Floats) -> dict[str, Array]:
    total = np.zeros(32, np.float32)
    for partial_, scale in zip(partials, scales, strict=True):
        total = ieee.add(total, ieee.mul(np.full(32, scale, np.float32), partial_))
    return {"y": total}


WIDTH, COLUMNS = 176, 704


def a_row_of_columns(rows: Rows) -> tuple[Array, ...]:
    return rows.x.codes("f32", 1, COLUMNS).view(np.float32), rows.s.codes("f32", 1, 6).reshape(-1).view(np.float32)


def by_128_columns(x: Floats, scales: Floats) -> dict[str, Array]:
    return {"y": ieee.mul(x, scales[np.arange(COLUMNS) // 128][None])}


def at_most_two(rows: Rows) -> tuple[Array, ...]:
    """Groups of four with two numbers, or with as many as the second operand says."""
    x = rows.x.codes("f32", rows.rows, 4).view(np.float32).copy()
    random = np.random.default_rng(rows.rows)
    for four in x:
        four[random.permutation(4)[: 2 if rows.s.fill == "ones" else 3]] = 0
    return (x,)


def accumulator(rows: Rows) -> tuple[Array, ...]:
    return (rows.x.codes("f32", 128, 12).view(np.float32),)


def by_fragment(registers: Floats) -> dict[str, Array]:
    held = fragment("wgmma.m64n24k16.bf16.d")
    matrix = np.zeros((64, 24), np.float32)
    for thread in range(128):
        for value in range(12):
            row, column = held.coord(thread, value)
            matrix[row, column] = registers[thread, value]
    return {"y": matrix}


SAME = values("f32", fills=("ones", "gaussian"), max_patches=0)
F32 = {"y": "f32"}

KERNELS = (
    *both(
        Scaled("fast_scale", numbers(128), of_rows, fast_scale, {"q": "e4m3", "scales": "f32"}),
        "an approximate division",
        Rows(40, Values("log-uniform")),
    ),
    *both(
        Scaled("scale_of_scale", numbers(128), of_rows, scale_of_scale, {"q": "e4m3", "scales": "f32"}),
        "the reciprocal of a rounded scale",
        Rows(40, Values("log-uniform")),
    ),
    *both(
        Scaled("overflow_is_nan", numbers(128, "f32"), of_rows, lambda x, s: {"q": quantised(x, s)}, {"q": "e4m3"}),
        "a cast that does not saturate",
        Rows(4, Values("gaussian"), Values("gaussian", 3, ((0, 0x44000000),))),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("nan_row", numbers(128), of_rows, nan_row, {"scales": "f32"}),
        "NaN is dropped",
        Rows(4, Values("gaussian", 0, ((130, 0x7FC00000),))),
        x=SAME,
    ),
    *both(
        Scaled(
            "vectors_of_a_view",
            numbers(96),
            lambda rows: (-(-rows.rows * 96 // 128),),
            doubled,
            F32,
            numbers=lambda rows: (rows.rows * 96,),
        ),
        "vectors at any address",
        Rows(2),
        Rows(2, misalign=1),
    ),
    *both(
        Scaled("chunk_of_half", tile_of_codes, lambda rows: (1,), copied, {"y": "e4m3"}, threads=64),
        "chunks of eight elements",
        Rows(8),
        x=values("e4m3", fills=("gaussian",)),
    ),
    *both(
        Scaled("scales_as_bf16", numbers(128, "f16"), of_rows, times_f16, F32),
        "FP16 scales as bf16",
        Rows(64, s=Values("gaussian", 1)),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("scales_in_chunks", numbers(32, "f32"), lambda rows: (1,), times, F32, numbers=of_rows),
        "what is left of the scales",
        Rows(8),
        Rows(6),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("scale_of_block_zero", numbers(32, "f32"), lambda rows: (rows.rows // 8,), times, F32, step=8),
        "the scales of the first block",
        Rows(8),
        Rows(16),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("exponent_as_bf16", numbers(32, "e8m0"), of_rows, times_e8m0, F32),
        "an exponent that is shifted",
        Rows(3, Values("ones"), Values("ones")),
        Rows(3, Values("gaussian", 0, ((0, 0x77000000),)), Values("ones", 0, ((0, 0), (1, 255)))),
        x=SAME,
        s=values("e8m0", fills=("ones", "gaussian"), max_patches=0),
    ),
    *both(
        Scaled(
            "scale_rows_wrap",
            scales_of_groups,
            lambda rows: (-(-rows.rows // 4),),
            of_their_rows,
            F32,
            threads=128,
            numbers=lambda rows: (32 * rows.rows,),
        ),
        "groups wrapped by rows",
        Rows(4),
        Rows(6),
    ),
    *both(
        Scaled("padded_scales", padded_columns, of_rows, of_five_blocks, F32, numbers=lambda rows: (5,)),
        "padded rows of scales",
        Rows(1, s=Values("gaussian", 1)),
        Rows(3, s=Values("gaussian", 1)),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("padded_batch", padded_rows, lambda rows: (rows.rows, 2), of_their_matrix, F32, numbers=of_rows),
        "padded matrices of scales",
        Rows(128, s=Values("gaussian", 1)),
        Rows(5, s=Values("gaussian", 1)),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("contraction", numbers(32, "f32"), lambda rows: (1,), summed, F32, numbers=of_rows),
        "contracted or not",
        Rows(6, s=Values("gaussian", 1)),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled(
            "straddled_scale",
            a_row_of_columns,
            lambda rows: (COLUMNS // WIDTH,),
            by_128_columns,
            F32,
            numbers=lambda rows: (COLUMNS, WIDTH),
        ),
        "a block over two boundaries",
        Rows(1, s=Values("gaussian", 1)),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("compressed_2_4", at_most_two, lambda rows: (-(-rows.rows // 32),), copied, F32, numbers=of_rows),
        "fewer than two of four",
        Rows(64, s=Values("ones")),
        Rows(64),
        x=SAME,
        s=SAME,
    ),
    *both(
        Scaled("accumulator_columns", accumulator, lambda rows: (1,), by_fragment, F32, threads=128),
        "an accumulator of 24 columns",
        Rows(1),
        x=SAME,
    ),
)
