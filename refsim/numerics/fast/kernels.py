"""The steps as compiled loops over packed tiles: numba, imported only where it is installed.

Every loop runs over the `WIDTH` columns of a tile, so that it becomes vector instructions. The arithmetic equals
`tiles` and `groups`; sums are float64 in all of them. Nothing here may be reassociated or contracted: no fastmath.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

WIDTH = 128  # columns of a tile
_GROUP = 16
_ABSENT = -(1 << 12)  # below the exponent of any product
_FLOOR = -100  # least exponent of a narrow product
_MANTISSA, _BIAS, _FIELD = 52, 1023, 2047

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


class StepNumbers(NamedTuple):
    """Hold the numbers of a profile that a step needs."""

    length: int  # products of a step, a multiple of 4
    together: int  # products that add up in int32, a multiple of 4
    fraction: int  # F: a term keeps bits down to 2^-F of the largest exponent
    zero: int  # the exponent that a zero counts with
    smallest: int  # the least exponent of the result's format
    largest: int  # the greatest exponent of the result's format
    kept: int  # fraction bits of a result
    is_half: bool  # results are the nearest f16; else they are f32, cut toward zero


@njit(nogil=True, cache=True)
def narrow(
    a: Singles,
    a_offsets: NDArray[np.int8],
    b: Singles,
    b_offsets: NDArray[np.int8],
    low: int,
    c: Singles,
    rule: StepNumbers,
) -> None:
    """Add all steps to `c` with float32 products and int32 terms.

    a (K, rows), b (tiles, K, WIDTH), c (tiles, rows, WIDTH), overwritten. `low`: the exponent of a product whose
    offsets are 0.
    """
    length, together = rule.length, rule.together
    top, total, sums = np.empty(WIDTH, np.int8), np.empty(WIDTH, np.int32), np.empty(WIDTH, np.float64)
    scale, unit = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
    for tile in range(len(b)):
        for start in range(0, len(a), length):
            for row in range(a.shape[1]):
                _largest(a_offsets, b_offsets[tile], start, length, row, top)
                _align_narrow(top, low, c[tile, row], rule, scale, unit)
                _cut(a, b[tile], start, together, row, scale, total)
                for j in range(WIDTH):
                    sums[j] = total[j]
                for first in range(start + together, start + length, together):
                    _cut(a, b[tile], first, together, row, scale, total)
                    for j in range(WIDTH):
                        sums[j] += total[j]
                _finish_narrow(sums, top, scale, unit, c[tile, row], rule)


@njit(nogil=True, cache=True)
def wide(
    a: Doubles,
    a_exponents: NDArray[np.int16],
    b: Doubles,
    b_exponents: NDArray[np.int16],
    c: Doubles,
    rule: StepNumbers,
) -> None:
    """Add all steps to `c` as `narrow` does, with float64 products and exponents of any size."""
    length = rule.length
    top, sums = np.empty(WIDTH, np.int16), np.empty(WIDTH, np.float64)
    scale, unit = np.empty(WIDTH, np.float64), np.empty(WIDTH, np.float64)
    for tile in range(len(b)):
        for start in range(0, len(a), length):
            for row in range(a.shape[1]):
                _largest(a_exponents, b_exponents[tile], start, length, row, top)
                _align(top, c[tile, row], rule, scale, unit)
                _cut(a, b[tile], start, length, row, scale, sums)
                _finish(sums, scale, unit, c[tile, row], rule)
                _in_range(c[tile, row], rule)


@njit(nogil=True, cache=True)
def grouped(
    a: Singles,
    a_weights: Doubles,
    a_exponents: NDArray[np.int16],
    a_present: NDArray[np.uint16],
    b: Singles,
    b_weights: Doubles,
    b_exponents: NDArray[np.int16],
    b_present: NDArray[np.uint16],
    c: Doubles,
    rule: StepNumbers,
) -> None:
    """Add all steps of FP4 to `c`: numbers (K, rows) and (tiles, K, WIDTH).

    Weights, exponents and presence of groups have K / 16 in place of K.
    """
    length = rule.length
    top, sums, group = np.empty(WIDTH, np.int16), np.empty(WIDTH, np.float64), np.empty(WIDTH, np.float32)
    scale, unit = np.empty(WIDTH, np.float64), np.empty(WIDTH, np.float64)
    for tile in range(len(b)):
        for start in range(0, len(a), length):
            groups = range(start // _GROUP, (start + length) // _GROUP)
            for row in range(a.shape[1]):
                top[:] = _ABSENT
                for g in groups:
                    _largest_group(
                        a_exponents[g, row], a_present[g, row], b_exponents[tile, g], b_present[tile, g], top
                    )
                _align(top, c[tile, row], rule, scale, unit)
                sums[:] = 0.0
                for g in groups:
                    _group_sum(a, b[tile], g * _GROUP, row, group)
                    _cut_group(group, a_weights[g, row], b_weights[tile, g], scale, sums)
                _finish(sums, scale, unit, c[tile, row], rule)
                _in_range(c[tile, row], rule)


@njit(nogil=True, cache=True)
def _largest(x: NDArray[Any], y: NDArray[Any], start: int, length: int, row: int, top: NDArray[Any]) -> None:
    """Set `top` to the largest exponent of the products; sums stay within the type of `top`."""
    kind = top.dtype.type
    own = x[start, row]
    for j in range(WIDTH):
        top[j] = kind(own + y[start, j])
    for k in range(start, start + length, 4):
        p, q, r, s = x[k, row], x[k + 1, row], x[k + 2, row], x[k + 3, row]
        for j in range(WIDTH):
            first = max(kind(p + y[k, j]), kind(q + y[k + 1, j]))
            second = max(kind(r + y[k + 2, j]), kind(s + y[k + 3, j]))
            top[j] = max(top[j], first, second)


@njit(nogil=True, cache=True)
def _largest_group(
    own: int, present: int, exponents: NDArray[np.int16], presents: NDArray[np.uint16], top: NDArray[np.int16]
) -> None:
    """Raise `top` to the exponent of a group where it holds a product."""
    for j in range(WIDTH):
        total = np.int16(own + exponents[j])
        both = np.uint16(present & presents[j])
        top[j] = max(top[j], total) if both != 0 else top[j]


@njit(nogil=True, cache=True)
def _align(top: NDArray[np.int16], c: Doubles, rule: StepNumbers, scale: Doubles, unit: Doubles) -> None:
    """Set `unit` to one unit of the last kept bit, 2^(E - F), and `scale` to its inverse.

    Without a product `top` is below every exponent.
    """
    fraction, zero, smallest = rule.fraction, rule.zero, rule.smallest
    bits, scales, units = c.view(np.int64), scale.view(np.int64), unit.view(np.int64)
    for j in range(WIDTH):
        own = ((bits[j] >> _MANTISSA) & _FIELD) - _BIAS
        own = zero if c[j] == 0.0 else max(own, smallest)
        shifted = max(np.int64(top[j]), own) - fraction
        scales[j] = (_BIAS - shifted) << _MANTISSA
        units[j] = (_BIAS + shifted) << _MANTISSA


@njit(nogil=True, cache=True)
def _align_narrow(
    top: NDArray[np.int8], low: int, c: Singles, rule: StepNumbers, scale: Singles, unit: Singles
) -> None:
    """Set `unit` to one unit of the last kept bit, 2^(E - F), and `scale` to its inverse.

    A negative `top` means that there is no product.
    """
    bits, scales, units = c.view(np.int32), scale.view(np.int32), unit.view(np.int32)
    # Where results are f32 every product is above 2^-101, and C's subnormals are below every kept bit.
    floor: Any = np.int32(rule.zero if rule.is_half else _FLOOR)
    smallest: Any = np.int32(rule.smallest if rule.is_half else _FLOOR)
    lowest: Any = np.int32(low)
    for j in range(WIDTH):
        exponent: Any = np.int32(top[j] + lowest) if top[j] >= 0 else floor
        own: Any = np.int32(np.int32(np.int32(bits[j] >> np.int32(23)) & np.int32(255)) - np.int32(127))
        own = floor if c[j] == np.float32(0) else max(own, smallest)
        shifted = np.int32(max(exponent, own) - np.int32(rule.fraction))
        scales[j] = np.int32(np.int32(127) - shifted) << np.int32(23)
        units[j] = np.int32(np.int32(127) + shifted) << np.int32(23)


def _truncate(term: Any) -> Any:
    """Cut a term toward zero: a float32 to an int32, a float64 to a float64. Only compiled code calls this."""
    raise NotImplementedError  # numba compiles `_truncate_compiled` in its place


@overload(_truncate)
def _truncate_compiled(term: Any) -> Any:
    """Return the implementation for the type of `term`, as numba's `overload` requires."""

    def in_int32(term: Any) -> Any:
        return np.int32(term)

    def in_float64(term: Any) -> Any:
        return np.trunc(term)

    return in_int32 if term == types.float32 else in_float64


@njit(nogil=True, cache=True)
def _cut(a: Any, b: Any, start: int, count: int, row: int, scale: Any, sums: Any) -> None:
    """Set `sums` to the sums of the cut products, in int32 or in float64.

    In float32 every product is exact and its integer part below 2^27.
    """
    sums[:] = 0
    for k in range(start, start + count, 4):
        p, q, r, s = a[k, row], a[k + 1, row], a[k + 2, row], a[k + 3, row]
        for j in range(WIDTH):
            by = scale[j]
            sums[j] += (
                _truncate((p * b[k, j]) * by)
                + _truncate((q * b[k + 1, j]) * by)
                + _truncate((r * b[k + 2, j]) * by)
                + _truncate((s * b[k + 3, j]) * by)
            )


@njit(nogil=True, cache=True)
def _group_sum(a: Singles, b: Singles, start: int, row: int, group: Singles) -> None:
    """Set `group` to the sums of sixteen E2M1 products, quarters of integers up to 2304: exact in float32."""
    group[:] = 0
    for k in range(start, start + _GROUP, 4):
        p, q, r, s = a[k, row], a[k + 1, row], a[k + 2, row], a[k + 3, row]
        for j in range(WIDTH):
            group[j] += p * b[k, j] + q * b[k + 1, j] + r * b[k + 2, j] + s * b[k + 3, j]


@njit(nogil=True, cache=True)
def _cut_group(group: Singles, weight: float, weights: Doubles, scale: Doubles, sums: Doubles) -> None:
    """Add to `sums` the sum of a group times its weights, cut."""
    for j in range(WIDTH):
        sums[j] += np.trunc(group[j] * (weight * weights[j]) * scale[j])


@njit(nogil=True, cache=True)
def _finish_narrow(
    sums: Doubles, top: NDArray[np.int8], scale: Singles, unit: Singles, c: Singles, rule: StepNumbers
) -> None:
    """Finish as `_finish`; a step without products leaves C, cut, since its last bit may be out of float32's range."""
    for j in range(WIDTH):
        sums[j] = (np.float64(np.trunc(c[j] * scale[j])) + sums[j]) * np.float64(unit[j])
    if rule.is_half:
        _to_nearest(sums, rule)
        for j in range(WIDTH):
            c[j] = np.float32(sums[j])
        return
    bits, kept = sums.view(np.int64), c.view(np.int32)
    mask = np.int64(-1) << (_MANTISSA - rule.kept)
    mask_kept = np.int32(np.int64(-1) << (23 - min(rule.kept, rule.fraction)))
    for j in range(WIDTH):
        bits[j] &= mask
        kept[j] &= mask_kept
    for j in range(WIDTH):
        c[j] = np.float32(sums[j]) if top[j] >= 0 else c[j] + np.float32(0)


@njit(nogil=True, cache=True)
def _finish(sums: Doubles, scale: Doubles, unit: Doubles, c: Doubles, rule: StepNumbers) -> None:
    """Set `c` to the rounded sum of C, cut, and the products: toward zero by clearing bits, or to the nearest f16."""
    for j in range(WIDTH):
        c[j] = (np.trunc(c[j] * scale[j]) + sums[j]) * unit[j]
    if rule.is_half:
        _to_nearest(c, rule)
        return
    bits = c.view(np.int64)
    mask = np.int64(-1) << (_MANTISSA - rule.kept)
    for j in range(WIDTH):
        bits[j] &= mask


@njit(nogil=True, cache=True)
def _to_nearest(c: Doubles, rule: StepNumbers) -> None:
    """Round to the nearest f16, ties to even: adding and subtracting 1.5 anchor leaves multiples of 2^(e - 10)."""
    anchor = np.empty(WIDTH, np.float64)
    bits, anchors = c.view(np.int64), anchor.view(np.int64)
    for j in range(WIDTH):
        own = ((bits[j] >> _MANTISSA) & _FIELD) - _BIAS
        own = min(max(own, rule.smallest), rule.largest + 1)
        anchors[j] = (own + _BIAS + _MANTISSA - rule.kept) << _MANTISSA
    for j in range(WIDTH):
        value = (c[j] + 1.5 * anchor[j]) - 1.5 * anchor[j]
        c[j] = np.copysign(np.inf, value) if abs(value) >= 65536.0 else value


@njit(nogil=True, cache=True)
def _in_range(c: Doubles, rule: StepNumbers) -> None:
    """Give sums the subnormals, the +0 and the infinities of f32."""
    small, large = 2.0**-126, 2.0**128
    found = False
    for j in range(WIDTH):
        magnitude = abs(c[j])
        found |= (magnitude < small) | (magnitude >= large)
    if not found:
        return
    least = small * 2.0**-rule.kept
    for j in range(WIDTH):
        magnitude = abs(c[j])
        if magnitude < small:
            c[j] = np.trunc(c[j] / least) * least + 0.0
        elif magnitude >= large:
            c[j] = np.copysign(np.inf, c[j])
