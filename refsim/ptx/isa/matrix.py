"""Matrices of a warp: ldmatrix, stmatrix and mma.sync, with the fragments of refsim.layouts."""

from collections.abc import Iterator

import numpy as np

from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.mma import MMA_SHAPES, MmaShape
from refsim.layouts.families.sparse import SparseShape
from refsim.layouts.holders import WARP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import warp as undefined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import matrices, packing_of, product, registers_of, sparse_product, whole_warps
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.products import INTEGERS, MmaKind, array_type, mma_kind
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

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
)
def movmatrix(lanes: Lanes, a: Array) -> Array:
    """Transpose the 8x8 matrix in a warp's registers: lane 4 receives the element that lane 0 held at row 0, column
    1."""
    packing = packing_of(_EIGHT_BY_EIGHT, False)
    matrix = matrices([lanes.full(a)], packing, whole_warps(lanes))
    return registers_of(matrix.swapaxes(1, 2), packing, np.uint32)[0]


# ---- mma.sync
# The PTX types of a fragment's registers: f16 and smaller elements are packed into 32 bits.
REGISTER_TYPES = {"f32": "f32", "f64": "f64", "s32": "s32"}
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
    fragment = fragment_named(fragment_name(shape, type, operand, accumulator))
    held = accumulator if operand in "cd" else type
    return REGISTER_TYPES.get(held, "b32"), fragment.registers


def fragment_name(shape: MmaShape | SparseShape, type: str, operand: str, accumulator: str) -> str:
    """Return the name of an operand's fragment; C and D of another type than the shape's first carry their own."""
    stem = shape.stem if isinstance(shape, SparseShape) else f"mma.{shape}"
    refined = operand in "cd" and accumulator != shape.accumulators[0]
    return f"{stem}.{type}.{operand}" + (f".{accumulator}" if refined else "")


def multiplied(
    lanes: Lanes,
    operands: tuple[list[Array], list[Array], list[Array]],
    kind: MmaKind,
    shape: MmaShape | SparseShape,
    positions: Array | None = None,
) -> list[Array]:
    """Return the registers of D for the matrices in the registers of A, B and C, for all warps at once; `positions`
    are those of the elements of a sparse A."""
    warps, types = whole_warps(lanes), (kind.a.name, kind.b.name, kind.a.name)
    packings = [
        packing_of(fragment_name(shape, type, operand, kind.d.name), operand == "b")
        for type, operand in zip(types, "abc", strict=True)
    ]
    a, b, c = (matrices(held, packing, warps) for held, packing in zip(operands, packings, strict=True))
    c = c.view(array_type(kind.d))
    if positions is None:
        result = product(lanes, a, b, c, kind, shape.k)
    else:
        result = sparse_product(lanes, a, b, c, positions, kind, shape.k)
    return registers_of(result, packings[2], TYPES[REGISTER_TYPES.get(kind.d.name, "b32")].dtype)


def _mma_family(shape: MmaShape, group: tuple[str, ...], accumulator: str) -> None:
    """Register mma.sync for a shape, a group of operand types and an accumulator type."""
    choice = "|".join(group)
    saturates = "{.satfinite}" if group == INTEGERS else ""
    types = ".".join(f"{{{which}_type:{choice}}}" if len(group) > 1 else choice for which in "ab")
    vectors = (_vector(shape, group[0], operand, accumulator) for operand in "dabc")
    operands = ", ".join(f"{name}:{type}*{count}" for name, (type, count) in zip("dabc", vectors, strict=True))
    opcode = f"mma.sync.aligned.{shape}.row.col{saturates}.{accumulator}.{types}.{accumulator}"
    a_name, b_name, c_name = (fragment_name(shape, group[0], operand, accumulator) for operand in "abc")
    register = instruction(
        f"{opcode} {operands}",
        rendezvous="warp",
        since=shape.since,
        source=PTX["mma"],
        undefined=undefined.multiplied((a_name, b_name, c_name)),
        stacks=True,
    )

    def mma(
        lanes: Lanes,
        a: list[Array],
        b: list[Array],
        c: list[Array],
        *,
        a_type: str = choice,
        b_type: str = choice,
        satfinite: bool = False,
    ) -> list[Array]:
        """Return D = A B + C for the matrices of each warp: A row by row, B column by column. Two formats of 8 bits may be
        mixed. A sum of integers wraps to 32 bits, or is clamped with .satfinite."""
        return multiplied(lanes, (a, b, c), mma_kind(a_type, b_type, accumulator, satfinite), shape)

    register(mma)


for _shape, _group, _accumulator in _families():
    _mma_family(_shape, _group, _accumulator)
