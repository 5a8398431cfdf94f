"""The largest values of the formats that are scaled to, and values near them: the divisors of an amax."""

import math
import struct

from refsim.formats import ELEMENTS, FORMATS, Integer

LEAST_POWER = 128.0  # smaller powers of two are common divisors


def _narrow_limits() -> tuple[float, ...]:
    """Return the largest values of FP8, FP6, FP4 and bytes (448, 240, 57344, 6, 7.5, 28, 127, 255) and neighbors.

    These are half of 255, and the powers of two below or above: 256 for 448, 128 for 127.
    """
    found = set()
    for row in FORMATS:
        if row.signed and row.exponent_bits and row.bits <= 8:
            found |= {row.max_value, 2.0 ** math.floor(math.log2(row.max_value))}
    for element in ELEMENTS:
        if isinstance(element, Integer) and element.bits == 8:
            largest = float(2 ** (element.bits - element.signed) - 1)
            found |= {largest, largest + 1} if element.signed else {largest, largest / 2}
    return tuple(sorted(value for value in found if value >= LEAST_POWER or math.log2(value) % 1))


SCALED_TO = _narrow_limits()


def spelled(value: float) -> str:
    """Return a float32 constant of PTX in upper case: 448.0 is "0F43E00000"."""
    return f"0F{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
