"""Causes in the largest magnitude of each block: taken over other elements, or rounded."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import DoesNotApplyError, Family, Way
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, Format
from refsim.scaling.grids import Pair, largest_of_groups
from refsim.sources import CUDA_GUIDE, IEEE754, OCP_MX

Words = NDArray[np.uint32]
MAGNITUDE_MASK, INFINITE_MAGNITUDE, SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x80000000)


def _largest(magnitudes: Words, patterns: Words, group: Pair) -> Words:
    return np.asarray(largest_of_groups(magnitudes, group), np.uint32)


def _masked(kept: Callable[..., Any], magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return the largest magnitudes of elements that are kept, by patterns, columns and the width of a block."""
    is_kept = kept(patterns, np.arange(magnitudes.shape[-1]), group[1])
    return _largest(np.where(is_kept, magnitudes, np.uint32(0)), patterns, group)


def _of_rows(first: int, every: int, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return the largest magnitudes of the `first` rows of `every` so many."""
    if every > group[0]:
        raise DoesNotApplyError
    is_kept = np.arange(magnitudes.shape[-2])[:, None] % every < first
    return _largest(np.where(is_kept, magnitudes, np.uint32(0)), patterns, group)


def _without_infinity(run: int, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return the largest magnitudes without infinities; `run` > 0: only in runs of that length with a NaN."""
    if run and magnitudes.shape[-1] % run:
        raise DoesNotApplyError
    is_left_out = magnitudes == INFINITE_MAGNITUDE
    if run:
        among = (patterns & MAGNITUDE_MASK) > INFINITE_MAGNITUDE
        is_left_out &= among.reshape(*among.shape[:-1], -1, run).any(-1).repeat(run, -1)
    return _largest(np.where(is_left_out, np.uint32(0), magnitudes), patterns, group)


def _of_halves(run: int, lanes: int, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return the largest magnitudes where a maximum of the two halves of a run drops a NaN that one half has alone.

    `lanes` elements of each half lie next to each other; a NaN in both halves stays.
    """
    if magnitudes.shape[-1] % run or (magnitudes <= INFINITE_MAGNITUDE).all():
        raise DoesNotApplyError
    halves = magnitudes.reshape(*magnitudes.shape[:-1], -1, 2, run // 2 // lanes, lanes).max(axis=-2)
    is_nan = halves > INFINITE_MAGNITUDE
    kept = np.where(is_nan & ~is_nan.all(axis=-2, keepdims=True), np.uint32(0), halves).max(axis=-2)
    spread = np.repeat(kept.max(axis=-1), run, axis=-1)
    return _largest(np.ascontiguousarray(spread), patterns, group)


def _wider(down: int, across: int, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return one largest magnitude for `down` x `across` blocks together; 0 means all of them."""
    found = _largest(magnitudes, patterns, group)
    wide = (down or found.shape[-2], across or found.shape[-1])
    if wide == (1, 1) or wide[0] > found.shape[-2] or wide[1] > found.shape[-1]:
        raise DoesNotApplyError
    together = largest_of_groups(found, wide)
    return np.asarray(together.repeat(wide[0], -2).repeat(wide[1], -1)[..., : found.shape[-2], : found.shape[-1]])


def _neighbour(axis: int, step: int, wraps: bool, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    """Return the largest magnitude of the block `step` places on along an axis."""
    found = _largest(magnitudes, patterns, group)
    extent = found.shape[axis]
    if extent < 2:
        raise DoesNotApplyError
    places = np.arange(extent) + step
    return np.take(found, places % extent if wraps else places.clip(0, extent - 1), axis=axis)


def _never_reset(axis: int, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    return np.asarray(np.maximum.accumulate(_largest(magnitudes, patterns, group), axis=axis))


def _smallest(magnitudes: Words, patterns: Words, group: Pair) -> Words:
    return MAGNITUDE_MASK - _largest(MAGNITUDE_MASK - magnitudes, patterns, group)


def _rounded(narrow: Format, cuts: bool, magnitudes: Words, patterns: Words, group: Pair) -> Words:
    found = _largest(magnitudes, patterns, group).view(np.float32)
    kept = decode(encode(found, narrow, "toward-zero" if cuts else "nearest-even"), narrow, np.float32)
    return np.where(np.isnan(found), found, kept).view(np.uint32)


AMAX = Way("amax of each block", Family.AMAX, OCP_MX["section 6.3"], _largest, 0)
_SIGNS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("amax is the largest number: abs is forgotten", lambda p, c, w: p < SIGN),
    ("amax is that of the negative numbers", lambda p, c, w: p >= SIGN),
)
_PARTS_OF_BLOCKS: tuple[tuple[str, Callable[[Any, int], Any]], ...] = (
    ("the first half of each block", lambda c, w: c < w // 2),
    ("the last half of each block", lambda c, w: c >= w // 2),
    ("the first quarter of each block", lambda c, w: c < w // 4),
    ("the even columns", lambda c, w: c % 2 == 0),
    ("the odd columns", lambda c, w: c % 2 == 1),
    ("the first element of each block", lambda c, w: c == 0),
    ("all but the last element of each block", lambda c, w: c < w - 1),
)
_COLUMNS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    *((f"every {n}th column, the {k}th of each {n}", lambda c, n=n, k=k: c % n == k) for n in (2, 4) for k in range(n)),
    *((f"columns {2 * k} and {2 * k + 1} of each 8", lambda c, k=k: c % 8 // 2 == k) for k in range(4)),
    *(
        (f"the {words} half of each {n}", lambda c, n=n, k=k: c % n // (n // 2) == k)
        for n in (4, 8, 16)
        for k, words in enumerate(("first", "last"))
    ),
)
"""Columns in one 32-bit word of a vector, or columns that a thread visits in one of its steps."""
_TOGETHER = (*((1, n) for n in (2, 4, 8, 0)), *((n, 1) for n in (2, 4, 8, 16, 32, 64, 128, 0)), (0, 0))
"""Blocks down and across whose amax is taken together; 0: all of them."""


def peaks() -> Iterator[Way]:
    """Yield every way to take the largest magnitude, the right one first."""
    rule, shuffles = OCP_MX["section 6.3"], CUDA_GUIDE["warp reduce functions"]
    yield AMAX
    for says, kept in _SIGNS:
        yield Way(says, Family.AMAX, rule, partial(_masked, kept))
    for says, some in _COLUMNS:
        signed = partial(_masked, lambda p, c, w, some=some: (p < SIGN) | ~some(c))
        yield Way(f"abs is forgotten in {says}", Family.AMAX, rule, signed, 2)
    for run in (0, 2, 4, 8, 16):
        where = f" where one of each {run} neighbours is a NaN" if run else ""
        yield Way(f"amax leaves infinities out{where}", Family.AMAX, rule, partial(_without_infinity, run), 2)
    for run, lanes in ((2, 1), (4, 1), (4, 2), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (32, 1), (128, 1)):
        halves = f"the halves of each {run}" + (f", {lanes} side by side" if lanes > 1 else "")
        drops = partial(_of_halves, run, lanes)
        yield Way(f"amax drops a NaN that one of {halves} has alone", Family.NAN, shuffles, drops, 2)
    for says, chosen in _PARTS_OF_BLOCKS:
        of_part = partial(_masked, lambda p, c, w, chosen=chosen: chosen(c % w, w))
        yield Way(f"amax of {says} alone", Family.AMAX, shuffles, of_part)
    for every, first in ((1 << high, 1 << low) for high in range(1, 8) for low in range(high)):
        says = f"amax of the first {first} of every {every} rows alone"
        yield Way(says, Family.AMAX, shuffles, partial(_of_rows, first, every), 2)
    for down, across in _TOGETHER:
        words = {0: "all", 1: "one"}
        size = f"{words.get(down, down)} down by {words.get(across, across)} across"
        yield Way(f"amax of several blocks together, {size}", Family.AMAX, rule, partial(_wider, down, across), 2)
    for axis, what, several in ((-1, "block", "blocks"), (-2, "row", "rows")):
        for step, way in ((-1, "before"), (1, "behind")):
            for wraps in (False, True):
                says = f"amax of the {what} {way}" + (", that of the other end at the edge" if wraps else "")
                yield Way(says, Family.AMAX, rule, partial(_neighbour, axis, step, wraps), 1 + wraps)
        says = f"amax of all {several} so far: it is not begun anew"
        yield Way(says, Family.AMAX, rule, partial(_never_reset, axis))
    yield Way("the least magnitude of each block for the largest", Family.AMAX, rule, _smallest, 2)
    for narrow in (BF16, F16):
        for cuts in (False, True):
            says = f"amax is rounded to {narrow}" + (" toward zero" if cuts else "")
            yield Way(says, Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], partial(_rounded, narrow, cuts), 2)
