"""Arithmetic on integer arrays that NumPy lacks: products of twice the width, carries, bit fields, parts of 32-bit
words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_DOUBLED = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
S32_RANGE = np.iinfo(np.int32)


def width(a: Array) -> int:
    """Return the number of bits of an element."""
    return a.dtype.itemsize * 8


def unsigned(a: Array) -> Array:
    """Return the bits of an array, read without a sign."""
    return a.view(f"u{a.dtype.itemsize}")


def wide_product(a: Array, b: Array) -> Array:
    """Return the whole product of two 16-bit or 32-bit arrays, in twice the width."""
    return a.astype(_DOUBLED[a.dtype.str[1:]]) * b


def high_product(a: Array, b: Array) -> Array:
    """Return the upper half of the whole product: 2**63 times 2 in u64 gives 1."""
    if a.dtype.itemsize < 8:
        return (wide_product(a, b) >> width(a)).astype(a.dtype)
    x, y = unsigned(a), unsigned(b)
    low, high = x & 0xFFFFFFFF, x >> 32
    # Neither sum overflows: (2**32 - 1)**2 + 2**32 - 1 is 2**64 - 2**32.
    first = high * (y & 0xFFFFFFFF) + (low * (y & 0xFFFFFFFF) >> 32)
    second = low * (y >> 32) + (first & 0xFFFFFFFF)
    product = high * (y >> 32) + (first >> 32) + (second >> 32)
    if a.dtype.kind == "u":
        return product
    # A negative a read as unsigned is larger by 2**64, which adds b to the upper half.
    return product.view(np.int64) - (b & (a >> 63)) - (a & (b >> 63))


def product_part(a: Array, b: Array, half: str) -> Array:
    """Return the upper (hi) or the lower half of the product."""
    return high_product(a, b) if half == "hi" else a * b


def saturated(total: Array) -> Array:
    """Return 64-bit sums as s32; a sum out of range becomes the nearest end of the range."""
    return np.clip(total, S32_RANGE.min, S32_RANGE.max).astype(np.int32)


def low24(a: Array) -> Array:
    """Return the low 24 bits extended to 64: by sign for s32 and by zeros for u32."""
    return (a << 8 >> 8).astype(f"{a.dtype.kind}8")


def part24(a: Array, b: Array, half: str) -> Array:
    """Return bits 31 to 0 (lo) or 47 to 16 (hi) of the 48-bit product of the low 24 bits."""
    product = low24(a) * low24(b)
    return (product >> 16 if half == "hi" else product).astype(a.dtype)


def bit_length(a: Array) -> Array:
    """Return the number of bits up to the highest set one, as u32: 0 for 0, 32 for 0x80000000."""
    smeared = unsigned(a)
    shift = 1
    while shift < width(a):
        smeared = smeared | smeared >> shift
        shift *= 2
    return np.bitwise_count(smeared).astype(np.uint32)


def ones(count: Array) -> Array:
    """Return integers whose low `count` bits are set; all bits if count is the width or more."""
    return ~(np.invert(np.zeros_like(count)) << count)


def field_place(count: Array, a: Array) -> Array:
    """Return a position or length for a field of `a`, in its type: modulo 256 in 32 bits, unchanged in 64. The ISA
    allows 0 to 255 and masks in its pseudocode; an H200 masks in 32 bits only."""
    return (count & 0xFF if a.dtype.itemsize == 4 else count).astype(a.dtype)


def pieces(a: Array, size: int) -> Array:
    """Return the bytes (size 1) or halves (size 2) of 32-bit integers, signed as they are: shape (n, 4) or (n, 2)."""
    return a.view(f"{a.dtype.kind}{size}").reshape(-1, 4 // size).astype(np.int32)


# The flag is the adder's carry for every instruction: chains may mix sums and differences.
def with_carry(a: Array, b: Array, carry: Array | None = None) -> tuple[Array, Array]:
    """Return a + b + carry modulo two to the width, and whether it passed the top of the unsigned range."""
    total = a + b
    over = unsigned(total) < unsigned(a)
    if carry is None:
        return total, over
    final = total + carry.astype(a.dtype)
    return final, over | (unsigned(final) < unsigned(total))
