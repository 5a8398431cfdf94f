"""The zero-column mask of tcgen05.mma.ws: the columns of B that count as zeros, and the first column of B."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LANES = 128
_SHIFTS = {32: 16}  # by M, the largest shift of B; 32 for a larger M
_MOST_SHIFT = 32


class ColumnMaskError(Exception):
    """The mask descriptor asks for more than exists."""


@dataclass(frozen=True)
class ZeroColumns:
    """The columns of B that are zeros, (n,), and how many columns of B stand before the first used one."""

    zero: NDArray[np.bool_]
    shift: int


def zero_columns(word: int, m: int, n: int, most: int) -> ZeroColumns:
    """Return the zero columns that a descriptor describes for a product of m rows and n columns.

    `most` is the shift that the instruction descriptor allows. N is cut into as many parts as D has below each other,
    each with its own start and first value. If the mask is not empty, spans of use + 1 zeros and of skip + 1 ones
    alternate. For M = 128, skip 2, use 3: 0b...1110000 1110000.

    Raises ColumnMaskError. Source: PTX ISA, zero-column mask descriptor; CUTLASS, MaskAndShiftB.
    """

    def field(low: int, bits: int) -> int:
        return word >> low & (1 << bits) - 1

    if field(36, 3) or field(62, 2):
        raise ColumnMaskError("bits 36 to 38 and 62 to 63 are reserved")
    shift, limit = field(56, 6), min(most, _SHIFTS.get(m, _MOST_SHIFT))
    if shift > limit:
        raise ColumnMaskError(f"a shift by {shift} columns, M = {m} and the instruction descriptor allow {limit}")
    if not field(39, 1):
        return ZeroColumns(np.zeros(n, np.bool_), shift)
    skipped, used, parts = field(40, 8) + 1, field(48, 8) + 1, _LANES // m
    found: list[Any] = []
    for part in range(parts):
        place = np.arange(n // parts) + field(8 * part, 8)
        first = skipped if field(32 + part, 1) else used
        found.append((place % (skipped + used) < first) == bool(field(32 + part, 1)))
    return ZeroColumns(np.concatenate(found), shift)
