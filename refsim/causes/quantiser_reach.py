"""Causes in how far a quantizer gets: rows and columns whose codes and scales stay uninitialized."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refsim.causes.rows import Cause, Codes, DoesNotApplyError, Family
from refsim.causes.scale_stores import ScaleStore
from refsim.scaling.grids import Pair
from refsim.sources import PTX

TILES = (512, 256, 128, 64, 32, 16, 8, 4)
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Reach:
    """Elements below `rows` and `columns` are written (-1: all of them); the others hold what memory held before.

    `is_packed`: scales lie as if the tensor ended there. `has_codes` False: codes are all written, later scales hold 0.
    """

    name: str
    rows: int = -1
    columns: int = -1
    is_packed: bool = False
    has_codes: bool = True

    def of(self, shape: Pair) -> Pair:
        """Return the rows and columns of a matrix of `shape` that are written."""
        return (shape[0] if self.rows < 0 else self.rows, shape[1] if self.columns < 0 else self.columns)

    def beyond_in_codes(self, shape: Pair) -> Marks:
        """Return a mask of the codes that are uninitialized."""
        marks = np.zeros(shape, bool)
        if self.has_codes:
            rows, columns = self.of(shape)
            marks[rows:], marks[:, columns:] = True, True
        return marks

    def grid_of(self, shape: Pair, group: Pair) -> Pair:
        """Return rows and blocks of the scales that are written; without codes, a cut block has no scale."""
        rows, columns = self.of(shape)
        return -(-rows // group[0]), -(-columns // group[1])

    def beyond_in_scales(self, store: ScaleStore, grid: Pair, reached: Pair, size: int) -> Marks:
        """Return a mask of the buffer's scales that are uninitialized, or that hold 0 for a cut block."""
        if self.is_packed:
            _, written = store.places(reached) if min(reached) else (None, 0)
            return np.arange(size) >= written
        places, _ = store.places(grid if not self.has_codes else store.padded(grid))
        if int(places.max(initial=0)) >= size:
            raise DoesNotApplyError
        marks = np.ones(size, bool)
        rows, blocks = store.padded(reached) if self.has_codes else reached
        marks[places[:rows, :blocks].reshape(-1)] = False
        if not self.has_codes:
            beyond = np.zeros(size, bool)
            beyond[places.reshape(-1)] = True
            marks &= beyond
        return marks


EVERYTHING = Reach("all rows and columns are reached")


def reaches(shape: Pair, group: Pair, has_codes: bool) -> Iterator[Reach]:
    """Yield every reach of a matrix, the full one first; without codes, only reaches that miss scales."""
    yield EVERYTHING
    rows, columns = shape
    whole = columns // group[1] * group[1]
    if 0 < whole < columns:
        says = (
            f"the block that the end of a row cuts has no scale: {columns} columns are {whole // group[1]} whole blocks"
        )
        yield Reach(says, columns=whole, has_codes=False)
    if not has_codes:
        return
    for axis, extent, what in ((0, rows, "rows"), (1, columns, "columns")):
        for end in dict.fromkeys((extent - 1) // tile * tile for tile in TILES):
            if not end:
                continue
            says = f"the last {extent - end} {what} are not reached: their codes and scales are uninitialized"
            yield Reach(says, columns=end) if axis else Reach(says, rows=end)
            if axis:
                yield Reach(f"{says}, and scales lie as if there were {end} columns", columns=end, is_packed=True)
    if columns < group[1] or rows < TILES[0]:
        yield Reach("nothing is reached: everything is uninitialized", 0, 0, is_packed=True)


def reach_causes(shape: Pair, group: Pair, has_codes: bool) -> Iterator[Cause]:
    """Yield the causes in how far a quantizer gets."""
    for reach in reaches(shape, group, has_codes):
        yield Cause(
            Family.TAIL, reach.name, "reach", reach, PTX["st: guarded by a bound"], int(reach is not EVERYTHING)
        )


def blanked(codes: Codes, marks: Marks) -> Codes:
    """Return an output with zeros where it is uninitialized. Raises DoesNotApplyError for several codes there.

    Two codes that alternate by columns count as one, since they make one byte of 4-bit codes.
    """
    if any(np.unique(codes[..., k::2][marks[..., k::2]]).size > 1 for k in (0, 1)):
        raise DoesNotApplyError
    return np.where(marks, codes.dtype.type(0), codes)


def is_one_byte(codes: Codes, scales: Codes, code_bits: int) -> bool:
    """Return whether codes and scales repeat one byte, as memory does that was filled before the run."""
    first = [int(each) for each in codes.reshape(-1)[:2]]
    byte = first[0] if code_bits == 8 else first[0] | first[-1] << 4
    return int(scales.reshape(-1)[0]) in (byte, byte * 0x01010101)
