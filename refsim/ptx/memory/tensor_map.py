"""The 128 bytes of a tensor map on the simulated GPU, in a format of its own.

They hold all parameters with a checksum, so a copy of them in constant, global or parameter memory is a valid map. A
kernel may change fields one by one (`tensormap.replace`), also starting from zeros. The result equals the map that the
host encodes, bit for bit, and records which of its fields were never set.

Tensor memory: 128 lanes of 512 columns of 32 bits for each CTA; a kernel allocates columns."""

import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.layouts.tma import (
    DATA_TYPES,
    INTERLEAVES,
    L2_PROMOTIONS,
    MAP_BYTES,
    OOB_FILLS,
    SWIZZLE_MODES,
    TensorMap,
    im2col_map,
    tensor_map,
)
from refsim.ptx.memory.arrays import Bools
from refsim.sources import PTX

TENSOR_LANES, TENSOR_COLUMNS = 128, 512
LANE_SHIFT, COLUMN_MASK = 16, 0xFFFF
LEAST_COLUMNS = 32


@dataclass
class TensorMemory:
    """The tensor memory of the running CTAs: `words` (CTAs, lanes, columns).

    `unwritten` marks the cells not written since the allocation of their columns. In a launch with tracking, `bits` and
    `events` are the masks of undefined bits. `blocks` are the columns that each CTA holds, by their first; `closed` are
    the CTAs that gave up the right to allocate.
    """

    ctas: int
    poison: int
    bits: NDArray[np.uint32] | None = None
    events: NDArray[np.int32] | None = None
    blocks: dict[int, dict[int, int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        shape = (self.ctas, TENSOR_LANES, TENSOR_COLUMNS)
        self.words, self.unwritten = np.zeros(shape, np.uint32), np.zeros(shape, np.bool_)

    def follow(self) -> None:
        """Add masks of undefined bits to the cells."""
        self.bits, self.events = np.zeros(self.words.shape, np.uint32), np.zeros(self.words.shape, np.int32)

    def allocate(self, cta: int, columns: int) -> int | None:
        """Return the first of `columns` free columns, a multiple of their number, or None if there are none."""
        held = self.held(cta)
        for first in range(0, TENSOR_COLUMNS, columns):
            if not held[first : first + columns].any():
                self.blocks.setdefault(cta, {})[first] = columns
                mine = cta, slice(None), slice(first, first + columns)
                self.words[mine], self.unwritten[mine] = self.poison, True
                if self.events is not None:
                    self.events[mine] = 0
                return first
        return None

    def free(self, cta: int, first: int, columns: int) -> bool:
        """Free columns; return whether they are one allocation."""
        if self.blocks.get(cta, {}).get(first) != columns:
            return False
        del self.blocks[cta][first]
        return True

    def held(self, cta: int) -> Bools:
        """Return which columns a CTA holds."""
        found = np.zeros(TENSOR_COLUMNS, np.bool_)
        for first, columns in self.blocks.get(cta, {}).items():
            found[first : first + columns] = True
        return found

    def spoken(self, cta: int) -> str:
        """Return the columns that a CTA holds as text: `columns 0 to 63 and 128 to 255`."""
        parts = [f"{first} to {first + columns - 1}" for first, columns in sorted(self.blocks.get(cta, {}).items())]
        return f"columns {' and '.join(parts)}" if parts else "none"


_MAGIC = b"rs-tmap\0"
_RANKS = 5
_SUM = struct.Struct("<I")
_SWIZZLES = {"none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0)} | {
    name: (3, atom) for atom, name in enumerate(SWIZZLE_MODES[4:], 1)
}
"""Swizzle and its atom, as tensormap.replace numbers them."""
# Table "tensormap new_val validity": its numbers differ from the numbers of the driver.
# fmt: off
_ELEMENTS = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32_ftz", "float64", "bfloat16",
    "tfloat32", "tfloat32_ftz", "16u4_align8b", "16u4_align16b", "16u6_align16b",
)
# fmt: on
_TYPES = {row.name: row for row in DATA_TYPES}
REPLACE_RULE = PTX["tensormap.replace"]


@dataclass(frozen=True)
class MapField:
    """One field of a map as `tensormap.replace` names it: `count` values from byte `start` on, each a `code` of struct.

    A value v is stored as v - `bias`; it is a multiple of `step` from `least` to `most`. A `needed` field has no
    meaning until it is set; other fields are 0 until then.
    """

    name: str
    start: int
    code: str
    most: int
    count: int = 1
    least: int = 0
    bias: int = 0
    step: int = 1
    needed: bool = False

    @property
    def packing(self) -> struct.Struct:
        """Return the struct that packs all values of the field."""
        return struct.Struct(f"<{self.count}{self.code}")


_FIELDS = (
    MapField("global_address", 8, "Q", (1 << 64) - 16, step=16, needed=True),
    MapField("global_dim", 16, "I", 1 << 32, _RANKS, 1, 1, needed=True),
    MapField("global_stride", 36, "Q", (1 << 40) - 16, _RANKS - 1, step=16, needed=True),
    MapField("box_dim", 68, "B", 256, _RANKS, 1, 1, needed=True),
    MapField("element_stride", 73, "B", 8, _RANKS, 1, needed=True),
    MapField("rank", 78, "B", _RANKS - 1, needed=True),
    MapField("elemtype", 79, "B", len(_ELEMENTS) - 1),
    MapField("interleave_layout", 80, "B", len(INTERLEAVES) - 1),
    MapField("swizzle_mode", 81, "B", 3),
    MapField("swizzle_atomicity", 82, "B", 3),
    MapField("fill_mode", 83, "B", len(OOB_FILLS) - 1),
)
FIELDS = {row.name: row for row in _FIELDS}
_PROMOTION = MapField("l2 promotion", 84, "B", len(L2_PROMOTIONS) - 1)  # which tensormap.replace leaves as it is
_COLUMNS = struct.Struct("<BH3h3h")  # 1 for an im2col map, pixels less one, the corners of their box
_COLUMNS_AT = 86
_SET = struct.Struct("<I")  # a bit for each needed field and ordinal
_SET_AT = 120


def _bit(row: MapField, ordinal: int) -> int:
    """Return the bit that marks an ordinal of a needed field as set."""
    before = sum(each.count for each in _FIELDS[: _FIELDS.index(row)])
    return 1 << before + ordinal


def encoded(made: TensorMap) -> bytes:
    """Return the 128 bytes of a map; different maps have different bytes."""
    mode, atom = _SWIZZLES[made.swizzle]
    values: dict[str, tuple[int, ...]] = {
        "global_address": (made.address,),
        "global_dim": made.dims,
        "global_stride": made.strides,
        "box_dim": made.box if made.pixels is None else made.box[:1],
        "element_stride": made.element_strides,
        "rank": (len(made.dims) - 1,),
        "elemtype": (_ELEMENTS.index(made.data_type.name),),
        "interleave_layout": (INTERLEAVES.index(made.interleave),),
        "swizzle_mode": (mode,),
        "swizzle_atomicity": (atom,),
        "fill_mode": (OOB_FILLS.index(made.oob_fill),),
    }
    raw, known = bytearray(_MAGIC.ljust(MAP_BYTES, b"\0")), 0
    for row in _FIELDS:
        given = values[row.name]
        held = [value - row.bias for value in given] + [0] * (row.count - len(given))
        row.packing.pack_into(raw, row.start, *held)
        known |= sum(_bit(row, ordinal) for ordinal in range(len(given))) if row.needed else 0
    _PROMOTION.packing.pack_into(raw, _PROMOTION.start, L2_PROMOTIONS.index(made.l2_promotion))
    if made.pixels is not None:
        corners = (each for corner in (made.pixels.lower, made.pixels.upper) for each in (*corner, 0, 0)[:3])
        _COLUMNS.pack_into(raw, _COLUMNS_AT, 1, made.box[1] - 1, *corners)
    return _sealed(raw, known)


def _sealed(raw: bytearray, known: int) -> bytes:
    """Return the bytes with the marks of set fields and the checksum."""
    _SET.pack_into(raw, _SET_AT, known)
    _SUM.pack_into(raw, MAP_BYTES - _SUM.size, zlib.crc32(raw[: -_SUM.size]))
    return bytes(raw)


def is_map(raw: bytes) -> bool:
    """Return whether 128 bytes are a whole map, whatever its fields hold."""
    return (
        len(raw) == MAP_BYTES
        and raw.startswith(_MAGIC)
        and zlib.crc32(raw[: -_SUM.size]) == _SUM.unpack(raw[-_SUM.size :])[0]
    )


def replaced(raw: bytes, field: str, ordinal: int, value: int) -> bytes:
    """Return the map with one field changed; zeros are a map without a set field. Raises RefsimError `bad-tensor-map`
    for bytes that are no map, a value that the field cannot hold, and an ordinal that it lacks."""
    row = FIELDS[field]
    if not is_map(raw) and any(raw):
        raise _wrong("the 128 bytes there are neither a tensor map nor zeros")
    if raw[_COLUMNS_AT]:
        raise _wrong("the tensor map is one for the im2col mode, and .tile changes those for tiles")
    if not 0 <= ordinal < row.count:
        raise _wrong(f"ordinal {ordinal} of {field}, which has 0 to {row.count - 1}")
    if not row.least <= value <= row.most:
        raise _wrong(f"{field} {value} is outside {row.least}..{row.most}")
    if value % row.step:
        raise _wrong(f"{field} {value:#x} is not a multiple of {row.step}")
    after = bytearray(raw)
    after[: len(_MAGIC)] = _MAGIC
    known = _SET.unpack_from(raw, _SET_AT)[0]
    if field == "rank" and known & _bit(row, 0):  # a field of a removed dimension had a use when it was set
        known &= ~sum(_bit(*each) for each in _beyond(value + 1))
    known |= _bit(row, ordinal) if row.needed else 0
    held = list(row.packing.unpack_from(raw, row.start))
    held[ordinal] = value - row.bias
    row.packing.pack_into(after, row.start, *held)
    return _sealed(after, known)


def _beyond(rank: int) -> list[tuple[MapField, int]]:
    """Return the fields and ordinals of the dimensions that a map of that rank lacks."""
    return [(row, ordinal) for row in _FIELDS if row.count > 1 for ordinal in range(_asked(row, rank), row.count)]


@lru_cache(maxsize=4096)
def set_in_vain(raw: bytes) -> str:
    """Return the first field that was set for a missing dimension ("global_dim 2, and its rank is 2"), or "". A copy
    never reads the field: its author meant another ordinal, or another map."""
    held = FIELDS["rank"]
    (known,), (rank,) = _SET.unpack_from(raw, _SET_AT), held.packing.unpack_from(raw, held.start)
    vain = [(row, ordinal) for row, ordinal in _beyond(rank + 1) if known & _bit(row, ordinal)]
    return f"{vain[0][0].name} {vain[0][1]}, and its rank is {rank + 1}" if vain else ""


def _wrong(what: str) -> RefsimError:
    return RefsimError("bad-tensor-map", what, rule=str(REPLACE_RULE))


@lru_cache(maxsize=4096)
def decoded(raw: bytes) -> TensorMap | None:
    """Return the map that 128 bytes hold, or None if they are no whole map. Raises RefsimError for fields that were
    never set, and for each broken rule of cuTensorMapEncodeTiled."""
    if not is_map(raw):
        return None
    held = {row.name: row.packing.unpack_from(raw, row.start) for row in (*_FIELDS, _PROMOTION)}
    (known,), rank = _SET.unpack_from(raw, _SET_AT), held["rank"][0] + 1
    is_im2col, pixels, *corners = _COLUMNS.unpack_from(raw, _COLUMNS_AT)
    for row in _FIELDS if not is_im2col else ():
        for ordinal in range(_asked(row, rank)):
            if not known & _bit(row, ordinal):
                raise _wrong(f"its {row.name}{f' {ordinal}' if row.count > 1 else ''} was never set")
    names = {pair: name for name, pair in _SWIZZLES.items()}
    swizzle = names.get((held["swizzle_mode"][0], held["swizzle_atomicity"][0]))
    if swizzle is None:
        raise _wrong(f"swizzle_atomicity {held['swizzle_atomicity'][0]} with swizzle_mode {held['swizzle_mode'][0]}")
    type, box = _TYPES[_ELEMENTS[held["elemtype"][0]]], [extent + 1 for extent in held["box_dim"][:rank]]
    dims = [extent + 1 for extent in held["global_dim"][:rank]]
    more: dict[str, Any] = {
        "strides": held["global_stride"][: rank - 1],
        "address": held["global_address"][0],
        "element_strides": held["element_stride"][:rank],
        "interleave": INTERLEAVES[held["interleave_layout"][0]],
        "swizzle": swizzle,
        "l2_promotion": L2_PROMOTIONS[held["l2 promotion"][0]],
        "oob_fill": OOB_FILLS[held["fill_mode"][0]],
    }
    if not is_im2col:
        return tensor_map(type, dims, box, **more)
    lower, upper = corners[: rank - 2], corners[3 : rank + 1]
    return im2col_map(type, dims, box[0], pixels + 1, lower=lower, upper=upper, **more)


def _asked(row: MapField, rank: int) -> int:
    """Return how many ordinals of a field a map of that rank needs."""
    if not row.needed:
        return 0
    return 1 if row.count == 1 else rank - (row.count < _RANKS)
