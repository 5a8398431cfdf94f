"""Operands of a warpgroup's product in shared memory: from descriptors to 16-byte chunks, and from chunks to matrices.

Only `refsim.layouts` computes the addresses of a descriptor. Whole repeats of a swizzle may be added to an address
without changing its swizzling, so descriptors that differ only by whole repeats share one table.

The metadata of a sparse A: from registers of some lanes to the positions of stored elements."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.descriptors import walk
from refsim.layouts.descriptors.matrices import MATRIX_DESCRIPTORS
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SparseShape
from refsim.layouts.families.tensor_sparse import StoredFields
from refsim.layouts.tiles import MN, Major
from refsim.numerics.sparse import Sparsity, expanded_runs
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_product import ProductForm, Words
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM

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


CORE_ROW = 16
PRODUCT_ROWS = 64
_ACROSS = 8  # rows that a chunk of an MN-major operand holds, elements of 16 bits
_UNITS = 1024 // 16  # the longest repeat of a swizzle, in units of start_address
_START = 0x3FFF
_DESCRIPTORS = {row.operand_of: row for row in MATRIX_DESCRIPTORS}


class DescriptorError(Exception):
    """No hardware reads this descriptor; the message gives the reason."""


def chunk_places(words: Words, form: ProductForm, side: str) -> Array:
    """Return the shared addresses of every chunk of A or B, (warpgroups, chunks); raise DescriptorError."""
    name, major = form.operand(side), form.majors[side == "b"]
    found = [placed(int(word), name, major) for word in words]
    if len(found) == 1:
        return found[0][None]
    return np.broadcast_to(found[0], (len(found), len(found[0]))) if _are_same(words) else np.stack(found)


def _are_same(words: Words) -> bool:
    return bool((words == words[0]).all())


_ABSOLUTE = 52  # tcgen05: the bit that makes the leading offset an address


@lru_cache(maxsize=1 << 12)
def placed(word: int, name: str, major: Major, ctas: int = 1) -> Array:
    """Return the shared addresses of the chunks of one operand, in the order of the matrix; raise DescriptorError."""
    whole = 0 if word >> _ABSOLUTE & 1 else (word & _START) // _UNITS * _UNITS
    return _table(word - whole, name, major, ctas) + whole * 16


@lru_cache(maxsize=1 << 9)
def _table(word: int, name: str, major: Major, ctas: int) -> Array:
    """Return the chunk addresses of a descriptor whose matrix begins within the first repeat of its swizzle. A probable
    mistake is refused for tcgen05; wgmma reads what was recorded."""
    unit = name.partition(".")[0]
    try:
        found = walk(_DESCRIPTORS[unit], word, name, major=major, ctas=ctas)
    except RefsimError as error:
        raise DescriptorError(error.what) from None
    if found.problems and unit != "wgmma":
        raise DescriptorError(found.problems[0])
    per = CORE_ROW * 8 // found.operand.container_bits
    bits = found.bits[::per] if major == MN else found.bits[:, ::per]
    return np.ascontiguousarray(bits // 8).ravel()


def turns(lanes: Lanes, places: Array, seen: Array | None = None) -> Iterator[tuple[Lanes, Array]]:
    """Yield lanes that read the chunks of an operand for their tensor cores, one chunk each, and the chunks' addresses.

    `places` are addresses (warpgroups, chunks); `seen` masks the chunks to read, None for all. The chunks of A's rows
    go to the warp that multiplies the rows.
    """
    groups, count = places.shape
    for start in range(0, count, WARPGROUP):
        some = slice(start, start + WARPGROUP)
        at = places[:, some]
        if seen is None and at.shape[1] == WARPGROUP:
            yield lanes, at.ravel()
            continue
        step = WARPGROUP // at.shape[1]
        chosen = np.arange(groups)[:, None] * WARPGROUP + np.arange(at.shape[1]) * step
        wanted = np.ones(at.shape, np.bool_) if seen is None else seen[:, some]
        if wanted.any():
            yield Lanes(lanes.machine, lanes.ids[chosen[wanted]], lanes.statement), at[wanted]


def shown(lanes: Lanes, words: Words, chunks: int) -> Array | None:
    """Return a mask (warpgroups, chunks) of the chunks that each warpgroup is shown to read, or None if all are. If
    several warpgroups of a block read equal chunks at once, each is shown at some: no chunk gets two readers."""
    keys = list(zip(lanes.cta[::WARPGROUP].tolist(), words.tolist(), strict=True))
    count = {key: keys.count(key) for key in keys}
    if max(count.values()) == 1:
        return None
    rank = np.array([keys[:place].count(key) for place, key in enumerate(keys)])
    many = np.array([count[key] for key in keys])
    return np.asarray(np.arange(chunks) % many[:, None] == rank[:, None])


def codes_of(items: Array, form: ProductForm, side: str) -> Array:
    """Return the matrix that chunks hold: codes (warpgroups, rows, k); single bits are eight to a byte."""
    rows = PRODUCT_ROWS if side == "a" else form.n
    element = element_named(form.a if side == "a" else form.b)
    held = np.ascontiguousarray(items).view(element.code_dtype)
    if form.majors[side == "b"] == MN:
        columns = form.columns(side)
        lines = held.reshape(len(items), rows // _ACROSS, columns, _ACROSS)
        return np.ascontiguousarray(lines.swapaxes(2, 3)).reshape(len(items), rows, columns)
    return held.reshape(len(items), rows, -1)


@lru_cache(maxsize=1 << 6)
def rows_of_chunks(form: ProductForm, side: str, chunks: int) -> Bools:
    """Return which rows of A or columns of B each chunk has elements of, (chunks, rows)."""
    one = np.repeat(np.eye(chunks, dtype=np.bool_)[:, :, None], _ACROSS, axis=2)
    return np.asarray(events_of(one, form, side).any(axis=2))


def events_of(events: Array, form: ProductForm, side: str) -> Array:
    """Return events of the elements of chunks, (warpgroups, chunks, elements), as matrices (warpgroups, rows, k)."""
    rows = PRODUCT_ROWS if side == "a" else form.n
    if form.majors[side == "b"] == MN:
        lines = events.reshape(len(events), rows // _ACROSS, form.columns(side), -1)
        return lines.swapaxes(2, 3).reshape(len(events), rows, -1)
    return events.reshape(len(events), rows, -1)


def item_numbers(lanes: Lanes, places: Array) -> Array:
    """Return the chunks of each warpgroup's own block as item numbers in the flat shared memory."""
    space, owner = lanes.space("shared")
    assert not isinstance(owner, int)
    return np.asarray((places + (owner[::WARPGROUP] * space.stride)[:, None]) // ITEM[CORE_ROW].itemsize)
