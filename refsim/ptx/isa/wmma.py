"""wmma: matrices of a warp in opaque fragments, loaded from memory, multiplied and stored.

The fragments have the layout that ptxas uses from sm_80 on, see `refsim.layouts.families.wmma`. The arithmetic is that
of the HMMA, IMMA and DMMA instructions that ptxas emits: chains of m16n8k16, for tf32 of m16n8k4, for f64 of m8n8k4.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from refsim.layouts.families import Fragment
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.core import Shape
from refsim.layouts.families.wmma import WMMA_SHAPES, positions
from refsim.numerics import ieee
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import warp as undefined
from refsim.ptx.isa.forms import Clause, instruction
from refsim.ptx.isa.fragments import matrices, packing_of, product, registers_of, whole_warps
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.products import INTEGERS, MmaKind, mma_kind
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_SECTIONS = {"load": PTX["wmma.load"], "mma": PTX["wmma.mma"], "store": PTX["wmma.store"]}
_SPACE = "{.space:global|shared::cta|shared}"
_REGISTERS = {"f32": "f32", "f64": "f64", "s32": "s32"}
_CONTAINERS = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "s32": np.int32}
# Depth of one product in the chain of a wmma.mma.
_DEPTH = {"tf32": 4}


def _register_type(type: str) -> str:
    return _REGISTERS.get(type, "b32")


def _leading(fragment: Fragment, layout: str, stride: Array | None, lanes: Lanes) -> Array:
    """Return the number of elements from row to row (column to column): the stride, or by default the matrix's
    extent."""
    if stride is None:
        return np.full(lanes.count, fragment.shape[1 if layout == "row" else 0], np.int64)
    return lanes.full(stride).astype(np.int64)


def addresses(lanes: Lanes, name: str, address: Array, stride: Array | None, layout: str) -> Array:
    """Return the address of each value of each lane, (lanes, values)."""
    fragment = fragment_named(name)
    at = positions(fragment, layout, _leading(fragment, layout, stride, lanes), lanes.laneid)
    return lanes.full(address)[:, None] + (at * (fragment.element_bits // 8)).astype(np.uint64)


@cache
def _is_paired(name: str, layout: str) -> bool:
    """Return whether the elements of one register are adjacent in memory."""
    fragment = fragment_named(name)
    lane = np.arange(32)
    at = positions(fragment, layout, np.full(32, 1 << 20), lane).reshape(32, -1, fragment.per_register)
    return bool((np.diff(at, axis=-1) == 1).all())


def _by_warp(form: str, shape: Shape, section: str, **how: Any) -> Callable[[Clause], Clause]:
    """Return a decorator that registers a form which the lanes of a warp execute together."""
    return instruction(form, rendezvous="warp", since=shape.since, source=_SECTIONS[section], **how)


def _load(shape: Shape, type: str, operand: str) -> None:
    """Register wmma.load of one operand."""
    name = f"wmma.{shape}.{type}.{operand}"
    fragment, register = fragment_named(name), TYPES[_register_type(type)]
    form = f"wmma.load.{operand}.sync.aligned.{{layout:row|col}}.{shape}{_SPACE}.{type}"

    rule = undefined.fragment_loaded(name, addresses)

    @_by_warp(f"{form} d:{register.name}*{fragment.registers}, [a], stride:b32?", shape, "load", undefined=rule)
    def load(
        lanes: Lanes, address: Array, stride: Array | None, *, layout: str, space: str | None = None
    ) -> list[Array]:
        """Load the elements of each lane's registers; registers that repeat others get copies."""
        whole_warps(lanes)
        at, per = addresses(lanes, name, address, stride, layout), fragment.per_register
        if _is_paired(name, layout):
            size = register.bits // 8
            found = [lanes.load(space_of(space), column, size) for column in at[:, ::per].T]
        else:
            size, element = fragment.element_bits // 8, np.dtype(f"u{fragment.element_bits // 8}")
            parts = [lanes.load(space_of(space), column, size).view(element) for column in at.T]
            joined = np.stack(parts, axis=1).reshape(lanes.count, -1, per).view(register.bits_dtype)
            found = list(np.ascontiguousarray(joined[..., 0].T))
        return [held.view(register.dtype) for held in found] * fragment.copies


def _store(shape: Shape, type: str) -> None:
    """Register wmma.store."""
    name = f"wmma.{shape}.{type}.d"
    fragment, register = fragment_named(name), TYPES[_register_type(type)]
    form = f"wmma.store.d.sync.aligned.{{layout:row|col}}.{shape}{_SPACE}.{type}"

    rule = undefined.fragment_stored(name, addresses)

    @_by_warp(f"{form} [a], b:{register.name}*{fragment.registers}, stride:b32?", shape, "store", undefined=rule)
    def store(
        lanes: Lanes, address: Array, b: list[Array], stride: Array | None, *, layout: str, space: str | None = None
    ) -> None:
        """Store the elements of each lane's registers."""
        whole_warps(lanes)
        at, per = addresses(lanes, name, address, stride, layout), fragment.per_register
        held = [lanes.full(column).view(register.bits_dtype) for column in b]
        if per == 1 or _is_paired(name, layout):
            for place, column in enumerate(held):
                lanes.store(space_of(space), at[:, place * per], column, register.bits // 8)
            return
        element = np.dtype(f"u{fragment.element_bits // 8}")
        parts = np.stack(held, axis=1).view(element)
        for place in range(parts.shape[1]):
            column = np.ascontiguousarray(parts[:, place])
            lanes.store(space_of(space), at[:, place], column, element.itemsize)


def _multiplied(
    lanes: Lanes,
    operands: tuple[list[Array], list[Array], list[Array]],
    names: tuple[str, ...],
    kind: MmaKind,
    shape: Shape,
) -> list[Array]:
    """Return the registers of D: C is widened or D narrowed where their types differ; the product uses the wider
    type."""
    warps = whole_warps(lanes)
    packings = [packing_of(name, place == 1) for place, name in enumerate(names)]
    a, b, c = (matrices(held, packing, warps) for held, packing in zip(operands, packings[:3], strict=True))
    c_type, d_type = (name.split(".")[2] for name in names[2:])
    term = c.view(_CONTAINERS[c_type])
    if c_type != kind.d.name:
        term = term.astype(_CONTAINERS[kind.d.name])
    result = product(lanes, a, b, term, kind, _DEPTH.get(kind.a.name, shape.k))
    if d_type != kind.d.name:
        result = ieee.float_to_float(result, d_type)
    return registers_of(result, packings[3], TYPES[_register_type(d_type)].dtype)


def _mma(shape: Shape, type: str, c_type: str, d_type: str) -> None:
    """Register wmma.mma for a shape and the types of A, C and D."""
    names = tuple(
        f"wmma.{shape}.{held}.{operand}" for held, operand in ((type, "a"), (type, "b"), (c_type, "c"), (d_type, "d"))
    )
    fragments = [fragment_named(name) for name in names]
    vectors = [
        f"{operand}:{_register_type(held)}*{fragment.registers}"
        for operand, held, fragment in zip("abcd", (type, type, c_type, d_type), fragments, strict=True)
    ]
    types = f"{d_type}.{c_type}" if type == "f16" else f"{d_type}.{type}.{type}.{c_type}"
    extra = "{.satfinite}" if type in INTEGERS else "{.rn}" if type == "f64" else ""
    opcode = f"wmma.mma.sync.aligned.{{alayout:row|col}}.{{blayout:row|col}}.{shape}{extra}.{types}"
    wide = "f32" if "f32" in (c_type, d_type) else d_type
    layouts = ("alayout", "blayout")
    register = _by_warp(
        f"{opcode} {vectors[3]}, {', '.join(vectors[:3])}",
        shape,
        "mma",
        ignores=(*layouts, "rn") if type == "f64" else layouts,
        undefined=undefined.multiplied(names),
        stacks=True,
    )

    def mma(lanes: Lanes, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
        """Return D = A B + C for the matrices of each warp; their order in memory does not matter here."""
        return _multiplied(lanes, (a, b, c), names, mma_kind(type, type, wide), shape)

    def mma_integer(lanes: Lanes, a: list[Array], b: list[Array], c: list[Array], *, satfinite: bool) -> list[Array]:
        """Return D = A B + C over 8-bit integers; the sum wraps to 32 bits, or is clamped with .satfinite."""
        return _multiplied(lanes, (a, b, c), names, mma_kind(type, type, wide, satfinite), shape)

    register(mma_integer if type in INTEGERS else mma)


def _families() -> None:
    for shape in WMMA_SHAPES:
        for type in shape.types:
            _load(shape, type, "a")
            _load(shape, type, "b")
            for c_type in shape.accumulators:
                for d_type in shape.accumulators:
                    _mma(shape, type, c_type, d_type)
    done = set()
    for shape in WMMA_SHAPES:
        for type in shape.accumulators:
            if (str(shape), type) not in done:
                done.add((str(shape), type))
                _load(shape, type, "c")
                _store(shape, type)


_families()
