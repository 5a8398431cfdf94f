"""mma.sync of sm_120: operands of 4, 6 and 8 bits in any combination, and kinds whose operands have block scales."""

import numpy as np

from refsim.conversions import unpack
from refsim.conversions.packing import DENSE, Container
from refsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, float_named
from refsim.layouts.families.mma import MMA_SCALINGS, THREAD_IDS, Scaling
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import fields_of
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import warp as undefined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import matrices, packing_of, product, registers_of, scaled_product, whole_warps
from refsim.ptx.isa.products import MmaKind, Scales, array_type, mma_kind, scaled_kind
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_SECTION = PTX["mma with block scaling"]
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
    rule = f"{_SECTION}: byte-id of {scaling} is one of {scaling.byte_ids}, thread-id of its {operand} one of "
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
        source=_SECTION,
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
