"""Laws of cvt: exact numbers rounded once into the result's format, integers clamped, narrow pairs element by element."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.conversions import CONVERSIONS
from refsim.formats import F32
from refsim.ptx.isa.forms import Bound, bind, clauses, evaluate
from refsim.ptx.isa.instances import instances
from refsim.reference import rational_float
from refsim.reference.instructions import disagreements, fitted, operand_words
from refsim.reference.rational_float import GRIDS, ExactNumber
from refsim.testing.strategies import share

CLAUSES = [clause for clause in clauses() if clause.function.__module__.endswith(".convert")]
SEVERAL = [row for row in CONVERSIONS.values() if not row.policy and row.elements > 1]
OURS = [clause for clause in CLAUSES if clause.form.partition(" ")[0] not in CONVERSIONS]
INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def integer_range(name: str) -> tuple[int, int]:
    """s8 is -128 to 127."""
    bits = int(name[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if name[0] == "s" else (0, (1 << bits) - 1)


def clamped(value: int, name: str) -> int:
    low, high = integer_range(name)
    return min(max(value, low), high)


def integral(x: ExactNumber, mode: str) -> ExactNumber:
    """Rounded to an integer, the sign kept; infinity and NaN stay."""
    if x.is_nan or x.is_infinite:
        return x
    return ExactNumber(
        x.negative,
        rational_float.Fraction(rational_float.whole(rational_float.Fraction(x.magnitude), mode, x.negative)),
    )


def nan_as_integer(source: str, to: str) -> int:
    """Measured on an H200: f64 gives the lowest bit pattern of a signed integer of that width, others 0 or 2^63."""
    bits = int(to[1:])
    return 1 << (bits - 1) if source == "f64" or bits == 64 else 0


def to_integer(bound: Bound, source: str, to: str) -> Callable[[int], int]:
    mode, ftz = INTEGRAL[bound.modifiers["rounding"]], "ftz" in bound.opcode.split(".")

    def convert(pattern: int) -> int:
        x = GRIDS[source].decode(pattern, ftz=ftz)
        if x.is_nan:
            return nan_as_integer(source, to)
        if x.is_infinite:
            return integer_range(to)[0 if x.negative else 1]
        return clamped(int(integral(x, mode).signed), to)

    return convert


def packing(to: str) -> Callable[..., int]:
    """cvt.pack: two clamped integers in the low places, a above b, the low bits of c above both."""
    bits = int(to[1:])

    def convert(a: int, b: int, c: int = 0) -> int:
        low = (clamped(a, to) % (1 << bits)) << bits | clamped(b, to) % (1 << bits)
        return (c << 2 * bits | low) % (1 << 32)

    return convert


def definition(bound: Bound) -> Callable[..., int]:
    """What a bound conversion means, from numbers (bit patterns for floats) to numbers."""
    spelled = bound.opcode.split(".")
    if spelled[1] == "pack":
        return packing(spelled[3])
    to, source = spelled[-2:]
    mode = next((word for word in spelled if word in ("rn", "rz", "rm", "rp")), "rn")
    ftz, sat = "ftz" in spelled, "sat" in spelled
    if to not in GRIDS:
        if source in GRIDS:
            return to_integer(bound, source, to)
        return lambda value: clamped(value, to) if sat else value
    if source not in GRIDS:
        return lambda value: GRIDS[to].encode(
            ExactNumber(value < 0, rational_float.Fraction(abs(value))), mode, sat=sat
        )

    def convert(pattern: int) -> int:
        # .ftz is about f32 alone, as an operand or as a result; into f16 an H200 ignores it: 0x00000001 in rp is 0x0001.
        x = GRIDS[source].decode(pattern, ftz=ftz and source == "f32" and to != "f16")
        if spelled[1] in INTEGRAL:
            x = integral(x, INTEGRAL[spelled[1]])
        return GRIDS[to].encode(x, mode, ftz=ftz and to == "f32", sat=sat)

    return convert


@pytest.mark.parametrize("clause", OURS, ids=lambda clause: clause.form)
@share(3 / 5)
@given(draw=st.data())
def test_clause_equals_its_definition(clause: Any, draw: st.DataObject) -> None:
    bound = draw.draw(st.sampled_from([bound for bound in instances(clause) if bound.clause is clause]))
    sources = fitted(bound, draw.draw(operand_words(3, lanes=24)))
    to, source = bound.opcode.split(".")[-2:]
    if {to, source} <= GRIDS.keys() and ("f64" in (to, source) or to == source or source == "bf16"):
        # NaN keeps a payload here that no definition over numbers has: the next law has what was measured.
        grid = GRIDS[source]
        sources = [np.where(bits & (grid.sign - 1) > grid.infinity, 1, bits).astype(bits.dtype) for bits in sources]
    assert not disagreements(bound, sources, definition(bound))


@pytest.mark.parametrize(
    ("opcode", "nan", "result"),
    [
        ("cvt.f32.f16", 0xFC01, 0x7FFFFFFF),
        ("cvt.f32.bf16", 0xFF81, 0xFF810000),
        ("cvt.rn.f32.f64", 0xFFF4000000000005, 0xFFE00000),
        ("cvt.f64.f32", 0xFF800001, 0xFFF8000020000000),
        ("cvt.rn.f16.f32", 0xFF800001, 0x7FFF),
        ("cvt.rn.bf16.f32", 0xFF800001, 0x7FFF),
        ("cvt.rni.f32.f32", 0xFF800001, 0x7FFFFFFF),
        ("cvt.rn.sat.f16.f32", 0x7FC00000, 0),
        ("cvt.rni.s32.f32", 0x7FC00000, 0),
        ("cvt.rni.u32.f64", 0x7FF8 << 48, 1 << 31),
    ],
)
def test_nan_is_converted_as_measured(opcode: str, nan: int, result: int) -> None:
    bits = bind(opcode).sources[0][1].bits_dtype
    assert hex(evaluate(opcode, np.array([nan], bits))[0][0]) == hex(result)


@pytest.mark.parametrize("row", SEVERAL, ids=lambda row: row.name)
@share(1 / 6)
@given(drawn=operand_words(9, lanes=24))
def test_every_element_of_a_packed_result_comes_from_its_own_element_of_the_source(
    row: Any, drawn: list[np.ndarray]
) -> None:
    """The upper element is made of the upper one of the source alone: one element at a time from x, all others from y."""
    count, apart = row.elements, row.reads is F32
    places = range(count) if apart else [0]
    x, y = ([np.resize(drawn[first + 2 * at], 24).astype(row.operand_dtype) for at in places] for first in (0, 1))
    random = [np.resize(drawn[8], 24).astype(np.uint32)] if row.random_positions else []

    def packed(operands: list[np.ndarray]) -> np.ndarray:
        return evaluate(row.name, *([operands] if count == 4 else operands), *random)[0]  # four stand in one vector

    from_x, from_y = packed(x), packed(y)
    in_slot, out_slot = (8 * dtype.itemsize // count for dtype in (row.operand_dtype, row.result_dtype))
    for element in range(count):
        if apart:
            mixed = [x[at] if at == element else y[at] for at in places]
        else:
            chosen = row.operand_dtype.type(((1 << in_slot) - 1) << in_slot * (count - 1 - element))
            mixed = [x[0] & chosen | y[0] & ~chosen]
        own = ((1 << out_slot) - 1) << out_slot * (count - 1 - element)
        want = from_x & from_x.dtype.type(own) | from_y & ~from_y.dtype.type(own)
        assert np.array_equal(packed(mixed), want)


@share(4 / 5)
@given(drawn=operand_words(1))
def test_widening_and_narrowing_again_gives_the_number_back(drawn: list[np.ndarray]) -> None:
    for narrow, wide in (("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("f32", "f64")):
        (bits,) = fitted(bind(f"cvt.{wide}.{narrow}"), drawn)
        grid = GRIDS[narrow]
        bits = bits[bits & (grid.sign - 1) <= grid.infinity]
        (there,) = evaluate(f"cvt.{wide}.{narrow}", bits)
        assert np.array_equal(evaluate(f"cvt.rn.{narrow}.{wide}", there)[0], bits)


def test_directed_modes_of_cvt_enclose_the_exact_number() -> None:
    """rm and rp of 2^-30 above one are the neighbours around it, rz the lower, rn the nearer."""
    exact = np.array([1 + 2.0**-30]).view(np.uint64)
    found = {mode: int(evaluate(f"cvt.{mode}.f32.f64", exact)[0][0]) for mode in ("rn", "rz", "rm", "rp")}
    assert found == {"rn": 0x3F800000, "rz": 0x3F800000, "rm": 0x3F800000, "rp": 0x3F800001}
    assert math.isclose(np.array([found["rp"]], np.uint32).view(np.float32)[0], 1 + 2.0**-23)
