"""Laws of f16 and bf16 instructions, single and in pairs: exact arithmetic over fractions, rounded once to nearest."""

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
from refsim.reference.instructions import disagreements, fitted, operand_words
from refsim.reference.rational_float import GRIDS, ExactNumber
from refsim.testing.strategies import share

CLAUSES = [clause for clause in clauses() if clause.function.__module__.endswith(".half")]
EXACT = [clause for clause in CLAUSES if not clause.inexact]
OUT_OF_BOUNDS = 0x7FF7
ARITHMETIC: dict[str, Callable[..., ExactNumber]] = {
    "add": rational_float.add,
    "sub": lambda a, b, mode: rational_float.add(a, rational_float.negated(b), mode),
    "mul": lambda a, b, mode: rational_float.mul(a, b),
    "fma": rational_float.fma,
}


def relu(x: ExactNumber) -> ExactNumber:
    """Negative numbers and -0 become +0; NaN stays."""
    return x if x.is_nan or not x.negative else ExactNumber(False, Fraction(0))


def definition(bound: Bound) -> Callable[..., Any]:
    """What a bound instruction means, from bit patterns to bit patterns; mixed forms widen f16 and bf16 into f32."""
    spelled = bound.opcode.split(".")
    types = [type.name for _, type in bound.sources]
    result = GRIDS[bound.results[0][1].name.removesuffix("x2")]
    mode = next((word for word in spelled if word in ("rz", "rm", "rp")), "rn")
    ftz, sat = "ftz" in spelled, "sat" in spelled

    def scalar(*patterns: int) -> int:
        numbers = [
            GRIDS[type.removesuffix("x2")].decode(pattern, ftz=ftz)
            for type, pattern in zip(types, patterns, strict=True)
        ]
        if spelled[0] in ARITHMETIC:
            if "oob" in spelled and OUT_OF_BOUNDS in [pattern & 0x7FFF for pattern in patterns[:2]]:
                return 0
            exact = ARITHMETIC[spelled[0]](*numbers, mode)
            if "relu" in spelled:
                exact = relu(exact)
            return result.encode(exact, mode, ftz=ftz, sat=sat)
        if spelled[0] in ("min", "max"):
            terms = [ExactNumber(False, x.magnitude) for x in numbers] if "abs" in spelled else numbers
            chosen = rational_float.extremum(terms, spelled[0] == "max", nan="NaN" in spelled)
            if "xorsign" in spelled and not chosen.is_nan:
                chosen = ExactNumber(numbers[0].negative != numbers[1].negative, chosen.magnitude)
            return result.encode(chosen)
        sign = not numbers[0].negative if spelled[0] == "neg" else False
        return result.encode(ExactNumber(sign, numbers[0].magnitude))

    if bound.results[0][1].lanes == 2:
        return lambda *pairs: tuple(scalar(*half) for half in zip(*pairs, strict=True))
    return scalar


@pytest.mark.parametrize("clause", EXACT, ids=lambda clause: clause.form)
@share(3 / 5)
@given(draw=st.data())
def test_clause_equals_its_definition(clause: Any, draw: st.DataObject) -> None:
    bound = draw.draw(st.sampled_from([bound for bound in instances(clause) if bound.clause is clause]))
    assert not disagreements(bound, fitted(bound, draw.draw(operand_words(3, lanes=24))), definition(bound))


@pytest.mark.parametrize("clause", [clause for clause in EXACT if "x2" in clause.form], ids=lambda clause: clause.form)
@share(1 / 4)
@given(draw=st.data())
def test_a_pair_is_two_single_instructions(clause: Any, draw: st.DataObject) -> None:
    packed = [bound for bound in instances(clause) if bound.clause is clause and bound.opcode.endswith("x2")]
    bound = draw.draw(st.sampled_from(packed))
    sources = fitted(bound, draw.draw(operand_words(3)))
    (both,) = evaluate(bound.opcode, *sources)
    for shift in (0, 16):
        halves = [(source >> shift).astype(np.uint16) for source in sources]
        (one,) = evaluate(bound.opcode.removesuffix("x2"), *halves)
        assert np.array_equal(np.broadcast_to(one, both.shape), (both >> shift).astype(np.uint16)), bound.opcode


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "function"), [("tanh", math.tanh), ("ex2", lambda a: 2.0**a)])
def test_approximate_forms_are_the_rounded_function_all_over_their_range(
    kind: str, name: str, function: Callable[[float], float]
) -> None:
    """Every seventh of the 65,536 operands: within one unit of Python's own function, NaN canonical."""
    grid = GRIDS[kind]
    ftz = (name, kind) == ("ex2", "bf16")
    opcode = f"{name}.approx{'.ftz' if ftz else ''}.{kind}"
    patterns = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    for pattern, got in zip(patterns.tolist(), evaluate(opcode, patterns)[0].tolist(), strict=True):
        number = grid.decode(pattern)
        if number.is_nan:
            assert got == 0x7FFF
            continue
        operand = float(number.signed)
        value = function(operand) if operand < 1000 or name == "tanh" else math.inf
        exact = ExactNumber(value < 0, Fraction(abs(value)) if math.isfinite(value) else math.inf)
        want = grid.encode(exact, "rn", ftz=ftz)
        if number.magnitude == 0 and name == "tanh":
            want = pattern
        assert abs(got - want) <= 1, (opcode, hex(pattern), hex(got), hex(want))


@share(2 / 5)
@given(draw=st.data())
def test_oob_is_plain_fma_but_for_its_marker(draw: st.DataObject) -> None:
    bound = bind("fma.rn.oob.f16")
    a, b, c = fitted(bound, draw.draw(operand_words(3)))
    (plain,), (guarded,) = evaluate("fma.rn.f16", a, b, c), evaluate(bound.opcode, a, b, c)
    marked = (a & 0x7FFF == OUT_OF_BOUNDS) | (b & 0x7FFF == OUT_OF_BOUNDS)
    assert np.array_equal(guarded, np.where(marked, 0, plain))
    assert not evaluate(bound.opcode, np.full(1, 0xFFF7, np.uint16), b, c)[0].any()
