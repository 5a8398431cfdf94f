"""Laws of the integer instructions: every clause equals a definition over Python's integers, lane by lane."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.isa.forms import Bound, Instruction, bind, clauses, evaluate
from refsim.ptx.isa.instances import instances
from refsim.reference.instructions import Words, disagreements, fitted, operand_words, words
from refsim.testing.strategies import share

CLAUSES = [clause for clause in clauses() if clause.function.__module__.endswith(".integer")]


def width(bound: Bound) -> int:
    """The width of a number of the instruction's type: of one half in u16x2."""
    type = bound.sources[0][1]
    return type.bits // type.lanes


def clamp(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def pieces(value: int, size: int) -> list[int]:
    """The bytes or halves of a 32-bit number, as signed as the number's type: negative numbers come from s32 alone."""
    return [value % 2**32 >> 8 * size * place & (1 << 8 * size) - 1 for place in range(4 // size)]


def typed_pieces(value: int, size: int, type: str) -> list[int]:
    return [signed(piece, 8 * size) if type == "s32" else piece for piece in pieces(value, size)]


def dot(bound: Bound, a: int, b: int, *, size: int, first: int = 0) -> int:
    left = typed_pieces(a, size, bound.modifiers["a_type"])
    right = typed_pieces(b, 1, bound.modifiers["b_type"])[first:]
    return sum(x * y for x, y in zip(left, right, strict=False))


def distances(size: int, a: int, b: int, bound: Bound) -> list[int]:
    left = typed_pieces(a, size, bound.modifiers["a_type"])
    right = typed_pieces(b, size, bound.modifiers["b_type"])
    return [abs(x - y) for x, y in zip(left, right, strict=True)]


def joined(parts: list[int], bits: int) -> int:
    return sum(part % (1 << bits) << bits * place for place, part in enumerate(parts))


def half(bound: Bound, product: int) -> int:
    return product >> width(bound) if bound.modifiers["half"] == "hi" else product % (1 << width(bound))


def half24(bound: Bound, a: int, b: int) -> int:
    x, y = (signed(v, 24) if bound.modifiers.get("type", "s32") == "s32" else v % 2**24 for v in (a, b))
    return x * y >> 16 if bound.modifiers.get("half", "hi") == "hi" else x * y


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * quotient(a, b)


def highest(bound: Bound, a: int) -> int:
    """The position of the highest bit unlike the sign, or 2**32 - 1."""
    length = (a if a >= 0 else ~a).bit_length()
    if length == 0:
        return 2**32 - 1
    return width(bound) - length if bound.modifiers["shiftamt"] else length - 1


def nth_set(bound: Bound, mask: int, base: int, offset: int) -> int:
    if base > 31:
        return 0 if offset == -(2**31) else -1
    if offset == 0:
        return base if mask >> base & 1 else -1
    if offset == -(2**31):
        return 0
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [place for place in places if mask >> place & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else -1


def field_place(bound: Bound, value: int) -> int:
    return value % 256 if width(bound) == 32 else value


def extract(bound: Bound, a: int, b: int, c: int) -> int:
    bits, start, length = width(bound), field_place(bound, b), field_place(bound, c)
    if length == 0:
        return 0
    shown = a >> min(start, 200)  # Python extends a negative number by its sign without end
    field = shown % (1 << min(length, 200))
    return signed(field, min(length, 200)) if bound.modifiers["type"][0] == "s" and length < bits else field


def insert(bound: Bound, a: int, b: int, c: int, count: int) -> int:
    start, length = field_place(bound, c), field_place(bound, count)
    bits = [b >> place & 1 for place in range(width(bound))]
    for place in range(min(length, width(bound))):
        if start + place < width(bound):
            bits[start + place] = a >> place & 1
    return sum(bit << place for place, bit in enumerate(bits))


def extend(bound: Bound, a: int, b: int) -> int:
    count = b % 32 if bound.modifiers["mode"] == "wrap" else min(b, 32)
    if count == 0:
        return 0
    return signed(a, count) if bound.modifiers["type"] == "s32" else a % (1 << count)


def mask_field(bound: Bound, a: int, b: int) -> int:
    start, length = (a % 32, b % 32) if bound.modifiers["mode"] == "wrap" else (min(a, 32), min(b, 32))
    return sum(1 << place for place in range(start, min(start + length, 32)))


def sum_and_carry(bound: Bound, *terms: int) -> list[int]:
    """The sum of unsigned readings, and what it carries beyond the width."""
    total = sum(term % (1 << width(bound)) for term in terms)
    return [total, total >> width(bound)]


def difference_and_no_borrow(bound: Bound, a: int, b: int, cc: int = 1) -> list[int]:
    """The difference of unsigned readings, less one where the flag is clear, and whether it needs no borrow."""
    total = a % (1 << width(bound)) - b % (1 << width(bound)) - (1 - cc)
    return [total, total >= 0]


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "add": lambda _, a, b: a + b,
    "add_sat": lambda _, a, b: clamp(a + b),
    "sub": lambda _, a, b: a - b,
    "sub_sat": lambda _, a, b: clamp(a - b),
    "mul": lambda i, a, b: half(i, a * b),
    "mul_wide": lambda _, a, b: a * b,
    "mad": lambda i, a, b, c: half(i, a * b) + c,
    "mad_wide": lambda _, a, b, c: a * b + c,
    "mad_hi_sat": lambda _, a, b, c: clamp((a * b >> 32) + c),
    "mul24": half24,
    "mad24": lambda i, a, b, c: half24(i, a, b) + c,
    "mad24_hi_sat": lambda i, a, b, c: clamp(half24(i, a, b) + c),
    "sad": lambda _, a, b, c: c + abs(a - b),
    "div": lambda _, a, b: quotient(a, b),
    "rem": lambda _, a, b: remainder(a, b),
    "abs_": lambda _, a: abs(a),
    "neg": lambda _, a: -a,
    "min_": lambda _, a, b: min(a, b),
    "min_relu": lambda _, a, b: max(min(a, b), 0),
    "max_": lambda _, a, b: max(a, b),
    "max_relu": lambda _, a, b: max(a, b, 0),
    "popc": lambda _, a: a.bit_count(),
    "clz": lambda i, a: width(i) - a.bit_length(),
    "bfind": highest,
    "fns": nth_set,
    "brev": lambda i, a: int(f"{a:0{width(i)}b}"[::-1], 2),
    "bfe": extract,
    "bfi": insert,
    "szext": extend,
    "bmsk": mask_field,
    "dp4a": lambda i, a, b, c: c + dot(i, a, b, size=1),
    "dp2a": lambda i, a, b, c: c + dot(i, a, b, size=2, first=2 if i.modifiers["half"] == "hi" else 0),
    "vabsdiff4": lambda i, a, b, c: joined(distances(1, a, b, i), 8),
    "vabsdiff4_add": lambda i, a, b, c: c + sum(distances(1, a, b, i)),
    "vabsdiff2": lambda i, a, b, c: joined(distances(2, a, b, i), 16),
    "vabsdiff2_add": lambda i, a, b, c: c + sum(distances(2, a, b, i)),
    "add_cc": sum_and_carry,
    "addc_cc": sum_and_carry,
    "addc": lambda i, a, b, cc: sum_and_carry(i, a, b, cc)[0],
    "sub_cc": difference_and_no_borrow,
    "subc_cc": difference_and_no_borrow,
    "subc": lambda i, a, b, cc: difference_and_no_borrow(i, a, b, cc)[0],
    "mad_cc": lambda i, a, b, c: sum_and_carry(i, half(i, a * b), c),
    "madc_cc": lambda i, a, b, c, cc: sum_and_carry(i, half(i, a * b), c, cc),
    "madc": lambda i, a, b, c, cc: half(i, a * b) + c + cc,
}


def by_halves(definition: Callable[..., Any]) -> Callable[..., Any]:
    """A definition over numbers as one over pairs: each half by itself."""
    return lambda *pairs: tuple(definition(*halves) for halves in zip(*pairs, strict=True))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.form)
def test_clause_equals_its_definition(clause: Instruction) -> None:
    definition, bounds = DEFINITIONS[clause.function.__name__], instances(clause)

    @share(2 / len(bounds))
    @given(drawn=operand_words())
    def law(drawn: list[Words]) -> None:
        for bound in bounds:
            applied = partial(definition, bound)
            each = by_halves(applied) if bound.sources[0][1].lanes == 2 else applied
            assert not disagreements(bound, fitted(bound, drawn), each)

    law()


@given(type=st.sampled_from(["u16", "u32", "u64", "s16", "s32", "s64"]), drawn=operand_words())
def test_division_rebuilds_its_dividend(type: str, drawn: list[Words]) -> None:
    """a is b times its quotient plus its remainder, wherever b is not 0: also for the least number by -1."""
    a, b = fitted(bind(f"div.{type}"), drawn)
    (q,), (r,) = evaluate(f"div.{type}", a, b), evaluate(f"rem.{type}", a, b)
    (again,) = evaluate(f"mad.lo.{type}", q, b, r)
    assert ((again == a) | (b == 0)).all()


@given(type=st.sampled_from(["u16", "u32", "s16", "s32"]), drawn=operand_words())
def test_product_halves_make_the_wide_product(type: str, drawn: list[Words]) -> None:
    """mul.hi above mul.lo is mul.wide."""
    a, b = fitted(bind(f"mul.lo.{type}"), drawn)
    (low,), (high,), (whole,) = (evaluate(f"mul.{form}.{type}", a, b) for form in ("lo", "hi", "wide"))
    assert np.array_equal(high.astype(whole.dtype) << 8 * low.dtype.itemsize | low, whole)


@given(wide=st.tuples(words(), words(), words()))
def test_carry_chain_makes_the_wide_operation(wide: tuple[Words, Words, Words]) -> None:
    """Two 32-bit steps through the carry flag are one 64-bit step: for sums, differences, and products plus a term."""
    low, high = ([(word >> shift).astype(np.uint32) for word in wide] for shift in (0, 32))
    for name in ("add", "sub"):
        below, flag = evaluate(f"{name}.cc.u32", low[0], low[1])
        (above,) = evaluate(f"{name}c.u32", high[0], high[1], flag)
        assert np.array_equal(above.astype(np.uint64) << 32 | below, evaluate(f"{name}.u64", wide[0], wide[1])[0])
    below, flag = evaluate("mad.lo.cc.u32", low[0], low[1], low[2])
    (above,) = evaluate("madc.hi.u32", low[0], low[1], high[2], flag)
    (whole,) = evaluate("mad.wide.u32", low[0], low[1], wide[2])
    assert np.array_equal(above.astype(np.uint64) << 32 | below, whole)
