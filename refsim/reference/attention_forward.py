"""Attention forward a second time: one row over fractions and Python's integers, sharing no line with the oracle.

The products are those of `reference.block_scaled`, one step of the tensor core after another. The special functions
are from `reference.special_functions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from refsim.reference.block_scaled import chain_of_products, exact
from refsim.reference.group_quantize import narrow_code
from refsim.reference.rational_float import GRIDS, PLUS_ZERO, ExactNumber, extremum, fma, mul, negated, rounded
from refsim.reference.row_functions import sum_of
from refsim.reference.special_functions import PLUS_INFINITY, SINGLES, ex2_flushed, lg2_flushed, reciprocal

TILE, LANES, LN_2 = 64, 4, SINGLES.decode(0x3F317218)
UNSEEN = negated(PLUS_INFINITY)
SHIFTS = {"bf16": Fraction(0), "e4m3": Fraction(8)}
Codes = Sequence[int]


@dataclass(frozen=True)
class Row:
    """The inputs of one row of Q: the number of keys that it sees and of tiles; C and the scale of v (or None) as
    float32 patterns."""

    type: str
    seen: int
    tiles: int
    factor: int
    v_scale: int | None = None


def dot(a: Codes, b: Codes, start: ExactNumber, type: str) -> ExactNumber:
    """Return `start` plus the products of two rows, one step of the tensor core at a time."""
    return exact(chain_of_products(a, b, type, start.signed))


def weight_code(p: ExactNumber, type: str) -> int:
    """Return a weight, which is not negative, as the code of an operand; E4M3 saturates."""
    return GRIDS["bf16"].encode(p) if type == "bf16" else narrow_code(p, "e4m3")


def product(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return x * y rounded to float32."""
    return rounded(mul(x, y))


def row_of_attention(q: Codes, keys: Sequence[Codes], columns: Sequence[Codes], row: Row) -> tuple[list[int], int]:
    """Return the bf16 codes of O in some columns, and the float32 pattern of the row's logarithm. `keys` are the codes
    of K, one row a key; each of `columns` holds the codes of one column of V for all keys."""
    factor, shift = SINGLES.decode(row.factor), ExactNumber(True, SHIFTS[row.type])
    top, base, sums, o = UNSEEN, PLUS_ZERO, [PLUS_ZERO] * LANES, [PLUS_ZERO] * len(columns)
    for first in range(0, row.tiles * TILE, TILE):
        at = range(first, first + TILE)
        scores = [dot(q, keys[j], PLUS_ZERO, row.type) if j < row.seen else UNSEEN for j in at]
        before, top = top, extremum([top, *scores], largest=True)
        used = PLUS_ZERO if top == UNSEEN else top
        base = sum_of(product(used, factor), shift)
        kept = ex2_flushed(product(sum_of(before, negated(used)), factor))
        weights = [ex2_flushed(rounded(fma(score, factor, negated(base)))) for score in scores]
        for lane in range(LANES):
            total = PLUS_ZERO
            for place in range(TILE):
                if place % 8 // 2 == lane:
                    total = sum_of(total, weights[place])
            sums[lane] = rounded(fma(sums[lane], kept, total))
        codes = [weight_code(p, row.type) for p in weights]
        held = [[column[j] if j < len(column) else 0 for j in at] for column in columns]
        o = [dot(codes, tile, product(each, kept), row.type) for each, tile in zip(o, held, strict=True)]
    total = sum_of(sum_of(sums[0], sums[1]), sum_of(sums[2], sums[3]))
    lse = SINGLES.encode(product(sum_of(base, lg2_flushed(total)), LN_2))  # -infinity for a row that sees no key
    if total.magnitude == 0:
        return [0] * len(columns), lse
    o = [product(each, reciprocal(total)) for each in o]
    if row.v_scale is not None:
        o = [product(each, SINGLES.decode(row.v_scale)) for each in o]
    return [GRIDS["bf16"].encode(each) for each in o], lse
