"""FP4 with scales on a tile of outputs, in NumPy: each group of 16 products is one term.

A group's sum times its scales is below 2^20 units of its smallest product, so a float64 matrix product is exact.
"""

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F32
from refsim.numerics.dot.definition import GROUP
from refsim.numerics.fast.operands import GroupedOperand, loses_no_bit
from refsim.numerics.fast.reals import REAL_F64, Values
from refsim.numerics.fast.terms import ZERO
from refsim.numerics.fast.tiles import matmul, round_sums
from refsim.numerics.rows import Profile


def chain(a: GroupedOperand, b: GroupedOperand, c: Values, profile: Profile, length: int) -> Values:
    """Return the rounded sums of all steps, starting with C (batch, M, N); `c` is overwritten."""
    for start in range(0, len(a.values), length):
        _step(a, b, slice(start, start + length), c, profile)
    return c


def _step(a: GroupedOperand, b: GroupedOperand, part: slice, c: Values, profile: Profile) -> None:
    """Add one step to `c` in place: cut C and each group's sum below the largest exponent, add them, round."""
    assert profile.fraction is not None
    exponent = _exponent(a, b, slice(part.start // GROUP, part.stop // GROUP), c, profile)
    exponent -= profile.fraction
    coarsest = int(exponent.max())
    scale = REAL_F64.power(-exponent)
    np.multiply(c, scale, out=c)
    np.trunc(c, out=c)
    x, y, size = a.weighted(part), b.weighted(part), GROUP
    if loses_no_bit(coarsest, a, b):
        size = part.stop - part.start  # no term loses a bit: the groups add up in one matrix product
    for first in range(0, len(x), size):
        some = slice(first, first + size)
        sums = matmul(x[some].transpose(1, 2, 0), y[some].transpose(1, 0, 2), np.empty_like(c))
        sums *= scale
        c += np.trunc(sums, out=sums)
    np.multiply(c, REAL_F64.power(exponent), out=c)
    round_sums(c, profile, REAL_F64, careful=True)


def _exponent(a: GroupedOperand, b: GroupedOperand, groups: slice, c: Values, profile: Profile) -> NDArray[np.int64]:
    """Return the largest exponent of C and of the groups with a product; a C of zero has the zero exponent."""
    assert profile.zero_exponent is not None
    top = np.full(c.shape, ZERO, np.int16)
    for x, y, p, q in zip(a.exponents[groups], b.exponents[groups], a.present[groups], b.present[groups], strict=True):
        own = x[:, :, None] + y[:, None, :]
        own[(p[:, :, None] & q[:, None, :]) == 0] = ZERO
        np.maximum(top, own, out=top)
    exponent = REAL_F64.exponent(c)
    np.maximum(exponent, 1 - F32.bias, out=exponent)
    exponent[c == 0] = profile.zero_exponent
    np.maximum(exponent, top, out=exponent)
    return exponent
