"""Causes in where a quantizer's scales lie in its output: by rows, by columns, in tiles, with or without padding."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family
from refsim.errors import RefsimError
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.sources import DEEPGEMM, OCP_MX, PTX, Source

Places = NDArray[np.int64]
Shape = tuple[int, int]
ATOM = (128, 4)


@dataclass(frozen=True)
class ScaleStore:
    """A place for the scale of (row, block): `places(shape)` returns buffer positions and the size of the buffer.

    `item_bytes` 0: scales of any size. `tile`: rows and blocks are padded to multiples of it. `leaves(shape, size)`
    masks the positions that are never written, padding included, where the places are no permutation.
    """

    name: str
    source: Source
    places: Callable[[Shape], tuple[Places, int]]
    item_bytes: int = 0
    rank: int = 1
    tile: Shape = (1, 1)
    leaves: Callable[[Shape, int], NDArray[np.bool_]] | None = None

    def padded(self, shape: Shape) -> Shape:
        """Return rows and blocks with their padding."""
        rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, self.tile, strict=True))
        return rows, blocks

    def put(self, scales: Codes, size: int) -> Codes:
        """Return scales in a buffer of `size`, zeros in its padding; scales after its end are lost."""
        if self.item_bytes not in (0, scales.dtype.itemsize):
            raise DoesNotApplyError
        places, _ = _places_of(self, (scales.shape[0], scales.shape[1]))
        found = np.zeros(max(size, int(places.max(initial=0)) + 1), scales.dtype)
        found[places.reshape(-1)] = scales.reshape(-1)
        return found[:size]


@functools.lru_cache(maxsize=64)
def _places_of(store: "ScaleStore", shape: Shape) -> tuple[Places, int]:
    return store.places(shape)


def _rows(shape: Shape) -> tuple[Places, int]:
    return np.arange(shape[0] * shape[1]).reshape(shape), shape[0] * shape[1]


def _columns(shape: Shape) -> tuple[Places, int]:
    return np.arange(shape[0] * shape[1]).reshape(shape[::-1]).T, shape[0] * shape[1]


def _padded_rows(shape: Shape) -> tuple[Places, int]:
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    return np.arange(rows * blocks).reshape(rows, blocks)[: shape[0], : shape[1]], rows * blocks


def _interleaved_rows(shape: Shape) -> tuple[Places, int]:
    """Return places of whole rows in the order of a tile: 0, 32, 64, 96, 1 and so on in each 128."""
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    return (row // 128 * 128 + row % 32 * 4 + row % 128 // 32) * blocks + block, rows * blocks


def _of_layout(layout: ScaleLayout, shape: Shape) -> tuple[Places, int]:
    """Return the places of a layout of scales."""
    try:
        padded = layout.padded(shape)
    except RefsimError:
        raise DoesNotApplyError from None
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    places = np.broadcast_to(layout.place(row, block, padded), shape)
    return np.asarray(places, np.int64), padded[0] * padded[1]


def _of_digits(order: tuple[int, ...], down_first: bool, shape: Shape) -> tuple[Places, int]:
    """Return places in tiles of 128 x 4 with their digits (row % 32, row // 32, block) in another order.

    `down_first`: tiles follow each other down the rows.
    """
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    digits, radix = (row % 32, row % 128 // 32, block % 4), (32, 4, 4)
    within = 0 * row
    for at in order:
        within = within * radix[at] + digits[at]
    across, down = blocks // 4, rows // 128
    tile = block // 4 * down + row // 128 if down_first else row // 128 * across + block // 4
    return np.broadcast_to(tile * 512 + within, shape), rows * blocks


def _words_turned(layout: ScaleLayout, shape: Shape) -> tuple[Places, int]:
    """Return places with the four codes of each 32-bit word in reverse order."""
    places, size = _of_layout(layout, shape)
    if size % 4:
        raise DoesNotApplyError
    return places ^ 3, size


def _strided(strides: Shape, shape: Shape) -> tuple[Places, int]:
    """Return places in tiles of 128 x 4 with other strides in bytes; where places collide, the last scale stays."""
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    tile = row // 128 * (blocks // 4) + block // 4
    places = tile * 512 + row % 32 * strides[0] + row % 128 // 32 * strides[1] + block % 4
    return np.minimum(places, rows * blocks - 1), rows * blocks


def _left_by_strides(strides: Shape, shape: Shape, size: int) -> NDArray[np.bool_]:
    padded = (-(-shape[0] // 128) * 128, -(-shape[1] // 4) * 4)
    return _left(_strided(strides, padded)[0], size)


def _unpadded_lines(words: int, shape: Shape) -> tuple[Places, int]:
    """Return places in lines of `words` blocks of every row: block t lies in line t // words, without padding."""
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    places = (block // words * shape[0] + row) * words + block % words
    return places, shape[0] * -(-shape[1] // words) * words


def _left_by_lines(words: int, shape: Shape, size: int) -> NDArray[np.bool_]:
    return np.arange(size) >= _unpadded_lines(words, shape)[1]


def _left(places: Places, size: int) -> NDArray[np.bool_]:
    """Return a mask of the positions that hold no scale."""
    marks = np.ones(size, bool)
    marks[places[places < size]] = False
    return marks


STRIDES = ((4, 4), (8, 4), (32, 4), (16, 1), (4, 1))
BY_ROWS = ScaleStore("row by row", OCP_MX["section 5.2"], _rows, rank=0)


@functools.cache
def scale_stores() -> tuple[ScaleStore, ...]:
    """Return every place of scales that is tried, row by row first."""
    tiles, found = PTX["tcgen05, scale factor layouts"], [BY_ROWS]
    found.append(ScaleStore("column by column", OCP_MX["section 5.2"], _columns))
    for layout in SCALE_LAYOUTS:
        places = functools.partial(_of_layout, layout)
        found.append(ScaleStore(f"as {layout.name}", layout.source, places, layout.element_bytes, tile=layout.tile))
    found.append(ScaleStore("row by row, padded to tiles of 128 x 4", tiles, _padded_rows, 1, tile=ATOM))
    says = "row by row, padded, every 32nd row of a tile next to the other"
    found.append(ScaleStore(says, tiles, _interleaved_rows, 1, tile=ATOM))
    for order, down_first in itertools.product(itertools.permutations(range(3)), (False, True)):
        if order == (0, 1, 2) and not down_first:
            continue
        names = ("row % 32", "row // 32", "block")
        says = f"in tiles of 128 x 4 in the order {', '.join(names[at] for at in order)}"
        says += ", tiles down the rows first" if down_first else ""
        found.append(ScaleStore(says, tiles, functools.partial(_of_digits, order, down_first), 1, 2, ATOM))
    for layout in SCALE_LAYOUTS:
        if layout.element_bytes == 1:
            says = f"as {layout.name}, the codes of each word turned about"
            places = functools.partial(_words_turned, layout)
            found.append(ScaleStore(says, layout.source, places, 1, 2, layout.tile))
    for strides in STRIDES:
        says = "in tiles of 128 x 4, row % 32 and row // 32 {} and {} bytes apart: the rest is not written".format(
            *strides
        )
        places, leaves = functools.partial(_strided, strides), functools.partial(_left_by_strides, strides)
        found.append(ScaleStore(says, tiles, places, 1, 3, ATOM, leaves))
    for words in (1, 4):
        says = f"column by column, {'words of 4 codes' if words > 1 else 'scales'}, lines not padded: the rest is not written"
        places, leaves = functools.partial(_unpadded_lines, words), functools.partial(_left_by_lines, words)
        found.append(
            ScaleStore(
                says, DEEPGEMM["get_mn_major_tma_aligned_tensor"], places, 1 if words > 1 else 0, 2, (1, words), leaves
            )
        )
    return tuple(found)


def store_for(shape: Shape, wanted: tuple[int, ...], item_bytes: int, layout: str | None) -> ScaleStore | None:
    """Return the place (of `layout` if given) for scales of `shape` in an output of shape `wanted`, or None."""
    if layout is not None:
        named = [
            row for row in scale_stores() if row.name == f"as {layout}" and _size(row, shape) == int(np.prod(wanted))
        ]
        return named[0] if named else None
    if wanted == shape:
        return BY_ROWS
    if wanted == shape[::-1]:
        return scale_stores()[1]
    fitting = [
        row
        for row in scale_stores()
        if row.item_bytes in (0, item_bytes) and row.leaves is None and _size(row, shape) == int(np.prod(wanted))
    ]
    return fitting[0] if fitting else None


def _size(store: ScaleStore, shape: Shape) -> int:
    """Return the size of a store's buffer; -1 where it does not apply."""
    try:
        return store.places(shape)[1]
    except DoesNotApplyError:
        return -1


AS_WRITTEN, NOT_WRITTEN = "the pads hold zeros", "the pads are not written"


def store_causes(usual: ScaleStore, shape: Shape, size: int) -> Iterator[Cause]:
    """Yield the causes in where scales lie; skip places that equal the usual ones."""
    seen: set[bytes] = {_key(usual, shape)}
    for row in scale_stores():
        try:
            key = _key(row, shape)
        except DoesNotApplyError:
            continue
        if row is usual or key not in seen or row.leaves is not None:
            seen.add(key)
            rank = 0 if row is usual else max(1, row.rank)
            yield Cause(Family.SCALE_LAYOUT, f"scales lie {row.name}", "stored", row, row.source, rank)
    if size > shape[0] * shape[1]:
        source = PTX["tcgen05, scale factor layouts"]
        yield Cause(Family.PADS, AS_WRITTEN, "pads", AS_WRITTEN, source, 0)
        yield Cause(Family.PADS, NOT_WRITTEN, "pads", NOT_WRITTEN, source)


def _key(store: ScaleStore, shape: Shape) -> bytes:
    """Return the places of a store as bytes, to compare stores."""
    return np.ascontiguousarray(store.places(shape)[0]).tobytes()
