"""One operand, decoded once for every step: K comes first, in the order in which steps take it."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import Format
from refsim.numerics.dot.chains import ABSENT, Codes, Fields, fields, operand_fields
from refsim.numerics.fast.reals import WIDEST_RANGE, ZERO_OFFSET, narrow_operand, narrow_products
from refsim.numerics.methods import BYTE_PAIRS, GROUP
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


@dataclass(frozen=True)
class FastOperand:
    """Describe terms of shape (K, batch, rows), the range of their exponents, and `offsets` from the lowest exponent.

    `offsets` is None if the range is too wide. `fraction_bits`: a value is a multiple of 2^(exponent - fraction_bits).
    """

    values: Values
    exponents: Exponents
    special: NDArray[np.int8] | None
    low: int
    high: int
    fraction_bits: int
    offsets: NDArray[np.int8] | None


def operand_of(
    codes: Codes,
    format: Format,
    scale: Codes | None,
    scale_format: Format | None,
    profile: Profile,
    k: int,
    *,
    batch_innermost: bool = False,
) -> FastOperand:
    """Return the terms of codes (batch, rows, K) and their scales.

    `batch_innermost`: in memory the batch comes last, so that NumPy's loops run over it.
    """
    axes = (2, 1, 0) if batch_innermost else (2, 0, 1)
    scales = None if scale is None else scale.transpose(axes)
    found = _scaled(terms(_in_order(codes.transpose(axes), profile, k), format, profile), scales, scale_format)
    low, high = found.range()
    bits = (profile.operands or format).mantissa_bits
    values, offsets = found.values, None
    if narrow_operand(low, high):
        offsets = np.clip(found.exponents - np.int16(low), np.int16(ZERO_OFFSET), np.int16(WIDEST_RANGE)).astype(
            np.int8
        )
        values = values.astype(np.float32, copy=False)
    if not batch_innermost:
        return FastOperand(values, found.exponents, found.special, low, high, bits, offsets)
    special, turned = (None if array is None else array.swapaxes(1, 2) for array in (found.special, offsets))
    return FastOperand(values.swapaxes(1, 2), found.exponents.swapaxes(1, 2), special, low, high, bits, turned)


def _in_order(first: Codes, profile: Profile, k: int) -> Codes:
    """Return codes with K first, in the order of the steps."""
    if profile.order is not BYTE_PAIRS:
        return first
    places = np.concatenate(profile.steps(k))
    return first[(np.arange(0, len(first), k)[:, None] + places).ravel()]


def _scaled(found: Terms, scale: Codes | None, scale_format: Format | None) -> Terms:
    """Return the terms times powers of two, K first; a NaN scale makes NaN of its block."""
    if scale is None or scale_format is None:
        return found
    factors = terms(scale, scale_format)
    block = len(found.values) // len(factors.values)
    exponents = np.repeat(factors.exponents, block, axis=0)
    special = found.special
    if factors.special is not None:
        marks = np.repeat(factors.special, block, axis=0)
        special = marks if special is None else np.where(marks == NAN_TERM, marks, special)
    values = np.ldexp(found.values.astype(np.float64), exponents)
    return Terms(values, np.where(found.exponents == ZERO, np.int16(ZERO), found.exponents + exponents), special)


def narrow(a: FastOperand, b: FastOperand) -> bool:
    """Return whether float32 products, int32 sums and int8 exponents are exact for this pair."""
    return a.offsets is not None and b.offsets is not None and narrow_products(a.low + b.low, a.high + b.high)


@dataclass(frozen=True)
class GroupedOperand:
    """Describe FP4: `values` (K, batch, rows), and for each group `weights`, `exponents` and `present`.

    Arrays of groups are (K/16, batch, rows). A weight is the scale's value, a double. An exponent is the scale's alone,
    `ZERO` where the group is all zeros; bit i of `present` says that element i is not zero. `special` marks NaN scales,
    None without any. `low` is the least exponent; a value times its weight is a multiple of 2^(exponent -
    fraction_bits).
    """

    values: NDArray[np.float32]
    weights: NDArray[np.float64]
    exponents: NDArray[np.int16]
    present: NDArray[np.uint16]
    low: int
    fraction_bits: int
    special: NDArray[np.int8] | None

    def weighted(self, part: slice) -> NDArray[np.float64]:
        """Return the values of some places of K times their weights."""
        groups = self.weights[part.start // GROUP : part.stop // GROUP]
        return np.repeat(groups, GROUP, axis=0) * self.values[part]


def grouped_operand_of(codes: Codes, format: Format, scale: Codes, scale_format: Format) -> GroupedOperand:
    """Return the groups of codes (batch, rows, K) with scales (batch, rows, K / block)."""
    numbers = terms(np.moveaxis(codes, -1, 0), format).values
    factors = terms(np.moveaxis(scale, -1, 0), scale_format)
    groups = numbers.reshape(-1, GROUP, *numbers.shape[1:])
    repeat = len(groups) // len(factors.values)
    weight = np.repeat(factors.values.astype(np.float64), repeat, axis=0)
    bits = (groups != 0) & (weight != 0)[:, None]
    present = np.bitwise_or.reduce(bits.astype(np.uint16) << np.arange(GROUP, dtype=np.uint16)[:, None, None], axis=1)
    exponents = np.where(present != 0, np.repeat(factors.exponents, repeat, axis=0), np.int16(ZERO))
    special = None if factors.special is None else np.repeat(factors.special, repeat, axis=0)
    high = int(exponents.max(initial=ZERO))
    low = int(exponents.min(where=exponents != ZERO, initial=high))
    fraction_bits = format.mantissa_bits + scale_format.mantissa_bits
    return GroupedOperand(numbers, weight, exponents, present, low, fraction_bits, special)


def loses_no_bit(last_bit: int, a: FastOperand | GroupedOperand, b: FastOperand | GroupedOperand) -> bool:
    """Return whether every product is a multiple of 2^last_bit, the coarsest last bit that a step keeps."""
    return last_bit <= a.low + b.low - a.fraction_bits - b.fraction_bits
