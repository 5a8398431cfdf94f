"""Find uninitialized parts of an output that hold one code: padding of scales, last elements or lines, tiles."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.search import Named
from refsim.computations.ways import Cause, Codes, Family
from refsim.conversions import decode
from refsim.formats import ElementType, Format
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.sources import PTX

LEAST_UNWRITTEN = 64
TILES = (256, 128, 64, 32, 16, 8, 4)
TILE_SIDES = (256, 128, 64, 32, 16, 8)


def unwritten_causes(got: Codes, want: Codes, format: ElementType) -> list[Named]:
    """Return the uninitialized part that contains every difference from `want`, as one cause; else nothing.

    Padding is tried first: it is no tail, whatever it holds, and its NaN was neither kept nor dropped.
    """
    for part in (_pads, _tails, _tiles):
        says = next(part(got, want, format), None)
        if says is not None:
            family, words = says
            cause = Cause(family, words, "", None, PTX["st: guarded by a bound"])
            return [Named((cause,), int((got != want).sum()), is_whole=True)]
    return []


def _code(code: Any, format: ElementType) -> str:
    return f"{int(code):#0{2 + -(-format.code_bits // 4)}x}"


def _one_code(codes: Codes) -> Codes | None:
    """Return the code that all elements share, as an array of one; None for several codes, or no element."""
    return codes[:1] if codes.size and (codes == codes[0]).all() else None


# ---- padding -------------------------------------------------------------------------------------------------------------


def _pads(got: Codes, want: Codes, format: ElementType) -> Iterator[tuple[Family, str]]:
    """Yield a sentence where all padding of a layout holds one code, and another one in `want`.

    The scales of a matrix (m, t) fill the rows before m and the blocks before t; the rest is padding.
    """
    wrong = got != want
    if any(_one_code(each[wrong]) is None for each in (got, want)):
        return
    for layout in SCALE_LAYOUTS:
        if not layout.pads or layout.element_bytes != got.dtype.itemsize:
            continue
        for padded in _padded_shapes(layout, got.shape):
            filled = _filled(layout.unshuffle(wrong.reshape(-1).astype(got.dtype), padded).astype(bool))
            if filled is None or (layout.padded(filled) != padded):
                continue
            have, right = (_code(each[wrong][0], format) for each in (got, want))
            size = f"{filled[0]} x {filled[1]} scales fill {padded[0]} x {padded[1]} of {layout.name}"
            yield Family.PADS, f"{size}: the others hold {have}, for {right}"


def _padded_shapes(layout: ScaleLayout, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the rows and blocks of every matrix whose shuffled form has that shape, or that size where it is flat."""
    size = int(np.prod(shape))
    for blocks in range(layout.tile[1], size + 1, layout.tile[1]):
        rows = size // blocks
        if rows * blocks != size or rows % layout.tile[0]:
            continue
        if len(shape) == 1 or shape in ((rows, blocks), layout.packed_shape((rows, blocks))):
            yield rows, blocks


def _filled(marks: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return (m, t) where exactly the elements of rows from m on and of columns from t on are marked; else None."""
    rows, columns = (int(each.argmax()) if each.any() else each.size for each in (marks[:, 0], marks[0]))
    if not rows or not columns:
        return None
    row, column = np.indices(marks.shape)
    return (rows, columns) if (marks == ((row >= rows) | (column >= columns))).all() else None


# ---- tails -----------------------------------------------------------------------------------------------------------------


def _tails(got: Codes, want: Codes, format: ElementType) -> Iterator[tuple[Family, str]]:
    """Yield a sentence where the last elements, rows or columns hold one code and contain every difference.

    A tail after the last whole tile is a usual mistake; elsewhere more elements are needed to rule out chance.
    """
    flat: list[tuple[str, Any, Any]] = [("elements", got.reshape(-1), want.reshape(-1))]
    if got.ndim == 2:
        flat += [("columns", got.T, want.T), ("rows", got, want)]
    for what, have, right in flat:
        lines = np.flatnonzero((have != right).reshape(len(have), -1).any(axis=1))
        if lines.size == 0:
            continue
        begins = {len(have) // tile * tile: f", which fill no {tile}," for tile in reversed(TILES) if len(have) % tile}
        if have[lines[0] :].size >= LEAST_UNWRITTEN:
            begins.setdefault(int(lines[0]), "")
        for begin, which in sorted(begins.items()):
            if begin == 0 or lines[0] < begin:
                continue
            if (have[begin:] == have[begin:].reshape(-1)[0]).all():
                yield Family.TAIL, f"the last {len(have) - begin} {what}{which} hold one code: they are uninitialized"


# ---- tiles -----------------------------------------------------------------------------------------------------------------


def _tiles(got: Codes, want: Codes, format: ElementType) -> Iterator[tuple[Family, str]]:
    """Yield a sentence where whole tiles hold one common code and contain every difference; the largest such tiles.

    A NaN does not count as the code, since a NaN scale makes whole tiles NaN.
    """
    if got.ndim < 2:
        return
    have, right = (each.reshape(-1, each.shape[-1]) for each in (got, want))
    wrong = have != right
    code = _one_code(have[wrong])
    if code is None or (isinstance(format, Format) and np.isnan(decode(code, format)).any()):
        return
    sides = [[extent, *(side for side in TILE_SIDES if side < extent)] for extent in have.shape]
    for height, width in sorted(
        ((h, w) for h in sides[0] for w in sides[1] if h * w >= LEAST_UNWRITTEN), key=lambda each: -each[0] * each[1]
    ):
        if (height, width) == have.shape:
            continue
        touched = _any_of_tiles(wrong, height, width)
        covered = touched.repeat(height, 0)[: len(have)].repeat(width, 1)[:, : have.shape[1]]
        if touched.all() or (have[covered] != code).any() or np.count_nonzero(covered) < LEAST_UNWRITTEN:
            continue
        first = np.argwhere(touched)[0] * (height, width)
        of = f"{np.count_nonzero(touched)} of {touched.size} tiles of {height} x {width} hold {_code(code[0], format)} alone"
        yield Family.TAIL, f"{of}: they are uninitialized; the first begins at [{first[0]}, {first[1]}]"


def _any_of_tiles(marks: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Return which tiles contain a mark."""
    down = np.logical_or.reduceat(marks, np.arange(0, marks.shape[0], height), axis=0)
    return np.asarray(np.logical_or.reduceat(down, np.arange(0, marks.shape[1], width), axis=1))
