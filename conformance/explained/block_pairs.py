"""Planted pairs of products whose blocks of K have scales: sums of small numbers, which every tensor core adds exactly.

float64 gives them without a line of refsim: what is planted is which scale an element gets, not how sums are rounded.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained.pairs import Pair
from refsim.causes import Family, ProductOperands

Matrix = NDArray[Any]
KINDS = (
    ("e4m3", "e8m0", 32, "sm_100a", {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44}),
    ("e2m1", "e8m0", 32, "sm_120a", {0: 0x0, 1: 0x2, 2: 0x4, 3: 0x5}),
    ("e2m1", "ue4m3", 16, "sm_120a", {0: 0x0, 1: 0x2, 2: 0x4, 3: 0x5}),
    ("e4m3", "e8m0", 32, "sm_90a", {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44}),
)
"""Formats of elements and of scales, columns that share one, target, codes of 0, 1, 2 and 3."""
SCALE_OF_ONE = {"e8m0": 127, "ue4m3": 0x38}
STEP_OF_SCALE = {"e8m0": 1, "ue4m3": 8}
GLOBAL = 0.25


def _late(scales: Matrix) -> Matrix:
    return np.concatenate([scales[:, :1], scales[:, :-1]], axis=1)


def _read_as_rows(scales: Matrix) -> Matrix:
    """Tiles of 128 rows and 4 blocks, 16 bytes for every 32nd row, read as if rows lay one behind the other."""
    rows, blocks = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), scales.dtype)
    padded[:rows, :blocks] = scales
    tiles = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(-1)[: scales.size].reshape(scales.shape)


SCALES: dict[str, tuple[Family, Callable[[Matrix], Matrix]]] = {
    "a block late": (Family.SCALE_LAYOUT, _late),
    "of the first block": (Family.SCALE_LAYOUT, lambda s: np.repeat(s[:, :1], s.shape[1], axis=1)),
    "128x4 read as rows": (Family.SCALE_LAYOUT, _read_as_rows),
    "blocks by rows": (Family.SCALE_LAYOUT, lambda s: s.reshape(s.shape[::-1]).T.copy()),
}


def block_scaled(seed: int, shape: tuple[int, int, int]) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed, for every kind of operands."""
    for element, kind, block, target, code_of in KINDS:
        random = np.random.default_rng(seed)
        m, n, k = shape
        drawn = [random.integers(-3, 4, (rows, k)) for rows in (m, n)]
        powers = [random.integers(-2, 3, (rows, k // block)) for rows in (m, n)]
        sign = 0x80 if element == "e4m3" else 0x8
        table = np.array([code_of[abs(value)] | (sign if value < 0 else 0) for value in range(-3, 4)], np.uint8)
        codes = [table[each + 3] for each in drawn]
        scales = [(SCALE_OF_ONE[kind] + STEP_OF_SCALE[kind] * each).astype(np.uint8) for each in powers]
        operands = ProductOperands(
            a=codes[0],
            b=codes[1],
            a_format=element,
            b_format=element,
            a_scale=scales[0],
            b_scale=scales[1],
            scale_format=kind,
            global_scale=GLOBAL,
            target=target,
        )

        def product(
            a: Matrix, b: Matrix, factor: float = GLOBAL, columns: int = k, drawn: Any = drawn, block: int = block
        ) -> Matrix:
            sides = [x * np.repeat(2.0**p, block, axis=1) for x, p in zip(drawn, (a, b), strict=True)]
            return (factor * (sides[0][:, :columns] @ sides[1][:, :columns].T)).astype(np.float32)

        usual = product(*powers)
        two = usual if seed % 2 else None
        title = f"{element} {kind} {target}"
        for name, (family, moved) in SCALES.items():
            yield Pair(f"{title}: scales {name}", family, product(moved(powers[0]), powers[1]), two, "f32", operands)
        yield Pair(f"{title}: no global scale", Family.SCALE_RULE, product(*powers, 1.0), two, "f32", operands)
        yield Pair(f"{title}: last 32 left out", Family.TAIL, product(*powers, columns=k - 32), two, "f32", operands)
        held = product(np.roll(powers[0], 5, axis=0), powers[1])
        yield Pair(f"held out: {title}, scales five rows on", "", held, two, "f32", operands)
        yield Pair(f"held out: {title}, a factor", "", product(*powers, 0.3), two, "f32", operands)
        yield Pair(f"equal: {title}", None, usual, None, "f32", operands)
