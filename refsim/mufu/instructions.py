"""The instructions around the unit: the steps that ptxas adds before and after it, on float32 patterns.

Without .ftz ptxas scales by a power of two, before and after, an operand that the unit would treat as zero or whose
result it would flush. The operand of sin and cos is multiplied by 1 / 2 pi first, with .ftz or without. A division is
the reciprocal of the divisor and one product: div.approx as it is, div.full scaled at the ends.

Large NumPy arrays are computed a piece at a time, sized for a core's cache, and ex2 in fewer passes. Results equal the
definition in `unit` bit for bit: this path replays recordings of all 2^32 patterns, and a property compares the two.
Arrays of other types use the definition itself.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from refsim.mufu import coefficients as tables
from refsim.mufu import unit
from refsim.mufu.interpolation import squares

Words = NDArray[np.uint32]
Singles = NDArray[np.float32]

_NORMAL, _LARGE = np.float32(2.0**-126), np.float32(2.0**126)
_UP, _DOWN = np.float32(2.0**24), np.float32(0.25)
PIECE = 1 << 13
"""Elements of a piece: eight arrays of it are 256 to 512 KiB."""
_LEAST = 256
"""Elements below which the setup costs more than the passes."""

_FRACTION, _INFINITY, _NAN = np.int32((1 << 23) - 1), 0x7F800000, 0x7FFFFFFF


def in_pieces(function: Callable[..., Words], *operands: Words) -> Words:
    """Return function(*operands), a piece at a time: the function is elementwise, the operands have one shape."""
    first = operands[0]
    if first.size <= PIECE or any(type(each) is not ndarray or each.shape != first.shape for each in operands):
        return function(*operands)
    flat = [each.reshape(-1) for each in operands]
    found = np.empty(first.size, np.uint32)
    for at in range(0, first.size, PIECE):
        found[at : at + PIECE] = function(*(each[at : at + PIECE] for each in flat))
    return found.reshape(first.shape)


def takes(name: str, words: Words) -> bool:
    """Return whether `FEWER_PASSES` has the function and the array has the right kind and enough elements."""
    return name in FEWER_PASSES and type(words) is ndarray and words.dtype == np.uint32 and words.size >= _LEAST


@cache
def _ex2_tables() -> tuple[NDArray[np.float64], ...]:
    """Return C0, C1 and C2 in units of the result's last place, and the squares, below 2^15.

    The coefficients are float64, in which sums of 42 bits are exact.
    """
    c0, c1, c2 = (np.ascontiguousarray(column) * 2.0**-17 for column in tables.EX2.coefficients.T)
    return c0, c1, c2, squares(tables.EX2.width, tables.EX2.lowest_column).astype(np.uint16)


def ex2(words: Words) -> Words:
    """Return unit.ex2 in int32 and float64: x times 2^23, cut off, is an int32 where |x| is at most 128."""
    flat = words.reshape(-1)
    found = np.empty(flat.size, np.int32)
    room = min(flat.size, PIECE)
    integers, indices, numbers = np.empty((2, room), np.int32), np.empty((2, room), np.intp), np.empty((3, room))
    for first in range(0, flat.size, PIECE):
        x = flat[first : first + PIECE].view(np.float32)
        part, few = found[first : first + PIECE], x.size
        _ex2_of_piece(x, part, integers[:, :few], indices[:, :few], numbers[:, :few])
    return found.view(np.uint32).reshape(words.shape)


def _ex2_of_piece(
    x: NDArray[np.float32],
    found: NDArray[np.int32],
    integers: NDArray[np.int32],
    indices: NDArray[np.intp],
    numbers: NDArray[np.float64],
) -> None:
    """Write 2^x of one piece to `found`; the other arrays are scratch space of its length."""
    c0, c1, c2, square = _ex2_tables()
    (fixed, other), (segment, below), (total, term, coefficient) = integers, indices, numbers
    clipped = np.minimum(np.maximum(x, np.float32(-127)), np.float32(128))
    clipped *= np.float32(1 << 23)
    np.copyto(fixed, clipped, casting="unsafe")
    np.bitwise_and(fixed, _FRACTION, out=other)  # a negative number with a fraction: one less, the complement
    other += _FRACTION
    other >>= 23
    other &= fixed >> 31
    fixed -= other
    np.right_shift(fixed, 17, out=other)
    other &= 63
    np.copyto(segment, other)
    np.bitwise_and(fixed, (1 << 17) - 1, out=other)
    np.copyto(below, other)
    np.multiply(c2.take(segment, out=coefficient, mode="clip"), square.take(below, mode="clip"), out=total)
    np.copyto(term, other)
    term *= c1.take(segment, out=coefficient, mode="clip")
    total += term
    total += c0.take(segment, out=coefficient, mode="clip")
    np.copyto(other, total, casting="unsafe")  # cut off: totals are positive
    fixed >>= 23
    fixed += 126
    fixed <<= 23
    np.add(fixed, other, out=found)
    flushed = found < 1 << 23
    if flushed.any():
        found[flushed] = 0
    nan = x != x  # noqa: PLR0124
    if nan.any():
        found[nan] = _NAN


FEWER_PASSES: dict[str, Callable[[Words], Words]] = {"ex2": ex2}


def _singles(words: Words) -> Singles:
    return words.view(np.float32)


def _words(values: Singles) -> Words:
    """Return the patterns of results; every NaN is 0x7fffffff."""
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))


def _of_unit(name: str, values: Singles) -> Singles:
    words = values.view(np.uint32)
    return _singles((FEWER_PASSES if takes(name, words) else unit.FUNCTIONS)[name](words))


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
        if ftz and takes(name, words):
            return FEWER_PASSES[name](words)
        return in_pieces(partial(_approximate, name, ftz), words)


def _approximate(name: str, ftz: bool, words: Words) -> Words:
    if ftz and name not in _FLUSHED:
        return unit.FUNCTIONS[name](words)
    return _words((_FLUSHED if ftz else _UNFLUSHED)[name](_singles(words)))


def divided(a: Words, b: Words, *, ftz: bool, full: bool) -> Words:
    """Return div.approx or div.full: 1 / 3 is 0x3eaaaaab; to div.approx a divisor above 2^126 is infinity."""
    with np.errstate(all="ignore"):
        return in_pieces(partial(_divided, ftz, full), a, b)


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
