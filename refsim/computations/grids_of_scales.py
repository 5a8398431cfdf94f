"""Causes in grids of scales: the scale of a neighbor in memory, of 128 other rows, or kept in another way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.reading import OperandReading
from refsim.computations.ways import DoesNotApplyError, Family
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, ElementType, Format
from refsim.oracles.gemm_1d2d import BLOCK
from refsim.sources import CUBLAS, DEEPGEMM, PTX

Scales = NDArray[Any]
Change = Callable[[Scales], Scales]


@dataclass(frozen=True)
class _OfFloats:
    """A change of float32 scales; it does not apply to codes."""

    change: Change

    def __call__(self, scales: Scales, format: ElementType) -> Scales:
        if scales.dtype != np.float32:
            raise DoesNotApplyError
        return self.change(scales)


@dataclass(frozen=True)
class _OfBlocks:
    """A change of the grid in which one scale covers 128 rows; it does not apply where each row has its own."""

    change: Change

    def __call__(self, scales: Scales, format: ElementType) -> Scales:
        grid = np.ascontiguousarray(scales[::BLOCK])
        rows = np.arange(len(scales)) // BLOCK
        if len(grid) < 2 or len(grid) == len(scales) or (grid[rows] != scales).any():
            raise DoesNotApplyError
        return np.asarray(self.change(grid)[rows])


@dataclass(frozen=True)
class _Around:
    """The scale `by` places away along an axis, or in memory (None); it wraps around at the ends."""

    by: int
    axis: int | None

    def __call__(self, scales: Scales) -> Scales:
        if (scales.size if self.axis is None else scales.shape[self.axis]) < 2:
            raise DoesNotApplyError
        return np.roll(scales, self.by, self.axis)

    def of(self, scales: Scales, format: ElementType) -> Scales:
        return self(scales)


def _inverted(scales: Scales) -> Scales:
    with np.errstate(divide="ignore"):
        return np.asarray(np.float32(1) / scales, np.float32)


def _held(format: Format) -> Change:
    return lambda scales: np.asarray(decode(encode(scales, format), format, np.float32))


def _values() -> Iterator[OperandReading]:
    source = CUBLAS["scaling modes"]
    for says, change in (
        ("as their reciprocals", _inverted),
        ("rounded to bf16", _held(BF16)),
        ("rounded to f16", _held(F16)),
    ):
        yield OperandReading(says, Family.SCALE_RULE, source, _OfFloats(change), rank=2)


def _places() -> Iterator[OperandReading]:
    memory = PTX["ld.global"]
    for by, word in ((1, "before"), (-1, "behind")):
        for axis, line in ((None, "in memory"), (0, "row"), (1, "block of K")):
            says = f"of the {line} {word}, around the end" if axis is not None else f"one float {word} in memory"
            yield OperandReading(says, Family.SCALE_LAYOUT, memory, _Around(by, axis).of, rank=3)


def _blocks() -> Iterator[OperandReading]:
    source = DEEPGEMM["sm90_fp8_gemm_1d2d"]
    for says, change in (
        ("of the 128 rows before, around the end", _Around(1, 0)),
        ("of the next 128 rows, around the end", _Around(-1, 0)),
        ("of the 128 rows before", lambda grid: grid[np.maximum(np.arange(len(grid)) - 1, 0)]),
        ("of the next 128 rows", lambda grid: grid[np.minimum(np.arange(len(grid)) + 1, len(grid) - 1)]),
        ("from the last 128 rows on", lambda grid: grid[::-1]),
        ("block by block of 128 rows where they lie row by row", lambda grid: grid.reshape(grid.shape[::-1]).T),
    ):
        yield OperandReading(says, Family.SCALE_LAYOUT, source, _OfBlocks(change), rank=2)


SCALE_VALUES, SCALE_PLACES, SCALE_BLOCKS = tuple(_values()), tuple(_places()), tuple(_blocks())
