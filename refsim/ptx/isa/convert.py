"""cvt: between integers, floats and the 8-, 6- and 4-bit formats; every conversion rounds once. Conversions to and from
narrow formats are the entries of `refsim.conversions`: the simulator holds no second copy."""

from functools import partial
from typing import Any

import numpy as np

from refsim.conversions import CONVERSIONS, Conversion, convert
from refsim.conversions.rounding import STOCHASTIC
from refsim.numerics import ieee
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import bits
from refsim.ptx.isa.definedness.arithmetic import monotone
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"
_pack = partial(instruction, undefined=bits.packed_below, source=PTX["cvt.pack"])
_from_number = partial(instruction, ignores=("from_",), undefined=monotone, source=PTX["cvt"])
_cvt = partial(instruction, source=PTX["cvt"])
_INTEGRAL = "{rounding:rni|rzi|rmi|rpi}"
_REAL = "{rounding:rn|rz|rm|rp}"


def _conversion_row(row: Conversion) -> None:
    """Register the instruction of a conversion: registers in, register out, the first operand in the upper place."""
    result, operand = f"b{row.result_dtype.itemsize * 8}", f"b{row.operand_dtype.itemsize * 8}"
    if row.rounding == STOCHASTIC and row.elements == 4:
        operands = f"a:{operand}*, random:b32"
    else:
        operands = ", ".join(f"{name}:{operand}" for name in "abef"[: row.operand_count])
        operands += ", random:b32" if row.rounding == STOCHASTIC else ""

    def clause(*registers: Any) -> Array:
        """Convert the registers, with random bits in the last one for stochastic rounding."""
        if row.rounding == STOCHASTIC:
            sources = registers[0] if row.elements == 4 else registers[:-1]
            return convert(row.name, *sources, random_bits=registers[-1])
        return convert(row.name, *registers)

    clause.__doc__ = f"Convert {row.reads} to {row.to} with {row.rounding} rounding."
    rule = bits.packed(row.elements) if row.elements > 1 else "whole"
    instruction(f"{row.name} d:{result}, {operands}", since=row.since, source=row.source, undefined=rule)(clause)


def _real(to: str, from_: str, modifiers: str, since: str = "sm_50", **facts: Any) -> None:
    """Register cvt between float types: narrowing takes a rounding mode, the rest is exact. `facts` as of `instruction`."""

    @_cvt(f"cvt{modifiers}.{to}.{from_} d:{to}, a:{from_}", since=since, **facts)
    def cvt_real(
        a: Array, *, rounding: ieee.ConversionModifier | None = None, ftz: bool = False, sat: bool = False
    ) -> Array:
        """Convert between float types with at most one rounding."""
        return ieee.float_to_float(a, to, rounding or "rn", ftz=ftz, sat=sat)


# Registered before the table of conversions, whose f16 from f32 entries need newer targets.
_real("f16", "f32", f".{_REAL}{{.ftz}}{{.sat}}")

for _row in CONVERSIONS.values():
    if not _row.policy:
        _conversion_row(_row)


def _holds(to: str, from_: str) -> bool:
    """Return whether integer type `to` holds every value of integer type `from_`."""
    have, want = np.iinfo(TYPES[from_].dtype.str), np.iinfo(TYPES[to].dtype.str)
    return bool(want.min <= have.min and have.max <= want.max)


@_cvt(f"cvt.{{to:{_INTEGERS}}}.{{from_:{_INTEGERS}}} d:to, a:from_", ignores=("from_",), undefined=bits.moved("a"))
def cvt_integer(a: Array, *, to: str) -> Array:
    """Convert between integer widths: keep the low bits, or extend by the source's sign."""
    return a.astype(TYPES[to].dtype)


def _clamped(a: Array, to: str) -> Array:
    have, want = np.iinfo(a.dtype), np.iinfo(TYPES[to].dtype.str)
    low, high = a.dtype.type(max(have.min, want.min)), a.dtype.type(min(have.max, want.max))
    clamped: Array = np.clip(a, low, high).astype(want.dtype)
    return clamped


def _saturating(to: str) -> None:
    """Register cvt.sat to a type, from the types whose range is not contained in the type's range."""
    sources = "|".join(name for name in _INTEGERS.split("|") if not _holds(to, name))

    @_from_number(f"cvt.sat.{{to:{to}}}.{{from_:{sources}}} d:to, a:from_")
    def cvt_integer_clamped(a: Array, *, to: str) -> Array:
        """Convert between integer types, clamped to the result's range."""
        return _clamped(a, to)


for _name in _INTEGERS.split("|"):
    _saturating(_name)


@_cvt(f"cvt.{_INTEGRAL}.{{to:{_INTEGERS}}}.bf16 d:to, a:bf16", since="sm_90")
@_cvt(f"cvt.{_INTEGRAL}{{.sat}}.{{to:{_INTEGERS}}}.{{from_:f16|f64}} d:to, a:from_", ignores=("from_", "sat"))
@_cvt(f"cvt.{_INTEGRAL}{{.ftz}}{{.sat}}.{{to:{_INTEGERS}}}.f32 d:to, a:f32", ignores=("sat",))
def cvt_to_integer(a: Array, *, rounding: ieee.IntegralModifier, ftz: bool = False, to: str) -> Array:
    """Round to an integer in the mode's direction; a value out of range is clamped, with or without .sat."""
    return ieee.float_to_integer(a, TYPES[to].dtype, rounding, ftz=ftz)


@_cvt(
    f"cvt.{_REAL}{{.ftz}}{{.sat}}.f32.{{from_:{_INTEGERS}}} d:f32, a:from_",
    ignores=("from_", "ftz"),
    undefined=monotone,
)
def cvt_integer_to_single(a: Array, *, rounding: ieee.RoundingModifier, sat: bool) -> Array:
    """Convert an integer, rounded once; .sat clamps to [0, 1]; no result is subnormal."""
    return ieee.integer_to_float(a, "f32", rounding, sat=sat)


@_from_number(f"cvt.{_REAL}{{.sat}}.{{to:f16|f64}}.{{from_:{_INTEGERS}}} d:to, a:from_")
def cvt_from_integer(a: Array, *, rounding: ieee.RoundingModifier, sat: bool, to: str) -> Array:
    """Convert an integer, rounded once; .sat clamps to [0, 1]."""
    return ieee.integer_to_float(a, to, rounding, sat=sat)


@_from_number(f"cvt.{_REAL}.bf16.{{from_:{_INTEGERS}}} d:bf16, a:from_", since="sm_90")
def cvt_integer_to_bfloat(a: Array, *, rounding: ieee.RoundingModifier) -> Array:
    """Convert an integer, rounded once."""
    return ieee.integer_to_float(a, "bf16", rounding)


def _integral(type: str, modifiers: str, since: str = "sm_50") -> None:
    """Register cvt.rni, rzi, rmi and rpi between equal types, which round to an integral value."""

    @_cvt(f"cvt.{_INTEGRAL}{modifiers}.{type}.{type} d:{type}, a:{type}", since=since)
    def cvt_integral(a: Array, *, rounding: ieee.IntegralModifier, ftz: bool = False, sat: bool = False) -> Array:
        """Round to an integral value in the mode's direction."""
        return ieee.round_to_integral(a, rounding, ftz=ftz, sat=sat)


_integral("f32", "{.ftz}{.sat}")
_integral("f16", "{.sat}")
_integral("f64", "{.sat}")
_integral("bf16", "", since="sm_90")


_real("f32", "f64", f".{_REAL}{{.ftz}}{{.sat}}")
_real("f16", "f64", f".{_REAL}{{.sat}}")
for _to, _from, _modifiers in (
    ("f32", "f16", "{.ftz}{.sat}"),
    ("f64", "f32", "{.ftz}{.sat}"),
    ("f64", "f16", "{.sat}"),
    ("f32", "f32", "{.ftz}{.sat}"),
    ("f64", "f64", "{.sat}"),
    ("f16", "f16", "{.sat}"),
):
    _real(_to, _from, _modifiers)
_real("bf16", "f32", f".{_REAL}{{.ftz}}", since="sm_80")
_real("bf16", "f64", f".{_REAL}", since="sm_90")
# Between f16 and bf16 ptxas takes a missing rounding as rn; to wider types it accepts a rounding without effect.
_MAYBE = "{.rounding:rn|rz|rm|rp}"
_real("bf16", "f16", _MAYBE, since="sm_90")
_real("f16", "bf16", _MAYBE, since="sm_90")
_real("f32", "bf16", f"{_MAYBE}{{.ftz}}", since="sm_80", later={"ftz": "sm_90"})
_real("f64", "bf16", _MAYBE, since="sm_90")
_real("bf16", "bf16", "", since="sm_90")


@_pack("cvt.pack.sat.{to:u16|s16}.s32 d:b32, a:s32, b:s32", since="sm_72")
def cvt_pack(a: Array, b: Array, *, to: str) -> Array:
    """Clamp two integers into the halves of a register, a in the upper half."""
    upper, lower = (_clamped(value, to).view(np.uint16).astype(np.uint32) for value in (a, b))
    return (upper << np.uint32(16)) | lower


@_pack("cvt.pack.sat.{to:u8|s8}.s32.b32 d:b32, a:s32, b:s32, c:b32", since="sm_72")
def cvt_pack_bytes(a: Array, b: Array, c: Array, *, to: str) -> Array:
    """Clamp two integers into the low bytes, a above b, and put the low half of c above them."""
    upper, lower = (_clamped(value, to).view(np.uint8).astype(np.uint32) for value in (a, b))
    packed: Array = (c << np.uint32(16)) | (upper << np.uint32(8)) | lower
    return packed


@_pack("cvt.pack.sat.{to:u4|s4|u2|s2}.s32.b32 d:b32, a:s32, b:s32, c:b32", since="sm_75")
def cvt_pack_small(a: Array, b: Array, c: Array, *, to: str) -> Array:
    """Clamp two integers to 4 or 2 bits in the low places, a above b, and put the low bits of c above them."""
    bits = int(to[1])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    mask = np.uint32((1 << bits) - 1)
    upper, lower = (np.clip(value, np.int32(low), np.int32(high)).view(np.uint32) & mask for value in (a, b))
    packed: Array = (c << np.uint32(2 * bits)) | (upper << np.uint32(bits)) | lower
    return packed
