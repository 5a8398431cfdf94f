"""Causes in where a quantizer's scales lie in its output: by rows, by columns, in tiles, with or without padding."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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

    `item_bytes` 0: scales of any size. `tile`: rows and blocks are padded to multiples of it. `leaves`: the positions
    that no scale or pad has, since the places are no permutation, are never written.
    """

    name: str
    source: Source
    places: Callable[[Shape], tuple[Places, int]]
    item_bytes: int = 0
    rank: int = 1
    tile: Shape = (1, 1)
    leaves: bool = False

    def padded(self, shape: Shape) -> Shape:
        """Return rows and blocks with their padding."""
        return _padded(shape, self.tile)

    def left(self, shape: Shape, size: int) -> NDArray[np.bool_]:
        """Return a mask of the positions that are never written, padding included."""
        places, marks = self.places(self.padded(shape))[0], np.ones(size, bool)
        marks[places[places < size]] = False
        return marks

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


def _padded(shape: Shape, tile: Shape) -> Shape:
    return -(-shape[0] // tile[0]) * tile[0], -(-shape[1] // tile[1]) * tile[1]


def _at(place: Callable[..., Any], tile: Shape, shape: Shape) -> tuple[Places, int]:
    """Return the places `place(row, block, rows, blocks)` in a buffer of whole tiles, of `rows` and `blocks`."""
    rows, blocks = _padded(shape, tile)
    row, block = np.ogrid[: shape[0], : shape[1]]
    return np.broadcast_to(place(row, block, rows, blocks), shape), rows * blocks


def _by_rows(row: Any, block: Any, rows: int, blocks: int) -> Any:
    return row * blocks + block


def _interleaved(row: Any, block: Any, rows: int, blocks: int) -> Any:
    """Return places of whole rows in the order of a tile: 0, 32, 64, 96, 1 and so on in each 128."""
    return (row // 128 * 128 + row % 32 * 4 + row % 128 // 32) * blocks + block


def _digits(order: tuple[int, ...], down_first: bool, row: Any, block: Any, rows: int, blocks: int) -> Any:
    """Return places in tiles of 128 x 4 with their digits (row % 32, row // 32, block) in another order.

    `down_first`: tiles follow each other down the rows.
    """
    digits, radix = (row % 32, row % 128 // 32, block % 4), (32, 4, 4)
    within = 0 * row
    for at in order:
        within = within * radix[at] + digits[at]
    down = block // 4 * (rows // 128) + row // 128
    return (down if down_first else row // 128 * (blocks // 4) + block // 4) * 512 + within


def _strided(strides: Shape, row: Any, block: Any, rows: int, blocks: int) -> Any:
    """Return places in tiles of 128 x 4 with other strides in bytes; where places collide, the last scale stays."""
    tile = row // 128 * (blocks // 4) + block // 4
    places = tile * 512 + row % 32 * strides[0] + row % 128 // 32 * strides[1] + block % 4
    return np.minimum(places, rows * blocks - 1)


def _in_lines(words: int, row: Any, block: Any, rows: int, blocks: int) -> Any:
    """Return places in lines of `words` blocks of every row: block t lies in line t // words, without padding."""
    return (block // words * rows + row) * words + block % words


def _of_layout(layout: ScaleLayout, turn: int, shape: Shape) -> tuple[Places, int]:
    """Return the places of a layout of scales; `turn` 3 reverses the four codes of each 32-bit word."""
    try:
        padded = layout.padded(shape)
    except RefsimError:
        raise DoesNotApplyError from None
    size = padded[0] * padded[1]
    if turn and size % 4:
        raise DoesNotApplyError
    row, block = np.ogrid[: shape[0], : shape[1]]
    places = np.asarray(np.broadcast_to(layout.place(row, block, padded), shape), np.int64)
    return places ^ turn, size


STRIDES = ((4, 4), (8, 4), (32, 4), (16, 1), (4, 1))
BY_ROWS = ScaleStore("row by row", OCP_MX["section 5.2"], functools.partial(_at, _by_rows, (1, 1)), rank=0)


@functools.cache
def scale_stores() -> tuple[ScaleStore, ...]:
    """Return every place of scales that is tried, row by row first."""
    partial, tiles = functools.partial, PTX["tcgen05, scale factor layouts"]

    def in_tiles(says: str, place: Callable[..., Any], rank: int = 1, leaves: bool = False) -> ScaleStore:
        return ScaleStore(says, tiles, partial(_at, place, ATOM), 1, rank, ATOM, leaves)

    found = [
        BY_ROWS,
        ScaleStore("column by column", OCP_MX["section 5.2"], partial(_at, partial(_in_lines, 1), (1, 1))),
    ]
    for layout in SCALE_LAYOUTS:
        places = partial(_of_layout, layout, 0)
        found.append(ScaleStore(f"as {layout.name}", layout.source, places, layout.element_bytes, tile=layout.tile))
    found.append(in_tiles("row by row, padded to tiles of 128 x 4", _by_rows))
    found.append(in_tiles("row by row, padded, every 32nd row of a tile next to the other", _interleaved))
    for order, down_first in itertools.product(itertools.permutations(range(3)), (False, True)):
        if order == (0, 1, 2) and not down_first:
            continue
        names = ("row % 32", "row // 32", "block")
        says = f"in tiles of 128 x 4 in the order {', '.join(names[at] for at in order)}"
        says += ", tiles down the rows first" if down_first else ""
        found.append(in_tiles(says, partial(_digits, order, down_first), 2))
    for layout in SCALE_LAYOUTS:
        if layout.element_bytes == 1:
            says, places = f"as {layout.name}, the codes of each word turned about", partial(_of_layout, layout, 3)
            found.append(ScaleStore(says, layout.source, places, 1, 2, layout.tile))
    for strides in STRIDES:
        says = f"row % 32 and row // 32 {strides[0]} and {strides[1]} bytes apart: the rest is not written"
        found.append(in_tiles(f"in tiles of 128 x 4, {says}", partial(_strided, strides), 3, leaves=True))
    for words, name in ((1, "scales"), (4, "words of 4 codes")):
        says = f"column by column, {name}, lines not padded: the rest is not written"
        places, source = (
            partial(_at, partial(_in_lines, words), (1, words)),
            DEEPGEMM["get_mn_major_tma_aligned_tensor"],
        )
        found.append(ScaleStore(says, source, places, int(words > 1), 2, (1, words), leaves=True))
    padded = partial(_at, _by_rows, (1, 4))
    found.append(ScaleStore("row by row, lines of whole words", PTX["st"], padded, 1, 2, (1, 4), leaves=True))
    return tuple(found)


def store_for(shape: Shape, wanted: tuple[int, ...], item_bytes: int, layout: str | None) -> ScaleStore | None:
    """Return the place (of `layout` if given) for scales of `shape` in an output of shape `wanted`, or None."""
    fitting = (row for row in scale_stores() if _size(row, shape) == int(np.prod(wanted)))
    if layout is not None:
        return next((row for row in fitting if row.name == f"as {layout}"), None)
    if wanted == shape:
        return BY_ROWS
    if wanted == shape[::-1]:
        return scale_stores()[1]
    return next((row for row in fitting if row.item_bytes in (0, item_bytes) and not row.leaves), None)


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
    for row in sorted(scale_stores(), key=lambda row: usual.name not in row.name):
        try:
            key = _key(row, shape)
        except DoesNotApplyError:
            continue
        if row is usual or key not in seen or row.leaves:
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
