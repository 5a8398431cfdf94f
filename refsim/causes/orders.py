"""The same values in other places: the permutation between two outputs, by its period and by where it acts."""

from collections.abc import Iterator

import numpy as np

from refsim.computations.ways import Codes, Indices
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout

LEAST_MOVED, LEAST_DISTINCT = 16, 8
MOST_NAMED, MOST_LISTED, MOST_LINES = 8, 32, 1 << 18
PERIODS = (2, 4, 8, 16, 32)
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def orders_of(got: Codes, want: Codes) -> str:
    """Return how the elements of `want` were moved to make `got`, in words; "" where they are not the same values."""
    if int((got != want).sum()) < LEAST_MOVED:
        return ""
    if got.sum(dtype=np.uint64) != want.sum(dtype=np.uint64):
        return ""
    ordered = np.sort(want, axis=None)
    distinct = 1 + int((ordered[1:] != ordered[:-1]).sum())
    if distinct < LEAST_DISTINCT or (np.sort(got, axis=None) != ordered).any():
        return ""
    says = next(_maps(got, want), "")
    if says:
        return f"A holds {says}"
    rows = [each.reshape(-1, each.shape[-1]) for each in (got, want)]
    for where, axis in (("within each row", 1), ("within each column", 0)):
        if (np.sort(rows[0], axis=axis) == np.sort(rows[1], axis=axis)).all() and rows[0].shape[axis] >= LEAST_DISTINCT:
            return f"A holds the values of B in another order {where}"
    return "A holds the values of B in another order" if distinct > got.size // 4 else ""


def _maps(got: Codes, want: Codes) -> Iterator[str]:
    """Yield the map from places to places in words, simple ones first."""
    rows, right = (each.reshape(-1, each.shape[-1]) for each in (got, want))
    whole_lines = []
    for what, lines, of in (("columns", rows.T, right.T), ("rows", rows, right)):
        source = _sources(lines, of)
        if source is not None:
            words = _words(source, what)
            if words:
                yield f"B's {words}"
            whole_lines.append(what)
    for layout in SCALE_LAYOUTS:
        if layout.element_bytes == got.dtype.itemsize and _fits(layout, right.shape):
            shuffled = layout.shuffle(right).reshape(rows.shape)
            if (shuffled == rows).all():
                yield f"B in the layout {layout.name}"
            if (layout.shuffle(rows).reshape(rows.shape) == right).all():
                yield f"B with the layout {layout.name} undone"
    says = _xor_of_rows(rows, right)
    if says:
        yield says
    yield from _short_maps(got, want)
    for width in WIDTHS:
        if got.size % width or got.size // width > MOST_LINES or got.size // width < LEAST_DISTINCT:
            continue
        pair = got.reshape(-1, width), want.reshape(-1, width)
        source = _sources(*pair)
        if source is None:
            continue
        what = "elements" if width == 1 else f"runs of {width} elements"
        words = _words(source, what)
        found = _bits(source, what, *pair, got.shape[-1]) or (f"B's {words}" if words else "")
        if found:
            yield found
    yield from (f"B's {what} in another order" for what in whole_lines)


def _short_maps(got: Codes, want: Codes) -> Iterator[str]:
    """Yield the order of the elements of every 2, 4, ..., which long lines of equal place tell apart."""
    for period in PERIODS:
        if got.size % period or got.size // period < LEAST_MOVED:
            continue
        source = _sources(got.reshape(-1, period).T, want.reshape(-1, period).T)
        if source is not None and not (source == np.arange(period)).all():
            known = _known(source)
            listed = "" if known and period > MOST_LISTED else f" {' '.join(map(str, source))}"
            yield f"B's elements{listed} of every {period}" + (f" ({known})" if known else "")


def _fits(layout: ScaleLayout, shape: tuple[int, ...]) -> bool:
    """Return whether a layout holds a matrix of that shape without padding."""
    return not any(extent % tile for extent, tile in zip(shape, layout.tile, strict=True))


def _sources(have: Codes, right: Codes) -> Indices | None:
    """Return for each line of `have` the line of `right` that it equals, each used once; None where a line has none.

    Equal lines of `right` are used in order, a line in its own place first.
    """
    if len(have) > MOST_LINES or len(have) < 2 or not _are_same_lines(have, right):
        return None
    left: dict[bytes, list[int]] = {}
    source = np.full(len(have), -1, np.int64)
    keys = [line.tobytes() for line in np.ascontiguousarray(right)]
    mine = [line.tobytes() for line in np.ascontiguousarray(have)]
    if len(set(keys)) < min(LEAST_DISTINCT, len(keys)) or (
        len(set(keys)) < len(keys) and len(set(keys)) * 2 < len(keys)
    ):
        return None
    for at in range(len(keys) - 1, -1, -1):
        if mine[at] == keys[at]:
            source[at] = at
        else:
            left.setdefault(keys[at], []).append(at)
    for at in map(int, np.flatnonzero(source < 0)):
        places = left.get(mine[at])
        if not places:
            return None
        source[at] = places.pop()
    return source


def _are_same_lines(have: Codes, right: Codes) -> bool:
    """Return False where some line of `have` is none of `right`; lines are compared by a sum with drawn factors."""
    factors = np.random.default_rng(0).integers(1, 1 << 63, have.shape[1], np.uint64)
    one, other = (np.sort(each.astype(np.uint64) @ factors) for each in (have, right))
    return bool((one == other).all())


# ---- words ---------------------------------------------------------------------------------------------------------------


def _words(source: Indices, what: str) -> str:
    """Return a permutation in words: the lines that places 0, 1, ... hold, over one period."""
    size = len(source)
    unit = max(width for width in _divisors(size) if width < size and _is_of_units(source, width))
    chunks = source[::unit] // unit
    period = next(each for each in _divisors(len(chunks)) if _repeats(chunks, each))
    one = chunks[:period]
    names = what if unit == 1 else f"groups of {unit} {what}"
    of = f" of every {period * unit}" if period < len(chunks) else ""
    known = _known(one)
    listed = " ".join(map(str, one))
    if known and period > MOST_NAMED:
        return f"{names} {known}{of}"
    if known:
        return f"{names} {listed}{of} ({known})"
    return f"{names} {listed}{of}" if period <= (MOST_LISTED if of else MOST_NAMED) else ""


def _divisors(size: int) -> list[int]:
    small = [each for each in range(1, int(size**0.5) + 1) if size % each == 0]
    return sorted({*small, *(size // each for each in small)})


def _is_of_units(source: Indices, width: int) -> bool:
    parts = source.reshape(-1, width)
    return bool((parts[:, 0] % width == 0).all() and (parts == parts[:, :1] + np.arange(width)).all())


def _repeats(chunks: Indices, period: int) -> bool:
    parts = chunks.reshape(-1, period)
    return bool((parts == chunks[:period] + period * np.arange(len(parts))[:, None]).all())


def _known(one: Indices) -> str:
    """Return the name of a permutation of one period, "" where it has none."""
    size, count = len(one), np.arange(len(one))
    if (one == count[::-1]).all():
        return "reversed" if size > 2 else "exchanged"
    if (one == np.roll(count, -int(one[0]))).all():
        return f"rotated by {one[0]}"
    for high in _divisors(size)[1:-1]:
        if (one == count.reshape(high, -1).T.reshape(-1)).all():
            if high == size // 2:
                return "even ones, then odd ones"
            return "the two halves interleaved" if high == 2 else f"the transpose of {high} x {size // high}"
    return ""


def _xor_of_rows(rows: Codes, right: Codes) -> str:
    """Return the words where chunk c of row r holds chunk c ^ f(r): a swizzle."""
    for width in reversed(WIDTHS):
        count, rest = divmod(rows.shape[1], width)
        if rest or count < 2:
            continue
        parts, of = (each.reshape(len(each), count, width) for each in (rows, right))
        chosen, places = np.full(len(rows), -1), np.arange(count)
        numbers = [by for by in range(1 << (count - 1).bit_length()) if (places ^ by).max() < count]
        if not any((parts[0] == of[0, places ^ by]).all() for by in numbers):
            continue
        for by in numbers:
            chosen[(chosen < 0) & (parts == of[:, places ^ by]).all(axis=(1, 2))] = by
        if (chosen < 0).any() or len(np.unique(chosen)) < 2:
            continue
        period = next(each for each in _divisors(len(chosen)) if (chosen.reshape(-1, each) == chosen[:each]).all())
        listed = " ".join(map(str, chosen[: min(period, MOST_LISTED)]))
        size = f"{width} element{'s' if width > 1 else ''} ({width * rows.dtype.itemsize} bytes)"
        return f"B's chunk c ^ f(r) at chunk c of row r, chunks of {size}, f = {listed} over {period} rows"
    return ""


def _bits(source: Indices, what: str, have: Codes, right: Codes, columns: int) -> str:
    """Return the words where a permutation is linear in the bits of the index: tiles, interleaves and swizzles.

    Equal lines may be exchanged in `source`, so the linear map is compared by what it moves.
    """
    size = len(source)
    if size & (size - 1) or source[0]:
        return ""
    bits = size.bit_length() - 1
    index = np.arange(size)
    made = np.zeros(size, np.int64)
    for bit in range(bits):
        made ^= np.where(index >> bit & 1, source[1 << bit], 0)
    if (right[made] != have).any():
        return ""
    moved = [bit for bit in range(bits) if source[1 << bit] != 1 << bit]
    if (
        len(moved) == 2
        and columns & (columns - 1) == 0
        and {int(source[1 << bit]) for bit in moved} == {1 << bit for bit in moved}
    ):
        apart = [have.shape[1] << bit for bit in moved]
        named = [f"columns {each} apart" if each < columns else f"rows {each // columns} apart" for each in apart]
        return f"B's {what} with two bits of their place exchanged, that of {named[0]} and that of {named[1]}"
    rows = []
    for bit in range(bits):
        of = [str(each) for each in range(bits) if source[1 << each] >> bit & 1]
        rows.append("^".join(of))
    return f"B's {what}, whose index has the bits {' '.join(rows)} of A's index, the lowest first"
