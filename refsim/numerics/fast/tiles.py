"""The truncated step on a tile of outputs, in NumPy.

With E the largest exponent of a step and s = 2^(F - E) a product cut to its last kept bit is trunc(a b s), an integer.
Narrow operands: a b and a b s are exact in float32 (at most 22 significant bits, or below 1, where the cut leaves 0);
the cut is the conversion to int32, in which terms add up exactly. Wide operands: the same in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16
from refsim.numerics.fast.reals import DOUBLE, Real, Values, in_range, real_of, to_nearest_half, toward_zero
from refsim.numerics.fast.sides import LOWEST_PRODUCT, ZERO_OFFSET, GroupSide, Side, narrow
from refsim.numerics.fast.terms import ZERO
from refsim.numerics.rows import Profile

IN_FLIGHT = 1 << 16  # products formed at once: what stays in a core's own cache
TOGETHER = 8  # places of K from which one reduction is faster than an addition each
SERIAL = 1 << 18  # multiplications up to which OpenBLAS stays on the calling thread


@dataclass(frozen=True)
class Rule:
    """A row's step for one pair of operands: how many products, which arithmetic, where a zero stands."""

    profile: Profile
    length: int
    real: Real
    narrow: bool

    @property
    def fraction(self) -> int:
        assert self.profile.fraction is not None
        return self.profile.fraction

    @property
    def half(self) -> bool:
        return self.profile.d_format is F16

    @property
    def floor(self) -> int:
        """The exponent of a step without products; where the zero exponent is out of float32's reach C is kept apart."""
        assert self.profile.zero_exponent is not None
        return max(self.profile.zero_exponent, LOWEST_PRODUCT) if self.narrow else self.profile.zero_exponent


def together(profile: Profile, length: int) -> int:
    """How many products of a step, each below 2^(F + 2) units, add up to less than 2^31: 16 where F = 25."""
    assert profile.fraction is not None
    return min(length, 1 << (29 - profile.fraction))


def rule_of(a: Side, b: Side, profile: Profile, length: int) -> Rule:
    """The arithmetic for two sides: a step that keeps 13 bits has FP8 operands, which are always narrow."""
    return Rule(profile, length, real_of(profile), narrow(a, b))


def chain(a: Side, b: Side, c: Values, profile: Profile, length: int) -> Values:
    """The rounded sums of all steps from C (batch, M, N) on, values of the row's `Real`; `c` is overwritten."""
    rule = rule_of(a, b, profile, length)
    for start in range(0, len(a.values), length):
        _step(a, b, slice(start, start + length), c, rule)
    return c


def _step(a: Side, b: Side, part: slice, c: Values, rule: Rule) -> None:
    real, fraction = rule.real, rule.fraction
    exponent, missing = _products_exponent(a, b, part, c, rule)
    np.maximum(exponent, _own_exponent(c, rule), out=exponent)
    kept = None
    if missing is not None and not rule.half:
        kept = c.copy()
        toward_zero(kept, rule.profile.rounding.fraction_bits, real)
        kept += real.values(0)  # a C of -0, or cut to it, is +0 in D
    exponent -= real.bits(fraction)
    coarsest = int(exponent.max())
    scale = real.power(-exponent)
    np.multiply(c, scale, out=c)
    np.trunc(c, out=c)
    if c.flags.c_contiguous and on_grid(coarsest, a, b):  # a matrix product of many small ones costs more than it saves
        c += _whole(a, b, part, c.shape, real) * scale
    else:
        _add_cut(a, b, part, scale, c, rule)
    np.multiply(c, real.power(exponent), out=c)
    finish(c, rule.profile, real, careful=not rule.narrow)
    if kept is not None:
        np.copyto(c, kept, where=missing)


def finish(sums: Values, profile: Profile, real: Real, *, careful: bool) -> None:
    """Round the exact sums of a step in place; `careful` where f32 results may be subnormal or overflow."""
    rounding = profile.rounding
    if rounding.nearest:
        to_nearest_half(sums, real)
        return
    toward_zero(sums, rounding.fraction_bits, real)
    if careful:
        in_range(sums, rounding)


def _products(combine: np.ufunc, x: Values, y: Values, outputs: int) -> Iterator[Values]:
    """x (K, batch, M) combined with y (K, batch, N): (places, batch, M, N), in memory in the order of x and y.

    Either several places of K at a time, as many as stay in cache for that many outputs, or one. The array is used again.
    """
    size = min(len(x), IN_FLIGHT // max(outputs, 1))
    size = size if size >= min(TOGETHER, len(x)) else 1
    result = combine(x[:size, :, :, None], y[:size, :, None, :])
    yield result
    for start in range(size, len(x), size):
        some = result[: len(x) - start]
        yield combine(x[start : start + size, :, :, None], y[start : start + size, :, None, :], out=some)


def _reduced(combine: np.ufunc, terms: Values) -> Values:
    """All places of K combined into one."""
    result: Values = terms[0] if len(terms) == 1 else combine.reduce(terms, axis=0)
    return result


def _products_exponent(
    a: Side, b: Side, part: slice, c: Values, rule: Rule
) -> tuple[NDArray[np.signedinteger[Any]], NDArray[np.bool_] | None]:
    """The largest exponent of the products, the floor where narrow ones are missing, and where (None: nowhere)."""
    if rule.narrow:
        assert a.offsets is not None
        assert b.offsets is not None
        x: NDArray[np.signedinteger[Any]] = a.offsets[part]
        y: NDArray[np.signedinteger[Any]] = b.offsets[part]
    else:
        x, y = a.exponents[part], b.exponents[part]
    top = np.full_like(c, 2 * (ZERO_OFFSET if rule.narrow else ZERO), x.dtype)  # where both are zeros
    for sums in _products(np.add, x, y, c.size):
        np.maximum(top, _reduced(np.maximum, sums), out=top)
    exponent = top.astype(rule.real.bits)
    if not rule.narrow:
        return exponent, None
    exponent += rule.real.bits(a.low + b.low)
    missing = top < 0 if top.min(initial=0) < 0 else None
    if missing is not None:
        exponent[missing] = rule.floor
    return exponent, missing


def _own_exponent(c: Values, rule: Rule) -> NDArray[np.signedinteger[Any]]:
    """The exponent of C; a zero has the floor's, or one below that of any product."""
    exponent = rule.real.exponent(c)
    if rule.narrow and not rule.half:
        return exponent
    format = rule.profile.rounding.format
    np.maximum(exponent, 1 - format.bias, out=exponent)
    exponent[c == 0] = rule.floor
    return exponent


def on_grid(coarsest: int, a: Side | GroupSide, b: Side | GroupSide) -> bool:
    """Whether every product is a multiple of 2^coarsest, so that none of a step loses a bit."""
    return coarsest <= a.low + b.low - a.fraction_bits - b.fraction_bits


def _whole(a: Side, b: Side, part: slice, shape: tuple[int, ...], real: Real) -> Values:
    """The sums of products none of which loses a bit: a matrix product, exact in any order."""
    x = a.values[part].transpose(1, 2, 0).astype(real.values)
    y = b.values[part].transpose(1, 0, 2).astype(real.values)
    return product(x, y, np.empty(shape, real.values))


def product(x: Values, y: Values, out: Values) -> Values:
    """x (batch, M, L) times y (batch, L, N), in parts that BLAS does not spread over threads of its own."""
    columns = max(1, SERIAL // (x.shape[1] * x.shape[2]))
    for start in range(0, y.shape[2], columns):
        some = slice(start, start + columns)
        out[..., some] = x @ y[..., some]
    return out


def _add_cut(a: Side, b: Side, part: slice, scale: Values, c: Values, rule: Rule) -> None:
    """Add the cut products, integers in units of the last kept bit, to `c`."""
    x, y = a.values[part], b.values[part]
    if not rule.narrow:
        x, y = x.astype(DOUBLE.values, copy=False), y.astype(DOUBLE.values, copy=False)
        for terms in _products(np.multiply, x, y, 2 * c.size):
            np.multiply(terms, scale, out=terms)
            np.trunc(terms, out=terms)
            c += _reduced(np.add, terms)
        return
    factor = scale.astype(np.float32, copy=False)
    count = together(rule.profile, rule.length)
    for first in range(0, len(x), count):
        c += _narrow_sum(x[first : first + count], y[first : first + count], factor)


def _narrow_sum(x: Values, y: Values, scale: Values) -> NDArray[np.int32]:
    total, cut = np.zeros_like(scale, np.int32), None
    for terms in _products(np.multiply, x, y, scale.size):
        np.multiply(terms, scale, out=terms)
        if cut is None:
            cut = np.empty_like(terms, np.int32)
        some = cut[: len(terms)]
        np.copyto(some, terms, casting="unsafe")
        total += _reduced(np.add, some)
    return total
