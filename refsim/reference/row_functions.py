"""Softmax and RMSNorm of one row a second time, over fractions and Python's integers."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from refsim.reference.rational_float import GRIDS, PLUS_ZERO, ExactNumber, add, extremum, fma, mul, negated, rounded
from refsim.reference.special_functions import PLUS_INFINITY, ex2_flushed, inverse_root, quotient, reciprocal, silu

OF_A_BLOCK, LANES = 128, 32
Both = Callable[[ExactNumber, ExactNumber], ExactNumber]
MINUS_INFINITY = negated(PLUS_INFINITY)


def larger(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return the larger number."""
    return extremum([x, y], largest=True)


def sum_of(x: ExactNumber, y: ExactNumber) -> ExactNumber:
    """Return x + y rounded to float32."""
    return rounded(add(x, y))


def over_block(of_threads: list[ExactNumber], both: Both) -> ExactNumber:
    """Return the reduction of 128 threads' values: lanes at distances 16 to 1, then warps in ascending order."""
    of_warps = []
    for first in range(0, OF_A_BLOCK, LANES):
        lanes = of_threads[first : first + LANES]
        for distance in (16, 8, 4, 2, 1):
            lanes = [both(lanes[lane], lanes[lane ^ distance]) for lane in range(LANES)]
        of_warps.append(lanes[0])
    total = of_warps[0]
    for other in of_warps[1:]:
        total = both(total, other)
    return total


def over_row(values: Sequence[ExactNumber], start: ExactNumber, taken: Both) -> list[ExactNumber]:
    """Return the value of each of 128 threads after its columns: every 128th column, in ascending order."""
    of_threads = [start] * OF_A_BLOCK
    for column, value in enumerate(values):
        of_threads[column % OF_A_BLOCK] = taken(of_threads[column % OF_A_BLOCK], value)
    return of_threads


def softmax(codes: Sequence[int], scale: int, format: str) -> list[int]:
    """Return the codes of softmax of one row of codes; `scale` is a float32 pattern."""
    grid, factor = GRIDS[format], GRIDS["f32"].decode(scale)
    values = [grid.decode(code) for code in codes]
    top = over_block(over_row(values, MINUS_INFINITY, larger), larger)
    base = rounded(mul(PLUS_ZERO if top == MINUS_INFINITY else top, factor))
    weights = [ex2_flushed(rounded(fma(value, factor, negated(base)))) for value in values]
    total = over_block(over_row(weights, PLUS_ZERO, sum_of), sum_of)
    if total.magnitude == 0:
        return [0] * len(codes)
    if format == "f32":
        return [grid.encode(quotient(weight, total)) for weight in weights]
    inverse = reciprocal(total)
    return [grid.encode(rounded(mul(weight, inverse))) for weight in weights]


def rms_norm(
    codes: Sequence[int], w: Sequence[int], eps: int, format: str, gate: Sequence[int] | None = None
) -> list[int]:
    """Return the codes of RMSNorm of one row of codes; `eps` is a float32 pattern, `gate` the row's gate codes."""
    grid, singles = GRIDS[format], GRIDS["f32"]
    values = [grid.decode(code) for code in codes]
    squares = over_row(values, PLUS_ZERO, lambda total, x: rounded(fma(x, x, total)))
    count = rounded(ExactNumber(False, Fraction(len(codes))))
    mean = quotient(over_block(squares, sum_of), count)
    factor = inverse_root(sum_of(mean, singles.decode(eps)))
    normed = [rounded(mul(rounded(mul(x, factor)), grid.decode(each))) for x, each in zip(values, w, strict=True)]
    if gate is not None:
        normed = [rounded(mul(y, silu(grid.decode(z)))) for y, z in zip(normed, gate, strict=True)]
    return [grid.encode(y) for y in normed]
