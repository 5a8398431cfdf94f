"""The orders in which a row is added: columns of each thread, how threads are joined, the format of the sum."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.host_sums import HOST_ORDERS, HostOrder
from refsim.computations.ways import Cause, Family, held_in
from refsim.formats import BF16, F16, F32, Format
from refsim.numerics import ieee
from refsim.sources import CUDA_GUIDE, IEEE754, Source

Floats = NDArray[np.float32]
LANES = 32
HALVING, DOUBLING = "at distances that halve", "at distances that double"
ONE_BY_ONE, PAIRS = "ascending", "in pairs"
WARPS = (ONE_BY_ONE, HALVING, PAIRS)
BLOCK_SIZES = (128, 256, 512, 1024, 64)
VECTORS = (1, 2, 4, 8)
MOST_TURNS = 64
"""The most turns that are added one array after the other; beyond it one call for all turns takes less time."""


@dataclass(frozen=True)
class RowOrder:
    """Thread t of `threads` adds `vector` neighboring columns, then those `threads * vector` further on, ascending.

    The 32 lanes of a warp are added in pairs at distances that halve or double, then the warps. `threads` 1: all
    columns in order. RowOrder().sum(x) is the order of refsim's row functions.
    """

    threads: int = 128
    vector: int = 1
    lanes: str = HALVING
    warps: str = ONE_BY_ONE

    def turns(self, values: Floats) -> Floats:
        """Return the column that each thread adds in each turn, (turns, rows, threads); +0 after the last column."""
        rows, columns = values.shape
        whole = np.pad(values, ((0, 0), (0, -columns % (self.threads * self.vector))))
        turns: Floats = whole.reshape(rows, -1, self.threads, self.vector).transpose(1, 3, 0, 2)
        return turns.reshape(-1, rows, self.threads)

    def sum(self, values: Floats, held: Format = F32) -> Floats:
        """Return the float32 sum of each row (rows, columns); `held` is the format after each addition."""
        turns = self.turns(values)
        if held is F32 and len(turns) > MOST_TURNS:
            return self.over_threads(np.add.accumulate(turns, axis=0, dtype=np.float32)[-1])
        if held is F32:
            total = turns[0].copy()
            for each in turns[1:]:
                total += each
            return self.over_threads(total)
        total = np.zeros(turns.shape[1:], np.float32)
        for each in turns:
            total = held_in(held, total + each)
        return self.over_threads(total, held)

    def sum_of_squares(self, values: Floats, held: Format = F32) -> Floats:
        """Return the sum of the squares of each row, each added by an fma without rounding the square."""
        if not (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFF)).any():  # squares that fit in float32
            squares = values * values
            if (squares.astype(np.float64) == values.astype(np.float64) ** 2).all():
                return self.sum(squares, held)
        turns = self.turns(values)
        total: Floats = np.zeros(turns.shape[1:], np.float32)
        for each in turns:
            total = held_in(held, ieee.fma(each, each, total))
        return self.over_threads(total, held)

    def over_threads(self, each: Floats, held: Format = F32) -> Floats:
        """Return the sums (rows) of partial sums (rows, threads): lanes first, then warps."""
        lanes = each.reshape(len(each), -1, min(LANES, each.shape[1]))
        total = _met(lanes, self.lanes, held)
        if self.warps != ONE_BY_ONE:
            return _met(total, HALVING if self.warps == HALVING else DOUBLING, held)
        first: Floats = total[:, 0]
        for warp in range(1, total.shape[1]):
            first = held_in(held, first + total[:, warp])
        return first

    def __str__(self) -> str:
        if self.threads == 1:
            return "the columns are added one after the other"
        taken = f"{self.vector} columns" if self.vector > 1 else "a column"
        met = f"lanes meet {self.lanes}" + (f", warps {self.warps}" if self.threads > LANES else "")
        return f"each of {self.threads} threads takes {taken} in turn, {met}"


def _met(parts: Floats, way: str, held: Format) -> Floats:
    """Return the sums of pairs along the last axis, repeated until one element is left."""
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        if way == HALVING:
            parts = held_in(held, parts[..., :half] + parts[..., half:])
        else:
            parts = held_in(held, parts[..., 0::2] + parts[..., 1::2])
    return parts[..., 0]


Order = RowOrder | HostOrder


def orders(usual: Order) -> Iterator[tuple[Order, int]]:
    """Yield every order that is tried with its rank, the usual one first."""
    yield usual, 0
    others: list[tuple[Order, int]] = [(RowOrder(1), 1), *((order, 1) for order in HOST_ORDERS)]
    for lanes in (HALVING, DOUBLING):
        others += [(RowOrder(LANES, vector, lanes), 1 + (vector > 1)) for vector in VECTORS]
    for threads in BLOCK_SIZES:
        for vector in VECTORS:
            for lanes in (HALVING, DOUBLING):
                for warps in WARPS:
                    parts = (threads != 128, vector > 1, lanes != HALVING, warps != ONE_BY_ONE)
                    others.append((RowOrder(threads, vector, lanes, warps), max(1, sum(parts))))
    yield from ((row, rank) for row, rank in others if row != usual)


HELD = (F32, BF16, F16)


def sum_causes(usual: Order) -> Iterator[Cause]:
    """Yield the causes in how a row is added: aspects `order` and `held`."""
    for order, rank in orders(usual):
        source = order.source if isinstance(order, HostOrder) else CUDA_GUIDE["warp shuffle functions"]
        yield Cause(Family.REDUCTION_ORDER, str(order), "order", order, source, rank)
    for held in HELD:
        says = f"the sum of a row is held in {held}"
        yield Cause(Family.ACCUMULATOR, says, "held", held, IEEE754["section 4.3"], 0 if held is F32 else 1)


def own_kernel(order: Order, source: Source, **steps: Any) -> Cause:
    """Return the cause that takes all steps of refsim's kernel on a GPU: the order of a sum, and other `steps`."""
    says = "by the chip's instructions, as our own kernel"
    return Cause(Family.HOST, says, "order", order, source, beside=tuple(steps.items()))
