"""Comparison and selection: predicates from numbers, and values chosen by predicates."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.isa.definedness import bits
from refsim.ptx.isa.definedness.arithmetic import compared
from refsim.ptx.isa.forms import Clause, instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX, Source

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
    form: str,
    *kinds: tuple[str, str],
    source: Source | None = None,
    since: str = "sm_50",
    ignores: tuple[str, ...] = (),
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


@_comparison("setp.TEST.TYPE dp:pred|dq:pred, a, b", *_WHOLE)
@_comparison("setp.TEST{.ftz}.TYPE dp:pred|dq:pred, a, b", (_NUMBER_TESTS, "f32"))
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


_set_half = partial(_comparison, source=_SET_HALF, since="sm_53")
_set_bfloat = partial(_comparison, source=_SET_HALF, since="sm_90")


@_comparison("set.TEST.{dtype:u32|s32|f32}.TYPE d:dtype, a, b", *_WHOLE)
@_comparison("set.TEST{.ftz}.{dtype:u32|s32|f32}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f32"))
@_set_half("set.TEST.{dtype:f16}.TYPE d:dtype, a, b", *_WHOLE)
@_set_half("set.TEST{.ftz}.{dtype:f16}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f32"))
@_set_half("set.TEST{.ftz}.{dtype:u16|s16|u32|s32|f16}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f16"))
@_set_bfloat("set.TEST.{dtype:bf16}.TYPE d:dtype, a, b", *_WHOLE, (_NUMBER_TESTS, "f16|f32"))
@_set_bfloat("set.TEST.{dtype:u16|s16|u32|s32|bf16}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "bf16"))
def set_(
    a: Array, b: Array, c: Flags = None, *, test: str, dtype: str, type: str, ftz: bool = False, boolean: str = ""
) -> Array:
    """Return all ones (integer result) or 1.0 where the test, combined with c, holds; else 0. set.lt.f32.s32 of 1 and 2
    is 1.0, set.lt.u32.s32 of 1 and 2 is 0xffffffff."""
    return _chosen(_combined(_holds(a, b, test, type, ftz), c, boolean), dtype)


@_set_half("set.TEST{.ftz}.{dtype:f16x2}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "f16x2"))
@_set_bfloat("set.TEST.{dtype:bf16x2}.TYPE d:dtype, a, b", (_NUMBER_TESTS, "bf16x2"))
def set_pairs(
    a: Array, b: Array, c: Flags = None, *, test: str, dtype: str, type: str, ftz: bool = False, boolean: str = ""
) -> Array:
    """Return 1.0 or 0 in each half, as the test, combined with c, holds there: set.eq.f16x2.f16x2 of equals is
    0x3c003c00."""
    return _chosen(_combined(_holds(a, b, test, type, ftz), None if c is None else c[:, None], boolean), dtype)


@_set_half("set.TEST{.ftz}.{dtype:u32|s32}.TYPE d:u16x2, a, b", (_NUMBER_TESTS, "f16x2"), ignores=("dtype",))
@_set_bfloat("set.TEST.{dtype:u32|s32}.TYPE d:u16x2, a, b", (_NUMBER_TESTS, "bf16x2"), ignores=("dtype",))
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


@instruction(f"selp.{_SELECTED} d, a, b, c:pred", undefined=bits.selected)
def selp(a: Array, b: Array, c: Array) -> Array:
    """Return a where the predicate holds, else b; the bits stay unchanged."""
    return _selected(c, a, b)


@instruction(f"slct.{_SELECTED}.s32 d, a, b, c:s32", undefined=bits.selected)
@instruction(f"slct.{_SELECTED}.f32 d, a, b, c:f32", undefined=bits.selected)
def slct(a: Array, b: Array, c: Array) -> Array:
    """Return a where c >= 0, else b: -0.0 chooses a, NaN chooses b."""
    return _selected(c >= 0, a, b)


@instruction(f"slct.ftz.{_SELECTED}.f32 d, a, b, c:f32", undefined=bits.selected)
def slct_ftz(a: Array, b: Array, c: Array) -> Array:
    """Return a where c >= 0, else b, with a subnormal c read as 0: -1e-40 chooses a."""
    return _selected(_numbers(c, "f32", True) >= 0, a, b)
