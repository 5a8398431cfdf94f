"""The FP8 GEMM with block scales a second time: one output after another over fractions, sharing no line with the
model.

A step of the tensor core truncates 32 products and the accumulator to multiples of 2^(E - 13), with E the largest
exponent of a nonzero term. It truncates their exact sum to 13 bits after the sum's leading bit.
"""

from collections.abc import Sequence
from fractions import Fraction

from refsim.reference.block_scaled import chain_of_products, exact
from refsim.reference.rational_float import GRIDS, PLUS_ZERO, ExactNumber, add, fma, mul, rounded

BLOCK_COLUMNS = 128
TOTALS, OUTPUTS = GRIDS["f32"], GRIDS["bf16"]
ORDERS_OF_PROMOTION = {"scale_product": ("a", "b", "p"), "a_then_b": ("p", "a", "b"), "b_then_a": ("p", "b", "a")}


def block_product(a: Sequence[int], b: Sequence[int]) -> ExactNumber:
    """Return P of one block of at most 128 columns: four steps, with zeros for missing columns."""
    return exact(chain_of_products(a, b, "e4m3", Fraction(0)))


def output(
    a: Sequence[int], b: Sequence[int], sa: Sequence[int], sb: Sequence[int], promotion: str, splits: int = 1
) -> tuple[int, int]:
    """Return the float32 pattern of F and the bf16 pattern of D of one output. `sa` and `sb` hold float32 patterns, one
    for each block of K."""
    count = len(sa)
    width = -(-count // splits)
    sums = []
    for first in range(0, count, width):
        total = PLUS_ZERO
        for block in range(first, min(first + width, count)):
            part = slice(block * BLOCK_COLUMNS, (block + 1) * BLOCK_COLUMNS)
            factors = {
                "p": block_product(a[part], b[part]),
                "a": TOTALS.decode(sa[block]),
                "b": TOTALS.decode(sb[block]),
            }
            one, other, last = ORDERS_OF_PROMOTION[promotion]
            total = rounded(fma(rounded(mul(factors[one], factors[other])), factors[last], total))
        sums.append(total)
    total = sums[0]
    for later in sums[1:]:
        total = rounded(add(total, later))
    return TOTALS.encode(total), OUTPUTS.encode(total)
