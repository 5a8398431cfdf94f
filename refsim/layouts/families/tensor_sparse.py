"""Fragments of tcgen05.mma.sp in tensor memory: the metadata of a sparse A, and the accumulators that only it has.

The metadata is a matrix of fields: one for each stored element of A, or for each pair where FP4 comes in pairs. It lies
in the lanes that hold the rows of D, once for each part of D where parts lie below each other.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from refsim.errors import RefsimError
from refsim.layouts.families.core import Fragment, Integers, Row, grammar, only, refuse
from refsim.layouts.families.tcgen05 import SINCE, SIXTEENS, TENSOR_MEMORY_LANES
from refsim.sources import PTX

_COLUMN_BITS = 32
_LANE = "TMEM lane"


@dataclass(frozen=True)
class StoredFields:
    """Describe the metadata of some kinds: K of the instruction, fields of a row, bits of a field.

    `interleaved`: row r and row r + 8 share a column, and k continues eight lanes further.
    """

    kind: str
    k: int
    fields: int
    bits: int
    interleaved: bool = False
    selectors: int = 1

    @property
    def columns(self) -> int:
        """Return the number of columns that one instruction reads."""
        return self.fields * self.bits // _COLUMN_BITS


@dataclass(frozen=True)
class RowLanes:
    """Describe the lanes of a CTA that have its rows: all, the lower 16 of each 32 (`halved`), or repeated rows."""

    m: int
    variant: str
    rows: int
    ctas: int = 1
    halved: bool = False

    def row(self, lane: Integers) -> Integers:
        """Return the row of a CTA for each of its lanes; the result is meaningless for unused lanes."""
        return lane // 32 * 16 + lane % 32 if self.halved else lane % self.rows


STORED = (
    StoredFields("tf32", 16, 8, 4, interleaved=True, selectors=2),
    StoredFields("f16", 32, 16, 2, interleaved=True, selectors=2),
    StoredFields("f8f6f4", 64, 32, 2),
    StoredFields("mxf4", 128, 32, 2),
)
ALIKE = {"i8": "f8f6f4", "mxf8f6f4": "f8f6f4", "mxf4nvf4": "mxf4"}  # kinds that share the metadata of another kind
PLACES = (
    RowLanes(64, "1sm", 64, halved=True),
    RowLanes(128, "1sm", 128),
    RowLanes(128, "2sm", 64, ctas=2, halved=True),
    RowLanes(256, "2sm", 128, ctas=2),
    RowLanes(32, "ws", 32),
    RowLanes(64, "ws", 64),
    RowLanes(128, "ws", 128),
)
_FULL = 128  # the rows of a CTA that block-scaled kinds have


def stored_of(kind: str) -> StoredFields:
    """Return the metadata of a kind of tcgen05.mma."""
    named = ALIKE.get(kind, kind)
    return next(row for row in STORED if row.kind == named)


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for stored in STORED:
        for place in PLACES:
            if stored.kind != "mxf4" or (place.rows == _FULL and place.variant != "ws"):
                name = f"tcgen05.sp.m{place.m}k{stored.k}.{stored.kind}.{place.variant}.meta"
                yield name, partial(_metadata, name, stored, place)
    for n in SIXTEENS:
        name = f"tcgen05.sp.m128n{n}.2sm.d"
        yield name, partial(_accumulator, name, n)


def _metadata(name: str, stored: StoredFields, place: RowLanes) -> Fragment:
    """Return the fragment of the metadata of some kinds, for the lanes of `place`."""
    return Fragment(
        name,
        (place.m, stored.fields),
        threads=TENSOR_MEMORY_LANES * place.ctas,
        values=stored.columns * _COLUMN_BITS // stored.bits,
        formula=partial(_fields, stored=stored, place=place),
        since=SINCE,
        source=PTX["tcgen05, sparsity selector"],
        per_register=_COLUMN_BITS // stored.bits,
        element_bits=stored.bits,
        units=(_LANE, "field"),
        summary="rows r and r + 8 share a column, k goes on 8 lanes further" if stored.interleaved else "a row a lane",
    )


def _fields(lane: Integers, value: Integers, stored: StoredFields, place: RowLanes) -> tuple[Integers, Integers]:
    """Return (row, stored column) of a metadata field, given a lane (in the second CTA from 128 on) and its field.

    Lane 16 i + 8 h + j, field v of tcgen05.sp.m128k32.f16.1sm.meta is row 16 i + 8 (v / 8) + j, stored column 8 h + v %
    8.
    """
    cta, own = lane // TENSOR_MEMORY_LANES, lane % TENSOR_MEMORY_LANES
    row, column = place.row(own), value
    if stored.interleaved:
        half = stored.fields // 2
        row, column = row - row % 16 + 8 * (value // half) + row % 8, row % 16 // 8 * half + value % half
    used = own % 32 < (16 if place.halved else 32)
    return only(used & (value >= 0), cta * place.rows + row, column)


def _accumulator(name: str, n: int) -> Fragment:
    """Return the fragment of D of M = 128 over two CTAs with N columns."""
    place = next(place for place in PLACES if place.ctas == 2 and place.halved)
    return Fragment(
        name,
        (place.m, n),
        threads=TENSOR_MEMORY_LANES * place.ctas,
        values=n,
        formula=partial(_half_lanes, place=place),
        since=SINCE,
        source=PTX["tcgen05, data path layout organization, layout C"],
        units=(_LANE, "column"),
        summary="64 rows a CTA, in lanes 0 to 15 of each 32",
    )


def _half_lanes(lane: Integers, value: Integers, place: RowLanes) -> tuple[Integers, Integers]:
    """Return places of D in each of two CTAs, as D of M = 64 of one CTA."""
    own = lane % TENSOR_MEMORY_LANES
    return only(own % 32 < 16, lane // TENSOR_MEMORY_LANES * place.rows + place.row(own), value)


@grammar(r"tcgen05\.sp\.m([0-9]{1,6})(?:k([0-9]{1,6})\.(\w+)|n([0-9]{1,6}))\.(1sm|2sm|ws)\.(meta|[abcd])")
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    m, k, kind, n, variant = match[1], match[2], match[3], match[4], match[5]
    if n is not None:
        return refuse(
            name,
            "an accumulator of M = 128 over two CTAs is what a sparse A changes, N 16 to 256 in steps of 16",
            "PTX ISA, tcgen05, data path layout organization: layout C",
            f"the others lie as those of a dense A: tcgen05.m{m}n{n}.{variant}.d",
        )
    stored = next((row for row in STORED if row.kind == kind), None)
    if stored is None:
        like = f"{kind} lies as {ALIKE[kind]}" if kind in ALIKE else ", ".join(row.kind for row in STORED)
        return refuse(name, f"no metadata is named by {kind}", "PTX ISA, tcgen05.mma.sp: its kinds", like)
    have = ", ".join(f"m{place.m} {place.variant}" for place in PLACES)
    return refuse(name, f"no metadata of m{m}k{k} {variant}", f"tcgen05.mma.sp, {kind}: k{stored.k}, of {have}")
