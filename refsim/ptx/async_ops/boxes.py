"""One box of a tensor map as bytes: which items of global memory are which items of shared memory.

`refsim.layouts.tma` defines where the bytes of a box are, once for every map and alignment. A copy adds its coordinates
and its address, and leaves out items outside the tensor.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import NAN_FILL, NAN_REQUEST, Placement, TensorMap

Array = NDArray[np.int64]
REPEAT = 1024  # bytes of shared memory after which every swizzle pattern repeats
BULK_BYTES = 16
_EVERYWHERE = 1 << 32


@dataclass(frozen=True)
class BoxTable:
    """The items of a box that begins at coordinate 0, outermost dimension first.

    `shared` and `source` are byte offsets from the box's shared and global address. `touched` are the 16-byte chunks of
    shared memory that the box covers, rising.
    """

    shape: tuple[int, ...]
    shared: Array
    source: Array
    touched: Array


@dataclass(frozen=True)
class Box:
    """The items of one copy, `width` bytes each: positions in shared memory from its address, addresses in global
    memory.

    `filled` are the positions in shared memory of items outside the tensor, None if there are none. `amount` is the
    number of bytes that complete_tx counts.
    """

    width: int
    shared: Array
    source: Array
    filled: Array | None
    touched: Array
    amount: int


@lru_cache(maxsize=1 << 10)
def box_of(made: TensorMap, coordinates: tuple[int, ...], shared_address: int) -> Box:
    """Return the box that begins at these coordinates (innermost first, negative ones outside the tensor). bf16, box
    (64, 8), dims (64, 6), coordinates (0, 0): 8 chunks of each of 6 rows, and 16 chunks filled."""
    row, steps = made.data_type, (1, *made.element_strides[1:])
    ends = [at + (count - 1) * step for at, count, step in zip(coordinates, made.loaded, steps, strict=True)]
    clipped = [at < 0 or end >= extent for at, end, extent in zip(coordinates, ends, made.dims, strict=True)]
    start = coordinates[0] * row.element_bits // 8
    width = _width(made, start, made.dims[0] * row.element_bits // 8 if clipped[0] else 0)
    table = _table(replace(made, address=0, dims=(_EVERYWHERE,) * len(made.dims)), shared_address % REPEAT, width)
    outer = zip(coordinates[1:], made.strides, strict=True)
    address = made.address + start + sum(at * stride for at, stride in outer)
    amount = int(np.prod(made.loaded)) * row.element_bits // 8
    if not any(clipped):
        return Box(width, table.shared, table.source + address, None, table.touched, amount)
    inside = np.ones(table.shape, np.bool_)
    for axis, extent in enumerate(made.dims):
        count = table.shape[-1 - axis]
        step = steps[axis] if axis else made.loaded[0] / count
        index = np.floor(coordinates[axis] + np.arange(count) * step)
        inside &= ((index >= 0) & (index < extent)).reshape((-1,) + (1,) * axis)
    flat = inside.reshape(-1)
    return Box(width, table.shared[flat], table.source[flat] + address, table.shared[~flat], table.touched, amount)


@lru_cache(maxsize=4096)
def columns_of(made: TensorMap, base: tuple[int, ...], shared_address: int, offsets: tuple[int, ...]) -> Box:
    """Return the pixels of an im2col map from a filter's base on, moved by the offsets; each is one run of channels."""
    row, (first, channels) = made.data_type, (base[0], made.box[0])
    start, end = (at * row.element_bits // 8 for at in (first, made.dims[0]))
    is_clipped = first < 0 or first + channels > made.dims[0]
    width = _width(made, start, end if is_clipped else 0)
    placed = made.place(base, shared_address, offsets)
    shared, source = (_flat(each) for each in _items(placed, width))
    inside = _flat(placed.inside[..., :: _step(made, width)]) > 0
    if row.padded:
        inside = np.repeat(inside, 2 * row.element_bits // width)
    amount = int(np.prod(made.box)) * row.element_bits // 8
    touched: Array = np.unique(shared // BULK_BYTES) * BULK_BYTES
    filled = None if inside.all() else shared[~inside]
    return Box(width, shared[inside], source[inside] + made.address, filled, touched, amount)


def fill_of(made: TensorMap, width: int) -> bytes | None:
    """Return the bytes of an item outside the tensor, or None where they are not known (NaN of float64)."""
    if made.oob_fill != NAN_REQUEST:
        return bytes(width)
    return None if made.data_type.element_bits > 32 else NAN_FILL.to_bytes(2, "little") * (width // 2)


def _width(made: TensorMap, start: int, end: int) -> int:
    """Return the width in bytes of the widest items that cross no edge of the tensor, swizzle chunk or padding."""
    width = 4 if made.data_type.padded else 8 if made.swizzle == "128B_32B_atom_8B_flip" else BULK_BYTES
    while start % width or end % width:
        width //= 2
    return width


@lru_cache(maxsize=512)
def _table(plain: TensorMap, shared_address: int, width: int) -> BoxTable:
    shared, source = _items(plain.place((0,) * len(plain.dims), shared_address), width)
    touched: Array = np.unique(shared // BULK_BYTES) * BULK_BYTES
    return BoxTable(shared.shape, _flat(shared), _flat(source), touched)


def _step(made: TensorMap, width: int) -> int:
    """Return how many elements an item of `width` bytes holds, or the elements of a group for padded types."""
    return 16 if made.data_type.padded else 8 * width // made.data_type.element_bits


def _items(placed: Placement, width: int) -> tuple[Array, Array]:
    """Return byte offsets of the items of a placed box: from its shared address and from the tensor's address."""
    row, step = placed.tensor_map.data_type, _step(placed.tensor_map, width)
    shared, source = (
        bits[..., ::step] // 8 for bits in (placed.shared_bits - 8 * placed.shared_address, placed.global_bits)
    )
    if row.padded:  # groups of 16 elements with contiguous bytes on both sides
        within = np.arange(0, 2 * row.element_bits, width)
        shared, source = ((each[..., None] + within).reshape(*each.shape[:-1], -1) for each in (shared, source))
    return shared, source


def _flat(values: NDArray[Any]) -> Array:
    return np.ascontiguousarray(values, np.int64).reshape(-1)
