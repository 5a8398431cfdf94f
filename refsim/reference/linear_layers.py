"""Linear layers a second time: one output over fractions, sharing no line with the model.

The kernel's parameters are given again: the columns of K of each warp, the order of the warps' sums, the roundings to
bf16. Inside an mma a step truncates every term to a multiple of 2^(E - F), with E the largest exponent.
"""

from collections.abc import Sequence
from typing import NamedTuple

from refsim.reference.block_scaled import Alignment, signed, wide
from refsim.reference.rational_float import GRIDS, PLUS_ZERO, ExactNumber, add, mul, rounded
from refsim.reference.tensor_cores import alignment

COLUMNS_OF_AN_MMA = 16
_NARROW = GRIDS["bf16"]


class SplitK(NamedTuple):
    """The division of K: `splits` chains, each of neighboring tiles of `tile` columns, their sums in f32 or rounded to
    bf16."""

    splits: int
    tile: int
    rounds_partials: bool


def steps_of(target: str) -> Alignment | None:
    """Return the arithmetic of a bf16 mma on a target, or None where there is none: before sm_80."""
    number = int("".join(letter for letter in target if letter.isdigit()))
    return alignment(number, "mma.sync", "bf16", "f32", COLUMNS_OF_AN_MMA) if number >= 80 else None


def output(x: Sequence[int], w: Sequence[int], residual: int | None, chains: SplitK, target: str) -> int | None:
    """Return the bf16 code of one output, or None for a target of unknown arithmetic.

    `x` and `w` are rows of X and W as bf16 codes, `residual` is the code of R. output([0x3f80], [0x4000], 0x3f00,
    SplitK(1, 16, False), "sm_90a") is 0x4020: 1 x 2 + 0.5.
    """
    step = steps_of(target)
    if step is None:
        return None
    tiles = -(-len(x) // chains.tile)
    width = max(1, -(-tiles // chains.splits)) * chains.tile
    partials = [
        _chain(x[first : first + width], w[first : first + width], step)
        for first in range(0, width * chains.splits, width)
    ]
    if chains.rounds_partials and chains.splits > 1:
        partials = [_NARROW.decode(_NARROW.encode(partial)) for partial in partials]
    total = partials[0]
    for partial in partials[1:]:
        total = rounded(add(total, partial))
    first = _NARROW.encode(total)
    return first if residual is None else _NARROW.encode(add(_NARROW.decode(first), _NARROW.decode(residual)))


def _chain(x: Sequence[int], w: Sequence[int], step: Alignment) -> ExactNumber:
    """Return the sum of some columns, padded with zeros to whole instructions; +0 for no column."""
    count = -(-len(x) // COLUMNS_OF_AN_MMA) * COLUMNS_OF_AN_MMA
    places = [range(first, first + step.length) for first in range(0, count, step.length)]
    return GRIDS["f32"].decode(wide(x, w, places, step)) if len(x) else PLUS_ZERO


def weight(code: int, scale: int, *, adds_to_exponent: bool = False) -> int:
    """Return the bf16 code of an E4M3 weight times the bf16 code of its scale, rounded once; NaN is 0x7fff. With
    `adds_to_exponent` the code is shifted into bf16 and 120 is added to its exponent: zero becomes 2^-7, NaN 480."""
    if adds_to_exponent:
        number = _NARROW.decode((code & 0x80) << 8 | ((code & 0x7F) << 4) + (120 << 7))
    else:
        number = signed(code, "e4m3")
    return _NARROW.encode(mul(number, _NARROW.decode(scale)))
