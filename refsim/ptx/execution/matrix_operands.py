"""Operands of a warpgroup's product in shared memory: from descriptors to 16-byte chunks, and from chunks to matrices.

Only `refsim.layouts` computes the addresses of a descriptor. Whole repeats of a swizzle may be added to an address
without changing its swizzling, so descriptors that differ only by whole repeats share one table.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.descriptors import walk
from refsim.layouts.descriptors.matrices import MATRIX_DESCRIPTORS
from refsim.layouts.tiles import MN, Major
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_product import ProductForm, Words
from refsim.ptx.memory.space import ITEM

Array = NDArray[Any]
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
def rows_of_chunks(form: ProductForm, side: str, chunks: int) -> NDArray[np.bool_]:
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
