"""PTX types: the width of a value, and the NumPy view of register bits that an instruction implementation works on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.arrays import Array

Bits = NDArray[np.unsignedinteger]
UNSIGNED: dict[int, np.dtype[Any]] = {
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
    128: np.dtype(np.complex128),  # moved as a whole, never computed with: NumPy's only item of 16 bytes
}


@dataclass(frozen=True)
class PtxType:
    """One PTX type: its width in bits, the NumPy dtype of an element, and the number of elements in a register."""

    name: str
    bits: int
    dtype: np.dtype[np.generic]
    lanes: int = 1

    @property
    def is_signed(self) -> bool:
        """Return whether the elements are signed integers."""
        return self.dtype.kind == "i"

    @property
    def bits_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the unsigned integer dtype as wide as the whole value."""
        return UNSIGNED[self.bits]


def _rows() -> dict[str, PtxType]:
    """Return the PTX types by name."""
    rows = {}
    for bits in (8, 16, 32, 64):
        rows[f"b{bits}"] = PtxType(f"b{bits}", bits, UNSIGNED[bits])
        rows[f"u{bits}"] = PtxType(f"u{bits}", bits, UNSIGNED[bits])
        rows[f"s{bits}"] = PtxType(f"s{bits}", bits, np.dtype(f"i{bits // 8}"))
    rows["b128"] = PtxType("b128", 128, UNSIGNED[128])
    rows["f16"] = PtxType("f16", 16, np.dtype(np.float16))
    rows["f32"] = PtxType("f32", 32, np.dtype(np.float32))
    rows["f64"] = PtxType("f64", 64, np.dtype(np.float64))
    # NumPy has no bfloat16: its instructions work on bit patterns. A pair is a second axis, so that (1, 2) broadcasts.
    rows["bf16"] = PtxType("bf16", 16, UNSIGNED[16])
    rows["f16x2"] = PtxType("f16x2", 32, np.dtype(np.float16), lanes=2)
    rows["bf16x2"] = PtxType("bf16x2", 32, UNSIGNED[16], lanes=2)
    rows["f32x2"] = PtxType("f32x2", 64, np.dtype(np.float32), lanes=2)
    rows["u16x2"] = PtxType("u16x2", 32, UNSIGNED[16], lanes=2)
    rows["s16x2"] = PtxType("s16x2", 32, np.dtype(np.int16), lanes=2)
    rows["tf32"] = PtxType("tf32", 32, UNSIGNED[32])
    rows["pred"] = PtxType("pred", 1, np.dtype(np.bool_))
    return rows


TYPES = _rows()
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def is_plain(type: PtxType, register_bits: int) -> bool:
    """Return whether a value of this type is a register's bits unchanged: u32 in a register of 32 bits."""
    return type.lanes == 1 and type.bits == register_bits and (type.name == "pred" or type.dtype == type.bits_dtype)


@cache
def viewer(type: PtxType) -> Callable[[Bits], Array]:
    """Return the function from register bits (n,) to the values of a type: shape (n,), or (n, 2) for a packed pair.

    The function takes the low bits of a register that is wider than the type, and extends a narrower one by zeros. The
    ISA allows both only for some instructions, which the parser's caller checks.
    """
    if type.name == "pred":
        return lambda bits: bits
    dtype, size, bits_dtype, lanes = type.dtype, type.bits // 8, type.bits_dtype, type.lanes

    def values(bits: Bits) -> Array:
        if bits.itemsize != size:
            bits = bits.astype(bits_dtype)
        viewed: Array = bits.view(dtype)
        return viewed if lanes == 1 else viewed.reshape(-1, lanes)

    return values


@cache
def unviewer(type: PtxType, register_bits: int) -> Callable[[Array], Bits]:
    """Return the function from values to the bits of a register: extended by sign for signed types, else by zeros."""
    if type.name == "pred":
        return lambda values: np.asarray(values, dtype=np.bool_)
    dtype, bits_dtype = type.dtype, type.bits_dtype
    if type.is_signed and register_bits > type.bits:
        wide, unsigned = np.dtype(f"i{register_bits // 8}"), UNSIGNED[register_bits]
        return lambda values: np.ascontiguousarray(values, dtype=dtype).astype(wide).view(unsigned)
    if register_bits != type.bits:
        narrow = UNSIGNED[register_bits]
        return lambda values: np.ascontiguousarray(values, dtype=dtype).reshape(-1).view(bits_dtype).astype(narrow)
    if type.lanes > 1:
        return lambda values: np.ascontiguousarray(values, dtype=dtype).reshape(-1).view(bits_dtype)
    return lambda values: np.ascontiguousarray(values, dtype=dtype).view(bits_dtype)


def view(bits: Bits, type: PtxType) -> Array:
    """Return register bits as the values of a type; `viewer` gives the rules."""
    return viewer(type)(bits)


def unview(values: Array, type: PtxType, register_bits: int) -> Bits:
    """Return the bits of a result; `unviewer` gives the rules."""
    return unviewer(type, register_bits)(values)
