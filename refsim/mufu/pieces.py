"""The unit's functions on large NumPy arrays: a piece at a time, sized for a core's cache; ex2 in fewer passes.

Results equal the definition in `unit` bit for bit: this path replays recordings of all 2^32 patterns, and a property
compares the two. Arrays of other types use the definition itself.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from refsim.mufu import coefficients as tables
from refsim.mufu.interpolation import squares

Words = NDArray[np.uint32]

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
