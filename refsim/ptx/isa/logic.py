"""Logic and shifts: bits in, bits out; a shift by the width or more empties the register."""

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.isa.definedness import bits
from refsim.ptx.isa.definedness.arithmetic import counted
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

# For each mode of prmt, the default selector that the two low bits of its last operand stand for.
_SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instruction("and.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise)
def and_(a: Array, b: Array) -> Array:
    """Return the bits that are set in both: 0b1100 and 0b1010 give 0b1000."""
    return a & b


@instruction("or.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise)
def or_(a: Array, b: Array) -> Array:
    """Return the bits that are set in either: 0b1100 and 0b1010 give 0b1110."""
    return a | b


@instruction("xor.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise)
def xor(a: Array, b: Array) -> Array:
    """Return the bits that are set in exactly one: 0b1100 and 0b1010 give 0b0110."""
    return a ^ b


@instruction("not.{type:pred|b16|b32|b64} d, a", undefined=bits.bitwise)
def not_(a: Array) -> Array:
    """Return every bit inverted: not.b16 of 0x00ff is 0xff00."""
    return ~a


@instruction("cnot.{type:b16|b32|b64} d, a", undefined=counted)
def cnot(a: Array) -> Array:
    """Return 1 for 0, and 0 for every other value."""
    return (a == 0).astype(a.dtype)


def _looked_up(table: int, operands: tuple[Array, ...]) -> Array:
    """Return the bitwise function whose value for the bits (a, b, c) is bit 4a + 2b + c of `table`. The upper half of
    the table is the function where the first operand is 1, the lower half where it is 0."""
    first, rest = operands[0], operands[1:]
    full = (1 << (1 << len(rest))) - 1
    low, high = table & full, table >> (1 << len(rest))
    if low == high:
        return _looked_up(low, rest) if rest else np.full_like(first, -low & 0xFFFFFFFF)
    if low == 0:
        return first if high == full else first & _looked_up(high, rest)
    if (low, high) == (full, 0):
        return ~first
    return _looked_up(low, rest) ^ (first & _looked_up(low ^ high, rest))


@instruction("lop3.b32 d:b32, a:b32, b:b32, c:b32, immLut:b32", undefined=bits.bitwise)
def lop3(a: Array, b: Array, c: Array, lut: Array) -> Array:
    """Return any function of three bits, by its table F(0xf0, 0xcc, 0xaa): 0x80 is a & b & c, 0x96 is a ^ b ^ c. lut:
    one constant from 0 to 255, shape (1,); anything else is RefsimError `malformed-ptx`."""
    if lut.size != 1 or lut[0] > 0xFF:
        what = f"the table of lop3 is {lut[0]}" if lut.size == 1 else f"lop3 has {lut.size} tables"
        rule = f"{PTX['lop3']}: immLut is an integer constant from 0 to 255"
        raise RefsimError("malformed-ptx", what, rule=rule, help="give one constant")
    return _looked_up(int(lut[0]), (a, b, c))


@instruction(
    "lop3.{boolean:or|and}.b32 d:b32|dp:pred, a:b32, b:b32, c:b32, immLut:b32, q:pred",
    since="sm_70",
    undefined=bits.table_and_test,
)
def lop3_boolean(a: Array, b: Array, c: Array, lut: Array, q: Array, *, boolean: str) -> tuple[Array, Array]:
    """Return the result of lop3, and whether it is nonzero, combined with q."""
    found = lop3(a, b, c, lut)
    return found, (found != 0) | q if boolean == "or" else (found != 0) & q


def _amount(b: Array, a: Array) -> Array:
    """Return shift amounts in the type of a; NumPy, like PTX, shifts everything out from the width of a on."""
    return np.minimum(b, a.dtype.itemsize * 8).astype(a.dtype)


@instruction("shl.{type:b16|b32|b64} d, a, b:u32", undefined=bits.moved("a", choices=bits.amounts))
def shl(a: Array, b: Array) -> Array:
    """Shift a left by b and fill with zeros: by 32 or more, shl.b32 gives 0."""
    return a << _amount(b, a)


@instruction(
    "shr.{type:b16|b32|b64|u16|u32|u64|s16|s32|s64} d, a, b:u32", undefined=bits.moved("a", choices=bits.amounts)
)
def shr(a: Array, b: Array) -> Array:
    """Shift a right by b and fill with zeros (s types: the sign): by 32 or more, shr.s32 of -5 gives -1."""
    return a >> _amount(b, a)


@instruction(
    "shf.{direction:l|r}.{mode:clamp|wrap}.b32 d:b32, a:b32, b:b32, c:u32",
    undefined=bits.moved("a", "b", choices=bits.amounts),
)
def shf(a: Array, b: Array, c: Array, *, direction: str, mode: str) -> Array:
    """Shift the 64 bits with b above a by c; return the upper 32 bits for l, the lower 32 for r. `.clamp` shifts by 32
    at most, `.wrap` by c modulo 32: shf.l.clamp of a, b and 40 is a."""
    amount = c & 31 if mode == "wrap" else np.minimum(c, 32)
    opposite = np.uint32(32) - amount
    return b << amount | a >> opposite if direction == "l" else b << opposite | a >> amount


@instruction(
    "prmt.b32{.mode:f4e|b4e|rc8|ecl|ecr|rc16} d:b32, a:b32, b:b32, c:b32",
    undefined=bits.moved("a", "b", choices=bits.selectors),
)
def prmt(a: Array, b: Array, c: Array, *, mode: str | None) -> Array:
    """Return four bytes chosen among the bytes of a (0 to 3) and b (4 to 7), one by each nibble of c from the lowest.

    Bit 3 of a nibble copies the sign of the chosen byte to all its bits. prmt.b32 of 0x80, 0 and 0x0008 has 0xff below
    three bytes of 0x80. With a mode, the two low bits of c choose among four fixed selectors.
    """
    if mode:
        c = np.array(_SELECTORS[mode], dtype=np.uint32)[c & 3]
    difference = a ^ b
    result: Array = np.zeros(1, dtype=np.uint32)
    for place in range(0, 16, 4):
        nibble = c >> place
        word = a ^ (difference & -(nibble >> 2 & 1))
        byte = word >> ((nibble & 3) << 3) & 0xFF
        if (nibble & 8).any():
            byte = np.where(nibble & 8, (byte >> 7) * np.uint32(0xFF), byte)
        result = result | byte << (2 * place)
    return result
