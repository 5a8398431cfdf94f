"""Shared-memory matrix descriptors of wgmma and tcgen05, and the descriptor of a canonical tile."""

from refsim.errors import RefsimError, check_named
from refsim.integers import whole
from refsim.layouts.descriptors.fields import Descriptor, Field, Fields, Value
from refsim.layouts.swizzles import NO_SWIZZLE, swizzle
from refsim.layouts.tiles import K, Tile, atom_rows
from refsim.sources import PTX

UNIT_BYTES = 16
BASE_OFFSET_BYTES = 128
PATTERN_AT = "start {start} lies {into} bytes into the {repeat}-byte pattern of {name}"
PATTERN_MOVED = ", which begins {past} bytes past a {repeat}-byte boundary (base_offset {offset})"
PATTERN_UNMOVED = ": right if bytes are swizzled by absolute address, as TMA does"
NEAR_GROUPS = "{field} {value} is less than the {size} bytes of a group: groups overlap, if there is more than one"
"""Texts of remarks, which pages repeat."""


def _no_base_offset_without_swizzle(fields: Fields) -> str | None:
    if fields["swizzle"] == "none" and fields["base_offset"]:
        return f"base_offset {fields['base_offset']} without a swizzle pattern that it could move"
    return None


def _absolute_mode(fields: Fields) -> str | None:
    """Return an error where the absolute address of the second chunk breaks a restriction of PTX."""
    if fields["leading_mode"] == "absolute" and (fields["swizzle"] != "128B" or fields["base_offset"]):
        return "leading_mode absolute needs swizzle 128B and base_offset 0"
    return None


def _pattern_start(fields: Fields) -> str | None:
    if not isinstance(name := fields["swizzle"], str) or name == "none":
        return None
    repeat, start, offset = swizzle(name).repeat_bytes, int(fields["start_address"]), int(fields["base_offset"])
    past = BASE_OFFSET_BYTES * offset
    into = (start - past) % repeat
    behind = PATTERN_MOVED if past else PATTERN_UNMOVED
    said = (PATTERN_AT + behind).format(start=hex(start), into=into, repeat=repeat, name=name, past=past, offset=offset)
    return said if past or into else None


def _near_groups(fields: Fields) -> str | None:
    """Return a remark on a legal but unlikely value: groups of rows that begin before the previous group ends."""
    if not isinstance(name := fields["swizzle"], str):
        return None
    size = group_bytes(name)
    watched = ("stride_byte_offset", "leading_byte_offset") if name == "none" else ("stride_byte_offset",)
    near = [each for each in watched if int(fields[each]) < size]
    return "; ".join(NEAR_GROUPS.format(field=each, value=fields[each], size=size) for each in near) or None


def group_bytes(name: str) -> int:
    """Return the bytes of one group of rows, an atom of a swizzle: 1024 for 128B, 128 for none."""
    pattern = swizzle(name)
    return pattern.span_bytes * atom_rows(pattern)


def _matrix_fields(codes: tuple[tuple[int, Value], ...], low: int) -> tuple[Field, ...]:
    """Return the fields that wgmma and tcgen05 share; `low` is the first bit of the swizzle mode, which has `codes`."""
    return (
        Field("start_address", 0, 14, "first byte of the matrix in shared memory", UNIT_BYTES, default=None),
        Field(
            "leading_byte_offset",
            16,
            14,
            "bytes between core matrices along K (no swizzle) or between swizzle spans along MN (MN-major); "
            "unused K-major with swizzle",
            UNIT_BYTES,
        ),
        Field(
            "stride_byte_offset",
            32,
            14,
            "bytes between groups of 8 rows (K-major), of 8 k (MN-major), or of core matrices along MN (no swizzle)",
            UNIT_BYTES,
        ),
        Field("base_offset", 49, 3, "where the swizzle pattern begins, in 128 bytes past its own boundary"),
        Field("swizzle", low, 64 - low, "swizzle mode", names=codes, default=None),
    )


WGMMA_SMEM = Descriptor(
    "wgmma-smem",
    64,
    _matrix_fields(((0, "none"), (1, "128B"), (2, "64B"), (3, "32B")), 62),
    PTX["wgmma, matrix descriptor format"],
    "an operand of wgmma in shared memory (sm_90a)",
    remarks=(_pattern_start, _near_groups),
    operand_of="wgmma",
)
TCGEN05_SMEM = Descriptor(
    "tcgen05-smem",
    64,
    (
        *_matrix_fields(((0, "none"), (1, "128B_32B_atom"), (2, "128B"), (4, "64B"), (6, "32B")), 61),
        Field("version", 46, 3, "constant 0b001", default=1, fixed=True),
        Field(
            "leading_mode",
            52,
            1,
            "leading_byte_offset is a distance, or (sm_103a, 48 bytes of K) an address",
            names=((0, "relative"), (1, "absolute")),
            default="relative",
        ),
    ),
    PTX["tcgen05, shared memory descriptor"],
    "an operand of tcgen05.mma in shared memory (sm_100a and later)",
    rules=(_no_base_offset_without_swizzle, _absolute_mode),
    remarks=(_pattern_start, _near_groups),
    operand_of="tcgen05",
)
MATRIX_DESCRIPTORS = (WGMMA_SMEM, TCGEN05_SMEM)


def operand_descriptor(kind: str, tile: Tile, start_address: int, *, mn: int = 0, k: int = 0) -> int:
    """Return the descriptor for the part of a tile that begins at element (mn, k), computed for each K step.

    kind "wgmma-smem" or "tcgen05-smem". For a bf16 tile, K-major 128B, at byte 1024, k = 16 starts 32 bytes on:
    start_address 1056, stride 1024. Hardware swizzles the final address, so the start is not swizzled. A tile may begin
    at any of its rows, if its bytes are swizzled by absolute address; base_offset is 0.
    Raises RefsimError if (mn, k) is not the corner of a core matrix, or lies past the tile.
    operand_descriptor("wgmma-smem", tile("K", "128B", 2, (128, 64)), 1024, k=16) is 0x4000004000010042.
    Source: PTX ISA, strides and canonical layouts; CUTLASS, make_gmma_desc and make_umma_desc.
    """
    rows = {row.kind: row for row in MATRIX_DESCRIPTORS}
    check_named("matrix descriptor", kind, rows)
    if int(whole("start address", start_address)) % tile.swizzle.span_bytes:
        raise RefsimError(
            "bad-tile",
            f"start address {start_address} is not a multiple of {tile.swizzle.span_bytes} bytes: rows would be split",
            where=f"swizzle {tile.swizzle}",
        )
    offset = int(tile.offset(mn, k))
    if offset % UNIT_BYTES or (mn if tile.major == K else k) % tile.atom_rows:
        raise RefsimError("bad-tile", f"({mn}, {k}) is not the corner of a core matrix of this tile")
    leading, stride = _offsets(tile)
    swizzle = tile.swizzle.name
    return rows[kind].encode(
        start_address=start_address + offset, leading_byte_offset=leading, stride_byte_offset=stride, swizzle=swizzle
    )


def _offsets(tile: Tile) -> tuple[int, int]:
    """Return leading and stride byte offset; major and swizzle decide which of the tile's strides each is."""
    if tile.swizzle == NO_SWIZZLE:
        return tile.k_stride_bytes, tile.mn_stride_bytes
    return (UNIT_BYTES, tile.mn_stride_bytes) if tile.major == K else (tile.mn_stride_bytes, tile.k_stride_bytes)
