"""Video instructions: arithmetic on a byte, a half or all of a register (scalar), or on its parts side by side (SIMD).

Lowering turns the selectors of operands, such as `%r1.b0` and `%r2.h10`, and the signs of vmad into one last operand,
`parts`. Numbers are Python's, which no intermediate result exceeds; the steps are those of the ISA's pseudocode.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.register_file import mask_of
from refsim.ptx.isa.definedness.bits import RuleOperands, full, refined, rule_of
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.syntax import selectors_of
from refsim.sources import PTX

_SCALAR, _SIMD = PTX["scalar video instructions"], PTX["SIMD video instructions"]
_TYPES, _TESTS = ".{type:u32|s32}.{a_type:u32|s32}.{b_type:u32|s32}", "{test:eq|ne|lt|le|gt|ge}"
_SIZES = {"b": 8, "h": 16}
Operation = Callable[[Array, Array], Array]
_OPERATIONS: dict[str, Operation] = {
    "add": operator.add,
    "sub": operator.sub,
    "absdiff": lambda a, b: abs(a - b),
    "min": np.minimum,
    "max": np.maximum,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "shl": operator.lshift,
    "shr": operator.rshift,
}


def _selectors(parts: Array | None) -> tuple[str, ...]:
    return selectors_of(0 if parts is None else int(parts[0]))


def _test(name: str) -> Operation:
    return lambda a, b: getattr(operator, name)(a, b).astype(np.int64).astype(object)


def _numbers(rows: Array, digits: str, size: int) -> Array:
    """Return the parts of `size` bits that digits name, a column for each; rows of words are signed as their type is."""
    parts = rows.view(f"{rows.dtype.kind}{size // 8}").reshape(len(rows), -1)
    return parts[:, [int(digit) for digit in digits]].astype(object)


def _selected(value: Array, selector: str) -> Array:
    """Return the byte, half or word that a selector such as b3, h0 or "" names, as numbers."""
    found: Array = _numbers(value[:, None], selector[1:] or "0", _SIZES.get(selector[:1], 32))[:, 0]
    return found


def _limited(total: Array, type: str, size: int) -> Array:
    """Return numbers limited to those of s32 or u32, cut to `size` bits."""
    least, most = (-(1 << size - 1), (1 << size - 1) - 1) if type == "s32" else (0, (1 << size) - 1)
    return np.minimum(np.maximum(total, least), most)


def _word(total: Array) -> Array:
    return (total & 0xFFFFFFFF).astype(np.uint32)


def _put(total: Array, whole: Array, place: int, size: int) -> Array:
    """Return words with one of their parts replaced."""
    mask = ((1 << size) - 1) << size * place
    return (total << size * place) & mask | whole & ~mask


def _finished(total: Array, c: Array | None, selector: str, second: str | None, type: str) -> Array:
    """Return a scalar result: combined with c, or put into the part of c that a selector names."""
    if c is None:
        return _word(total)
    if second is not None:
        total = _OPERATIONS[second](total, c.view(f"{type[0].replace('s', 'i')}4").astype(object))
    return _word(_put(total, c.astype(object), int(selector[1]), _SIZES[selector[0]]) if selector else total)


def _bits_of(selector: str) -> int:
    width = _SIZES.get(selector[:1], 32)
    return ((1 << width) - 1) << width * int(selector[1:] or 0)


def _reads(parts: Array | None, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the bits of each part of a result, and the bits of a and of b that it depends on."""
    to, of_a, of_b, _ = _selectors(parts)
    if not size:
        yield _bits_of(to), _bits_of(of_a.lstrip("-")), _bits_of(of_b.lstrip("-"))
        return
    letter, count = "bh"[size == 16], 32 // size
    rows = [[int(digit) for digit in of[:0:-1]] for of in (to, of_a, of_b)]
    for place in rows[0] or range(count):
        read = {(rows[1] or range(count))[place], (rows[2] or range(count, 2 * count))[place]}
        both = sum(_bits_of(f"{letter}{each}") for each in read)
        yield _bits_of(f"{letter}{place}"), both & 0xFFFFFFFF, both >> 32


@rule_of
def _parts_read(operands: RuleOperands, size: int = 0) -> list[Any]:
    """Return the rule of undefined bits: each part of the result depends on its parts of a and b, and other bits are
    those of c. A part is exact if these have few undefined bits, else all bits that it can set are open. A second
    operation leaves all bits open. `size`: the bits of SIMD parts."""
    given = dict(zip(operands.names, operands.values, strict=False))
    masks, (_, origin) = [operands.bits(at) for at in (0, 1)], operands.unknown()
    c = operands.bits(2) if given.get("c") is not None else masks[0] ^ masks[0]
    mixes = operands.keywords.get("second") or operands.keywords.get("last") == "add" or "po" in operands.keywords
    for field, *of in _reads(given.get("parts"), size):
        reads = [of[0] | of[1]] * 2 if operands.same[1] == 0 else of
        kept = [mask & np.uint32(read) for mask, read in zip(masks, reads, strict=True)]
        able = np.uint32(field & -field if "test" in operands.keywords and not mixes else field)
        bits = np.where((kept[0] | kept[1]) != 0, able, np.uint32(0))
        if not mixes:
            rest = [None] * (len(operands.masks) - 2)
            part = replace(operands, masks=[*(mask_of(each, origin) for each in kept), *rest])
            (exact,) = refined(part, [mask_of(bits, origin)])
            bits, c = bits & (0 if exact is None else exact.bits), c & ~np.uint32(field)
        c = c | bits
    return operands.answer(full(c != 0, operands.results[0][1]) if mixes else c)


_video = partial(instruction, source=_SCALAR, undefined=_parts_read())


def _scalar(name: str) -> None:
    """Register a scalar instruction: alone, and with a second operation on its result and c."""
    types, b, mode = _TYPES, "b:b_type", ""
    if name in ("shl", "shr"):
        types, b, mode = ".{type:u32|s32}.{a_type:u32|s32}.u32", "b:u32", ".{mode:clamp|wrap}"
    for second, c in (("", "c:b32?"), (".{second:add|min|max}", "c:b32")):

        @_video(f"v{name}{types}{{.sat}}{mode}{second} d:b32, a:a_type, {b}, {c}, parts:b64?")
        def scalar(
            a: Array,
            b: Array,
            c: Array | None = None,
            parts: Array | None = None,
            *,
            sat: bool,
            type: str,
            mode: str = "",
            second: str | None = None,
        ) -> Array:
            """Return the operation on a part of each operand, combined with c or put into a part of c. A shift is by at
            most 32 bits (clamp), or by b modulo 32 (wrap)."""
            to, of_a, of_b, _ = _selectors(parts)
            y = _selected(b, of_b)
            y = y & 31 if mode == "wrap" else np.minimum(y, 32) if mode else y
            total = _OPERATIONS[name](_selected(a, of_a), y)
            return _finished(_limited(total, type, _SIZES.get(to[:1], 32)) if sat else total, c, to, second, type)


for _name in ("add", "sub", "absdiff", "min", "max", "shl", "shr"):
    _scalar(_name)

for _second, _c in (("", "c:b32?"), (".{second:add|min|max}", "c:b32")):

    @_video(f"vset.{{a_type:u32|s32}}.{{b_type:u32|s32}}.{_TESTS}{_second} d:b32, a:a_type, b:b_type, {_c}, parts:b64?")
    def vset(
        a: Array, b: Array, c: Array | None = None, parts: Array | None = None, *, test: str, second: str | None = None
    ) -> Array:
        """Return 1 where the test of two parts holds, else 0, combined with c or put into a part of c."""
        to, of_a, of_b, _ = _selectors(parts)
        return _finished(_test(test)(_selected(a, of_a), _selected(b, of_b)), c, to, second, "u32")


@_video(
    f"vmad{_TYPES}{{.po}}{{.sat}}{{.scale:shr7|shr15}} d:b32, a:a_type, b:b_type, c:b32, parts:b64?", ignores=("type",)
)
def vmad(
    a: Array,
    b: Array,
    c: Array,
    parts: Array | None = None,
    *,
    a_type: str,
    b_type: str,
    po: bool,
    sat: bool,
    scale: str | None,
) -> Array:
    """Return a product of parts plus c, and one more with .po, shifted right: vmad.u32.u32.u32.shr7 of 300, 2 and 40 is
    5. The result is signed if an operand is, or has a minus in front."""
    _, of_a, of_b, of_c = _selectors(parts)
    minus = of_a.startswith("-") != of_b.startswith("-")
    is_signed = "s32" in (a_type, b_type) or minus or of_c == "-"
    product = _selected(a, of_a.lstrip("-")) * _selected(b, of_b.lstrip("-"))
    added = c.view("i4" if is_signed else "u4").astype(object)
    total = (-product if minus else product) + (-added if of_c else added) + int(po)
    total = total >> int(scale[3:]) if scale else total
    return _word(_limited(total, "s32" if is_signed else "u32", 32) if sat else total)


def _simd(name: str, size: int) -> None:
    """Register a SIMD instruction on parts of `size` bits: its results are put into the parts of c, or added to c."""
    count = 32 // size
    types, last = _TYPES, "{.last:sat|add}"
    if name == "set":
        types, last = f".{{a_type:u32|s32}}.{{b_type:u32|s32}}.{_TESTS}", "{.last:add}"

    @instruction(
        f"v{name}{count}{types}{last} d:b32, a:a_type, b:b_type, c:b32, parts:b64?",
        source=_SIMD,
        undefined=_parts_read(size),
    )
    def simd(
        a: Array, b: Array, c: Array, parts: Array | None = None, *, last: str | None, type: str = "", test: str = ""
    ) -> Array:
        """Return the operation on each pair of parts of a and b. The parts of each operand are chosen from those of a,
        numbered from 0, then those of b; .add adds the results to c."""
        to, of_a, of_b, _ = (selector[1:][::-1] for selector in _selectors(parts))
        digits = "".join(map(str, range(2 * count)))
        both = np.stack(np.broadcast_arrays(a.view(np.uint32), b.view(np.uint32)), axis=1)
        x = _numbers(both.view(f"{a.dtype.kind}4"), of_a or digits[:count], size)
        y = _numbers(both.view(f"{b.dtype.kind}4"), of_b or digits[count:], size)
        total = (_test(test) if test else _OPERATIONS[name])(x, y)
        total = _limited(total, type, size) if last == "sat" else total
        whole = c.astype(object)
        for place in map(int, to or digits[:count]):
            whole = whole + total[:, place] if last == "add" else _put(total[:, place], whole, place, size)
        return _word(whole)


for _name in ("add", "sub", "avrg", "absdiff", "min", "max", "set"):
    for _bits in (16, 8):
        _simd(_name, _bits)
