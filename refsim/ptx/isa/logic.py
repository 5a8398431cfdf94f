"""Logic and shifts, comparison and selection: a shift by the width or more empties the register; predicates choose values."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.checks import undefined_bits as bits
from refsim.ptx.checks.undefined_arithmetic import compared, counted
from refsim.ptx.isa.forms import Clause, instruction
from refsim.sources import PTX, Source

Array = NDArray[Any]

# For each mode of prmt, the default selector that the two low bits of its last operand stand for.
_SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instruction("and.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise, source=PTX["and"])
def and_(a: Array, b: Array) -> Array:
    """Return the bits that are set in both: 0b1100 and 0b1010 give 0b1000."""
    return a & b


@instruction("or.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise, source=PTX["or"])
def or_(a: Array, b: Array) -> Array:
    """Return the bits that are set in either: 0b1100 and 0b1010 give 0b1110."""
    return a | b


@instruction("xor.{type:pred|b16|b32|b64} d, a, b", undefined=bits.bitwise, source=PTX["xor"])
def xor(a: Array, b: Array) -> Array:
    """Return the bits that are set in exactly one: 0b1100 and 0b1010 give 0b0110."""
    return a ^ b


@instruction("not.{type:pred|b16|b32|b64} d, a", undefined=bits.bitwise, source=PTX["not"])
def not_(a: Array) -> Array:
    """Return every bit inverted: not.b16 of 0x00ff is 0xff00."""
    return ~a


@instruction("cnot.{type:b16|b32|b64} d, a", undefined=counted, source=PTX["cnot"])
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


@instruction("lop3.b32 d:b32, a:b32, b:b32, c:b32, immLut:b32", undefined=bits.bitwise, source=PTX["lop3"])
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
    source=PTX["lop3"],
)
def lop3_boolean(a: Array, b: Array, c: Array, lut: Array, q: Array, *, boolean: str) -> tuple[Array, Array]:
    """Return the result of lop3, and whether it is nonzero, combined with q."""
    found = lop3(a, b, c, lut)
    return found, (found != 0) | q if boolean == "or" else (found != 0) & q


def _amount(b: Array, a: Array) -> Array:
    """Return shift amounts in the type of a; NumPy, like PTX, shifts everything out from the width of a on."""
    return np.minimum(b, a.dtype.itemsize * 8).astype(a.dtype)


@instruction("shl.{type:b16|b32|b64} d, a, b:u32", undefined=bits.moved("a", choices=bits.amounts), source=PTX["shl"])
def shl(a: Array, b: Array) -> Array:
    """Shift a left by b and fill with zeros: by 32 or more, shl.b32 gives 0."""
    return a << _amount(b, a)


@instruction(
    "shr.{type:b16|b32|b64|u16|u32|u64|s16|s32|s64} d, a, b:u32",
    undefined=bits.moved("a", choices=bits.amounts),
    source=PTX["shr"],
)
def shr(a: Array, b: Array) -> Array:
    """Shift a right by b and fill with zeros (s types: the sign): by 32 or more, shr.s32 of -5 gives -1."""
    return a >> _amount(b, a)


@instruction(
    "shf.{direction:l|r}.{mode:clamp|wrap}.b32 d:b32, a:b32, b:b32, c:u32",
    undefined=bits.moved("a", "b", choices=bits.amounts),
    source=PTX["shf"],
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
    source=PTX["prmt"],
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


Flags = Array | None  # the predicate to combine a comparison with, if the form has one

_BOOLEAN: dict[str, Callable[[Any, Any], Any]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}

# lo, ls, hi and hs are the unsigned names of lt, le, gt and ge; the type already says how the bits are read.
_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}

# With a NaN operand a plain test is false, a test that ends in u true. NumPy's != is true, so ne is spelled out.
_REAL: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}

_TRUE: dict[str, Any] = {
    "u16": np.uint16(0xFFFF),
    "s16": np.int16(-1),
    "u32": np.uint32(0xFFFFFFFF),
    "s32": np.int32(-1),
    "f16": np.float16(1),
    "bf16": np.uint16(0x3F80),
    "f32": np.float32(1),
    "f16x2": np.float16(1),
    "bf16x2": np.uint16(0x3F80),
}

_NUMBER_TESTS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_WHOLE = (
    ("eq|ne", "b16|b32|b64"),
    ("eq|ne|lt|le|gt|ge", "s16|s32|s64"),
    ("eq|ne|lt|le|gt|ge|lo|ls|hi|hs", "u16|u32|u64"),
    (_NUMBER_TESTS, "f64"),
)
_SELECTED = "{type:b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64}"
_SETP_HALF, _SET_HALF = PTX["half precision setp"], PTX["half precision set"]


def _comparison(
    form: str, *kinds: tuple[str, str], source: Source, since: str = "sm_50", ignores: tuple[str, ...] = ()
) -> Callable[[Clause], Clause]:
    """Return a decorator that registers a comparison for each of `kinds`, alone and combined with a predicate c.

    A kind is (tests, types); TEST and TYPE in the form stand for its choices. The combined form has a Boolean operator
    after the test and c as its last source.
    """

    def register(function: Clause) -> Clause:
        """Register the function for every kind, alone and combined with c."""
        for tests, types in kinds:
            alone = form.replace("TYPE", f"{{type:{types}}}")
            joined = alone.replace("TEST", "TEST.{boolean:and|or|xor}") + ", c:pred"
            for each in (alone, joined):
                instruction(
                    each.replace("TEST", f"{{test:{tests}}}"),
                    source=source,
                    since=since,
                    ignores=ignores,
                    undefined=compared,
                )(function)
        return function

    return register


def _numbers(a: Array, type: str, ftz: bool) -> Array:
    """Return the values to compare: bf16 bits as float32, and subnormal numbers as 0 if `ftz` (no test sees a zero's
    sign)."""
    if type.startswith("bf16"):
        return (a.astype(np.uint32) << 16).view(np.float32)
    return np.where(np.abs(a) < np.finfo(a.dtype).smallest_normal, a.dtype.type(0), a) if ftz else a


def _holds(a: Array, b: Array, test: str, type: str, ftz: bool) -> Array:
    if ftz or type.startswith("bf16"):
        a, b = _numbers(a, type, ftz), _numbers(b, type, ftz)
    return (_REAL if a.dtype.kind == "f" else _INTEGER)[test](a, b)


def _combined(holds: Array, c: Flags, boolean: str) -> Array:
    return holds if not boolean else _BOOLEAN[boolean](holds, c)


@_comparison("setp.TEST.TYPE dp:pred|dq:pred, a, b", *_WHOLE, source=PTX["setp"])
@_comparison("setp.TEST{.ftz}.TYPE dp:pred|dq:pred, a, b", (_NUMBER_TESTS, "f32"), source=PTX["setp"])
@_comparison("setp.TEST{.ftz}.TYPE dp:pred, a, b", (_NUMBER_TESTS, "f16"), source=_SETP_HALF, since="sm_53")
@_comparison("setp.TEST.TYPE dp:pred, a, b", (_NUMBER_TESTS, "bf16"), source=_SETP_HALF, since="sm_90")
def setp(
    a: Array, b: Array, c: Flags = None, *, test: str, type: str, ftz: bool = False, boolean: str = ""
) -> tuple[Array, Array]:
    """Return whether the test holds, and whether it fails, each combined with c. setp.lt.and.s32 of -1, 0 and true
    gives true and false; setp.gt.ftz.f32 of 1e-40 and 0 gives false."""
    holds = _holds(a, b, test, type, ftz)
    return (_combined(holds, c, boolean), _combined(~holds, c, boolean)) if boolean else (holds, ~holds)


@_comparison("setp.TEST{.ftz}.TYPE dp:pred|dq:pred, a, b", (_NUMBER_TESTS, "f16x2"), source=_SETP_HALF, since="sm_53")
@_comparison("setp.TEST.TYPE dp:pred|dq:pred, a, b", (_NUMBER_TESTS, "bf16x2"), source=_SETP_HALF, since="sm_90")
def setp_pairs(
    a: Array, b: Array, c: Flags = None, *, test: str, type: str, ftz: bool = False, boolean: str = ""
) -> tuple[Array, Array]:
    """Return whether the test holds in the lower half, and whether it holds in the upper half, each combined with c.
    setp.lt.f16x2 of (1, 2) and (2, 2), lower halves first, gives true and false."""
    holds = _holds(a, b, test, type, ftz)
    return _combined(holds[:, 0], c, boolean), _combined(holds[:, 1], c, boolean)


def _chosen(holds: Array, dtype: str) -> Array:
    return np.where(holds, _TRUE[dtype], _TRUE[dtype].dtype.type(0))


@_comparison("set.TEST.{dtype:u32|s32|f32}.TYPE d:dtype, a, b", *_WHOLE, source=PTX["set"])
@_comparison("set.TEST{.ftz}.{dtype:u32|s32|f32}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f32"), source=PTX["set"])
@_comparison("set.TEST.{dtype:f16}.TYPE d:dtype, a, b", *_WHOLE, source=_SET_HALF, since="sm_53")
@_comparison("set.TEST{.ftz}.{dtype:f16}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f32"), source=_SET_HALF, since="sm_53")
@_comparison(
    "set.TEST{.ftz}.{dtype:u16|s16|u32|s32|f16}.TYPE d:dtype, a, b",
    (_NUMBER_TESTS, "f16"),
    source=_SET_HALF,
    since="sm_53",
)
@_comparison(
    "set.TEST.{dtype:bf16}.TYPE d:dtype, a, b", *_WHOLE, (_NUMBER_TESTS, "f16|f32"), source=_SET_HALF, since="sm_90"
)
@_comparison(
    "set.TEST.{dtype:u16|s16|u32|s32|bf16}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "bf16"), source=_SET_HALF, since="sm_90"
)
def set_(
    a: Array, b: Array, c: Flags = None, *, test: str, dtype: str, type: str, ftz: bool = False, boolean: str = ""
) -> Array:
    """Return all ones (integer result) or 1.0 where the test, combined with c, holds; else 0. set.lt.f32.s32 of 1 and 2
    is 1.0, set.lt.u32.s32 of 1 and 2 is 0xffffffff."""
    return _chosen(_combined(_holds(a, b, test, type, ftz), c, boolean), dtype)


@_comparison(
    "set.TEST{.ftz}.{dtype:f16x2}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f16x2"), source=_SET_HALF, since="sm_53"
)
@_comparison("set.TEST.{dtype:bf16x2}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "bf16x2"), source=_SET_HALF, since="sm_90")
def set_pairs(
    a: Array, b: Array, c: Flags = None, *, test: str, dtype: str, type: str, ftz: bool = False, boolean: str = ""
) -> Array:
    """Return 1.0 or 0 in each half, as the test, combined with c, holds there: set.eq.f16x2.f16x2 of equals is
    0x3c003c00."""
    return _chosen(_combined(_holds(a, b, test, type, ftz), None if c is None else c[:, None], boolean), dtype)


@_comparison(
    "set.TEST{.ftz}.{dtype:u32|s32}.TYPE d:u16x2, a, b",
    (_NUMBER_TESTS, "f16x2"),
    source=_SET_HALF,
    since="sm_53",
    ignores=("dtype",),
)
@_comparison(
    "set.TEST.{dtype:u32|s32}.TYPE d:u16x2, a, b",
    (_NUMBER_TESTS, "bf16x2"),
    source=_SET_HALF,
    since="sm_90",
    ignores=("dtype",),
)
def set_pair_masks(
    a: Array, b: Array, c: Flags = None, *, test: str, type: str, ftz: bool = False, boolean: str = ""
) -> Array:
    """Return 0xffff or 0 in each half, as the test, combined with c, holds there: set.eq.u32.f16x2 of equals is
    0xffffffff."""
    return set_pairs(a, b, c, test=test, dtype="u16", type=type, ftz=ftz, boolean=boolean)


def _selected(c: Array, a: Array, b: Array) -> Array:
    """Return a where c holds, else b, by masks: several times as fast as np.where on irregular predicates."""
    bits = f"u{a.dtype.itemsize}"
    first, second = a.view(bits), b.view(bits)
    return (second ^ ((first ^ second) & -c.astype(bits))).view(a.dtype)


@instruction(f"selp.{_SELECTED} d, a, b, c:pred", undefined=bits.selected, source=PTX["selp"])
def selp(a: Array, b: Array, c: Array) -> Array:
    """Return a where the predicate holds, else b; the bits stay unchanged."""
    return _selected(c, a, b)


@instruction(f"slct.{_SELECTED}.s32 d, a, b, c:s32", undefined=bits.selected, source=PTX["slct"])
@instruction(f"slct.{_SELECTED}.f32 d, a, b, c:f32", undefined=bits.selected, source=PTX["slct"])
def slct(a: Array, b: Array, c: Array) -> Array:
    """Return a where c >= 0, else b: -0.0 chooses a, NaN chooses b."""
    return _selected(c >= 0, a, b)


@instruction(f"slct.ftz.{_SELECTED}.f32 d, a, b, c:f32", undefined=bits.selected, source=PTX["slct"])
def slct_ftz(a: Array, b: Array, c: Array) -> Array:
    """Return a where c >= 0, else b, with a subnormal c read as 0: -1e-40 chooses a."""
    return _selected(_numbers(c, "f32", True) >= 0, a, b)
