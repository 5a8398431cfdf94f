"""The kernels of tests/ptx that hand tensor memory from thread to thread, declared with oracles of their own: small whole
numbers, so that every sum is exact."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.kernels import Kernel
from refsim.layouts import operand_descriptor, scale_layout, tile
from refsim.layouts.descriptors import descriptor

FILE = Path(__file__).parents[2] / "tests/ptx/tensor_ring.cu"
Array = NDArray[Any]
ROWS, COLUMNS = 128, 32  # of D


@dataclass(frozen=True)
class Turns:
    """How often a kernel goes round; its inputs are always the same."""

    count: int = 5


def drawn(turns: int, *shape: int) -> Array:
    """Whole numbers from -2 to 2, the same ones for whatever turns there are."""
    draw = np.random.default_rng(shape)
    return draw.integers(-2, 3, (turns, *shape)).astype(np.float32)


def placed(values: Array, format: str) -> Array:
    """Rows of 32 bytes for each turn as they lie in shared memory."""
    codes = encode(values, format)
    turns, rows, depth = codes.shape
    row, column = np.indices((rows, depth))
    size = codes.dtype.itemsize
    at = np.asarray(tile("K", "none", size, (rows, depth)).address(row, column, 0))
    image = np.zeros((turns, rows * depth * size), np.uint8)
    image[:, at[..., None] + np.arange(size)] = codes.view(np.uint8).reshape(*codes.shape, size)
    return image


def words(size: int, kind: str, type: str, *, blocks: int = 1, **more: Any) -> list[Any]:
    """The descriptors of A and of B, of which each block has a part, from address 0 on, and of the instruction."""
    found = [
        operand_descriptor("tcgen05-smem", tile("K", "none", size, (rows, 32 // size)), 0)
        for rows in (ROWS, COLUMNS // blocks)
    ]
    given = {
        "a_format": type,
        "b_format": type,
        "a_major": "K",
        "b_major": "K",
        "m": ROWS * blocks,
        "n": COLUMNS,
    } | more
    return [*map(np.uint64, found), np.uint32(descriptor(f"tcgen05-instr.{kind}").encode(**given))]


def declared(
    name: str,
    threads: int,
    image: Callable[[int], Array],
    asked: list[Any],
    want: Callable[[int], Array],
    blocks: int = 1,
) -> Kernel:
    """A kernel of one block, or of a cluster; `image` and `want` say what it copies and writes in so many turns."""

    def run(launcher: Any, turns: Turns) -> Any:
        wanted = want(turns.count)
        codes = launcher.upload(image(turns.count).reshape(-1), name="codes")
        out = launcher.output(wanted.size, np.float32, name="out")
        cluster = {"cluster": blocks} if blocks > 1 else {}
        launcher.launch(name, blocks, threads, [codes, out, np.uint32(turns.count), *asked], **cluster)
        return {"out": launcher.read(out).reshape(wanted.shape)}

    return Kernel(
        name,
        lambda turns: {"out": want(turns.count)},
        None,
        run,
        {"out": ""},
        recipe=Turns,
        file=FILE,
    )


def ring_operands(turns: int) -> tuple[Array, Array]:
    return drawn(2 * turns, ROWS, 16), drawn(2 * turns, COLUMNS, 16)


def ring_image(turns: int) -> Array:
    return np.concatenate([placed(each, "bf16") for each in ring_operands(turns)], axis=1)


def ring_wanted(turns: int) -> Array:
    a, b = ring_operands(turns)
    return (a @ b.transpose(0, 2, 1)).reshape(turns, 2, ROWS, COLUMNS).sum(axis=1)


def turned_operands(turns: int) -> tuple[Array, Array, Array, Array]:
    """A, B, and both halves of V along K."""
    v = drawn(turns, COLUMNS, 32)
    return drawn(turns, ROWS, 16), drawn(turns, COLUMNS, 16), v[..., :16].copy(), v[..., 16:].copy()


def turned_image(turns: int) -> Array:
    return np.concatenate([placed(each, "bf16") for each in turned_operands(turns)], axis=1)


def turned_wanted(turns: int) -> Array:
    a, b, low, high = turned_operands(turns)
    p = a @ b.transpose(0, 2, 1)  # at most 64: bf16 holds it
    return (p @ np.concatenate([low, high], axis=2).transpose(0, 2, 1)).sum(axis=0)


def scaled_operands(turns: int) -> tuple[Array, Array, Array, Array]:
    """A and B, and exponents of their rows in each turn."""
    draw = np.random.default_rng(3)
    exponents = draw.integers(-2, 3, (turns, ROWS + COLUMNS, 1))
    return drawn(turns, ROWS, 32), drawn(turns, COLUMNS, 32), exponents[:, :ROWS], exponents[:, ROWS:]


def scaled_image(turns: int) -> Array:
    a, b, of_a, of_b = scaled_operands(turns)
    layout = scale_layout("nvidia_128x4")
    scales = [
        np.stack([layout.shuffle((each + 127).astype(np.uint8), fill=0xFF).reshape(-1) for each in exponents])
        for exponents in (of_a, of_b)
    ]
    return np.concatenate([placed(a, "e4m3"), placed(b, "e4m3"), *scales], axis=1)


def scaled_wanted(turns: int) -> Array:
    a, b, of_a, of_b = scaled_operands(turns)
    return np.sum(np.ldexp(a, of_a) @ np.ldexp(b, of_b).transpose(0, 2, 1), axis=0)


def pair_operands(turns: int) -> tuple[Array, Array]:
    return drawn(turns, 2 * ROWS, 16), drawn(turns, COLUMNS, 16)


def pair_image(turns: int) -> Array:
    """Block by block: half of the rows of A, half of those of B."""
    a, b = pair_operands(turns)
    halves = [(a[:, ROWS * at : ROWS * (at + 1)], b[:, COLUMNS // 2 * at : COLUMNS // 2 * (at + 1)]) for at in range(2)]
    return np.stack([np.concatenate([placed(each, "bf16") for each in half], axis=1) for half in halves], axis=1)


def pair_wanted(turns: int) -> Array:
    a, b = pair_operands(turns)
    return a @ b.transpose(0, 2, 1)


KERNELS = (
    declared("tensor_ring", 192, ring_image, words(2, "f16", "bf16", d_format="f32"), ring_wanted),
    declared("tensor_turns", 192, turned_image, words(2, "f16", "bf16", d_format="f32"), turned_wanted),
    declared("tensor_pipe", 128, scaled_image, words(1, "mxf8f6f4", "e4m3"), scaled_wanted),
    declared("tensor_pair", 192, pair_image, words(2, "f16", "bf16", blocks=2, d_format="f32"), pair_wanted, 2),
)
