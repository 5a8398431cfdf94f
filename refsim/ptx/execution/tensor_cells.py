"""The cells of tensor memory that a warp moves to or from its registers, and checks that the warp may access them; rows
of shared memory that tcgen05.cp copies to lanes of tensor memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.tcgen05 import MOVES
from refsim.layouts.holders import WARP
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_product import row_chunks
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.tensor_map import COLUMN_MASK, LANE_SHIFT, TENSOR_COLUMNS, TENSOR_LANES

MISUSE = "tensor-memory-misuse"
OWN_RULE = "PTX ISA, tcgen05.ld and st: warp w of a warpgroup accesses lanes 32 w to 32 w + 31"
HELD_RULE = "PTX ISA, tcgen05: only columns that the block has allocated may be accessed"
_SPLIT = "16x32bx2"


@dataclass(frozen=True)
class Cells:
    """For each lane and register the CTA (n, 1), the lane and the column (n, registers) of a 32-bit word of tensor
    memory. Each lane's warp touches `width` columns, beginning at column `first`."""

    cta: Array
    rows: Array
    columns: Array
    first: Array
    width: int

    @property
    def key(self) -> tuple[Array, Array, Array]:
        """Return the index of the cells in an array (CTAs, lanes, columns)."""
        return self.cta, self.rows, self.columns


@dataclass(frozen=True)
class TensorBox:
    """Some lanes (a mask of 128) of the columns [first, end) of one CTA's tensor memory."""

    cta: int
    lanes: Bools
    first: int
    end: int

    def meets(self, other: "TensorBox") -> bool:
        """Return whether the two boxes have a cell in common."""
        apart = self.cta != other.cta or self.end <= other.first or other.end <= self.first
        return not apart and bool((self.lanes & other.lanes).any())

    def covers_the_same(self, other: "TensorBox") -> bool:
        """Return whether the two boxes have equal cells."""
        same = (self.cta, self.first, self.end) == (other.cta, other.first, other.end)
        return same and bool((self.lanes == other.lanes).all())


@dataclass(frozen=True, eq=False)
class ColumnsAsked:
    """A warp at a tcgen05.alloc of `columns` columns; `take` tries to allocate them and returns whether it did."""

    pc: int
    ids: Ids
    cta: int
    columns: int
    take: Callable[[], bool]


@lru_cache(maxsize=64)
def _table(shape: str, count: int, split: int) -> tuple[Array, Array]:
    """Return row and column of each lane's registers, relative to an address."""
    row, column = fragment_named(f"tcgen05.ld.{shape}.x{count}").elements
    if shape == _SPLIT:
        lane, value = np.arange(WARP)[:, None], np.arange(count)[None, :]
        row, column = np.broadcast_arrays(lane & 15, value + split * (lane >> 4))
    return row, column


def cells_of(lanes: Lanes, address: Array, shape: str, count: int, *, split: int = 0, packed: bool = False) -> Cells:
    """Return the cells that whole warps address by an address and a shape. `packed`: a register holds the halves of two
    columns; the first column is returned. Raises a fault for cells that the warp may not access."""
    at = lanes.full(address).astype(np.int64).reshape(-1, WARP)
    if (stray := at != at[:, :1]).any():
        warp, lane = (int(each[0]) for each in np.nonzero(stray))
        what = f"the address is {int(at[warp, lane]):#x}, that of the warp's first thread {int(at[warp, 0]):#x}"
        rule = "PTX ISA, tcgen05.ld and st: all threads give the same address"
        raise lanes.fault(MISUSE, warp * WARP + lane, what, rule)
    base, first = at[:, 0] >> LANE_SHIFT, at[:, 0] & COLUMN_MASK
    geometry = lanes.machine.geometry
    own = lanes.warp[::WARP] % geometry.warps % 4
    rows = next(move.rows for move in MOVES if move.shape == shape)
    _check_lanes(lanes, base, own, rows)
    row, column = _table(shape, count, split)
    if packed:
        column = column * 2
    width = int(column.max()) + 1 + packed
    _check_columns(lanes, first, width)
    where = (own * WARP + base % WARP)[:, None, None] + row
    columns = first[:, None, None] + column
    registers = row.shape[1]
    return Cells(
        lanes.cta[:, None], where.reshape(-1, registers), columns.reshape(-1, registers), np.repeat(first, WARP), width
    )


def _check_lanes(lanes: Lanes, base: Array, own: Array, rows: int) -> None:
    """Raise a fault unless each address gives lane 0 or a lane of its own warp."""
    theirs = base // WARP
    if (stray := (theirs != 0) & (theirs != own)).any():
        warp = int(np.argmax(stray))
        what = f"a warp whose lanes are {32 * own[warp]} to {32 * own[warp] + 31} addresses lane {base[warp]}"
        raise lanes.fault(MISUSE, warp * WARP, what, OWN_RULE)
    if (stray := base % rows != 0).any():
        warp = int(np.argmax(stray))
        raise lanes.fault(MISUSE, warp * WARP, f"lane {base[warp]} is not a multiple of {rows}", OWN_RULE)


def _check_columns(lanes: Lanes, first: Array, width: int) -> None:
    """Raise a fault unless each warp's columns are allocated by its CTA."""
    for warp, start in enumerate(first.tolist()):
        check_held(lanes, warp * WARP, start, width)


def check_held(lanes: Lanes, position: int, first: int, width: int, cta: int | None = None) -> None:
    """Raise a fault unless a CTA holds the `width` columns from `first` on. The CTA is `cta`, or by default the CTA of
    the lane at `position`."""
    memory, cta = lanes.machine.tensor_pipe.memory, int(lanes.cta[position]) if cta is None else cta
    if any(start <= first and first + width <= start + count for start, count in memory.blocks.get(cta, {}).items()):
        return
    held = memory.held(cta)
    if first + width > TENSOR_COLUMNS or not held[first : first + width].all():
        what = f"columns {first} to {first + width - 1} of tensor memory, of which the block holds {memory.spoken(cta)}"
        raise lanes.fault("out-of-bounds", position, what, HELD_RULE)


def boxes_of(lanes: Lanes, first: Array, rows: Array, columns: int) -> list[tuple[int, TensorBox]]:
    """Return each warp's number and the box that it touches. `first` and `rows` hold one entry per lane."""
    found = []
    warps = lanes.warp
    for at in range(0, lanes.count, WARP):
        mask = np.zeros(TENSOR_LANES, np.bool_)
        mask[rows[at : at + WARP].ravel()] = True
        start = int(first[at])
        found.append((int(warps[at]), TensorBox(int(lanes.cta[at]), mask, start, start + columns)))
    return found


_WORDS = 4  # of a chunk of 16 bytes
_ELEMENTS = 16  # of a chunk of narrow elements, each a byte in tensor memory
_WARP = 32


@lru_cache
def _lanes(shape: str, warps: tuple[tuple[int, ...], ...]) -> Array:
    """Return the lanes that receive each row. `warps`: for each 32 rows the warps that receive them."""
    if shape.startswith("4x"):
        return np.arange(4)[:, None] * _WARP  # one row for each warp's first lane: inferred, not measured
    row = np.arange(_WARP)[:, None]
    return np.concatenate([row + _WARP * np.array(each)[None, :] for each in warps])


@lru_cache
def _mask(shape: str, warps: tuple[tuple[int, ...], ...]) -> Bools:
    """Return which lanes receive rows."""
    found = np.zeros(TENSOR_LANES, np.bool_)
    found[_lanes(shape, warps).ravel()] = True
    return found


@dataclass(frozen=True)
class CopyAsked:
    """One executed tcgen05.cp: its first column, descriptor, shape, the warps that get each 32 rows, and the bits of
    narrow elements.

    `narrow` is 0 where bytes are copied unchanged. Each CTA of a group copies from its own shared memory.
    """

    address: int
    word: int
    shape: str
    warps: tuple[tuple[int, ...], ...]
    narrow: int = 0
    ctas: int = 1

    @property
    def used(self) -> int:
        """Return how many bytes of each chunk are read."""
        return _ELEMENTS * self.narrow // 8 or _ELEMENTS

    @property
    def lanes(self) -> Array:
        """Return the lanes that get each row, (rows, copies)."""
        return _lanes(self.shape, self.warps)

    @cached_property
    def chunks(self) -> Array:
        """Return the shared addresses that it reads, (rows, chunks of a row)."""
        return row_chunks(self.word, self.shape)

    def box(self, cta: int) -> TensorBox:
        """Return the box of tensor memory that it writes in one CTA."""
        lanes, first = _mask(self.shape, self.warps), self.address & 0xFFFF
        return TensorBox(cta, lanes, first, first + _WORDS * self.chunks.shape[1])

    def words(self, held: Array) -> Array:
        """Return the 32-bit words of each row, from the bytes (rows, chunks, 16) of its chunks."""
        if self.narrow:
            bits = np.unpackbits(held, axis=-1, bitorder="little")[..., : _ELEMENTS * self.narrow]
            apart = bits.reshape(*held.shape[:2], _ELEMENTS, self.narrow)
            held = np.packbits(apart, axis=-1, bitorder="little")[..., 0]
        return np.ascontiguousarray(held).view(np.uint32).reshape(len(held), -1)
