"""Matrices of a warp: ldmatrix, stmatrix and mma.sync, with the fragments of refsim.layouts; mma.sp, whose A is sparse; on
sm_120 operands of 4, 6 and 8 bits in any combination, and kinds whose operands have block scales."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import unpack
from refsim.conversions.packing import DENSE, Container
from refsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, element_named, float_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.mma import MMA_SCALINGS, MMA_SHAPES, THREAD_IDS, MmaShape, Scaling
from refsim.layouts.families.sparse import SPARSE_SHAPES, SparseShape
from refsim.layouts.holders import WARP
from refsim.ptx.checks import undefined_sparse
from refsim.ptx.checks import undefined_warp as undefined
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.metadata import MetadataError, fields_of, positions_of
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import (
    matrices,
    packing_of,
    product,
    registers_of,
    scaled_product,
    sparse_product,
    whole_warps,
)
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.products import INTEGERS, MmaKind, Scales, array_type, mma_kind, scaled_kind
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX, Source

Array = NDArray[Any]
ROW_BYTES = 16


# ---- ldmatrix and stmatrix
def _row_lanes(lanes: Lanes, address: Array, rows: int, space: str) -> tuple[Lanes, Array]:
    """Return the lanes that give the address of a row, the first `rows` of each warp, and their addresses."""
    at = lanes.full(address)
    if rows < WARP:
        giving = lanes.laneid < rows
        lanes, at = Lanes(lanes.machine, lanes.ids[giving], lanes.statement), at[giving]
    start = WINDOWS["shared"]
    if space == "generic" and (stray := (at < start) | (at >= start + WINDOW_SIZE)).any():
        lane = int(np.argmax(stray))
        raise lanes.fault("out-of-bounds", lane, f"a row at generic address {int(at[lane]):#x}, not in shared memory")
    return lanes, at


_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_STATE = "{.space:shared::cta|shared}"


def _matrix_moves(count: str, trans: str) -> None:
    """Register ldmatrix and stmatrix for a number of matrices, plain or transposed."""
    number = _COUNTS[count]
    suffix = f"m8n8.{count}.b16{trans}"

    form = f"sync.aligned.m8n8.{count}{trans}{_STATE}.b16"

    @instruction(
        f"ldmatrix.{form} d:b32*{number}, [a]",
        rendezvous="warp",
        since="sm_75",
        source=PTX["ldmatrix"],
        undefined=undefined.matrix_loaded(f"ldmatrix.{suffix}", number),
    )
    def ldmatrix(lanes: Lanes, address: Array, *, space: str | None) -> list[Array]:
        """Load rows of 16 bytes from shared memory to the fragments of 8x8 matrices; lane i gives the address of row
        i."""
        warps = whole_warps(lanes)
        giving, at = _row_lanes(lanes, address, 8 * number, space_of(space))
        rows = giving.load(space_of(space), at, ROW_BYTES)
        packing = packing_of(f"ldmatrix.{suffix}", False)
        return registers_of(rows.view(packing.element).reshape(warps, -1), packing, np.uint32)

    @instruction(
        f"stmatrix.{form} [a], b:b32*{number}",
        rendezvous="warp",
        since="sm_90",
        source=PTX["stmatrix"],
        undefined=undefined.matrix_stored(f"stmatrix.{suffix}", number),
    )
    def stmatrix(lanes: Lanes, address: Array, b: list[Array], *, space: str | None) -> None:
        """Store fragments of 8x8 matrices to rows of 16 bytes in shared memory; lane i gives the address of row i."""
        warps = whole_warps(lanes)
        giving, at = _row_lanes(lanes, address, 8 * number, space_of(space))
        rows = matrices(b, packing_of(f"stmatrix.{suffix}", False), warps)
        giving.store(space_of(space), at, rows.reshape(-1).view(np.complex128), ROW_BYTES)


for _count in _COUNTS:
    for _trans in ("", ".trans"):
        _matrix_moves(_count, _trans)


_EIGHT_BY_EIGHT = "ldmatrix.m8n8.x1.b16"


@instruction(
    "movmatrix.sync.aligned.m8n8.trans.b16 d:b32, a:b32",
    rendezvous="warp",
    since="sm_75",
    undefined=undefined.transposed(_EIGHT_BY_EIGHT),
    source=PTX["movmatrix"],
)
def movmatrix(lanes: Lanes, a: Array) -> Array:
    """Transpose the 8x8 matrix in a warp's registers: lane 4 receives the element that lane 0 held at row 0, column
    1."""
    packing = packing_of(_EIGHT_BY_EIGHT, False)
    matrix = matrices([lanes.full(a)], packing, whole_warps(lanes))
    return registers_of(matrix.swapaxes(1, 2), packing, np.uint32)[0]


# ---- mma.sync
# The PTX types of a fragment's registers: f16 and smaller elements are packed into 32 bits.
_REGISTER_TYPES = {"f32": "f32", "f64": "f64", "s32": "s32"}
_OPERANDS = frozenset({"f16", "bf16", "tf32", "f64", "s8", "u8", "e4m3", "e5m2"})
_MIXED = (("e4m3", "e5m2"), INTEGERS)


def _families() -> Iterator[tuple[MmaShape, tuple[str, ...], str]]:
    """Yield shape, operand types that may be mixed, and the type of C and D."""
    for shape in MMA_SHAPES:
        if shape.is_volta:
            continue
        types = tuple(type for type in shape.types if type in _OPERANDS)
        groups: list[tuple[str, ...]] = [group for group in _MIXED if set(group) <= set(types)]
        groups += [(type,) for type in types if not any(type in group for group in groups)]
        for group in groups:
            for accumulator in shape.accumulators:
                yield shape, group, accumulator


def _vector(shape: MmaShape, type: str, operand: str, accumulator: str) -> tuple[str, int]:
    """Return PTX type and number of the registers of one operand."""
    fragment = fragment_named(_fragment_name(shape, type, operand, accumulator))
    held = accumulator if operand in "cd" else type
    return _REGISTER_TYPES.get(held, "b32"), fragment.registers


def _fragment_name(shape: MmaShape | SparseShape, type: str, operand: str, accumulator: str) -> str:
    stem = shape.stem if isinstance(shape, SparseShape) else f"mma.{shape}"
    refined = operand in "cd" and accumulator != shape.accumulators[0]
    return f"{stem}.{type}.{operand}" + (f".{accumulator}" if refined else "")


def _multiplied(
    lanes: Lanes,
    operands: tuple[list[Array], list[Array], list[Array]],
    kind: MmaKind,
    shape: MmaShape | SparseShape,
    metadata: tuple[Array, Array, bool] | None = None,
) -> list[Array]:
    """Return the registers of D for the matrices in the registers of A, B and C, for all warps at once. `metadata` are
    the words, the selector and the order that belong to a sparse A."""
    warps, positions = whole_warps(lanes), None
    if metadata is not None:
        assert isinstance(shape, SparseShape)
        selector = int(metadata[1].view(np.int32)[0])
        check_selector(lanes, selector, shape, str(_SPARSE))
        positions = stored_positions(lanes, metadata[0], shape, kind.a.name, selector, _SPARSE, ordered=metadata[2])
    types = (kind.a.name, kind.b.name, kind.a.name)
    packings = [
        packing_of(_fragment_name(shape, type, operand, kind.d.name), operand == "b")
        for type, operand in zip(types, "abc", strict=True)
    ]
    a, b, c = (matrices(held, packing, warps) for held, packing in zip(operands, packings, strict=True))
    c = c.view(array_type(kind.d))
    if positions is None:
        result = product(lanes, a, b, c, kind, shape.k)
    else:
        result = sparse_product(lanes, a, b, c, positions, kind, shape.k)
    return registers_of(result, packings[2], TYPES[_REGISTER_TYPES.get(kind.d.name, "b32")].dtype)


def _mma_family(shape: MmaShape, group: tuple[str, ...], accumulator: str) -> None:
    """Register mma.sync for a shape, a group of operand types and an accumulator type."""
    choice = "|".join(group)
    saturates = "{.satfinite}" if group == INTEGERS else ""
    types = ".".join(f"{{{which}_type:{choice}}}" if len(group) > 1 else choice for which in "ab")
    vectors = (_vector(shape, group[0], operand, accumulator) for operand in "dabc")
    operands = ", ".join(f"{name}:{type}*{count}" for name, (type, count) in zip("dabc", vectors, strict=True))
    opcode = f"mma.sync.aligned.{shape}.row.col{saturates}.{accumulator}.{types}.{accumulator}"
    a_name, b_name, c_name = (_fragment_name(shape, group[0], operand, accumulator) for operand in "abc")
    register = instruction(
        f"{opcode} {operands}",
        rendezvous="warp",
        since=shape.since,
        source=PTX["mma"],
        undefined=undefined.multiplied((a_name, b_name, c_name)),
        stacks=True,
    )

    def mma(lanes: Lanes, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
        """Return D = A B + C for the matrices of each warp: A row by row, B column by column."""
        return _multiplied(lanes, (a, b, c), mma_kind(choice, choice, accumulator), shape)

    def mma_integer(
        lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, a_type: str, b_type: str, satfinite: bool
    ) -> list[Array]:
        """Return D = A B + C over 8-bit integers; the sum wraps to 32 bits, or is clamped with .satfinite."""
        return _multiplied(lanes, (a, b, c), mma_kind(a_type, b_type, accumulator, satfinite), shape)

    def mma_mixed(
        lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, a_type: str, b_type: str
    ) -> list[Array]:
        """Return D = A B + C over FP8 codes, in any combination of the two formats: A row by row, B column by
        column."""
        return _multiplied(lanes, (a, b, c), mma_kind(a_type, b_type, accumulator), shape)

    register(mma_integer if saturates else mma_mixed if len(group) > 1 else mma)


for _shape, _group, _accumulator in _families():
    _mma_family(_shape, _group, _accumulator)


# ---- mma.sp
_SPARSE = PTX["mma.sp"]
_ORDERED = "sp::ordered_metadata"


def check_selector(lanes: Lanes, value: int, shape: SparseShape, section: str) -> None:
    """Raise a fault unless the shape has the sparsity selector `value`."""
    if value not in shape.selectors:
        known = " or ".join(map(str, shape.selectors))
        raise lanes.fault("invalid-operand", 0, f"the sparsity selector is {value}", f"{section}: it is {known}")


def stored_positions(
    lanes: Lanes, words: Array, shape: SparseShape, type: str, selector: int, section: Source, *, ordered: bool = False
) -> Array:
    """Return the positions of the elements that each warp, or warpgroup, stores."""
    try:
        return positions_of(lanes.full(words), shape, type, selector, ordered=ordered)
    except MetadataError as error:
        rule = f"{section}, sparse matrix storage" + (": with ::ordered_metadata positions rise" if ordered else "")
        thread = error.matrix * (WARPGROUP if shape.is_warpgroup else WARP) + error.thread
        raise lanes.fault("invalid-operand", thread, error.what, rule) from None


def _sparse_family(shape: SparseShape, accumulator: str) -> None:
    """Register mma.sp for one shape and accumulator type."""
    first, choice = shape.types[0], "|".join(shape.types)
    is_integer = element_named(first).is_integer
    types = ".".join(f"{{{which}_type:{choice}}}" if len(shape.types) > 1 else choice for which in "ab")
    names = [_fragment_name(shape, first, operand, accumulator) for operand in "abc"]
    counts = dict(zip("abc", (fragment_named(name).registers for name in names), strict=True))
    held = _REGISTER_TYPES.get(accumulator, "b32")
    written = [f"d:{held}*{counts['c']}", f"a:b32*{counts['a']}", f"b:b32*{counts['b']}", f"c:{held}*{counts['c']}"]
    opcode = f"mma.{{sparse:sp|{_ORDERED}}}.sync.aligned.{shape}.row.col" + ("{.satfinite}" if is_integer else "")
    register = instruction(
        f"{opcode}.{accumulator}.{types}.{accumulator} {', '.join(written)}, metadata:b32, selector:b32",
        rendezvous="warp",
        since=shape.since,
        source=_SPARSE,
        undefined=undefined_sparse.multiplied(names, shape, first),
    )

    def mma_sp(
        lanes: Lanes, *given: Any, sparse: str, a_type: str = first, b_type: str = first, satfinite: bool = False
    ) -> list[Array]:
        """Return D = A B + C, where A holds the stored elements of each row, multiplied by the elements of B at their
        positions. The sum follows the dense instruction of half the K, which is inferred and not measured."""
        kind = mma_kind(a_type, b_type, accumulator, satfinite)
        a, b, c, metadata, selector = given
        return _multiplied(lanes, (a, b, c), kind, shape, (metadata, selector, sparse == _ORDERED))

    register(mma_sp)


for _sparse_shape in SPARSE_SHAPES:
    for _accumulator in _sparse_shape.accumulators:
        _sparse_family(_sparse_shape, _accumulator)


_SCALED = PTX["mma with block scaling"]
_SINCE = "sm_120f"
_NARROW = "|".join(row.name for row in (E4M3, E5M2, E3M2, E2M3, E2M1))
_IN_BYTES: Container = "f8f6f4"
_REGISTERS = {F32.name: ("f32", 4), F16.name: ("b32", 2)}  # PTX type and number of the registers of C and D


def _names(shape: str, type: str, accumulator: str) -> tuple[str, str, str]:
    """Return the names of the fragments of A, B and C."""
    suffix = f".{F16.name}" if accumulator == F16.name else ""
    return f"mma.{shape}.{type}.a", f"mma.{shape}.{type}.b", f"mma.{shape}.{type}.c{suffix}"


def _codes(
    operands: tuple[list[Array], list[Array], list[Array]],
    names: tuple[str, str, str],
    kind: MmaKind,
    warps: int,
    container: Container,
) -> tuple[Array, Array, Array]:
    """Return A (warps, 16, k) and B (warps, 8, k) as codes, one per element, and C."""
    a, b, c = (
        matrices(held, packing_of(name, place == 1), warps)
        for place, (held, name) in enumerate(zip(operands, names, strict=True))
    )
    a, b = (unpack(held, float_named(row), container) for held, row in ((a, kind.a), (b, kind.b)))
    return a, b, c.view(array_type(kind.d))


# ---- kind::f8f6f4
def _mixed_family(accumulator: str) -> None:
    """Register the mma of kind::f8f6f4 for one accumulator type."""
    names = _names("m16n8k32", E4M3.name, accumulator)
    held, count = _REGISTERS[accumulator]
    types = f"{accumulator}.{{a_type:{_NARROW}}}.{{b_type:{_NARROW}}}.{accumulator}"

    @instruction(
        f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.{types} d:{held}*{count}, a:b32*4, b:b32*2, c:{held}*{count}",
        rendezvous="warp",
        since=_SINCE,
        source=PTX["mma, kind::f8f6f4"],
        undefined=undefined.multiplied(names),
        stacks=True,
    )
    def mma_f8f6f4(
        lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, a_type: str, b_type: str
    ) -> list[Array]:
        """Return D = A B + C over codes of 8, 6 and 4 bits, each in its own byte. e2m1 is in the byte's bits 2 to 5."""
        kind = mma_kind(a_type, b_type, accumulator)
        operands = _codes((a, b, c), names, kind, whole_warps(lanes), _IN_BYTES)
        return registers_of(product(lanes, *operands, kind, 32), packing_of(names[2], False), TYPES[held].dtype)


for _accumulator in _REGISTERS:
    _mixed_family(_accumulator)


# ---- kinds with scales
def _selected(lanes: Lanes, ids: list[Array], scaling: Scaling, operand: str) -> str:
    """Return the name of the fragment that byte-id and thread-id choose; a value out of range is a fault."""
    byte, thread = (int(each[0]) for each in ids)
    rule = f"{_SCALED}: byte-id of {scaling} is one of {scaling.byte_ids}, thread-id of its {operand} one of "
    for name, value, legal in (("byte", byte, scaling.byte_ids), ("thread", thread, THREAD_IDS[operand])):
        if value not in legal:
            what = f"{name}-id of the scales of {operand[-1].upper()} is {value}"
            raise lanes.fault("invalid-operand", 0, what, f"{rule}{THREAD_IDS[operand]}")
    return undefined.scale_name(scaling, operand, byte, thread)


def _scales(lanes: Lanes, words: list[Array], ids: list[Array], scaling: Scaling, operand: str) -> Array:
    """Return the scales of A, (warps, 16, blocks), or of B, (warps, 8, blocks)."""
    name = _selected(lanes, ids, scaling, operand)
    found = fields_of(lanes.full(words[0]), name).astype(np.uint8)
    return found if operand == "sfa" else np.ascontiguousarray(found.swapaxes(1, 2))


def _scaled_family(scaling: Scaling, scales: tuple[str, ...]) -> None:
    """Register the mma of a kind with block scales, for the formats of its scales."""
    is_wide = scaling.k == 32
    shape, first = f"m16n8k{scaling.k}", E4M3.name if is_wide else E2M1.name
    names = _names(shape, first, F32.name)
    types = ".".join(f"{{{side}_type:{_NARROW}}}" if is_wide else first for side in "ab")
    vector = f"scale_vec::{scaling.blocks}X"
    written = f".{vector}" if scaling.kind == "mxf4nvf4" else f"{{.{vector}}}"
    stored = f"{{scale_type:{'|'.join(scales)}}}" if len(scales) > 1 else scales[0]

    @instruction(
        f"mma.sync.aligned.{shape}.row.col.kind::{scaling.kind}.block_scale{written}.f32.{types}.f32.{stored} "
        "d:f32*4, a:b32*4, b:b32*2, c:f32*4, sfa:b32*, ids_a:b16*2, sfb:b32*, ids_b:b16*2",
        rendezvous="warp",
        since=_SINCE,
        source=_SCALED,
        ignores=(vector.replace("::", "_").lower(),),
        undefined=undefined.multiplied(names, scaling),
    )
    def mma_block_scale(
        lanes: Lanes, *given: list[Array], a_type: str = first, b_type: str = first, scale_type: str = scales[0]
    ) -> list[Array]:
        """Return D = (A scaled) (B scaled) + C. The ids choose the lanes of each four, and the bytes of their register,
        that hold the scales of A's rows and of B's columns."""
        a, b, c, sfa, ids_a, sfb, ids_b = given
        kind = scaled_kind(scaling.kind, a_type, b_type)
        operands = _codes((a, b, c), names, kind, whole_warps(lanes), _IN_BYTES if is_wide else DENSE)
        held = _scales(lanes, sfa, ids_a, scaling, "sfa"), _scales(lanes, sfb, ids_b, scaling, "sfb")
        result = scaled_product(lanes, *operands, Scales(*held, float_named(scale_type)), kind, scaling.k)
        return registers_of(result, packing_of(names[2], False), TYPES["f32"].dtype)


for _scaling in MMA_SCALINGS:
    _scaled_family(_scaling, ("ue4m3", "ue8m0") if _scaling.blocks == 4 else ("ue8m0",))
