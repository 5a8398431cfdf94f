"""PTX types: how wide a value is, and which NumPy view of a register's bits a clause works on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger]
UNSIGNED: dict[int, np.dtype[Any]] = {
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}


@dataclass(frozen=True)
class PtxType:
    """One PTX type: its width in bits, the NumPy dtype of an element, and how many elements share a register."""

    name: str
    bits: int
    dtype: np.dtype[np.generic]
    lanes: int = 1

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"

    @property
    def bits_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The unsigned integer as wide as the whole value."""
        return UNSIGNED[self.bits]


def _rows() -> dict[str, PtxType]:
    rows = {}
    for bits in (8, 16, 32, 64):
        rows[f"b{bits}"] = PtxType(f"b{bits}", bits, UNSIGNED[bits])
        rows[f"u{bits}"] = PtxType(f"u{bits}", bits, UNSIGNED[bits])
        rows[f"s{bits}"] = PtxType(f"s{bits}", bits, np.dtype(f"i{bits // 8}"))
    rows["f16"] = PtxType("f16", 16, np.dtype(np.float16))
    rows["f32"] = PtxType("f32", 32, np.dtype(np.float32))
    rows["f64"] = PtxType("f64", 64, np.dtype(np.float64))
    # NumPy has no bfloat16: its clauses work on the bit patterns. A pair is a second axis, so that (1, 2) broadcasts.
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


def view(bits: Bits, type: PtxType) -> NDArray[np.generic]:
    """Register bits (n,) as the values of a type: shape (n,), or (n, 2) for a packed pair.

    A register wider than the type gives its low bits; a narrower one is zero-extended (the ISA allows both only where
    the instruction says so; the parser's caller checks).
    """
    if type.name == "pred":
        return bits
    if bits.dtype.itemsize * 8 != type.bits:
        bits = bits.astype(type.bits_dtype)
    values = bits.view(type.dtype)
    return values.reshape(-1, type.lanes) if type.lanes > 1 else values


def unview(values: NDArray[np.generic], type: PtxType, register_bits: int) -> Bits:
    """The bits of a result, extended to the register's width: by sign for signed types, else by zeros."""
    if type.name == "pred":
        return np.asarray(values, dtype=np.bool_)
    values = np.ascontiguousarray(values, dtype=type.dtype)
    if type.is_signed and register_bits > type.bits:
        return values.astype(f"i{register_bits // 8}").view(UNSIGNED[register_bits])
    bits: Bits = values.reshape(-1).view(type.bits_dtype)
    return bits if register_bits == type.bits else bits.astype(UNSIGNED[register_bits])
