"""Numbers that a format holds, and pairs of operands whose product is a chosen power of two."""

import math
import sys
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.formats import F64, ElementType, Format, float_named
from refsim.silicon.tensor_classes import Codes
from refsim.silicon.tensor_probe import ProbeShape

Vector = dict[int, tuple[float, float]]
"""The factors (of A, of B) at some k; zeros elsewhere."""


@cache
def holds(format: Format, value: float) -> bool:
    """Return whether the format represents a finite value exactly."""
    if value == 0:
        return True
    fraction, exponent = math.frexp(abs(value))
    unit = max(exponent - 1, 1 - format.bias) - format.mantissa_bits
    return math.ldexp(fraction, exponent - unit).is_integer() and abs(value) <= largest(format)


def largest(format: Format) -> float:
    """Return the largest finite value of a format, as a double."""
    return sys.float_info.max if format is F64 else format.max_value


def coded(values: NDArray[np.float64], format: ElementType) -> Codes:
    """Return the codes of doubles; for f64, their own patterns."""
    row = float_named(format)
    return values.view(row.code_dtype) if row is F64 else encode(values, row)


@cache
def power(shape: ProbeShape, exponent: int, factor: float = 1.0) -> tuple[float, float] | None:
    """Return two operands whose product is factor x 2^exponent, or None out of range; the factor is in A's operand."""
    a, b = float_named(shape.a_format), float_named(shape.b_format)
    lowest = [1 - row.bias - row.mantissa_bits for row in (a, b)]
    highest = [math.frexp(largest(row))[1] - 1 for row in (a, b)]
    first = min(max(exponent - exponent // 2, lowest[0]), highest[0])
    second = min(max(exponent - first, lowest[1]), highest[1])
    first = exponent - second
    x, y = math.ldexp(factor, first), math.ldexp(1.0, second)
    return (x, y) if holds(a, x) and holds(b, y) else None


def terms(shape: ProbeShape, *parts: tuple[float, int]) -> Vector | None:
    """Return products factor x 2^exponent at k = 0, 1, ..; None if one of them is out of range."""
    vector: Vector = {}
    for k, (factor, exponent) in enumerate(parts):
        pair = power(shape, exponent, factor)
        if pair is None:
            return None
        vector[k] = pair
    return vector
