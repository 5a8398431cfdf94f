"""cvt: between integers, floats and the 8-, 6- and 4-bit formats; every rounding happens once.

The conversions to and from narrow formats are the rows of `refsim.conversions`: the simulator holds no second copy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import CONVERSIONS, Conversion, convert
from refsim.conversions.rounding import STOCHASTIC
from refsim.numerics import ieee
from refsim.ptx.isa.forms import instruction
from refsim.ptx.types import TYPES
from refsim.sources import PTX

Array = NDArray[Any]

_INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"


def _conversion_row(row: Conversion) -> None:
    """A clause for a row: registers in, register out, the first operand in the upper place."""
    result, operand = f"b{row.result_dtype.itemsize * 8}", f"b{row.operand_dtype.itemsize * 8}"
    if row.rounding == STOCHASTIC and row.elements == 4:
        operands = f"a:{operand}*, random:b32"
    else:
        operands = ", ".join(f"{name}:{operand}" for name in "abef"[: row.operand_count])
        operands += ", random:b32" if row.rounding == STOCHASTIC else ""

    def clause(*registers: Any) -> Array:
        if row.rounding == STOCHASTIC:
            *registers, random = registers
            sources = registers[0] if row.elements == 4 else registers
            return convert(row.name, *sources, random_bits=random)
        return convert(row.name, *registers)

    clause.__doc__ = f"{row.reads} to {row.to}, {row.rounding}."
    instruction(f"{row.name} d:{result}, {operands}", since=row.since, source=row.source)(clause)


for _row in CONVERSIONS.values():
    if not _row.policy:
        _conversion_row(_row)


@instruction(f"cvt{{.sat}}.{{to:{_INTEGERS}}}.{{from_:{_INTEGERS}}} d:to, a:from_", ignores=("from_",), source=PTX["cvt"])
def cvt_integer(a: Array, *, sat: bool, to: str) -> Array:
    """Between integer widths: the low bits, extended by the source's sign; .sat clamps to the result's range."""
    dtype = TYPES[to].dtype
    if sat:
        have, want = np.iinfo(a.dtype), np.iinfo(dtype)
        a = np.clip(a, a.dtype.type(max(have.min, want.min)), a.dtype.type(min(have.max, want.max)))
    return a.astype(dtype)


@instruction(
    f"cvt.{{rounding:rni|rzi|rmi|rpi}}{{.ftz}}{{.sat}}.{{to:{_INTEGERS}}}.{{from_:f16|f32|f64}} d:to, a:from_",
    ignores=("from_", "sat"), source=PTX["cvt"],
)  # fmt: skip
def cvt_to_integer(a: Array, *, rounding: str, ftz: bool, to: str) -> Array:
    """To the nearest integer in the mode's sense; a value out of range is clamped, with .sat or without."""
    return ieee.float_to_integer(a, TYPES[to].dtype, rounding, ftz=ftz)


@instruction(
    f"cvt.{{rounding:rni|rzi|rmi|rpi}}.{{to:{_INTEGERS}}}.{{from_:bf16}} d:to, a:from_", ignores=("from_",),
    since="sm_90", source=PTX["cvt"],
)  # fmt: skip
def cvt_bfloat_to_integer(a: Array, *, rounding: str, to: str) -> Array:
    """As from f32: every bf16 is one."""
    return ieee.float_to_integer(a, TYPES[to].dtype, rounding)


@instruction(
    f"cvt.{{rounding:rn|rz|rm|rp}}{{.sat}}.{{to:f16|f32|f64}}.{{from_:{_INTEGERS}}} d:to, a:from_", ignores=("from_",),
    source=PTX["cvt"],
)  # fmt: skip
def cvt_from_integer(a: Array, *, rounding: str, sat: bool, to: str) -> Array:
    """An integer rounded once; .sat clamps to [0, 1]."""
    return ieee.integer_to_float(a, to, rounding, sat=sat)


@instruction(
    f"cvt.{{rounding:rn|rz|rm|rp}}.{{to:bf16}}.{{from_:{_INTEGERS}}} d:to, a:from_", ignores=("from_",), since="sm_90",
    source=PTX["cvt"],
)  # fmt: skip
def cvt_integer_to_bfloat(a: Array, *, rounding: str, to: str) -> Array:
    """An integer rounded once."""
    return ieee.integer_to_float(a, to, rounding)


@instruction(
    "cvt.{rounding:rni|rzi|rmi|rpi}{.ftz}{.sat}.{to:f16|f32|f64}.{from_:f16|f32|f64} d:to, a:from_", ignores=("from_",),
    source=PTX["cvt"],
)  # fmt: skip
def cvt_integral(a: Array, *, rounding: str, ftz: bool, sat: bool, to: str) -> Array:
    """To an integral value of the same format."""
    return ieee.float_to_float(ieee.round_to_integral(a, rounding, ftz=ftz, sat=sat), to)


@instruction(
    "cvt{.rounding:rn|rz|rm|rp}{.ftz}{.sat}.{to:f16|f32|f64}.{from_:f16|f32|f64} d:to, a:from_", ignores=("from_",),
    source=PTX["cvt"],
)  # fmt: skip
def cvt_real(a: Array, *, rounding: str | None, ftz: bool, sat: bool, to: str) -> Array:
    """Between float widths; narrowing needs a mode, widening is exact."""
    return ieee.float_to_float(a, to, rounding or "rn", ftz=ftz, sat=sat)


@instruction(
    "cvt{.ftz}{.sat}.{to:f32|f64}.{from_:bf16} d:to, a:from_", ignores=("from_",), since="sm_80", source=PTX["cvt"]
)
def cvt_from_bfloat(a: Array, *, ftz: bool, sat: bool, to: str) -> Array:
    """Exact: a bf16 is the upper half of an f32."""
    return ieee.float_to_float(a, to, ftz=ftz, sat=sat)


@instruction("cvt.pack.sat.{to:u16|s16}.s32 d:b32, a:s32, b:s32", since="sm_72", source=PTX["cvt.pack"])
def cvt_pack(a: Array, b: Array, *, to: str) -> Array:
    """Two integers clamped into the halves of a register, a in the upper one."""
    upper, lower = (cvt_integer(value, sat=True, to=to).view(np.uint16).astype(np.uint32) for value in (a, b))
    return (upper << np.uint32(16)) | lower


@instruction("cvt.pack.sat.{to:u8|s8}.s32.b32 d:b32, a:s32, b:s32, c:b32", since="sm_72", source=PTX["cvt.pack"])
def cvt_pack_bytes(a: Array, b: Array, c: Array, *, to: str) -> Array:
    """Two integers clamped into the low bytes, a above b, behind the low half of c."""
    upper, lower = (cvt_integer(value, sat=True, to=to).view(np.uint8).astype(np.uint32) for value in (a, b))
    return (c << np.uint32(16)) | (upper << np.uint32(8)) | lower
