"""Laws of logic, shifts, comparison and selection: every clause equals a definition over bits and Python's numbers."""

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.isa.forms import Bound, Instruction, clauses, evaluate
from refsim.ptx.isa.instances import instances
from refsim.reference.instructions import Words, disagreements, fitted, operand_words, words
from refsim.testing.strategies import share

FAMILIES = ("logic", "predicate")
CLAUSES = [clause for clause in clauses() if clause.function.__module__.rsplit(".", 1)[1] in FAMILIES]
EVERY = [clause for clause in clauses() if clause.function.__module__.rsplit(".", 1)[1] in ("integer", *FAMILIES)]
NORMAL = {"f16": 2.0**-14, "f16x2": 2.0**-14, "f32": 2.0**-126}

ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
BOOLEAN = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
MODES = {
    "f4e": lambda s: [s, s + 1, s + 2, s + 3],
    "b4e": lambda s: [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8],
    "rc8": lambda s: [s] * 4,
    "ecl": lambda s: [max(place, s) for place in range(4)],
    "ecr": lambda s: [min(place, s) for place in range(4)],
    "rc16": lambda s: [s % 2 * 2, s % 2 * 2 + 1] * 2,
}


def width(bound: Bound) -> int:
    return bound.sources[0][1].bits


def table(a: int, b: int, c: int, lut: int) -> int:
    """Each bit is the table's bit number 4a + 2b + c."""
    return sum((lut >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


def funnel(bound: Bound, a: int, b: int, c: int) -> int:
    count = c % 32 if bound.modifiers["mode"] == "wrap" else min(c, 32)
    both = b << 32 | a
    return (both << count) >> 32 if bound.modifiers["direction"] == "l" else both >> count


def permute(bound: Bound, a: int, b: int, c: int) -> int:
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    if mode := bound.modifiers["mode"]:
        chosen = [source[place] for place in MODES[mode](c % 4)]
    else:
        nibbles = [c >> 4 * place & 15 for place in range(4)]
        chosen = [(0xFF if source[n - 8] > 127 else 0) if n > 7 else source[n] for n in nibbles]
    return int.from_bytes(bytes(chosen), "little")


def real(bits: int, type: str) -> float:
    """The value of floating-point bits."""
    if type == "f64":
        return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    if type.startswith("f16"):
        return float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])
    return float(struct.unpack("<f", (bits << (16 if type.startswith("bf16") else 0)).to_bytes(4, "little"))[0])


def compares(bound: Bound, a: int, b: int) -> bool:
    test, type = bound.modifiers["test"], bound.modifiers["type"]
    if "f" not in type:
        return ORDERED[test](a, b)
    x, y = real(a, type), real(b, type)
    if bound.modifiers.get("ftz"):
        x, y = (0.0 if abs(v) < NORMAL[type] else v for v in (x, y))
    unordered = math.isnan(x) or math.isnan(y)
    if test in ("num", "nan"):
        return unordered == (test == "nan")
    return test.endswith("u") if unordered else ORDERED[test.removesuffix("u")](x, y)


def combined(bound: Bound, holds: bool, c: bool) -> bool:
    boolean = bound.modifiers.get("boolean")
    return bool(BOOLEAN[boolean](holds, c)) if boolean else holds


def predicates(bound: Bound, a: int, b: int, c: bool = False) -> list[bool]:
    holds = compares(bound, a, b)
    return [combined(bound, holds, c), combined(bound, not holds, c)][: len(bound.results)]


def pair_predicates(bound: Bound, a: int, b: int, c: bool = False) -> list[bool]:
    return [combined(bound, compares(bound, a >> s & 0xFFFF, b >> s & 0xFFFF), c) for s in (0, 16)]


def chosen_value(bound: Bound, a: int, b: int, c: bool = False) -> int:
    one = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}.get(bound.modifiers["dtype"], -1)
    return one if combined(bound, compares(bound, a, b), c) else 0


def chosen_pair(bound: Bound, a: int, b: int, c: bool = False) -> int:
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(bound.modifiers["dtype"], 0xFFFF)
    return sum(one << shift for shift, holds in zip((0, 16), pair_predicates(bound, a, b, c), strict=True) if holds)


def by_sign(bound: Bound, a: int, b: int, c: int) -> int:
    if bound.sources[2][1].name == "s32":
        return a if c >= 0 else b
    value = real(c, "f32")
    if "ftz" in bound.opcode and abs(value) < NORMAL["f32"]:
        return a
    return a if value >= 0 else b


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "and_": lambda i, a, b: a & b,
    "or_": lambda i, a, b: a | b,
    "xor": lambda i, a, b: a ^ b,
    "not_": lambda i, a: not a if i.modifiers["type"] == "pred" else ~a,
    "cnot": lambda i, a: int(a == 0),
    "lop3": lambda i, a, b, c, lut: table(a, b, c, lut),
    "lop3_boolean": lambda i, a, b, c, lut, q: [table(a, b, c, lut), combined(i, table(a, b, c, lut) != 0, q)],
    "shl": lambda i, a, b: a << min(b, width(i)),
    "shr": lambda i, a, b: a >> min(b, width(i)),
    "shf": funnel,
    "prmt": permute,
    "setp": predicates,
    "setp_pairs": pair_predicates,
    "set_": chosen_value,
    "set_pairs": chosen_pair,
    "set_pair_masks": chosen_pair,
    "selp": lambda i, a, b, c: a if c else b,
    "slct": by_sign,
    "slct_ftz": by_sign,
}


def joined(definition: Callable[..., Any], bound: Bound) -> Callable[..., Any]:
    """A definition over 32-bit numbers as one over the pairs that packed operands and results are."""

    def applied(*numbers: Any) -> Any:
        value = definition(bound, *(n[1] << 16 | n[0] if isinstance(n, tuple) else n for n in numbers))
        return (value & 0xFFFF, value >> 16) if bound.results[0][1].lanes == 2 else value

    return applied


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.form)
def test_clause_equals_its_definition(clause: Instruction) -> None:
    definition, bounds = DEFINITIONS[clause.function.__name__], instances(clause)

    @share(2 / len(bounds))
    @given(drawn=operand_words())
    def law(drawn: list[Words]) -> None:
        for bound in bounds:
            assert not disagreements(bound, fitted(bound, drawn), joined(definition, bound))

    law()


@given(draw=st.data())
def test_constant_operand_counts_for_every_lane(draw: st.DataObject) -> None:
    """One lane given for an operand means the same as that value in all lanes, whichever operand it is."""
    bound = draw.draw(st.sampled_from(instances(draw.draw(st.sampled_from(EVERY)))))
    sources = fitted(bound, draw.draw(operand_words()))
    lanes = max(source.size for source in sources)
    place = draw.draw(st.integers(0, len(sources) - 1))
    once = [source[:1] if i == place else source for i, source in enumerate(sources)]
    filled = [
        source if operand.name == "immLut" else np.broadcast_to(narrow, lanes).copy()
        for narrow, source, (operand, _) in zip(once, sources, bound.sources, strict=True)
    ]
    for narrow, wide in zip(evaluate(bound.opcode, *once), evaluate(bound.opcode, *filled), strict=True):
        assert np.array_equal(np.broadcast_to(narrow, lanes), np.broadcast_to(wide, lanes))


def test_lop3_table_is_its_value_on_the_three_constants() -> None:
    """The table of a function is the function of 0xf0, 0xcc and 0xaa: the ISA's definition of immLut."""
    rows = {lut: [np.array([value], dtype=np.uint32) for value in (0xF0, 0xCC, 0xAA, lut)] for lut in range(256)}
    found = {lut: int(evaluate("lop3.b32", *row)[0][0]) & 0xFF for lut, row in rows.items()}
    assert {lut: value for lut, value in found.items() if value != lut} == {}


@given(drawn=st.tuples(words(), words(), words()))
def test_funnel_of_a_word_with_itself_turns_back(drawn: tuple[Words, Words, Words]) -> None:
    """Turning a word left and then right by one amount gives it back; a funnel left by n is one right by 32 - n."""
    a, b, amount = (row.astype(np.uint32) for row in drawn)
    (turned,) = evaluate("shf.l.wrap.b32", a, a, amount)
    assert np.array_equal(evaluate("shf.r.wrap.b32", turned, turned, amount)[0], a)
    left, right = amount % 33, 32 - amount % 33
    assert np.array_equal(evaluate("shf.l.clamp.b32", a, b, left)[0], evaluate("shf.r.clamp.b32", a, b, right)[0])
