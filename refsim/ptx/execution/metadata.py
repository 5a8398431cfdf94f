"""The metadata of a sparse A: from registers of some lanes to the positions of stored elements."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SparseShape
from refsim.layouts.families.tensor_sparse import StoredFields
from refsim.numerics.sparse import Sparsity, expanded_runs

Array = NDArray[Any]
_SECOND = 0xE
_HALVES = {0x4: 0, _SECOND: 1}  # 32-bit elements: which two of four 16-bit units are stored
_NONE = 255
_PAIRS = (0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE)  # the pairs that tcgen05 may store of four elements


@dataclass(frozen=True)
class MetadataError(Exception):
    """Metadata that no instruction accepts: the number of the matrix, the thread that gives it, and the reason."""

    matrix: int
    thread: int
    what: str


@dataclass(frozen=True)
class _Places:
    """The thread and the lowest bit that hold each position of a fragment, in the order of the matrix."""

    shape: tuple[int, int]
    thread: Array
    bit: Array
    width: int


@cache
def _places(name: str) -> _Places:
    fragment = fragment_named(name)
    rows, columns = np.indices(fragment.shape)
    thread, value = fragment.holder(rows, columns)
    return _Places(fragment.shape, thread, (value * fragment.element_bits).astype(np.uint32), fragment.element_bits)


def givers(name: str) -> Array:
    """Return the threads that give the metadata of a fragment."""
    return np.unique(_places(name).thread)


def fields_of(words: Array, name: str) -> Array:
    """Return the fields of each matrix, (matrices, rows, stored columns), from one register per thread, matrix by
    matrix."""
    places = _places(name)
    held = words.reshape(-1, fragment_named(name).threads)
    return np.asarray(held[:, places.thread] >> places.bit & np.uint32((1 << places.width) - 1))


def positions_of(words: Array, shape: SparseShape, type: str, selector: int, *, ordered: bool) -> Array:
    """Return the position of each stored element in its group, uint8 (matrices, rows, stored columns). Raises
    MetadataError for fields without a meaning and, with `ordered`, for positions that do not rise."""
    name = shape.metadata(type, selector)
    fields = fields_of(words, name)
    if shape.position_bits == 4:
        table = np.full(16, _NONE, np.uint8)
        table[list(_HALVES)] = list(_HALVES.values())
        found = table[fields]
        if (wrong := found == _NONE).any():
            raise _refused(
                wrong, name, fields, "is neither 0b0100 nor 0b1110, the first and the second of two elements"
            )
        return found
    first, second = fields[..., ::2], fields[..., 1::2]
    if (wrong := first == second).any():
        raise _refused(wrong.repeat(2, axis=-1), name, fields, "names one element twice")
    if ordered and (wrong := first > second).any():
        raise _refused(wrong.repeat(2, axis=-1), name, fields, "names its elements in falling order")
    return fields.astype(np.uint8)


def tensor_positions(fields: Array, stored: StoredFields, sparsity: Sparsity) -> Array:
    """Return the position of each stored element in its group, uint8 (rows, stored columns), for a tcgen05.mma.sp.
    `fields` is its metadata (rows, fields). Raises MetadataError, whose `thread` is the row."""
    codes = fields if stored.bits == 4 else fields[:, ::2] | fields[:, 1::2] << np.uint32(2)
    legal = tuple(_HALVES) if stored.bits == 4 else _PAIRS
    if (wrong := ~np.isin(codes, legal)).any():
        row, group = (int(each[0]) for each in np.nonzero(wrong))
        known = ", ".join(f"0b{code:04b}" for code in legal)
        what = f"the metadata of row {row}, group {group} is 0b{int(codes[row, group]):04b}, none of {known}"
        raise MetadataError(0, row, what)
    if stored.bits == 4:
        return np.asarray(codes == _SECOND, np.uint8)
    return expanded_runs(fields, sparsity).astype(np.uint8)


def _refused(wrong: Array, name: str, fields: Array, why: str) -> MetadataError:
    """Return the error for the first wrong element of a fragment's metadata."""
    matrix, row, column = (int(each[0]) for each in np.nonzero(wrong))
    places = _places(name)
    group = fields[matrix, row, column // (4 // places.width) * (4 // places.width) :][: 4 // places.width]
    code = sum(int(field) << places.width * number for number, field in enumerate(group))
    what = f"the metadata of row {row}, stored column {column} on is 0b{code:04b}: it {why}"
    return MetadataError(matrix, int(places.thread[row, column]), what)
