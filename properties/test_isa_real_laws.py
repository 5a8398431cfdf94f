"""Laws of f32 and f64 instructions: every clause equals exact arithmetic over fractions, rounded once."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.isa.forms import Bound, bind, clauses, evaluate
from refsim.ptx.isa.instances import instances
from refsim.reference import rational_float
from refsim.reference.instructions import disagreements, fitted, operand_words, words
from refsim.reference.rational_float import GRIDS, ExactNumber
from refsim.testing.strategies import share

CLAUSES = [clause for clause in clauses() if clause.function.__module__.endswith(".real")]
EXACT = [clause for clause in CLAUSES if not clause.inexact]
ARITHMETIC: dict[str, Callable[..., ExactNumber]] = {
    "add": rational_float.add,
    "sub": lambda a, b, mode: rational_float.add(a, rational_float.negated(b), mode),
    "mul": lambda a, b, mode: rational_float.mul(a, b),
    "fma": rational_float.fma,
    "mad": rational_float.fma,
    "div": lambda a, b, mode: rational_float.div(a, b),
    "rcp": lambda a, mode: rational_float.div(rational_float.ONE, a),
    "sqrt": lambda a, mode: rational_float.sqrt(a),
}
TESTS: dict[str, Callable[[ExactNumber, rational_float.Binary], bool]] = {
    "finite": lambda x, grid: not (x.is_nan or x.is_infinite),
    "infinite": lambda x, grid: x.is_infinite,
    "number": lambda x, grid: not x.is_nan,
    "notanumber": lambda x, grid: x.is_nan,
    "normal": lambda x, grid: (
        not (x.is_nan or x.is_infinite) and (x.magnitude == 0 or x.magnitude >= rational_float.power(grid.lowest))
    ),
    "subnormal": lambda x, grid: not x.is_nan and 0 < x.magnitude < rational_float.power(grid.lowest),
}


def one_nan(bits: int, grid: rational_float.Binary) -> int:
    """All NaN of f64 as one: which payload survives is measured, not defined."""
    return grid.nan if bits & (grid.sign - 1) > grid.infinity else bits


def definition(bound: Bound) -> Callable[..., Any]:
    """What a bound instruction means, from bit patterns to bit patterns."""
    words_of = bound.opcode.split(".")
    name, kind = words_of[0], next(word for word in reversed(words_of) if word in ("f32", "f64", "f32x2"))
    grid = GRIDS[kind.removesuffix("x2")]
    ftz, sat = "ftz" in words_of, "sat" in words_of
    mode = next((word for word in words_of if word in ("rn", "rz", "rm", "rp")), "rn")

    def scalar(*patterns: int) -> Any:
        numbers = [grid.decode(pattern, ftz=ftz) for pattern in patterns]
        if name in ARITHMETIC:
            return grid.encode(ARITHMETIC[name](*numbers, mode), mode, ftz=ftz, sat=sat)
        if name in ("min", "max"):
            terms = [ExactNumber(False, x.magnitude) for x in numbers] if "abs" in words_of else numbers
            result = rational_float.extremum(terms, name == "max", nan="NaN" in words_of)
            if "xorsign" in words_of and not result.is_nan:
                result = ExactNumber(numbers[0].negative != numbers[1].negative, result.magnitude)
            return grid.encode(result)
        if name == "abs":
            return grid.encode(ExactNumber(False, numbers[0].magnitude))
        if name == "neg":
            return grid.encode(rational_float.negated(numbers[0]))
        if name == "copysign":
            return patterns[0] & grid.sign | patterns[1] & (grid.sign - 1)
        return TESTS[words_of[1]](numbers[0], grid)

    if kind == "f32x2":
        return lambda *pairs: tuple(scalar(*half) for half in zip(*pairs, strict=True))
    return scalar


@pytest.mark.parametrize("clause", EXACT, ids=lambda clause: clause.form)
@share(3 / 5)
@given(draw=st.data())
def test_clause_equals_its_definition(clause: Any, draw: st.DataObject) -> None:
    bound = draw.draw(st.sampled_from([bound for bound in instances(clause) if bound.clause is clause]))
    sources = fitted(bound, draw.draw(operand_words(3, lanes=24)))
    means = definition(bound)
    if bound.opcode.startswith(("copysign", "testp")) or not bound.opcode.endswith("f64"):
        assert not disagreements(bound, sources, means)
        return
    grid = GRIDS["f64"]
    count = max(map(len, sources))
    rows = zip(*(np.broadcast_to(source, count).tolist() for source in sources), strict=True)
    got = np.broadcast_to(evaluate(bound.opcode, *sources)[0], count).tolist()
    for row, bits in zip(rows, got, strict=True):
        assert hex(one_nan(bits, grid)) == hex(one_nan(means(*row), grid)), [bound.opcode, *map(hex, row)]


FUNCTIONS: dict[str, Callable[..., float]] = {
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "sqrt": math.sqrt,
    "rcp": lambda a: 1 / a,
    "sin": math.sin,
    "cos": math.cos,
    "lg2": math.log2,
    "ex2": lambda a: 2.0**a,
    "tanh": math.tanh,
    "div": lambda a, b: a / b,
}

WITHIN = {"lg2": 2**-22, "sin": 2**-19.5, "cos": 2**-19.5, "tanh": 2**-11}
"""What the ISA bounds by an absolute error, of sin and cos 2^-20.5 up to 2 pi (here up to 8), of tanh by a relative one."""


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@share(2 / 5)
@given(a=words(), b=words())
def test_approximate_forms_are_the_rounded_function_where_it_is_ordinary(
    name: str, a: np.ndarray, b: np.ndarray
) -> None:
    """Within two units of Python's own function or what `WITHIN` says; exponents so small that no bound of the ISA ends there."""
    a, b = (((x & 0x807FFFFF) | 0x3F000000).astype(np.uint32) + (x >> 9 & 0x01800000).astype(np.uint32) for x in (a, b))
    if name in ("rsqrt", "sqrt", "lg2"):
        a &= 0x7FFFFFFF
    sources = [a, b][: 2 if name == "div" else 1]
    (got,) = evaluate(f"{name}.approx.f32", *sources)
    for result, *row in zip(got.tolist(), *(source.view(np.float32).tolist() for source in sources), strict=True):
        exact = Fraction(FUNCTIONS[name](*row))
        want = GRIDS["f32"].encode(ExactNumber(exact < 0, abs(exact)))
        distance = abs(float(np.uint32(result).view(np.float32)) - float(exact))
        assert abs(result - want) <= 2 or distance <= WITHIN.get(name, 0), (name, row)


SPECIAL = [
    ("rsqrt.approx.f32", 0x80000000, 0xFF800000),
    ("rsqrt.approx.ftz.f32", 0x80000001, 0xFF800000),
    ("rsqrt.approx.f32", 0xBF800000, 0x7FFFFFFF),
    ("rcp.approx.ftz.f32", 0x00000001, 0x7F800000),
    ("sqrt.approx.f32", 0x80000000, 0x80000000),
    ("sqrt.approx.ftz.f32", 0x80000001, 0x80000000),
    ("sin.approx.ftz.f32", 0x80000001, 0x80000000),
    ("sin.approx.f32", 0x7F800000, 0x7FFFFFFF),
    ("cos.approx.f32", 0x00000000, 0x3F800000),
    ("lg2.approx.f32", 0x00000000, 0xFF800000),
    ("lg2.approx.f32", 0xBF800000, 0x7FFFFFFF),
    ("ex2.approx.f32", 0xFF800000, 0x00000000),
    ("ex2.approx.f32", 0x7FA00005, 0x7FFFFFFF),
    ("tanh.approx.f32", 0xFF800000, 0xBF800000),
    ("rcp.approx.ftz.f64", 0x7FF0000100000000, 0x7FFFFFFF00000000),
    ("rcp.approx.ftz.f64", 0x7FF0000000000001, 0),
    ("rcp.approx.ftz.f64", 0x8000000000000001, 0xFFF << 52),
    ("rsqrt.approx.f64", 0x4010000000000000, 0x3FE0000000000000),
    ("rsqrt.approx.ftz.f64", 0xBFF << 52, 0x7FFFFFFF00000000),
]


@pytest.mark.parametrize(("opcode", "operand", "result"), SPECIAL)
def test_approximate_forms_keep_the_special_values_of_the_isa(opcode: str, operand: int, result: int) -> None:
    """But for a NaN of f64 whose payload stands in the lower word, which a chip takes for an infinity."""
    bits = np.uint64 if opcode.endswith("f64") else np.uint32
    assert hex(evaluate(opcode, np.array([operand], bits))[0][0]) == hex(result)


@share(4 / 5)
@given(a=words(), b=words())
def test_div_approx_takes_a_divisor_beyond_2_126_for_infinity(a: np.ndarray, b: np.ndarray) -> None:
    a, b = a.astype(np.uint32), (b & 0x80FFFFFF | 0x7E800001).astype(np.uint32)
    beyond = b & 0x7FFFFFFF < 0x7F800000
    (approximate,) = evaluate("div.approx.f32", a, b)
    (infinite,) = evaluate("div.rn.f32", a, b & 0x80000000 | 0x7F800000)
    assert np.array_equal(approximate[beyond], infinite[beyond])


@pytest.mark.parametrize("opcode", ["add.f32", "sub.f32", "mul.f32", "add.f64", "sub.f64", "mul.f64"])
@share(2 / 5)
@given(draw=st.data())
def test_a_bare_form_is_its_rn_form(opcode: str, draw: st.DataObject) -> None:
    """What ptxas may fuse is reported elsewhere; alone, no modifier means nearest even."""
    name, kind = opcode.split(".")
    a, b = fitted(bind(opcode), draw.draw(operand_words(2)))
    assert np.array_equal(evaluate(opcode, a, b)[0], evaluate(f"{name}.rn.{kind}", a, b)[0])
