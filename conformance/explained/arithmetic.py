"""The arithmetic behind planted causes, in NumPy alone: it shares no line with what the search computes by.

Numbers are float64 throughout, in which every product and every sum below is exact until it is cut or rounded here.
"""

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


def e4m3_fields(codes: NDArray[np.uint8], bias: int = 7) -> tuple[Doubles, NDArray[np.int64]]:
    """Values of FP8 codes with four exponent bits, and the exponent with which they are aligned."""
    code = codes.astype(np.int64)
    field, mantissa = code >> 3 & 15, code & 7
    exponent = np.maximum(field, 1) - bias
    significand = mantissa + np.where(field > 0, 8, 0)
    return np.where(code & 128, -1.0, 1.0) * significand * 2.0 ** (exponent - 3), exponent


def cut(values: Doubles, bits: int) -> Doubles:
    """Toward zero to so many bits behind the leading one."""
    mantissa, exponent = np.frexp(values)
    kept = np.trunc(np.ldexp(mantissa, bits + 1))
    return np.ldexp(kept, exponent - bits - 1)


def core_chain(
    a: NDArray[np.uint8], b: NDArray[np.uint8], *, length: int, fraction: int, kept: int, bias: int = 7
) -> Floats:
    """A chain of steps of a tensor core from +0: terms cut below the largest exponent, the sum cut to `kept` bits."""
    (x, ex), (y, ey) = e4m3_fields(a, bias), e4m3_fields(b, bias)
    total = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], length):
        part = slice(first, first + length)
        products = x[:, None, part] * y[None, :, part]
        exponents = np.where(products != 0, ex[:, None, part] + ey[None, :, part], -10_000)
        of_total = np.where(total != 0, np.frexp(total)[1] - 1, -10_000)
        largest = np.maximum(exponents.max(axis=2), of_total)
        unit = 2.0 ** (np.maximum(largest, -500) - fraction)
        cut_terms = np.trunc(products / unit[:, :, None]).sum(axis=2) + np.trunc(total / unit)
        total = cut(cut_terms * unit, kept)
    return total.astype(np.float32)


def hopper(a: NDArray[np.uint8], b: NDArray[np.uint8], bias: int = 7) -> Floats:
    """wgmma of FP8."""
    return core_chain(a, b, length=32, fraction=13, kept=13, bias=bias)


def blackwell(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> Floats:
    return core_chain(a, b, length=32, fraction=25, kept=23)


def ada(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> Floats:
    return core_chain(a, b, length=16, fraction=13, kept=13)


def float32_loop(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> Floats:
    """One fma for every k: products of FP8 are exact in float32, so a sum is one rounding."""
    x, y = e4m3_fields(a)[0].astype(np.float32), e4m3_fields(b)[0].astype(np.float32)
    total = np.zeros((len(a), len(b)), np.float32)
    for k in range(a.shape[1]):
        total = total + x[:, k, None] * y[None, :, k]
    return total


def chunks(a: NDArray[np.uint8], b: NDArray[np.uint8], width: int) -> list[Floats]:
    """The chains of neighbouring columns, each from +0."""
    return [hopper(a[:, at : at + width], b[:, at : at + width]) for at in range(0, a.shape[1], width)]


def fma(x: Floats, y: Floats, z: Floats) -> Floats:
    """x y + z rounded once: the product is exact in float64, the sum is made odd where it is not."""
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = np.ascontiguousarray(total).view(np.int64)
    is_even = (bits & 1) == 0
    away = np.where((error > 0) == (total > 0), 1, -1)
    bits = np.where((error != 0) & is_even, bits + away, bits)
    return bits.view(np.float64).astype(np.float32)


def bf16(values: Floats, how: str = "nearest") -> NDArray[np.uint16]:
    """bf16 codes of finite float32: to nearest even, ties away, toward zero, up."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.int64)
    low, code = bits & 0xFFFF, bits >> 16
    negative = bits >> 31 == 1
    more = {
        "nearest": (low > 0x8000) | ((low == 0x8000) & (code & 1 == 1)),
        "away": low >= 0x8000,
        "zero": np.zeros(low.shape, bool),
        "up": (low > 0) & ~negative,
        "down": (low > 0) & negative,
    }[how]
    return (code + more).astype(np.uint16)


def of_bf16(codes: NDArray[np.uint16]) -> Floats:
    return (codes.astype(np.uint32) << 16).view(np.float32)


def f16_of(values: Floats) -> Floats:
    """Rounded to f16 and back."""
    return values.astype(np.float16).astype(np.float32)


def table(bias: int, special: int) -> Doubles:
    """The value of each magnitude of a format with four exponent bits; `special` codes at the end are no numbers."""
    values = e4m3_fields(np.arange(128, dtype=np.uint8), bias)[0]
    return values[: 128 - special]


def e4m3(
    values: Doubles, *, bias: int = 7, special: int = 1, ties: str = "even", past: str = "saturate"
) -> NDArray[np.uint8]:
    """FP8 codes by looking among all values: to the nearest, ties to even or away; what is too large is the largest or NaN."""
    known = table(bias, special)
    magnitude = np.abs(values)
    above = np.searchsorted(known, magnitude).clip(1, len(known) - 1)
    low, high = magnitude - known[above - 1], known[above] - magnitude
    tie_up = (above % 2 == 0) if ties == "even" else np.ones(above.shape, bool)
    code = np.where((low > high) | ((low == high) & tie_up), above, above - 1)
    largest = len(known) - 1
    limit = known[largest] + (known[largest] - known[largest - 1]) / 2
    if past == "saturate":
        code = np.where(magnitude >= known[largest], largest, code)
    else:
        code = np.where(magnitude > limit, 127, np.where(magnitude >= known[largest], largest, code))
    has_minus_zero = special > 0
    sign = np.where(np.signbit(values) & (has_minus_zero | (code > 0)), 128, 0)
    return np.asarray(code | sign, np.uint8)
