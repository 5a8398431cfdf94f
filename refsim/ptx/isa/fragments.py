"""Fragments in registers: the matrix that the lanes of a warp hold together, and products of such matrices."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from refsim.errors import Kind as ErrorKind
from refsim.errors import RefsimError
from refsim.evidence import Evidence, Level
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.holders import WARP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.findings.record import open_bits
from refsim.ptx.isa.products import (
    KNOWN,
    SETTLED,
    MmaKind,
    Scales,
    multiply_in_turn,
    multiply_scaled,
    multiply_sparse,
    unrecorded,
)
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.syntax import place

RULE = "PTX ISA, .sync.aligned: all 32 threads of the warp execute the instruction together"


def whole_warps(lanes: Lanes) -> int:
    """Return how many warps run; a warp with missing threads is a fault."""
    if lanes.count % WARP or not lanes.in_whole_warps:
        present = np.bincount(lanes.warp)
        lone = int(np.flatnonzero((present > 0) & (present < WARP))[0])
        who = int(np.flatnonzero(lanes.warp == lone)[0])
        raise lanes.fault("divergent-sync", who, f"{int(present[lone])} of the warp's 32 threads are here", RULE)
    return lanes.count // WARP


@dataclass(frozen=True)
class Packing:
    """The conversion of a fragment's registers, of `threads` lanes each, to a matrix (rows, columns) of elements.

    The unit of movement is `item`: the most elements of a register that are adjacent in the matrix. `gather` lists for
    each item of the matrix its place in a warp's registers (register, lane, part); `scatter` is the inverse.
    """

    registers: int
    register: np.dtype[Any]
    element: np.dtype[Any]
    item: np.dtype[Any]
    shape: tuple[int, int]
    gather: Array
    scatter: Array
    threads: int = WARP


@cache
def packing_of(name: str, transposed: bool) -> Packing:
    """Return the tables of a fragment, without registers that repeat others. `transposed` makes B, K x N, a matrix of N
    rows. Elements of less than a byte are grouped into bytes."""
    fragment = fragment_named(name)
    own = fragment.values // fragment.copies
    rows, cols = (held[:, :own] for held in fragment.elements)
    shape = fragment.shape
    if transposed:
        rows, cols, shape = cols, rows, (shape[1], shape[0])
    per, count = fragment.per_register, fragment.registers // fragment.copies
    if (bits := fragment.element_bits) < 8:
        inside = 8 // bits
        rows, cols, shape, per = (
            rows[:, ::inside],
            cols[:, ::inside] // inside,
            (shape[0], shape[1] // inside),
            per // inside,
        )
    places = (rows * shape[1] + cols).reshape(fragment.threads, count, per).transpose(1, 0, 2)
    together = per if (np.diff(places, axis=-1) == 1).all() and (places[..., 0] % per == 0).all() else 1
    scatter = places[..., ::together].ravel() // together
    bits = fragment.register_bits
    item, element = (np.dtype(f"u{bits // per * width // 8}") for width in (together, 1))
    gather = np.argsort(scatter, kind="stable")
    return Packing(count, np.dtype(f"u{bits // 8}"), element, item, shape, gather, scatter, fragment.threads)


def matrices(registers: list[Array], packing: Packing, warps: int) -> Array:
    """Return the codes of each warp's matrix, (warps, rows, columns), from one array of lanes per register. For a
    fragment of a warpgroup, the first axis counts warpgroups."""
    held = np.empty((warps, packing.registers, packing.threads), packing.register)
    for number, register in enumerate(registers[: packing.registers]):
        bits = register.view(packing.register)
        held[:, number] = bits.reshape(-1, packing.threads) if len(bits) > 1 else bits
    items = held.view(packing.item).reshape(warps, -1).take(packing.gather, axis=1)
    return items.view(packing.element).reshape(warps, *packing.shape)


def registers_of(matrix: Array, packing: Packing, dtype: Any) -> list[Array]:
    """Return the registers of matrices (warps, rows, columns): one array of lanes per register, viewed as `dtype`."""
    warps = len(matrix)
    items = np.ascontiguousarray(matrix).view(packing.item).reshape(warps, -1)
    held = items.take(packing.scatter, axis=1).view(dtype).reshape(warps, packing.registers, packing.threads)
    return [np.ascontiguousarray(held[:, number]).reshape(-1) for number in range(packing.registers)]


def product(lanes: Lanes, a: Array, b: Array, c: Array, kind: MmaKind, k: int) -> Array:
    """Return A B + C for the matrices of each warp, by products of depth `k`, in the launch's arithmetic."""
    return chained_product(lanes, a, b, c, kind, a.shape[-1], k)


def chained_product(lanes: Lanes, a: Array, b: Array, c: Array, kind: MmaKind, columns: int, k: int) -> Array:
    """Return A B + C by a chain of instructions of `columns` columns each, in order, each adding to the last."""
    return _known(
        lanes, kind, k, lambda arithmetic: multiply_in_turn(a, b, c, kind, columns, k, lanes.machine.target, arithmetic)
    )


def sparse_product(
    lanes: Lanes, a: Array, b: Array, c: Array, positions: Array, kind: MmaKind, k: int, scales: Scales | None = None
) -> Array:
    """Return A B + C for a sparse A: `a` stored elements, `positions` their places in groups, `k` for whole rows."""

    def compute(arithmetic: str) -> Array:
        """Multiply in one arithmetic."""
        return multiply_sparse(a, b, c, positions, kind, k, lanes.machine.target, arithmetic, scales)

    return _known(lanes, kind, k, compute, is_sparse=True)


def scaled_product(lanes: Lanes, a: Array, b: Array, c: Array, scales: Scales, kind: MmaKind, k: int) -> Array:
    """Return A B + C where blocks of A and B have scales."""
    return _known(
        lanes, kind, k, lambda arithmetic: multiply_scaled(a, b, c, scales, kind, k, lanes.machine.target, arithmetic)
    )


def _known(lanes: Lanes, kind: MmaKind, k: int, compute: Callable[[str], Array], *, is_sparse: bool = False) -> Array:
    """Return a product in the launch's arithmetic; raise `unknown-arithmetic` for a target whose sums are unknown."""
    try:
        if lanes.machine.arithmetic == "silicon" and (rests_on := unrecorded(kind, k, lanes.machine.target, is_sparse)):
            _by_a_model(lanes, rests_on)
        return compute(lanes.arithmetic(is_settled=kind.d in SETTLED))
    except RefsimError as error:
        if error.code not in ("unknown-target", "unknown-arithmetic"):
            raise
        raise RefsimError(
            "unknown-arithmetic",
            f"how {lanes.machine.target} sums this product is not known",
            place(lanes.statement),
            help="arithmetic 'exact' sums exactly and rounds once; or load the program for a target that is known",
            kind=ErrorKind.INCONCLUSIVE,
        ) from error


def _by_a_model(lanes: Lanes, rests_on: Evidence) -> None:
    """Note a product that no chip was recorded to sum this way; `known` refuses it.

    The product is assumed if its entry rests on an assumption only. A published model that agrees is reported only by
    the verdict's independent check against recordings.
    """
    if lanes.machine.asked == KNOWN:
        raise open_bits(place(lanes.statement), lanes.machine.target, model=rests_on.what)
    if rests_on.level is Level.UNVERIFIED:
        lanes.machine.findings.assumed.setdefault(lanes.statement.line, (lanes.statement, rests_on.what))
