"""Integer arithmetic: each result is modulo two to the width unless the instruction saturates.

Sums and products of NumPy integers wrap as PTX registers do, so most implementations are one expression. NumPy shifts
by the width or more give 0 (or the sign), as the clamping forms of PTX do; amounts are always unsigned here.
"""

from functools import partial

import numpy as np

from refsim.ptx.isa.definedness import arithmetic as law
from refsim.ptx.isa.definedness.bits import amounts, fields, moved
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_REVERSED_BYTES = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], dtype=np.uint8)

_DOUBLED = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
S32_RANGE = np.iinfo(np.int32)
_product = partial(instruction, undefined=law.multiplied())


@instruction("add.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.summed())
@instruction("add.{type:u16x2|s16x2} d, a, b", since="sm_90", undefined=law.summed())
def add(a: Array, b: Array) -> Array:
    """Return the sum, modulo two to the width: 0xffff + 1 in u16 is 0. In x2 the halves do not carry into one
    another."""
    return a + b


@instruction("add.sat.s32 d:s32, a:s32, b:s32", undefined=law.monotone)
def add_sat(a: Array, b: Array) -> Array:
    """Return the sum, limited to s32: 0x7fffffff + 1 is 0x7fffffff."""
    return saturated(a.astype(np.int64) + b)


@instruction("sub.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.summed(True))
def sub(a: Array, b: Array) -> Array:
    """Return the difference, modulo two to the width: 0 - 1 in u32 is 0xffffffff."""
    return a - b


@instruction("sub.sat.s32 d:s32, a:s32, b:s32", undefined=law.monotone)
def sub_sat(a: Array, b: Array) -> Array:
    """Return the difference, limited to s32: -0x80000000 - 1 is -0x80000000."""
    return saturated(a.astype(np.int64) - b)


@_product("mul.{half:hi|lo}.{type:u16|u32|u64|s16|s32|s64} d, a, b")
def mul(a: Array, b: Array, *, half: str) -> Array:
    """Return the upper or the lower half of the product: mul.hi.u32 of 0x80000000 and 4 is 2."""
    return product_part(a, b, half)


@_product("mul.wide.{type:u16|u32|s16|s32} d:wide, a, b")
def mul_wide(a: Array, b: Array) -> Array:
    """Return the whole product, in twice the width: mul.wide.u16 of 0xffff and 0xffff is 0xfffe0001."""
    return wide_product(a, b)


@_product("mad.{half:hi|lo}.{type:u16|u32|u64|s16|s32|s64} d, a, b, c")
def mad(a: Array, b: Array, c: Array, *, half: str) -> Array:
    """Return one half of the product, plus c: mad.lo.u32 of 3, 5 and 7 is 22."""
    return product_part(a, b, half) + c


@_product("mad.wide.{type:u16|u32|s16|s32} d:wide, a, b, c:wide")
def mad_wide(a: Array, b: Array, c: Array) -> Array:
    """Return the whole product plus c, in twice the width: mad.wide.s16 of -1, 2 and 5 is 3."""
    return wide_product(a, b) + c


@instruction("mad.hi.sat.s32 d:s32, a:s32, b:s32, c:s32", undefined=law.multiplied(0, True))
def mad_hi_sat(a: Array, b: Array, c: Array) -> Array:
    """Return the upper half of the product plus c, limited to s32: 0x40000000 * 4 >> 32 is 1, plus 0x7fffffff is
    0x7fffffff."""
    return saturated((wide_product(a, b) >> 32) + c)


@instruction("mul24.{half:hi|lo}.{type:u32|s32} d, a, b", undefined=law.multiplied(24))
def mul24(a: Array, b: Array, *, half: str) -> Array:
    """Return bits 31 to 0 or 47 to 16 of the product of the low 24 bits: mul24.lo.u32 of 0x01000003 and 5 is 15."""
    return part24(a, b, half)


@instruction("mad24.{half:hi|lo}.{type:u32|s32} d, a, b, c", undefined=law.multiplied(24))
def mad24(a: Array, b: Array, c: Array, *, half: str) -> Array:
    """Return a part of the 24-bit product, plus c: mad24.hi.u32 of 0x10000, 0x10000 and 1 is 0x10001."""
    return part24(a, b, half) + c


@instruction("mad24.hi.sat.s32 d:s32, a:s32, b:s32, c:s32", undefined=law.multiplied(24, True))
def mad24_hi_sat(a: Array, b: Array, c: Array) -> Array:
    """Return bits 47 to 16 of the 24-bit product, plus c, limited to s32."""
    return saturated(part24(a, b, "hi").astype(np.int64) + c)


@instruction("sad.{type:u16|u32|u64|s16|s32|s64} d, a, b, c", undefined=law.distance)
def sad(a: Array, b: Array, c: Array) -> Array:
    """Return c plus the distance of a and b: sad.s32 of -2, 3 and 10 is 15."""
    return c + np.maximum(a, b) - np.minimum(a, b)


@instruction("div.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.divided)
def div(a: Array, b: Array) -> Array:
    """Return the quotient, rounded toward zero: -7 / 2 is -3, the least number / -1 is itself. The ISA leaves a
    division by zero open; this implementation returns all ones, as the hardware does."""
    return np.where(b == 0, np.invert(np.zeros_like(a)), (a - np.fmod(a, b)) // b)


@instruction("rem.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.remainder)
def rem(a: Array, b: Array) -> Array:
    """Return the remainder of div, with the sign of a: -7 rem 2 is -1. Division by zero, which the ISA leaves open,
    gives all ones."""
    return np.where(b == 0, np.invert(np.zeros_like(a)), np.fmod(a, b))


@instruction("abs.{type:s16|s32|s64} d, a", undefined=law.magnitude)
def abs_(a: Array) -> Array:
    """Return the absolute value: -5 gives 5, the least number gives itself."""
    return np.abs(a)


@instruction("neg.{type:s16|s32|s64} d, a", undefined=law.negated)
def neg(a: Array) -> Array:
    """Return the number of opposite sign; the least number gives itself."""
    return -a


@instruction("min.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.extreme("min"))
@instruction("min.{type:u16x2|s16x2} d, a, b", since="sm_90", undefined=law.extreme("min"))
def min_(a: Array, b: Array) -> Array:
    """Return the smaller number: of 0xffffffff and 1 it is 1 in u32 and 0xffffffff in s32."""
    return np.minimum(a, b)


@instruction("min.relu.{type:s16x2|s32} d, a, b", since="sm_90", undefined=law.extreme("min", True))
def min_relu(a: Array, b: Array) -> Array:
    """Return the smaller number, or 0 if it is negative: -3 and 5 give 0."""
    return np.maximum(np.minimum(a, b), a.dtype.type(0))


@instruction("max.{type:u16|u32|u64|s16|s32|s64} d, a, b", undefined=law.extreme("max"))
@instruction("max.{type:u16x2|s16x2} d, a, b", since="sm_90", undefined=law.extreme("max"))
def max_(a: Array, b: Array) -> Array:
    """Return the larger number: of 0xffffffff and 1 it is 0xffffffff in u32 and 1 in s32."""
    return np.maximum(a, b)


@instruction("max.relu.{type:s16x2|s32} d, a, b", since="sm_90", undefined=law.extreme("max", True))
def max_relu(a: Array, b: Array) -> Array:
    """Return the larger number, or 0 if it is negative: -3 and -5 give 0."""
    return np.maximum(np.maximum(a, b), a.dtype.type(0))


@instruction("popc.{type:b32|b64} d:u32, a", undefined=law.counted)
def popc(a: Array) -> Array:
    """Return how many bits are set: 3 in 0x80000011."""
    return np.bitwise_count(a).astype(np.uint32)


@instruction("clz.{type:b32|b64} d:u32, a", undefined=law.counted)
def clz(a: Array) -> Array:
    """Return how many zeros stand above the highest set bit: 31 for 1, the width for 0."""
    return np.uint32(width(a)) - bit_length(a)


@instruction("bfind{.shiftamt}.{type:u32|u64|s32|s64} d:u32, a", undefined=law.counted)
def bfind(a: Array, *, shiftamt: bool) -> Array:
    """Return the position of the highest bit that differs from the sign (u types: from 0); 0xffffffff if none does.
    0x10 gives 4. `.shiftamt` returns how far left the bit must move to reach the top instead: 27 for 0x10 in u32."""
    length = bit_length(a ^ a >> (width(a) - 1) if a.dtype.kind == "i" else a)
    if not shiftamt:
        return length - np.uint32(1)
    return np.where(length == 0, np.uint32(0xFFFFFFFF), np.uint32(width(a)) - length)


@instruction("fns.b32 d:b32, mask:b32, base:u32, offset:s32")
def fns(mask: Array, base: Array, offset: Array) -> Array:
    """Return the position of the |offset|-th set bit, counted from bit `base` up (offset > 0) or down; 0xffffffff if
    there is none.

    fns.b32 of 0xaaaaaaaa, 2 and -1 is 1. Offset 0 asks whether bit `base` itself is set. The ISA leaves a base over 31
    open: no bit is found from there. An H200 returns 0 for offset -2**31, whose magnitude is no s32.
    """
    places = np.arange(32, dtype=np.int64)
    start, count = base.astype(np.int64)[:, None], offset.astype(np.int64)[:, None]
    ahead = np.where(count > 0, places >= start, np.where(count < 0, places <= start, places == start))
    hits = (mask[:, None] >> places.astype(np.uint32) & 1).astype(bool) & ahead & (start <= 31)
    passed = np.cumsum(hits, axis=1)
    rank = np.where(count < 0, passed[:, -1:] - passed + 1, passed)
    found = hits & (rank == np.maximum(np.abs(count), 1))
    place = np.where(found.any(axis=1), found.argmax(axis=1), 0xFFFFFFFF).astype(np.uint32)
    return np.where(offset == S32_RANGE.min, np.uint32(0), place)


@instruction("brev.{type:b32|b64} d, a", undefined=moved("a"))
def brev(a: Array) -> Array:
    """Return the bits in reverse order: brev.b32 of 1 is 0x80000000."""
    return _REVERSED_BYTES[a.view(np.uint8)].view(a.dtype).byteswap()


@instruction("bfe.{type:u32|u64|s32|s64} d, a, b:u32, c:u32", undefined=moved("a", choices=fields))
def bfe(a: Array, b: Array, c: Array) -> Array:
    """Return c bits of a from bit b up, extended by their sign in s types: bfe.s32 of 0x80, 4 and 4 is -8. Above the
    top of a, zeros (u) or its sign (s) are read."""
    unused = width(a) - np.minimum(field_place(c, a), width(a))
    return a >> field_place(b, a) << unused >> unused


@instruction("bfi.{type:b32|b64} d, a, b, c:u32, count:u32", undefined=moved("a", "b", choices=fields))
def bfi(a: Array, b: Array, c: Array, count: Array) -> Array:
    """Return b with its `count` bits from bit c up taken from the low bits of a: bfi.b32 of 3, 0xff00, 4 and 4 is
    0xff30. Bits beyond the top are dropped."""
    start = field_place(c, a)
    field = ones(field_place(count, a)) << start
    return b & ~field | a << start & field


@instruction("szext.{mode:clamp|wrap}.{type:u32|s32} d, a, b:u32", since="sm_70", undefined=moved("a", choices=amounts))
def szext(a: Array, b: Array, *, mode: str) -> Array:
    """Return the low b bits of a, extended by sign (s32) or zeros (u32): szext.clamp.s32 of 8 and 4 is -8. From 32 bits
    on, `.clamp` returns a and `.wrap` takes b modulo 32; 0 bits give 0."""
    unused = (32 - (b & 31 if mode == "wrap" else np.minimum(b, 32))).astype(a.dtype)
    return a << unused >> unused


@instruction("bmsk.{mode:clamp|wrap}.b32 d:b32, a:u32, b:u32", since="sm_70", undefined=moved(choices=amounts))
def bmsk(a: Array, b: Array, *, mode: str) -> Array:
    """Return b set bits from bit a up: bmsk.wrap.b32 of 1 and 2 is 6. `.wrap` takes both modulo 32, `.clamp`
    unchanged."""
    return ones(b & 31) << (a & 31) if mode == "wrap" else ones(b) << a


@instruction(
    "dp4a.{a_type:u32|s32}.{b_type:u32|s32} d:b32, a:a_type, b:b_type, c:b32", since="sm_61", undefined=law.dotted
)
def dp4a(a: Array, b: Array, c: Array) -> Array:
    """Return c plus the dot product of four bytes: of 0x01010101, 0x04030201 and 5 it is 15."""
    return c + (pieces(a, 1) * pieces(b, 1)).sum(axis=1, dtype=np.int32).view(np.uint32)


@instruction(
    "dp2a.{half:lo|hi}.{a_type:u32|s32}.{b_type:u32|s32} d:b32, a:a_type, b:b_type, c:b32",
    since="sm_61",
    undefined=law.dotted,
)
def dp2a(a: Array, b: Array, c: Array, *, half: str) -> Array:
    """Return c plus the dot product of the halves of a with the lower or upper two bytes of b, modulo 2**32."""
    chosen = pieces(b, 1)[:, 2:] if half == "hi" else pieces(b, 1)[:, :2]
    return c + (pieces(a, 2) * chosen).astype(np.uint32).sum(axis=1, dtype=np.uint32)


@instruction("add.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b", undefined=law.summed(), source=PTX["add.cc"])
def add_cc(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the sum, and its carry to the flag: 0xffffffff + 1 is 0 with the carry set."""
    return with_carry(a, b)


@instruction("addc.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b, cc:pred", undefined=law.summed())
def addc_cc(a: Array, b: Array, cc: Array) -> tuple[Array, Array]:
    """Return the sum with the carry of the flag, and its own carry to the flag: 0xffffffff + 0 + 1 is 0 with the carry
    set."""
    return with_carry(a, b, cc)


@instruction("addc.{type:u32|s32|u64|s64} d, a, b, cc:pred", undefined=law.summed())
def addc(a: Array, b: Array, cc: Array) -> Array:
    """Return the sum with the carry of the flag, which stays unchanged: 1 + 2 + 1 is 4."""
    return a + b + cc.astype(a.dtype)


@instruction("sub.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b", undefined=law.summed(True), source=PTX["sub.cc"])
def sub_cc(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a - b as a + ~b + 1, and the carry of the sum to the flag. The carry means *no borrow*: 0 - 1 leaves it
    clear. The ISA calls the flag a borrow and leaves open how an addition uses it; hardware keeps the carry (H100)."""
    return a - b, unsigned(a) >= unsigned(b)


@instruction("subc.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b, cc:pred", undefined=law.summed(True))
def subc_cc(a: Array, b: Array, cc: Array) -> tuple[Array, Array]:
    """Return a + ~b + the flag, and the carry of the sum to the flag: 5 - 5 with the flag clear is 0xffffffff, clear
    again."""
    return with_carry(a, ~b, cc)


@instruction("subc.{type:u32|s32|u64|s64} d, a, b, cc:pred", undefined=law.summed(True))
def subc(a: Array, b: Array, cc: Array) -> Array:
    """Return a + ~b + the flag, which stays unchanged: 5 - 3 is 2 with the flag set, and 1 with it clear."""
    return a + ~b + cc.astype(a.dtype)


@_product("mad.{half:hi|lo}.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b, c", source=PTX["mad.cc"])
def mad_cc(a: Array, b: Array, c: Array, *, half: str) -> tuple[Array, Array]:
    """Return one half of the product plus c, and the carry of the sum to the flag."""
    return with_carry(product_part(a, b, half), c)


@_product("madc.{half:hi|lo}.cc.{type:u32|s32|u64|s64} d, dcc:pred, a, b, c, cc:pred")
def madc_cc(a: Array, b: Array, c: Array, cc: Array, *, half: str) -> tuple[Array, Array]:
    """Return one half of the product plus c plus the carry of the flag, and the carry of the sum to the flag."""
    return with_carry(product_part(a, b, half), c, cc)


@_product("madc.{half:hi|lo}.{type:u32|s32|u64|s64} d, a, b, c, cc:pred")
def madc(a: Array, b: Array, c: Array, cc: Array, *, half: str) -> Array:
    """Return one half of the product plus c plus the carry of the flag, which stays unchanged."""
    return product_part(a, b, half) + c + cc.astype(a.dtype)


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
