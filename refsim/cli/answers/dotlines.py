"""A dot product as it is told: which of its steps are listed, and under which labels their terms stand."""

import math
from dataclasses import dataclass
from fractions import Fraction

from refsim.cli.answers.dotproduct import Question
from refsim.cli.elements import value_of
from refsim.formats import ElementType
from refsim.numerics.dot.definition import GROUP, DotProduct, FusedStep
from refsim.numerics.dot.terms import FINITE, INFINITE, IS_NAN, Term
from refsim.numerics.rows import Profile
from refsim.render import Number, number


@dataclass(frozen=True)
class Line:
    """A term of a step: its label, the place i of a product (None for C and sums), its integer of units and what was cut."""

    label: str
    term: Term
    place: int | None = None
    units: int | None = None
    quantum: int | None = None

    @property
    def lost(self) -> Number | None:
        if self.units is None or self.quantum is None:
            return None
        return number(self.term.value - self.units * Fraction(2) ** self.quantum)

    @property
    def is_zero(self) -> bool:
        return is_zero(self.term)


@dataclass(frozen=True)
class Shown:
    """A step with its number, the lines of its terms and how many products are zero."""

    number: int
    step: FusedStep
    lines: tuple[Line, ...]
    zeros: int
    adds_c: bool


@dataclass(frozen=True)
class _Sum:
    """What a step adds its products to: C, nothing, or the result of a step before it."""

    label: str
    code: int


_NOTHING = _Sum("", 0)


def is_zero(term: Term) -> bool:
    return term.kind is FINITE and term.exponent is None


def shown_steps(question: Question, dot: DotProduct, zeros: bool) -> tuple[list[Shown], int]:
    """The steps to list, and how many were left out: those of zero products alone that change nothing.

    Where a row adds C last, the steps of an instruction begin with nothing, and one more adds their sum to C, or to what
    the instruction before it came to. A step that is left out lends its name to nobody: the next one adds to what the left
    out one was given.
    """
    found, left_out = [], 0
    late = question.row.adds_c_last
    of_instruction = len(question.row.steps(question.product.k)) + late
    c = running = _Sum("C", question.c)
    for place, step in enumerate(dot.steps):
        adds_c = late and not step.places
        if late and place % of_instruction == 0:
            running = _NOTHING
        empty = sum(is_zero(dot.products[i]) for i in step.places)
        adds_nothing = empty == len(step.places) and not adds_c
        if place and not zeros and adds_nothing and step.exponent is not None and step.result == running.code:
            left_out += 1
            continue
        labels = (running.label, c.label) if adds_c else (running.label,)
        found.append(Shown(place + 1, step, tuple(_lines(question.row, step, labels)), empty, adds_c))
        running = _Sum(f"D of step {place + 1}", step.result)
        if adds_c or not late:
            c = running
    return found, left_out


def _lines(row: Profile, step: FusedStep, labels: tuple[str, ...]) -> list[Line]:
    """The terms of a step: products or groups of them, then what they are added to, under its `labels`."""
    if step.sums:
        return _lines_of_sums(step, labels[0])
    if row.method.flushes:
        return [Line(label, term) for label, term in zip(("their tree", *labels), step.terms, strict=False)]
    named = [*_term_places(row, step), *((label, None) for label in labels)]
    return [
        Line(label, term, place, units, step.quantum)
        for (label, place), term, units in zip(named, step.terms, _units(step), strict=True)
    ]


def _lines_of_sums(step: FusedStep, label: str) -> list[Line]:
    """A step that adds products first, all or those of even and of odd k apart: they come before their sum."""
    found = []
    for start, each in enumerate(step.sums):
        for i, term, units in zip(step.places[start :: len(step.sums)], each.terms, each.aligned, strict=True):
            found.append(Line(str(i), term, i, units, each.quantum))
    total = sum((each.total * Fraction(2) ** each.quantum for each in step.sums), Fraction(0))
    whole = _as_term(total, max(each.exponent for each in step.sums))
    of_products, of_c = _units(step)[:2]
    found.append(Line("their sum", whole, None, of_products, step.quantum))
    found.append(Line(label, step.terms[-1], None, of_c, step.quantum))
    return found


def _units(step: FusedStep) -> tuple[int | None, ...]:
    """The aligned integers of the terms; none where a NaN or an infinity decided."""
    return step.aligned if step.exponent is not None else (None,) * len(step.terms)


def _as_term(value: Fraction, exponent: int) -> Term:
    """A sum as a term: an integer of 2^-bits with the exponent that it was aligned to."""
    scaled = value / Fraction(2) ** exponent
    bits = scaled.denominator.bit_length() - 1
    return Term(value < 0, abs(scaled.numerator), exponent if value else None, bits)


def _term_places(row: Profile, step: FusedStep) -> list[tuple[str, int | None]]:
    """The label of each product or group of a step, and the i where it begins."""
    if not row.method.groups:
        return [(str(i), i) for i in step.places]
    return [(f"{start}..{start + GROUP - 1}", start) for start in step.places[::GROUP]]


# ---------------------------------------------------------------------------------------------------------------------
# What decided a step


def largest(shown: Shown) -> str:
    """The term whose exponent is E: the first of them, or the zeros where none has it."""
    top = shown.step.exponent
    found = [line for line in shown.lines if line.term.exponent == top and line.quantum == shown.step.quantum]
    if not found:
        return "a zero"
    return found[0].label if found[0].place is None else f"term {found[0].label}"


def reason(question: Question, shown: Shown) -> str | None:
    """The NaN or the infinity that decided a step, None where it was computed."""
    if shown.step.exponent is not None:
        return None
    for line in shown.lines:
        if line.term.kind is IS_NAN:
            return f"NaN: {_blame(question, line)}"
    signs = {line.term.negative: line.label for line in shown.lines if line.term.kind is INFINITE}
    if len(signs) == 2:
        return f"NaN: infinities of both signs, {signs[False]} and {signs[True]}"
    return f"infinity: {next(iter(signs.values()))} is infinite" if signs else None


def _blame(question: Question, line: Line) -> str:
    """Why a term is NaN: an operand, a scale, or infinity times zero."""
    of, i = question.product, line.place
    if i is None:
        return f"{line.label} is NaN"
    if of.scale_format is not None:
        for side, code in zip("ab", question.scales(i), strict=True):
            if _is_nan(code, of.scale_format):
                return f"the scale of {side} for {line.label} is NaN"
    for side, code, format in (("a", question.a[i], of.a_format), ("b", question.b[i], of.b_format)):
        if _is_nan(code, format):
            return f"{side}[{i}] is NaN"
    return f"product {i} is infinity times zero"


def _is_nan(code: int, format: ElementType) -> bool:
    value = value_of(code, format)
    return isinstance(value, float) and math.isnan(value)
