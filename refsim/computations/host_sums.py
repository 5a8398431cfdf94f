"""The orders in which a host adds a row: NumPy in blocks of 128, torch in eight lanes, in float64, or exactly.

The orders are defined here and are equal on every machine; tests compare them with NumPy and torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import DoesNotApplyError
from refsim.conversions import decode
from refsim.formats import F32, ElementType, Format, float_named
from refsim.sources import IEEE754, NUMPY_LIBRARY, TORCH, Source

Floats = NDArray[np.float32]
PAIRWISE_BLOCK, ACCUMULATORS = 128, 8
PRODUCTS_AT_ONCE = 1 << 20
TORCH_LANES, TORCH_CHAINS, TORCH_LEVELS, LEAST_LEVEL_BITS = 8, 4, 4, 4


@dataclass(frozen=True)
class HostOrder:
    """How a library adds rows (rows, columns) in float32; squares are rounded before they are added, as by `x * x`."""

    name: str
    add: Callable[[Floats], Floats]
    source: Source
    add_squares: Callable[[Floats], Floats] | None = None

    def sum(self, values: Floats, held: Format = F32) -> Floats:
        """Return the sum of each row. Raises DoesNotApplyError unless the running sum is held in float32."""
        if held is not F32:
            raise DoesNotApplyError
        return self.add(np.asarray(values, np.float32))

    def sum_of_squares(self, values: Floats, held: Format = F32) -> Floats:
        """Return the sum of the squares of each row; orders in float64 add exact squares."""
        if self.add_squares is None or held is not F32:
            return self.sum(values * values, held)
        return self.add_squares(values)

    def __str__(self) -> str:
        return self.name


def pairwise(values: Floats) -> Floats:
    """Return row sums in the order of np.sum: halves down to 128 columns, then eight accumulators in turn."""
    return np.float32(0) + _pairwise(values)


def _pairwise(values: Floats) -> Floats:
    """Return the row sums of one level: two halves, or a block with eight accumulators and its remaining columns."""
    columns = values.shape[1]
    if columns > PAIRWISE_BLOCK:
        half = columns // 2 // ACCUMULATORS * ACCUMULATORS
        return _pairwise(values[:, :half]) + _pairwise(values[:, half:])
    whole = columns // ACCUMULATORS * ACCUMULATORS
    total = np.zeros(len(values), np.float32)
    if whole:
        turns = values[:, :whole].reshape(len(values), -1, ACCUMULATORS).swapaxes(0, 1)
        r = np.add.accumulate(turns, axis=0, dtype=np.float32)[-1].T
        total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
    return _one_by_one(total, values[:, whole:])


def cascade(values: Floats) -> Floats:
    """Return row sums in the order of torch.sum on a CPU: four chains of eight lanes, other columns, then the lanes."""
    rows, columns = values.shape
    if columns < TORCH_LANES:
        return _chains(values[:, :, None])[:, 0]
    whole = columns // TORCH_LANES * TORCH_LANES
    lanes = _chains(values[:, :whole].reshape(rows, -1, TORCH_LANES))
    return _one_by_one(_one_by_one(np.zeros(rows, np.float32), values[:, whole:]), lanes)


def _chains(turns: Floats) -> Floats:
    """Return sums (rows, lanes) of turns (rows, turns, lanes): four chains take turns, the first also the remainder."""
    rows, count, lanes = turns.shape
    fours = count // TORCH_CHAINS
    whole = fours * TORCH_CHAINS
    chains = _levels(turns[:, :whole].reshape(rows, fours, TORCH_CHAINS * lanes)).reshape(rows, TORCH_CHAINS, lanes)
    total: Floats = chains[:, 0]
    for at in range(whole, count):
        total = total + turns[:, at]
    for chain in range(1, TORCH_CHAINS):
        total = total + chains[:, chain]
    return total


def _levels(turns: Floats) -> Floats:
    """Return sums (rows, lanes) of turns (rows, turns, lanes): 2^bits sums of a level carry to the next, as digits do."""
    rows, count, lanes = turns.shape
    bits = max(LEAST_LEVEL_BITS, max(1, (count - 1).bit_length()) // TORCH_LEVELS)
    step = 1 << bits
    zero = np.zeros((rows, lanes), np.float32)
    held = [zero] * TORCH_LEVELS
    for end in range(step, count + 1, step):
        part = np.concatenate([held[0][:, None], turns[:, end - step : end]], axis=1)
        held[0] = np.add.accumulate(part, axis=1, dtype=np.float32)[:, -1]
        for level in range(1, TORCH_LEVELS):
            held[level], held[level - 1] = held[level] + held[level - 1], zero
            if end >> level * bits & (step - 1):
                break
    for at in range(count // step * step, count):
        held[0] = held[0] + turns[:, at]
    return held[0] + held[1] + held[2] + held[3]


def _one_by_one(total: Floats, values: Floats) -> Floats:
    """Return `total` plus each column in order."""
    for column in values.T:
        total = total + column
    return total


def in_float64(values: NDArray[np.floating]) -> Floats:
    """Return row sums in float64, column by column, rounded once to float32."""
    wide = np.add.accumulate(np.asarray(values, np.float64), axis=1)
    return wide[:, -1].astype(np.float32) if wide.shape[1] else np.zeros(len(wide), np.float32)


def exactly(values: NDArray[np.floating]) -> Floats:
    """Return exact row sums, rounded once to float32; NaN where infinities of both signs meet."""
    return np.array([_exact(row) for row in np.asarray(values, np.float64).tolist()], np.float32)


def _exact(row: list[float]) -> np.float32:
    """Return the exact sum of one row, rounded once to float32."""
    try:
        total = math.fsum(row)
    except (OverflowError, ValueError):
        return np.float32(sum(row))
    with np.errstate(over="ignore"):
        near = np.float32(total)
        other = np.nextafter(near, np.float32(math.copysign(math.inf, total - float(near))))
        if float(near) + float(other) == 2 * total != 2 * float(near):  # fsum may have rounded to a tie
            rest = math.fsum([*row, -total])
            near = np.float32(np.nextafter(total, math.copysign(math.inf, rest))) if rest else near
    return near


def _squares(values: Floats) -> NDArray[np.float64]:
    return np.asarray(values, np.float64) ** 2


PAIRWISE = HostOrder(
    "added as np.sum does: halves of a row down to 128 columns, in 8 accumulators",
    pairwise,
    NUMPY_LIBRARY["numpy.sum, notes"],
)
CASCADE = HostOrder(
    "added as torch.sum does on a CPU: a cascade of 4 chains of 8 lanes", cascade, TORCH["torch.sum, SumKernel.cpp"]
)
_SQUARED = (lambda values: in_float64(_squares(values))), (lambda values: exactly(_squares(values)))
_IN_TURN = "added in float64 one after the other, rounded once"
FLOAT64 = HostOrder(_IN_TURN, in_float64, IEEE754["section 5.4.1"], _SQUARED[0])
FSUM = HostOrder("the sum is exact, rounded once, as by math.fsum", exactly, IEEE754["section 4.3.1"], _SQUARED[1])


def product_of_host(
    order: HostOrder,
    a: NDArray[Any],
    b: NDArray[Any],
    c: Floats | None,
    *,
    a_format: ElementType,
    b_format: ElementType,
) -> Floats:
    """Return (a[:, None] * b).sum(-1) + c for codes (..., M, K) and (..., N, K); each product is rounded."""
    sides = [np.asarray(decode(each, float_named(row), np.float32)) for each, row in ((a, a_format), (b, b_format))]
    left, right = (each.reshape(-1, *each.shape[-2:]) for each in sides)
    total = np.zeros((*left.shape[:2], right.shape[1]), np.float32)
    step = max(1, PRODUCTS_AT_ONCE // max(1, right[0].size))
    for which in range(len(left)):
        for first in range(0, left.shape[1], step):
            rows = left[which, first : first + step]
            products = rows[:, None] * right[which]
            total[which, first : first + step] = order.sum(products.reshape(-1, rows.shape[1])).reshape(len(rows), -1)
    found: Floats = total.reshape(*a.shape[:-1], b.shape[-2])
    return found if c is None else found + c


HOST_ORDERS = (PAIRWISE, CASCADE, FLOAT64, FSUM)
