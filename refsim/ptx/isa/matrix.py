"""Matrices of a warp: ldmatrix, stmatrix and mma.sync, with the fragments of refsim.layouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import INCONCLUSIVE, RefsimError
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.mma import SHAPES, Shape
from refsim.ptx.checks import undefined_warp as undefined
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.findings.faults import place
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.products import INTEGERS, SETTLED, Kind, multiply
from refsim.ptx.isa.types import TYPES
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

Array = NDArray[Any]
WARP = 32
ROW_BYTES = 16
RULE = "PTX ISA, .sync.aligned: all 32 threads of the warp execute the instruction together"


def _whole_warps(lanes: Lanes) -> int:
    """How many warps run, all of them complete; a warp with threads missing is a fault."""
    if lanes.count % WARP or not lanes.in_whole_warps:
        present = np.bincount(lanes.warp)
        lone = int(np.flatnonzero((present > 0) & (present < WARP))[0])
        who = int(np.flatnonzero(lanes.warp == lone)[0])
        raise lanes.fault("divergent-sync", who, f"{int(present[lone])} of the warp's 32 threads are here", RULE)
    return lanes.count // WARP


# ---- registers and matrices
@dataclass(frozen=True)
class _Packing:
    """How the registers of a fragment become a matrix (rows, columns) of elements.

    Items of `item` are moved, the most elements of a register that stay side by side: `gather` lists, item by item of
    the matrix, its place in a warp's registers (register, lane, part); `scatter` is the inverse.
    """

    registers: int
    register: np.dtype[Any]
    element: np.dtype[Any]
    item: np.dtype[Any]
    shape: tuple[int, int]
    gather: Array
    scatter: Array


@cache
def _packing(name: str, transposed: bool) -> _Packing:
    """The tables of a fragment; `transposed` makes B, K x N, a matrix of N rows."""
    fragment = fragment_named(name)
    (rows, cols), shape = fragment.elements, fragment.shape
    if transposed:
        rows, cols, shape = cols, rows, (shape[1], shape[0])
    per, count = fragment.per_register, fragment.registers
    places = (rows * shape[1] + cols).reshape(WARP, count, per).transpose(1, 0, 2)
    together = per if (np.diff(places, axis=-1) == 1).all() and (places[..., 0] % per == 0).all() else 1
    scatter = places[..., ::together].ravel() // together
    bits = fragment.register_bits
    item, element = (np.dtype(f"u{bits // per * width // 8}") for width in (together, 1))
    return _Packing(count, np.dtype(f"u{bits // 8}"), element, item, shape, np.argsort(scatter, kind="stable"), scatter)


def matrices(registers: list[Array], packing: _Packing, warps: int) -> Array:
    """The codes of each warp's matrix, (warps, rows, columns), from one array of lanes per register."""
    held = np.empty((warps, packing.registers, WARP), packing.register)
    for number, register in enumerate(registers):
        bits = register.view(packing.register)
        held[:, number] = bits.reshape(-1, WARP) if len(bits) > 1 else bits
    items = held.view(packing.item).reshape(warps, -1).take(packing.gather, axis=1)
    return items.view(packing.element).reshape(warps, *packing.shape)


def registers_of(matrix: Array, packing: _Packing, dtype: Any) -> list[Array]:
    """The other way: each register's array of lanes, viewed as `dtype`."""
    warps = len(matrix)
    items = np.ascontiguousarray(matrix).view(packing.item).reshape(warps, -1)
    held = items.take(packing.scatter, axis=1).view(dtype).reshape(warps, packing.registers, WARP)
    return [np.ascontiguousarray(held[:, number]).reshape(-1) for number in range(packing.registers)]


# ---- ldmatrix and stmatrix
def _row_lanes(lanes: Lanes, address: Array, rows: int, space: str) -> tuple[Lanes, Array]:
    """The lanes that give the address of a row, the first `rows` of each warp, and their addresses."""
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
    number = _COUNTS[count]
    suffix = f"m8n8.{count}.b16{trans}"

    form = f"sync.aligned.m8n8.{count}{trans}{_STATE}.b16"

    @instruction(f"ldmatrix.{form} d:b32*{number}, [a]", rendezvous="warp", since="sm_75", source=PTX["ldmatrix"],
                 undefined=undefined.matrix_loaded(f"ldmatrix.{suffix}", number))  # fmt: skip
    def ldmatrix(lanes: Lanes, address: Array, *, space: str | None) -> list[Array]:
        """Rows of 16 bytes from shared memory to the fragments of 8x8 matrices; lane i gives the address of row i."""
        warps = _whole_warps(lanes)
        giving, at = _row_lanes(lanes, address, 8 * number, space_of(space))
        rows = giving.load(space_of(space), at, ROW_BYTES)
        packing = _packing(f"ldmatrix.{suffix}", False)
        return registers_of(rows.view(packing.element).reshape(warps, -1), packing, np.uint32)

    @instruction(f"stmatrix.{form} [a], b:b32*{number}", rendezvous="warp", since="sm_90", source=PTX["stmatrix"],
                 undefined=undefined.matrix_stored(f"stmatrix.{suffix}", number))  # fmt: skip
    def stmatrix(lanes: Lanes, address: Array, b: list[Array], *, space: str | None) -> None:
        """Fragments of 8x8 matrices to rows of 16 bytes in shared memory; lane i gives the address of row i."""
        warps = _whole_warps(lanes)
        giving, at = _row_lanes(lanes, address, 8 * number, space_of(space))
        rows = matrices(b, _packing(f"stmatrix.{suffix}", False), warps)
        giving.store(space_of(space), at, rows.reshape(-1).view(np.complex128), ROW_BYTES)


for _count in _COUNTS:
    for _trans in ("", ".trans"):
        _matrix_moves(_count, _trans)


_EIGHT_BY_EIGHT = "ldmatrix.m8n8.x1.b16"


@instruction("movmatrix.sync.aligned.m8n8.trans.b16 d:b32, a:b32", rendezvous="warp", since="sm_75",
             undefined=undefined.transposed(_EIGHT_BY_EIGHT), source=PTX["movmatrix"])  # fmt: skip
def movmatrix(lanes: Lanes, a: Array) -> Array:
    """The 8x8 matrix of a warp's registers, transposed: what lane 0 held of row 0, column 1, lane 4 holds below."""
    packing = _packing(_EIGHT_BY_EIGHT, False)
    matrix = matrices([lanes.full(a)], packing, _whole_warps(lanes))
    return registers_of(matrix.swapaxes(1, 2), packing, np.uint32)[0]


# ---- mma.sync
_CONTAINERS = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "s32": np.int32}
# The registers that a fragment's elements travel in: f16 and everything smaller is packed into 32 bits.
_REGISTER_TYPES = {"f32": "f32", "f64": "f64", "s32": "s32"}
_OPERANDS = frozenset({"f16", "bf16", "tf32", "f64", "s8", "u8", "e4m3", "e5m2"})
_MIXED = (("e4m3", "e5m2"), INTEGERS)


def _families() -> Iterator[tuple[Shape, tuple[str, ...], str]]:
    """Shape, operand types that may be mixed, and the type of C and D."""
    for shape in SHAPES:
        if shape.is_volta:
            continue
        types = tuple(type for type in shape.types if type in _OPERANDS)
        groups: list[tuple[str, ...]] = [group for group in _MIXED if set(group) <= set(types)]
        groups += [(type,) for type in types if not any(type in group for group in groups)]
        for group in groups:
            for accumulator in shape.accumulators:
                yield shape, group, accumulator


def _vector(shape: Shape, type: str, operand: str, accumulator: str) -> tuple[str, int]:
    """PTX type and number of the registers of one operand."""
    fragment = fragment_named(_fragment_name(shape, type, operand, accumulator))
    held = accumulator if operand in "cd" else type
    return _REGISTER_TYPES.get(held, "b32"), fragment.registers


def _fragment_name(shape: Shape, type: str, operand: str, accumulator: str) -> str:
    refined = operand in "cd" and accumulator != shape.accumulators[0]
    return f"mma.{shape}.{type}.{operand}" + (f".{accumulator}" if refined else "")


def _multiplied(
    lanes: Lanes, operands: tuple[list[Array], list[Array], list[Array]], kind: Kind, shape: Shape
) -> list[Array]:
    """The registers of D for the matrices that the registers of A, B and C hold, of all warps at once."""
    warps = _whole_warps(lanes)
    types = (kind.a, kind.b, kind.a)
    packings = [
        _packing(_fragment_name(shape, type, operand, kind.d), operand == "b")
        for type, operand in zip(types, "abc", strict=True)
    ]
    a, b, c = (matrices(held, packing, warps) for held, packing in zip(operands, packings, strict=True))
    arithmetic = lanes.arithmetic(is_settled=kind.d in SETTLED)
    try:
        result = multiply(a, b, c.view(_CONTAINERS[kind.d]), kind, shape.k, lanes.machine.target, arithmetic)
    except RefsimError as error:
        if error.code not in ("unknown-target", "unknown-arithmetic"):
            raise
        assert lanes.statement is not None
        raise RefsimError(
            "unknown-arithmetic", f"how {lanes.machine.target} sums this product is not known", place(lanes.statement),
            help="arithmetic 'exact' sums exactly and rounds once; or load the program for a target that is known",
            exit_code=INCONCLUSIVE,
        ) from error  # fmt: skip
    return registers_of(result, packings[2], TYPES[_REGISTER_TYPES.get(kind.d, "b32")].dtype)


def _mma_family(shape: Shape, group: tuple[str, ...], accumulator: str) -> None:
    choice = "|".join(group)
    saturates = "{.satfinite}" if group == INTEGERS else ""
    types = ".".join(f"{{{which}_type:{choice}}}" if len(group) > 1 else choice for which in "ab")
    vectors = (_vector(shape, group[0], operand, accumulator) for operand in "dabc")
    operands = ", ".join(f"{name}:{type}*{count}" for name, (type, count) in zip("dabc", vectors, strict=True))
    opcode = f"mma.sync.aligned.{shape}.row.col{saturates}.{accumulator}.{types}.{accumulator}"
    a_name, b_name, c_name = (_fragment_name(shape, group[0], operand, accumulator) for operand in "abc")
    register = instruction(f"{opcode} {operands}", rendezvous="warp", since=shape.since, source=PTX["mma"],
                           undefined=undefined.multiplied((a_name, b_name, c_name)))  # fmt: skip

    def mma(lanes: Lanes, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
        """D = A B + C for the matrices of each warp: A row by row, B column by column."""
        return _multiplied(lanes, (a, b, c), Kind(choice, choice, accumulator), shape)

    def mma_integer(
        lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, a_type: str, b_type: str, satfinite: bool
    ) -> list[Array]:
        """D = A B + C over 8-bit integers; the sum wraps to 32 bits, or is clamped with .satfinite."""
        return _multiplied(lanes, (a, b, c), Kind(a_type, b_type, accumulator, satfinite), shape)

    def mma_mixed(
        lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, a_type: str, b_type: str
    ) -> list[Array]:
        """D = A B + C over FP8 codes, the two formats chosen freely: A row by row, B column by column."""
        return _multiplied(lanes, (a, b, c), Kind(a_type, b_type, accumulator), shape)

    register(mma_integer if saturates else mma_mixed if len(group) > 1 else mma)


for _shape, _group, _accumulator in _families():
    _mma_family(_shape, _group, _accumulator)
