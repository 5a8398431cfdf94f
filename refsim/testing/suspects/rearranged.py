"""Inputs that the kernel reads in another order: it agrees once its input is rearranged in the same way."""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.reading import CHUNK_PATTERNS, chunks_moved
from refsim.errors import RefsimError
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion

LEAST, LEAST_DISTINCT = 32, 8
"""Elements that become right, and different codes among them."""
FEWER_BY = 4
"""An input with fewer elements than the largest one by this factor may hold scales, zero points or weights of rows."""
LANES, DEPTH, RUN = 3, 4, 16
"""Bits of the rows of a fragment's 8 lanes and of its 16-byte rows: what exchanged registers of `mma` confuse."""
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
Order = Callable[[Array], Array | None]
Rearrangement = tuple[str, str, Order]
"""The name of a candidate cause, its words, and the order in which the kernel takes an input, as a matrix."""


def rearranged(diet: Diet, problem: Any, *, seconds: float) -> Suspicion | None:
    """Return how the kernel misreads one input, if it agrees on all outputs of `problem` for that input rearranged.

    Raises OutOfTimeError if the time ended first. `diet.device` must be one that a changed input cannot harm.
    """
    deadline = time.process_time() + seconds
    wrong, given = diet.wrong(problem), diet.outputs(problem)
    extents = {extent for each in given.values() for extent in np.shape(each)}
    for name, (suspect, says, order) in _candidates(diet.uploads(problem), extents):
        if time.process_time() > deadline:
            raise OutOfTimeError(0)
        try:
            made = diet.fed(problem, partial(_instead, name, order))
            if any(marks.any() for marks in diet.wrong(problem, made).values()):
                continue
        except (RefsimError, ValueError, KeyError):  # a fault on changed inputs
            continue
        changed = differing(made, given)
        mended = [np.asarray(made[each])[changed[each] & wrong[each]] for each in made]
        if sum(map(len, mended)) >= LEAST and sum(len(np.unique(each)) for each in mended) >= LEAST_DISTINCT:
            return Suspicion(suspect, says, (f"input {name}",), 1, is_mended=True)
    return None


def _instead(name: str, order: Order, at: str, array: Array) -> Array:
    made = order(array) if at == name else None
    return array if made is None else np.ascontiguousarray(made).reshape(array.shape)


def _candidates(uploads: dict[str, Array], extents: set[int]) -> Iterator[tuple[str, Rearrangement]]:
    """Yield the orders of each input that change it, likely ones of all inputs first."""
    largest = max((each.nbytes for each in uploads.values()), default=0)
    ways: list[tuple[str, Array, list[Rearrangement]]] = []
    for name, array in uploads.items():
        if array.size > 1:
            is_few = array.nbytes * FEWER_BY <= largest
            ways.append((name, array, list(_ways(array, extents, is_few))))
    tried: dict[str, set[bytes]] = {name: {array.tobytes()} for name, array, _ in ways}
    for rank in range(max((len(each) for *_, each in ways), default=0)):
        for name, array, listed in ways:
            if rank >= len(listed):
                continue
            made = listed[rank][2](array)
            if made is not None and (key := np.ascontiguousarray(made).tobytes()) not in tried[name]:
                tried[name].add(key)
                yield name, listed[rank]


def _ways(array: Array, extents: set[int], is_few: bool) -> Iterator[Rearrangement]:
    """Yield the orders in which an input may be taken: within words, then within its matrix."""
    if is_few:
        yield from _steps(array)
    if array.dtype.kind in "ui":
        yield from _packed(array)
    rows = [array.shape[0]] if array.ndim == 2 else []
    rows += sorted(each for each in extents if each > 1 and array.size % each == 0 and array.size > each)
    shapes = [(each, array.size // each) for each in dict.fromkeys(rows)] + [(array.size, 1)] * is_few
    orders = [list(_scales(shape) if is_few else _operands(shape, array.dtype.itemsize)) for shape in shapes]
    if is_few and array.dtype.itemsize == 1:
        yield from _tiles(array.size, extents)
    for rank in range(max(map(len, orders), default=0)):
        yield from (each[rank] for each in orders if rank < len(each))


# ---- within bytes and words ------------------------------------------------------------------------------------------


def _packed(array: Array) -> Iterator[Rearrangement]:
    """Yield orders of the nibbles and bytes of a word."""
    if array.dtype.itemsize in (1, 4):
        yield "order of codes in a byte", "the two nibbles of each byte are exchanged", partial(_nibbles, (1, 0))
    if array.nbytes % 4 == 0 and array.dtype.itemsize == 4:
        back = tuple(int(each) for each in np.argsort(AWQ))
        awq = "the nibbles of each word are taken "
        yield "order of codes", f"{awq}in their order, not in that of AWQ", partial(_nibbles, AWQ)
        yield "order of codes", f"{awq}in the order of AWQ, not as they lie", partial(_nibbles, back)
        yield "order of codes", f"{awq}from the highest down", partial(_nibbles, tuple(range(7, -1, -1)))
        yield "byte order", "the bytes of each word are taken from the highest down", _bytes_reversed
        for at in range(1, 8):
            yield (
                "order of codes",
                f"the nibbles i and i ^ {at} of each word are exchanged",
                partial(_nibbles, tuple(i ^ at for i in range(8))),
            )


def _nibbles(order: tuple[int, ...], array: Array) -> Array:
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    nibbles = np.stack([octets & 0xF, octets >> 4], -1).reshape(-1, len(order))[:, list(order)].reshape(-1, 2)
    return np.asarray((nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8).view(array.dtype))


def _bytes_reversed(array: Array) -> Array:
    return array.byteswap()


# ---- one step more or less ------------------------------------------------------------------------------------------


def _steps(array: Array) -> Iterator[Rearrangement]:
    """Yield integers, codes or nibbles that are taken for one more or less, as zero points and biases are."""
    if array.dtype.kind not in "ui":
        return
    for step, more in ((-1, "more"), (1, "less")):
        if array.dtype.itemsize == 4 and array.dtype.kind == "u":
            word = step * 0x11111111 % (1 << 32)
            yield "zero point", f"its nibbles are taken for one {more}", partial(_plus, word)
        if array.dtype.kind == "i":
            yield "zero point", f"each number is taken for one {more}", partial(_plus, step)


def _plus(step: int, array: Array) -> Array:
    return (array.astype(np.int64) + step).astype(array.dtype)


# ---- places in a matrix ----------------------------------------------------------------------------------------------


def _operands(shape: tuple[int, int], size: int) -> Iterator[Rearrangement]:
    """Yield orders of a large input: of exchanged registers of a fragment, and of a swizzle on one side alone."""
    unit = size.bit_length() - 1
    registers = "registers of a fragment exchanged"
    fragment = "bit {} of the row and bit {} of the byte in the row are exchanged"

    def crossed(row: int, column: int) -> Rearrangement:
        bits = (0, 1 << row), (1, 1 << max(0, column - unit))
        return registers, fragment.format(row, column), partial(_exchanged, shape, *bits)

    yield crossed(LANES, DEPTH)
    yield crossed(LANES, DEPTH - 1)
    yield from _runs(shape, size, (RUN,), registers)
    yield from _swizzles(shape, size, (CHUNK_PATTERNS[0], (RUN // 2, 8, 0), CHUNK_PATTERNS[4]))
    yield "transposed", "each block of 8 x 8 is read as its transpose", partial(_blocks_turned, shape, 8)
    yield "transposed", "it is read as its transpose", partial(_turned, shape)
    yield "transposed", "it is read as its transpose", partial(_turned, shape[::-1])
    yield from _runs(shape, size, (RUN // 2, 2 * RUN, RUN // 4, 4 * RUN), registers)
    yield from (crossed(row, column) for row, column in ((LANES + 1, DEPTH), (LANES, DEPTH + 1)))
    yield from _swizzles(shape, size, CHUNK_PATTERNS)
    yield from _rows(shape, "rows exchanged")
    for high in range(1, 6):
        for low in range(high):
            says = f"bits {low} and {high} of the element's index in the row are exchanged"
            yield "elements permuted", says, partial(_exchanged, shape, (1, 1 << low), (1, 1 << high))
    yield from _runs(shape, size, (1, 2, 8 * RUN), registers)
    yield from (crossed(row, column) for row in range(6) for column in range(unit, 7))


def _swizzles(shape: tuple[int, int], size: int, patterns: tuple[tuple[int, int, int], ...]) -> Iterator[Rearrangement]:
    for pattern in patterns:
        says = f"it is swizzled on one side alone: chunk c of row r at c ^ (r >> {pattern[2]}) % {pattern[1]}"
        yield "swizzle not undone", f"{says}, {pattern[0] or size} bytes each", partial(_swizzled, shape, pattern)


def _runs(shape: tuple[int, int], size: int, widths: tuple[int, ...], suspect: str) -> Iterator[Rearrangement]:
    for width in widths:
        if width >= size:
            says = f"neighbouring runs of {width} bytes of each row are exchanged"
            yield suspect, says, partial(_neighbours, shape, 1, width // size)


def _rows(shape: tuple[int, int], suspect: str) -> Iterator[Rearrangement]:
    for apart in (8, 1, 16, 2, 4, 32, 64):
        if apart < shape[0]:
            yield suspect, f"rows {apart} apart are exchanged", partial(_neighbours, shape, 0, apart)


def _scales(shape: tuple[int, int]) -> Iterator[Rearrangement]:
    """Yield orders of a small input: neighbours exchanged, rotated in groups, transposed."""
    yield "transposed", "it is read as its transpose", partial(_turned, shape)
    yield "transposed", "it is read as its transpose", partial(_turned, shape[::-1])
    lines = ((1, "column"), (0, "row"))
    for group in (4, 2, 8, 0):
        for axis, line in lines:
            yield from _groups_of(shape, axis, line, group or shape[axis])
    for axis, line in lines:
        for apart in (16, 32, 64, shape[axis] // 2):
            yield from _apart(shape, axis, line, apart)
        yield "elements of another place", f"{line}s are taken in reverse", partial(_reversed, shape, axis)
    for one in range(7):
        for other in range(one):
            says = f"bits {other} and {one} of the row are exchanged"
            yield "elements permuted", says, partial(_exchanged, shape, (0, 1 << other), (0, 1 << one))


def _groups_of(shape: tuple[int, int], axis: int, line: str, group: int) -> Iterator[Rearrangement]:
    """Yield lines that are exchanged, or rotated by one within each group."""
    yield from _apart(shape, axis, line, {4: 1, 2: 8, 8: 2}.get(group, 4))
    for step in (1, -1) if group > 2 and shape[axis] % group == 0 else ():
        says = f"the {'next' if step == 1 else 'previous'} {line} of every {group} is taken"
        yield "elements of another place", says, partial(_rotated, shape, axis, group, step)


def _apart(shape: tuple[int, int], axis: int, line: str, apart: int) -> Iterator[Rearrangement]:
    if 0 < apart < shape[axis]:
        says = f"those of {line}s {apart} apart are exchanged"
        yield "elements of another place", says, partial(_neighbours, shape, axis, apart)


def _turned(shape: tuple[int, int], array: Array) -> Array:
    return np.ascontiguousarray(array.reshape(shape).T)


def _blocks_turned(shape: tuple[int, int], side: int, array: Array) -> Array | None:
    if shape[0] % side or shape[1] % side:
        return None
    blocks = array.reshape(shape[0] // side, side, shape[1] // side, side)
    return np.ascontiguousarray(blocks.transpose(0, 3, 2, 1))


def _reversed(shape: tuple[int, int], axis: int, array: Array) -> Array:
    return np.flip(array.reshape(shape), axis)


def _rotated(shape: tuple[int, int], axis: int, group: int, step: int, array: Array) -> Array | None:
    lines = np.moveaxis(array.reshape(shape), axis, 0)
    parts = lines.reshape(-1, group, lines.shape[1])
    return np.moveaxis(np.roll(parts, step, 1).reshape(lines.shape), 0, axis)


def _neighbours(shape: tuple[int, int], axis: int, apart: int, array: Array) -> Array | None:
    """Return the matrix with lines c and c ^ apart exchanged; None where one has no partner."""
    lines = np.arange(shape[axis]) ^ apart
    return None if lines.max() >= shape[axis] else np.take(array.reshape(shape), lines, axis)


def _exchanged(shape: tuple[int, int], one: tuple[int, int], other: tuple[int, int], array: Array) -> Array | None:
    """Return the matrix with two bits of an element's place exchanged, each as (axis, the bit's weight)."""
    place = list(np.indices(shape))
    apart = ((place[one[0]] & one[1]) != 0) != ((place[other[0]] & other[1]) != 0)
    for axis, weight in (one, other):
        place[axis] = place[axis] ^ np.where(apart, weight, 0)
    if any((each >= extent).any() for each, extent in zip(place, shape, strict=True)):
        return None
    return np.asarray(array.reshape(shape)[tuple(place)])


def _swizzled(shape: tuple[int, int], pattern: tuple[int, int, int], array: Array) -> Array | None:
    return chunks_moved(array.reshape(shape), *pattern)


# ---- tiles of scales -------------------------------------------------------------------------------------------------


def _tiles(size: int, extents: set[int]) -> Iterator[Rearrangement]:
    """Yield the scale layouts that a kernel may expect, or may not expect, of `size` codes."""
    for layout in SCALE_LAYOUTS:
        high, wide = layout.tile
        if layout.element_bytes != 1 or size % (high * wide):
            continue
        for rows in range(high, size // wide + 1, high):
            if size % (rows * wide) == 0 and rows in extents:
                plain, tiled = _orders(layout, (rows, size // rows))
                of = f"the layout {layout.name} of {rows} x {size // rows}"
                yield "scale layout", f"{of} is read as row-major", partial(_taken, tiled, plain)
                yield "scale layout", f"row-major is read as {of}", partial(_taken, plain, tiled)
                for split, how in ((1, "ascending"), (4, f"as 4 x {high // 4}")):
                    reads = _in_order(rows, size // rows, (high, wide), split)
                    says = f"{of} is read with the rows of a tile {how}"
                    yield "scale layout", says, partial(_taken, tiled, reads)


@cache
def _orders(layout: ScaleLayout, shape: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the scales' numbers in row-major order, and as the layout places them."""
    plain = np.arange(shape[0] * shape[1])
    octets = [layout.shuffle((plain >> shift & 0xFF).astype(np.uint8).reshape(shape)) for shift in (0, 8, 16)]
    tiled = sum(np.asarray(each).reshape(-1).astype(np.int64) << 8 * at for at, each in enumerate(octets))
    return plain, np.asarray(tiled)


def _in_order(rows: int, blocks: int, tile: tuple[int, int], split: int) -> NDArray[np.int64]:
    """Return the scales' numbers in tiles whose rows ascend, or are divided by the remainder of `split`."""
    plain = np.arange(rows * blocks).reshape(-1, tile[0] // split, split, blocks // tile[1], tile[1])
    return plain.transpose(0, 3, 2, 1, 4).reshape(-1)


def _taken(has: NDArray[np.int64], reads: NDArray[np.int64], array: Array) -> Array | None:
    """Return the array in the order that the kernel reads, from the order that it has."""
    if has.size != array.size or reads.size != array.size:
        return None
    return np.asarray(array.reshape(-1)[np.argsort(has)[reads]])
