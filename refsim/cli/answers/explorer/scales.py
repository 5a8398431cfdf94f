"""Scale layouts as data for the page: every place is a sum of terms for the tile and for the place in it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout

Shape = tuple[int, int]
Terms = NDArray[np.int64]
_PROBES = ((1, 1), (2, 1), (1, 2), (2, 3), (3, 2))  # tiles down and across: three to solve, two to check


def scale_rows() -> list[dict[str, Any]]:
    """Return every scale layout. Element (row, block) lies at within[row % down][block % across] plus the terms of its
    tile.

    Each term is [a, b, c] for a + b * rows + c * blocks of the padded shape. nvidia_128x4: the next tile across lies
    512 further, the next tile down 128 * blocks.
    """
    return [_row(each) for each in SCALE_LAYOUTS]


def _row(each: ScaleLayout) -> dict[str, Any]:
    """Return the entry of a layout."""
    down, across, within = terms_of(each)
    return {
        "name": each.name,
        "tile": each.tile,
        "down": down.tolist(),
        "across": across.tolist(),
        "within": [column.tolist() for column in np.moveaxis(within.reshape(-1, 3), 1, 0) if column.any()],
        "terms": [at for at in range(3) if within[..., at].any()],
        "pads": each.pads,
        "elementBytes": each.element_bytes,
        "summary": each.summary,
        "chips": each.chips,
        "evidence": each.evidence.what,
        "source": str(each.source),
    }


def terms_of(each: ScaleLayout) -> tuple[Terms, Terms, Terms]:
    """Return the terms (1, rows, blocks) of each tile down, each tile across, and each place in a tile.

    Raises RuntimeError where the places of a padded shape are not such sums.
    """
    tall, broad = each.tile
    within = _solved(lambda padded: _places(each, padded)[:tall, :broad], each.tile)
    down = _solved(lambda padded: _places(each, padded)[tall, 0] - _places(each, padded)[0, 0], each.tile, (1, 0))
    across = _solved(lambda padded: _places(each, padded)[0, broad] - _places(each, padded)[0, 0], each.tile, (0, 1))
    for tiles in _PROBES:
        padded = (tall * tiles[0], broad * tiles[1])
        rows, blocks = np.ogrid[: padded[0], : padded[1]]
        scale = np.array([1, *padded])
        made = (within @ scale)[rows % tall, blocks % broad] + (down @ scale) * (rows // tall)
        if not (made + (across @ scale) * (blocks // broad) == _places(each, padded)).all():
            raise RuntimeError(f"{each.name}: places are no sums of what a tile and a place in it add")
    return down, across, within


def _places(each: ScaleLayout, padded: Shape) -> Terms:
    rows, blocks = np.ogrid[: padded[0], : padded[1]]
    return np.asarray(each.offset(rows, blocks, padded)) // each.element_bytes


def _solved(asked: Callable[[Shape], Terms], tile: Shape, more: Shape = (0, 0)) -> Terms:
    """Return a, b and c of a + b * rows + c * blocks, from three shapes with `more` tiles down and across."""
    first, taller, broader = (
        np.asarray(asked((tile[0] * (1 + more[0] + a), tile[1] * (1 + more[1] + b))))
        for a, b in ((0, 0), (1, 0), (0, 1))
    )
    by_row, by_block = (taller - first) // tile[0], (broader - first) // tile[1]
    rest = first - by_row * tile[0] * (1 + more[0]) - by_block * tile[1] * (1 + more[1])
    return np.stack([rest, by_row, by_block], axis=-1)
