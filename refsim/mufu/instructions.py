"""The instructions around the unit: the steps that ptxas adds before and after it, on float32 patterns.

Without .ftz ptxas scales by a power of two, before and after, an operand that the unit would treat as zero or whose
result it would flush. The operand of sin and cos is multiplied by 1 / 2 pi first, with .ftz or without. A division is
the reciprocal of the divisor and one product: div.approx as it is, div.full scaled at the ends.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import pieces, unit

Words = NDArray[np.uint32]
Singles = NDArray[np.float32]

_NORMAL, _LARGE = np.float32(2.0**-126), np.float32(2.0**126)
_UP, _DOWN = np.float32(2.0**24), np.float32(0.25)


def _singles(words: Words) -> Singles:
    return words.view(np.float32)


def _words(values: Singles) -> Words:
    """Return the patterns of results; every NaN is 0x7fffffff."""
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))


def _of_unit(name: str, values: Singles) -> Singles:
    words = values.view(np.uint32)
    return _singles((pieces.FEWER_PASSES if pieces.takes(name, words) else unit.FUNCTIONS)[name](words))


def _flushed(values: Singles) -> Singles:
    return np.where(np.abs(values) < _NORMAL, np.copysign(np.float32(0), values), values)


def _rcp(x: Singles) -> Singles:
    scale = np.where(np.abs(x) < _NORMAL, _UP, np.where(np.abs(x) > _LARGE, _DOWN, np.float32(1)))
    return _of_unit("rcp", x * scale) * scale


def _scaled(name: str, after: Callable[[Singles], Singles]) -> Callable[[Singles], Singles]:
    """Return a function that computes 2^24 x where x is subnormal, and corrects its result with `after`."""

    def of(x: Singles) -> Singles:
        small = np.abs(x) < _NORMAL
        found = _of_unit(name, np.where(small, x * _UP, x))
        return np.where(small, after(found), found)

    return of


def _ex2(x: Singles) -> Singles:
    small = x < np.float32(-126)
    found = _of_unit("ex2", np.where(small, x * np.float32(0.5), x))
    return np.where(small, found * found, found)


_TURN = float(np.uint32(0x3E22F983).view(np.float32))
"""1 / 2 pi, the constant of ptxas."""


def turns(angles: Singles) -> Singles:
    """Return the product with 1 / 2 pi toward zero, FMUL.RZ: 0x3e22f983 for 1. To the unit a subnormal is zero."""
    product = angles.astype(np.float64) * _TURN  # 48 bits: exact
    return (product.view(np.uint64) >> np.uint64(29) << np.uint64(29)).view(np.float64).astype(np.float32)


_UNFLUSHED: dict[str, Callable[[Singles], Singles]] = {
    "rcp": _rcp,
    "rsqrt": _scaled("rsqrt", lambda y: y * np.float32(2.0**12)),
    "sqrt": _scaled("sqrt", lambda y: y * np.float32(2.0**-12)),
    "ex2": _ex2,
    "lg2": _scaled("lg2", lambda y: y - np.float32(24)),
    "sin": lambda x: _of_unit("sin", turns(x)),
    "cos": lambda x: _of_unit("cos", turns(x)),
    "tanh": lambda x: _of_unit("tanh", x),
}
_FLUSHED = {"sin": _UNFLUSHED["sin"], "cos": _UNFLUSHED["cos"]}


def approximate(name: str, words: Words, *, ftz: bool) -> Words:
    """Return NAME.approx{.ftz}.f32 of a unit's function: approximate("rcp", 0x00000001, ftz=False) is 0x7f800000."""
    with np.errstate(all="ignore"):
        if ftz and pieces.takes(name, words):
            return pieces.FEWER_PASSES[name](words)
        return pieces.in_pieces(partial(_approximate, name, ftz), words)


def _approximate(name: str, ftz: bool, words: Words) -> Words:
    if ftz and name not in _FLUSHED:
        return unit.FUNCTIONS[name](words)
    return _words((_FLUSHED if ftz else _UNFLUSHED)[name](_singles(words)))


def divided(a: Words, b: Words, *, ftz: bool, full: bool) -> Words:
    """Return div.approx or div.full: 1 / 3 is 0x3eaaaaab; to div.approx a divisor above 2^126 is infinity."""
    with np.errstate(all="ignore"):
        return pieces.in_pieces(partial(_divided, ftz, full), a, b)


def _divided(ftz: bool, full: bool, a: Words, b: Words) -> Words:
    """Return the quotients of one piece; arguments as for `divided`."""
    x, y = _singles(a), _singles(b)
    if ftz:
        x, y = _flushed(x), _flushed(y)
    scale = np.where((np.abs(y) > _LARGE) & full, _DOWN, np.float32(1))
    if not ftz:
        scale = np.where(np.abs(y) < _NORMAL, _UP, scale)
    x, y = x * scale, y * scale
    reciprocal = _of_unit("rcp", y)
    found = x * reciprocal
    if ftz:  # flush results below 2^-126 after rounding to 24 bits, not results that only a subnormal unit rounds up
        tiny = np.abs((x.astype(np.float64) * 2.0**64 * reciprocal).astype(np.float32)) < np.float32(2.0**-62)
        found = np.where(tiny, np.copysign(np.float32(0), found), found)
    return _words(found)
