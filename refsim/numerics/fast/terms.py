"""Operands as floating-point values and exponents, with which the tiles and kernels compute."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import Format
from refsim.numerics.dot.arrays import ABSENT, Codes, Fields, fields, operand_fields
from refsim.numerics.rows import Profile

Values = NDArray[Any]  # float32 or float64
Exponents = NDArray[np.int16]

ZERO = -(1 << 12)  # exponent of a zero: below the exponent of every product, also when added to another exponent
NAN_TERM = 2  # in Terms.special; an infinity is +1 or -1


@dataclass(frozen=True)
class Terms:
    """Describe finite values with their exponents (`ZERO` for zeros), one shape; `special` marks NaN and infinities.

    Marked values are zeros. A step aligns by these exponents: a subnormal E4M3 has -6. `special` is None if all values
    are finite.
    """

    values: Values
    exponents: Exponents
    special: NDArray[np.int8] | None

    def range(self) -> tuple[int, int]:
        """Return the least and the largest exponent of the nonzero numbers; (0, 0) if there are none."""
        high = int(self.exponents.max(initial=ZERO))
        if high == ZERO:
            return 0, 0
        above = (self.exponents - np.int16(ZERO + 1)).view(np.uint16)  # zeros become the largest
        return int(above.min()) + ZERO + 1, high


def _of_fields(part: Fields) -> Terms:
    values = np.ldexp((part.sign * part.magnitude).astype(np.float64), part.exponent - part.fraction_bits)
    exponents = np.where(part.exponent == ABSENT, ZERO, part.exponent).astype(np.int16)
    special = np.where(part.kind == 1, part.sign, part.kind).astype(np.int8)
    return Terms(values.astype(np.float32), exponents, special)


@lru_cache
def _table(format: Format, profile: Profile | None) -> Terms:
    """Return the terms of every code of a format; the exponent of NaN and infinities is below `ZERO`."""
    codes = np.arange(1 << format.bits, dtype=np.uint32) << np.uint32(format.padding_bits)
    found = _of_fields(_fields(codes.astype(format.code_dtype), format, profile))
    return replace(found, exponents=np.where(found.special != 0, np.int16(2 * ZERO), found.exponents))


def _fields(codes: Codes, format: Format, profile: Profile | None) -> Fields:
    return fields(codes, format) if profile is None else operand_fields(codes, format, profile)


def terms(codes: Codes, format: Format, profile: Profile | None = None) -> Terms:
    """Return the terms of an array of codes, C-contiguous; `profile` if it converts operands first."""
    converts = profile if profile is not None and profile.operands else None
    if format.bits > 16 and codes.size < 1 << format.bits:
        found = _of_fields(_fields(np.ascontiguousarray(codes), format, converts))
        return found if found.special is not None and found.special.any() else replace(found, special=None)
    table = _table(format, converts)
    places = (codes >> codes.dtype.type(format.padding_bits)) if format.padding_bits else codes
    places = places.astype(np.intp, order="C")
    assert table.special is not None
    exponents = np.take(table.exponents, places)
    special = None
    if exponents.min(initial=ZERO) < ZERO:
        special = np.take(table.special, places)
        exponents[special != 0] = ZERO
    return Terms(np.take(table.values, places), exponents, special)
