"""Quantization by groups a second time: element by element over fractions, without NumPy, sharing no line with the
model.

A matrix is a list of rows of float32 patterns. The values of FP8 codes are counted from the definition of the format;
the nearest value is searched, and ties go to the even code.
"""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from refsim.reference.rational_float import GRIDS, ONE, ExactNumber, div, extremum, mul, power, rounded

Matrix = list[list[int]]
SINGLE_GRID = GRIDS["f32"]


class SmallFormat(NamedTuple):
    """An FP8 format: the values of codes 0 to the largest finite one, and the code of NaN."""

    values: tuple[Fraction, ...]
    nan: int


def counted_values(mantissa_bits: int, bias: int, count: int) -> tuple[Fraction, ...]:
    """Return the values of codes 0 to `count` - 1 of a format with these mantissa bits and bias."""
    units = 1 << mantissa_bits
    lowest = 1 - bias - mantissa_bits
    return tuple(
        (code if code < units else (code % units + units) << (code // units - 1)) * power(lowest)
        for code in range(count)
    )


NARROW_VALUES = {
    "e4m3": SmallFormat(counted_values(3, 7, 0x7F), 0x7F),
    "e5m2": SmallFormat(counted_values(2, 15, 0x7C), 0x7F),
}


def narrow_code(number: ExactNumber, name: str) -> int:
    """Return the code of the nearest value, the largest code for larger numbers, and 0x7f without sign for NaN."""
    values, nan = NARROW_VALUES[name]
    if number.is_nan:
        return nan
    sign = 0x80 if number.negative else 0
    return sign | nearest(values, values[-1] if isinstance(number.magnitude, float) else number.magnitude)


def nearest(values: Sequence[Fraction], magnitude: Fraction) -> int:
    """Return the code of the nearest of ascending values: the even code in a tie, the largest code above all."""
    above = min(bisect_left(values, magnitude), len(values) - 1)
    if magnitude >= values[above]:
        return above
    middle = (values[above - 1] + values[above]) / 2
    return above if magnitude > middle or (magnitude == middle and above % 2 == 0) else above - 1


def group_quantize(
    rows: Matrix,
    group: tuple[int, int],
    to: str,
    eps: int,
    *,
    divides: bool = False,
    rounds_up: bool = False,
    ignores_nan: bool = False,
) -> tuple[Matrix, Matrix]:
    """Return the codes and the float32 patterns of the factors for float32 patterns; `eps` is a pattern too."""
    height, width = len(rows), len(rows[0])
    codes = [[0] * width for _ in range(height)]
    factors: Matrix = []
    for top in range(0, height, group[0]):
        factors.append([])
        for left in range(0, width, group[1]):
            places = [
                (row, column)
                for row in range(top, min(top + group[0], height))
                for column in range(left, min(left + group[1], width))
            ]
            members = [SINGLE_GRID.decode(rows[row][column]) for row, column in places]
            factor = group_factor(
                members, NARROW_VALUES[to].values[-1], eps, rounds_up=rounds_up, ignores_nan=ignores_nan
            )
            factors[-1].append(factor)
            for (row, column), member in zip(places, members, strict=True):
                codes[row][column] = narrow_code(scaled(member, SINGLE_GRID.decode(factor), divides=divides), to)
    return codes, factors


def group_factor(
    members: list[ExactNumber], largest: Fraction, eps: int, *, rounds_up: bool = False, ignores_nan: bool = False
) -> int:
    """Return the float32 pattern of a group's factor: fl(peak / largest), or the next power of two with `rounds_up`.
    The peak is at least eps."""
    magnitudes = [ExactNumber(False, member.magnitude) for member in members]
    peak = extremum([*magnitudes, SINGLE_GRID.decode(eps)], True, nan=not ignores_nan)
    pattern = SINGLE_GRID.encode(div(peak, ExactNumber(False, largest)))
    if not rounds_up:
        return pattern
    magnitude, exponent = SINGLE_GRID.decode(pattern).magnitude, -126
    while exponent < 127 and not power(exponent) >= magnitude:
        exponent += 1
    return SINGLE_GRID.encode(ExactNumber(False, power(exponent)))


def scaled(member: ExactNumber, factor: ExactNumber, *, divides: bool) -> ExactNumber:
    """Return an element divided by its factor, or times the rounded reciprocal, rounded to float32."""
    return rounded(div(member, factor) if divides else mul(member, rounded(div(ONE, factor))))
