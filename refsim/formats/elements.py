"""Element types: the floating-point formats and integers that a matrix of a kernel may hold, one entry each.

Every entry gives the width of a code, the unsigned integer that holds it, the NumPy and ml_dtypes types of equal bits,
and the value of a code. No other module compares a type with a name.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.formats.rows import F64, FORMATS, Format, container_of, format_named, ml_dtype_of
from refsim.sources import PTX, Source


@dataclass(frozen=True)
class Integer:
    """Describe an integer of `bits` bits, two's complement where it is signed: the code 0xff is -1 in s8, 255 in u8."""

    name: str
    bits: int
    signed: bool
    source: Source
    aliases: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_integer(self) -> bool:
        """Return True: an element type is an `Integer` or a `Format`."""
        return True

    @property
    def code_bits(self) -> int:
        """Return the width of a code in bits: integers have no padding."""
        return self.bits

    @cached_property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the unsigned integer type that holds one code in an array: uint8 for s4."""
        return container_of(self.bits)

    @cached_property
    def array_dtype(self) -> np.dtype[Any] | None:
        """Return NumPy's own type of equal bits: int8 for s8; None for s4, u4 and b1."""
        whole = self.code_dtype
        if 8 * whole.itemsize != self.bits:
            return None
        return np.dtype(f"i{whole.itemsize}") if self.signed else whole

    @cached_property
    def ml_dtype(self) -> np.dtype[Any] | None:
        """Return the type of ml_dtypes with equal values: int4 for s4, None where there is none."""
        return ml_dtype_of(self.aliases)

    @property
    def code_limit(self) -> int:
        """Return one more than the largest code: 0x10 for s4."""
        return 1 << self.bits

    @property
    def sign_mask(self) -> int:
        """Return the bit of a code that makes it negative; 0 for unsigned integers."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and the largest value: (-128, 127) for s8."""
        lowest = -self.sign_mask
        return lowest, lowest + self.code_limit - 1

    def value(self, code: int) -> int:
        """Return the value of a code; bits above the width are ignored: value(0xff) of s8 is -1."""
        code %= self.code_limit
        return code - self.code_limit if code & self.sign_mask else code

    def __str__(self) -> str:
        return self.name


ElementType = Format | Integer

_TYPES = PTX["fundamental types and matrix element types"]
S32, S8, U8 = Integer("s32", 32, True, _TYPES), Integer("s8", 8, True, _TYPES), Integer("u8", 8, False, _TYPES)
S4, U4 = Integer("s4", 4, True, _TYPES, ("int4",)), Integer("u4", 4, False, _TYPES, ("uint4",))
B1 = Integer("b1", 1, False, _TYPES)

ELEMENTS: tuple[ElementType, ...] = (F64, *FORMATS, S32, S8, U8, S4, U4, B1)
_BY_NAME = {row.name: row for row in ELEMENTS}


S16, U16 = Integer("s16", 16, True, _TYPES), Integer("u16", 16, False, _TYPES)
U32, S64, U64 = Integer("u32", 32, False, _TYPES), Integer("s64", 64, True, _TYPES), Integer("u64", 64, False, _TYPES)
ARRAY_TYPES: tuple[ElementType, ...] = (S8, U8, S16, U16, S32, U32, S64, U64, F64)
"""Types of plain arrays besides the formats: NumPy's integers by PTX's names, and float64. Truth values are u8."""
_ARRAY_TYPE = {row.name: row for row in ARRAY_TYPES} | {str(row.array_dtype): row for row in ARRAY_TYPES}


def array_type_names() -> list[str]:
    """Return the names that `array_type` takes: formats, then integers and f64."""
    return [row.name for row in (*FORMATS, *ARRAY_TYPES)]


def array_type(name: "str | ElementType") -> ElementType:
    """Return the type of a plain array's elements: s8 to u64 (or int8 to uint64), f64, or a format by its name.

    array_type("s16").limits is (-32768, 32767). Raises RefsimError unknown-format. Source: the entry's.
    """
    if isinstance(name, Format | Integer):
        return name
    return _ARRAY_TYPE.get(str(name).lower().replace("bool", "u8")) or format_named(str(name))


def element_named(name: "str | ElementType") -> ElementType:
    """Return the entry of an element type: an integer, f64, or a format by any of its names.

    element_named("s8").value(0xff) is -1. Raises RefsimError unknown-format with the nearest names. Source: the
    entry's.
    """
    if isinstance(name, Format | Integer):
        return name
    found = _BY_NAME.get(str(name))
    return format_named(str(name)) if found is None else found


def float_named(name: "str | ElementType") -> Format:
    """Return the entry of a floating-point element type, f64 included; integers are refused.

    float_named("f64").bits is 64. Raises RefsimError `unknown-format` or `unsupported-format`. Source: the entry's.
    """
    row = element_named(name)
    if isinstance(row, Integer):
        raise RefsimError("unsupported-format", f"{row} is not a floating-point format")
    return row
