"""Where the scales of a quantiser lie in its output: row by row, column by column, in tiles; what becomes of the pads."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.rows import Cause, Codes, DoesNotApplyError, Family
from refsim.errors import RefsimError
from refsim.layouts.scales import SCALE_LAYOUTS
from refsim.sources import OCP_MX, PTX, Source

Places = NDArray[np.int64]
Shape = tuple[int, int]
ATOM = (128, 4)


@dataclass(frozen=True)
class ScaleStore:
    """A place for the scale of (row, block): `places(shape)` are elements of a buffer, and how many that has.

    `item_bytes` 0: scales of any size.
    """

    name: str
    source: Source
    places: Callable[[Shape], tuple[Places, int]]
    item_bytes: int = 0
    rank: int = 1

    def put(self, scales: Codes, size: int) -> Codes:
        """Scales in a buffer of `size`, zeros in its pads; what lies behind its end is lost."""
        if self.item_bytes not in (0, scales.dtype.itemsize):
            raise DoesNotApplyError
        places, _ = self.places((scales.shape[0], scales.shape[1]))
        found = np.zeros(max(size, int(places.max(initial=0)) + 1), scales.dtype)
        found[places.reshape(-1)] = scales.reshape(-1)
        return found[:size]


def _rows(shape: Shape) -> tuple[Places, int]:
    return np.arange(shape[0] * shape[1]).reshape(shape), shape[0] * shape[1]


def _columns(shape: Shape) -> tuple[Places, int]:
    return np.arange(shape[0] * shape[1]).reshape(shape[::-1]).T, shape[0] * shape[1]


def _padded_rows(shape: Shape) -> tuple[Places, int]:
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    return np.arange(rows * blocks).reshape(rows, blocks)[: shape[0], : shape[1]], rows * blocks


def _interleaved_rows(shape: Shape) -> tuple[Places, int]:
    """Rows of 128 in the order of a tile, 0, 32, 64, 96, 1 and so on, each row in one piece."""
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    return (row // 128 * 128 + row % 32 * 4 + row % 128 // 32) * blocks + block, rows * blocks


def _of_layout(layout: Any, shape: Shape) -> tuple[Places, int]:
    try:
        padded = layout.padded(shape)
    except RefsimError:
        raise DoesNotApplyError from None
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    places = np.broadcast_to(layout.place(row, block, padded), shape)
    return np.asarray(places, np.int64), padded[0] * padded[1]


def _of_digits(order: tuple[int, ...], down_first: bool, shape: Shape) -> tuple[Places, int]:
    """Tiles of 128 x 4 whose digits (row % 32, row // 32, block) stand in another order, or that follow down the rows."""
    rows, blocks = (-(-extent // of) * of for extent, of in zip(shape, ATOM, strict=True))
    row, block = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    digits, radix = (row % 32, row % 128 // 32, block % 4), (32, 4, 4)
    within = 0 * row
    for at in order:
        within = within * radix[at] + digits[at]
    across, down = blocks // 4, rows // 128
    tile = block // 4 * down + row // 128 if down_first else row // 128 * across + block // 4
    return np.broadcast_to(tile * 512 + within, shape), rows * blocks


def _words_turned(shape: Shape) -> tuple[Places, int]:
    """Tiles of 128 x 4, the four codes of each word in the other order."""
    places, size = _of_digits((0, 1, 2), False, shape)
    return places ^ 3, size


BY_ROWS = ScaleStore("row by row", OCP_MX["section 5.2"], _rows, rank=0)


@functools.cache
def scale_stores() -> tuple[ScaleStore, ...]:
    """Every place of scales, row by row first."""
    tiles, found = PTX["tcgen05, scale factor layouts"], [BY_ROWS]
    found.append(ScaleStore("column by column", OCP_MX["section 5.2"], _columns))
    for layout in SCALE_LAYOUTS:
        places = functools.partial(_of_layout, layout)
        found.append(ScaleStore(f"as {layout.name}", layout.source, places, layout.element_bytes))
    found.append(ScaleStore("row by row, padded to tiles of 128 x 4", tiles, _padded_rows, 1))
    says = "row by row, padded, every 32nd row of a tile beside the other"
    found.append(ScaleStore(says, tiles, _interleaved_rows, 1))
    for order, down_first in itertools.product(itertools.permutations(range(3)), (False, True)):
        if order == (0, 1, 2) and not down_first:
            continue
        names = ("row % 32", "row // 32", "block")
        says = f"in tiles of 128 x 4 in the order {', '.join(names[at] for at in order)}"
        says += ", tiles down the rows first" if down_first else ""
        found.append(ScaleStore(says, tiles, functools.partial(_of_digits, order, down_first), 1, 2))
    found.append(ScaleStore("as nvidia_128x4, the codes of each word turned about", tiles, _words_turned, 1, 2))
    return tuple(found)


def store_for(shape: Shape, wanted: tuple[int, ...], item_bytes: int, layout: str | None) -> ScaleStore | None:
    """The place that scales of `shape` have in an output of shape `wanted`, that of `layout` first; None where none has."""
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
        row for row in scale_stores() if row.item_bytes in (0, item_bytes) and _size(row, shape) == int(np.prod(wanted))
    ]
    return fitting[0] if fitting else None


def _size(store: ScaleStore, shape: Shape) -> int:
    try:
        return store.places(shape)[1]
    except DoesNotApplyError:
        return -1


AS_WRITTEN, NOT_WRITTEN = "the pads hold zeros", "the pads are not written"


def store_causes(usual: ScaleStore, shape: Shape, size: int) -> Iterator[Cause]:
    """The rows of causes in where scales lie; a place that puts them where the usual one does is no other."""
    seen: set[bytes] = {_key(usual, shape)}
    for row in scale_stores():
        try:
            key = _key(row, shape)
        except DoesNotApplyError:
            continue
        if row is usual or key not in seen:
            seen.add(key)
            rank = 0 if row is usual else max(1, row.rank)
            yield Cause(Family.SCALE_LAYOUT, f"scales lie {row.name}", "stored", row, row.source, rank)
    if size > shape[0] * shape[1]:
        source = PTX["tcgen05, scale factor layouts"]
        yield Cause(Family.PADS, AS_WRITTEN, "pads", AS_WRITTEN, source, 0)
        yield Cause(Family.PADS, NOT_WRITTEN, "pads", NOT_WRITTEN, source)


def _key(store: ScaleStore, shape: Shape) -> bytes:
    return np.ascontiguousarray(store.places(shape)[0]).tobytes()
