"""The steps of a dot product that are listed, and the labels of their terms."""

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
    """A term of a step: its label, its units, and the exponent of a unit.

    `place` is the i of a product, None for C and sums.
    """

    label: str
    term: Term
    place: int | None = None
    units: int | None = None
    quantum: int | None = None

    @property
    def lost(self) -> Number | None:
        """Return the part of the term that alignment cut off, or None where the term was not aligned."""
        if self.units is None or self.quantum is None:
            return None
        return number(self.term.value - self.units * Fraction(2) ** self.quantum)

    @property
    def is_zero(self) -> bool:
        """Return whether the term is zero."""
        return is_zero(self.term)


@dataclass(frozen=True)
class Shown:
    """A listed step: its number, the lines of its terms, how many products are zero, and whether it adds C."""

    number: int
    step: FusedStep
    lines: tuple[Line, ...]
    zeros: int
    adds_c: bool


@dataclass(frozen=True)
class _Sum:
    """The value that a step adds its products to: C, nothing, or the result of an earlier step."""

    label: str
    code: int


_NOTHING = _Sum("", 0)


def is_zero(term: Term) -> bool:
    """Return whether a term is zero."""
    return term.kind is FINITE and term.exponent is None


def shown_steps(question: Question, dot: DotProduct, zeros: bool) -> tuple[list[Shown], int]:
    """Return the steps to list, and how many are left out: steps of zero products that change nothing.

    Where an entry adds C last, the first step of an instruction adds to nothing. One more step adds its sum to C, or
    to the result of the previous instruction. A step after one that is left out adds to the value that the left-out
    step was given.
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
    """Return the terms of a step: products or groups of products, then the values they are added to, under `labels`."""
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
    """Return the lines of a step that sums products first, all together or even and odd k apart, then their sum."""
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
    """Return the aligned integers of the terms, None for each where a NaN or an infinity decided the step."""
    return step.aligned if step.exponent is not None else (None,) * len(step.terms)


def _as_term(value: Fraction, exponent: int) -> Term:
    """Return a sum as a term: an integer of units 2^-bits, with the exponent that it was aligned to."""
    scaled = value / Fraction(2) ** exponent
    bits = scaled.denominator.bit_length() - 1
    return Term(value < 0, abs(scaled.numerator), exponent if value else None, bits)


def _term_places(row: Profile, step: FusedStep) -> list[tuple[str, int | None]]:
    """Return the label of each product or group of products in a step, and its first i."""
    if not row.method.groups:
        return [(str(i), i) for i in step.places]
    return [(f"{start}..{start + GROUP - 1}", start) for start in step.places[::GROUP]]


# ---------------------------------------------------------------------------------------------------------------------
# Cause of the result of a step


def largest(shown: Shown) -> str:
    """Return the label of the first term with the largest exponent E, or "a zero" where no term has it."""
    top = shown.step.exponent
    found = [line for line in shown.lines if line.term.exponent == top and line.quantum == shown.step.quantum]
    if not found:
        return "a zero"
    return found[0].label if found[0].place is None else f"term {found[0].label}"


def reason(question: Question, shown: Shown) -> str | None:
    """Return the NaN or infinity that decided a step, or None for a computed step."""
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
    """Return why a term is NaN: an operand, a scale, or infinity times zero."""
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
