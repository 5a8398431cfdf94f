"""The FP8 GEMM with block scales a second time: one output after another over fractions, sharing no line with the
model.

A step of the tensor core truncates 32 products and the accumulator to multiples of 2^(E - 13), with E the largest
exponent of a nonzero term. It truncates their exact sum to 13 bits after the sum's leading bit.
"""

from collections.abc import Sequence
from fractions import Fraction

from refsim.reference.rational_float import GRIDS, NOT_A_NUMBER, ExactNumber, add, fma, mul, power

Term = tuple[Fraction, int]  # a value and its exponent in the alignment
FRACTION_BITS, BLOCK_COLUMNS, STEP_COLUMNS = 13, 128, 32
PLUS_ZERO = ExactNumber(False, Fraction(0))
TOTALS, OUTPUTS = GRIDS["f32"], GRIDS["bf16"]
ORDERS_OF_PROMOTION = {"scale_product": ("a", "b", "p"), "a_then_b": ("p", "a", "b"), "b_then_a": ("p", "b", "a")}


def e4m3(code: int) -> Term | None:
    """Return the value of a code and its exponent (-6 for subnormals); None for NaN."""
    magnitude, sign = code & 0x7F, -1 if code & 0x80 else 1
    if magnitude == 0x7F:
        return None
    exponent, significand = max(magnitude >> 3, 1) - 7, (magnitude & 7) + (8 if magnitude >> 3 else 0)
    return sign * significand * power(exponent - 3), exponent


def leading(value: Fraction) -> int:
    """Return the exponent of the leading bit of a nonzero value."""
    magnitude = abs(value)
    found = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return found if magnitude >= power(found) else found - 1


def cut(value: Fraction, quantum: Fraction) -> Fraction:
    """Return the value truncated toward zero to a multiple of `quantum`."""
    count = abs(value) // quantum
    return (count if value >= 0 else -count) * quantum


def wgmma_step(a: Sequence[int], b: Sequence[int], c: Fraction) -> Fraction | None:
    """Return one output of one wgmma of K = 32: c plus the sum of a * b in the tensor core's arithmetic; None is
    NaN."""
    terms: list[Term] = [(c, max(leading(c), -126))] if c else []
    for left, right in zip(map(e4m3, a), map(e4m3, b), strict=True):
        if left is None or right is None:
            return None
        if left[0] * right[0]:
            terms.append((left[0] * right[0], left[1] + right[1]))
    if not terms:
        return Fraction(0)
    quantum = power(max(exponent for _, exponent in terms) - FRACTION_BITS)
    total = sum((cut(value, quantum) for value, _ in terms), Fraction(0))
    return cut(total, power(max(leading(total), -126) - FRACTION_BITS)) if total else Fraction(0)


def block_product(a: Sequence[int], b: Sequence[int]) -> ExactNumber:
    """Return P of one block of at most 128 columns: four steps, with zeros for missing columns."""
    total: Fraction | None = Fraction(0)
    for start in range(0, BLOCK_COLUMNS, STEP_COLUMNS):
        left, right = a[start : start + STEP_COLUMNS], b[start : start + STEP_COLUMNS]
        if total is not None:
            total = wgmma_step(left, right, total)
    return NOT_A_NUMBER if total is None else ExactNumber(total < 0, abs(total))


def rounded(number: ExactNumber) -> ExactNumber:
    """Return the number rounded to float32, to nearest even."""
    return TOTALS.decode(TOTALS.encode(number))


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
