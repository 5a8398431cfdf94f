"""The truncated step on a tile of outputs, in NumPy.

With E the largest exponent of a step and s = 2^(F - E) a product cut to its last kept bit is trunc(a b s), an integer.
Narrow operands (`domain`): a b and a b s are exact in float32 (at most 22 significant bits, or below 1, where the cut
leaves 0); the cut is the conversion to int32, in which terms add up exactly. Wide operands use float64 instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16
from refsim.numerics.fast.operands import ZERO, FastOperand, loses_no_bit, narrow
from refsim.numerics.fast.reals import (
    LOWEST_PRODUCT,
    REAL_F64,
    ZERO_OFFSET,
    Real,
    Values,
    in_range,
    int32_products,
    real_of,
    to_nearest_half,
    toward_zero,
)
from refsim.numerics.rows import Profile

IN_FLIGHT = 1 << 16  # products formed at once: a core's own cache holds them
AT_ONCE = 8  # places of K from which one reduction is faster than an addition each
SERIAL = 1 << 18  # multiplications up to which OpenBLAS stays on the calling thread

Exponents = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Arithmetic:
    """Describe how the steps of a profile are computed for one pair of operands."""

    profile: Profile
    length: int
    real: Real
    narrow: bool

    @property
    def fraction(self) -> int:
        """Return F: a term keeps bits down to 2^-F of the largest exponent."""
        assert self.profile.fraction is not None
        return self.profile.fraction

    @property
    def into_half(self) -> bool:
        """Return whether results are f16."""
        return self.profile.d_format is F16

    @property
    def zero_exponent(self) -> int:
        """Return the exponent of a step without products; if it is out of float32's range C is cut alone."""
        assert self.profile.zero_exponent is not None
        return max(self.profile.zero_exponent, LOWEST_PRODUCT) if self.narrow else self.profile.zero_exponent


def chain(a: FastOperand, b: FastOperand, c: Values, profile: Profile, length: int) -> Values:
    """Return the rounded sums of all steps from C (batch, M, N) on, in the profile's `Real`; `c` is overwritten."""
    how = Arithmetic(profile, length, real_of(profile), narrow(a, b))
    for start in range(0, len(a.values), length):
        _step(a, b, slice(start, start + length), c, how)
    return c


def _step(a: FastOperand, b: FastOperand, part: slice, c: Values, how: Arithmetic) -> None:
    """Find the largest exponent, count C and the products in units of its last kept bit, add them, round."""
    real = how.real
    exponent, no_product = _products_exponent(a, b, part, c, how)
    np.maximum(exponent, _c_exponent(c, how), out=exponent)
    c_alone = None if no_product is None or how.into_half else _cut_alone(c, how)
    exponent -= real.bits(how.fraction)  # from here on the exponent of the last kept bit
    coarsest = int(exponent.max())
    scale = real.power(-exponent)
    np.multiply(c, scale, out=c)
    np.trunc(c, out=c)
    if c.flags.c_contiguous and loses_no_bit(coarsest, a, b):  # many small matrix products cost more than they save
        c += _uncut_sum(a, b, part, c.shape, real) * scale
    else:
        _add_cut_products(a, b, part, scale, c, how)
    np.multiply(c, real.power(exponent), out=c)
    round_sums(c, how.profile, real, careful=not how.narrow)
    if c_alone is not None:
        np.copyto(c, c_alone, where=no_product)


# ---- the exponent of a step ------------------------------------------------------------------------------------------


def _products_exponent(
    a: FastOperand, b: FastOperand, part: slice, c: Values, how: Arithmetic
) -> tuple[Exponents, NDArray[np.bool_] | None]:
    """Return the largest exponent of the products, and where narrow operands have only zeros (None: nowhere)."""
    if how.narrow:
        assert a.offsets is not None
        assert b.offsets is not None
        x: Exponents = a.offsets[part]
        y: Exponents = b.offsets[part]
    else:
        x, y = a.exponents[part], b.exponents[part]
    top = np.full_like(c, 2 * (ZERO_OFFSET if how.narrow else ZERO), x.dtype)  # where both are zeros
    for sums in _outer(np.add, x, y, c.size):
        np.maximum(top, _over_k(np.maximum, sums), out=top)
    exponent = top.astype(how.real.bits)
    if not how.narrow:
        return exponent, None
    exponent += how.real.bits(a.low + b.low)
    no_product = top < 0 if top.min(initial=0) < 0 else None
    if no_product is not None:
        exponent[no_product] = how.zero_exponent
    return exponent, no_product


def _c_exponent(c: Values, how: Arithmetic) -> Exponents:
    """Return the exponent of C; for a zero it is the zero exponent, or an exponent below any product."""
    exponent = how.real.exponent(c)
    if how.narrow and not how.into_half:
        return exponent
    np.maximum(exponent, 1 - how.profile.rounding.format.bias, out=exponent)
    exponent[c == 0] = how.zero_exponent
    return exponent


# ---- sums in units of the last kept bit ------------------------------------------------------------------------------


def _uncut_sum(a: FastOperand, b: FastOperand, part: slice, shape: tuple[int, ...], real: Real) -> Values:
    """Return the sums of products that lose no bit: a matrix product, exact in any order."""
    x = a.values[part].transpose(1, 2, 0).astype(real.values)
    y = b.values[part].transpose(1, 0, 2).astype(real.values)
    return matmul(x, y, np.empty(shape, real.values))


def matmul(x: Values, y: Values, out: Values) -> Values:
    """Return x (batch, M, L) times y (batch, L, N), in parts that BLAS does not spread over threads of its own."""
    columns = max(1, SERIAL // (x.shape[1] * x.shape[2]))
    for start in range(0, y.shape[2], columns):
        some = slice(start, start + columns)
        out[..., some] = x @ y[..., some]
    return out


def _add_cut_products(a: FastOperand, b: FastOperand, part: slice, scale: Values, c: Values, how: Arithmetic) -> None:
    """Add the cut products, integers in units of the last kept bit, to `c`."""
    x, y = a.values[part], b.values[part]
    if not how.narrow:
        x, y = x.astype(REAL_F64.values, copy=False), y.astype(REAL_F64.values, copy=False)
        for terms in _outer(np.multiply, x, y, 2 * c.size):
            np.multiply(terms, scale, out=terms)
            np.trunc(terms, out=terms)
            c += _over_k(np.add, terms)
        return
    single = scale.astype(np.float32, copy=False)
    count = int32_products(how.profile, how.length)
    for first in range(0, len(x), count):
        c += _int32_sum(x[first : first + count], y[first : first + count], single)


def _int32_sum(x: Values, y: Values, scale: Values) -> NDArray[np.int32]:
    """Return the sum of cut products, so few that int32 holds it; the conversion is the cut."""
    total, cut = np.zeros_like(scale, np.int32), None
    for terms in _outer(np.multiply, x, y, scale.size):
        np.multiply(terms, scale, out=terms)
        if cut is None:
            cut = np.empty_like(terms, np.int32)
        some = cut[: len(terms)]
        np.copyto(some, terms, casting="unsafe")
        total += _over_k(np.add, some)
    return total


def _outer(combine: np.ufunc, x: Values, y: Values, outputs: int) -> Iterator[Values]:
    """Yield x (K, batch, M) combined with y (K, batch, N): (places, batch, M, N), in memory in the order of x and y.

    Either several places of K at a time, as many as stay in cache for that many outputs, or one. The yielded array is
    reused.
    """
    size = min(len(x), IN_FLIGHT // max(outputs, 1))
    size = size if size >= min(AT_ONCE, len(x)) else 1
    result = combine(x[:size, :, :, None], y[:size, :, None, :])
    yield result
    for start in range(size, len(x), size):
        some = result[: len(x) - start]
        yield combine(x[start : start + size, :, :, None], y[start : start + size, :, None, :], out=some)


def _over_k(combine: np.ufunc, terms: Values) -> Values:
    """Return all places of K combined into one."""
    return np.asarray(terms[0] if len(terms) == 1 else combine.reduce(terms, axis=0))


# ---- rounding --------------------------------------------------------------------------------------------------------


def round_sums(sums: Values, profile: Profile, real: Real, *, careful: bool) -> None:
    """Round the exact sums of a step in place; `careful` where f32 results may be subnormal or overflow."""
    rounding = profile.rounding
    if rounding.nearest:
        to_nearest_half(sums, real)
        return
    toward_zero(sums, rounding.fraction_bits, real)
    if careful:
        in_range(sums, rounding)


def _cut_alone(c: Values, how: Arithmetic) -> Values:
    """Return C as a step without products returns it: cut like a term and like a result; -0 and zeros become +0."""
    alone = c.copy()
    toward_zero(alone, min(how.profile.rounding.fraction_bits, how.fraction), how.real)
    alone += how.real.values(0)
    return alone
