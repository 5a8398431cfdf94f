"""One dot product: the instruction in words, its steps and lost bits, and what its result is compared with."""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from refsim import numerics
from refsim.cli.answers.anatomy import anatomy
from refsim.cli.products import MmaArguments
from refsim.cli.values import bits_of, number_of, value_of
from refsim.errors import counted
from refsim.formats import F16, F32, F64, ElementType, Integer
from refsim.numerics.dot.definition import FINITE, INFINITE, IS_NAN, DotProduct, FusedStep, Term, dot_product, rounded
from refsim.numerics.methods import GROUP, TO_NEAREST
from refsim.numerics.rows import Profile, arithmetic
from refsim.render import Cell, Column, Document, Number, Part, Table, Wording, facts_of, number
from refsim.render.cells import plain

COMPARED = (
    Column("compared", label="compared with", strong=True),
    Column("code"),
    Column("value", label="=", gap=1),
    Column("error", label="D less that", align="right"),
)


@dataclass(frozen=True)
class Question:
    """One dot product: its operand codes; `product` is the matrix product that contains it."""

    product: MmaArguments
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    a_scale: tuple[int, ...]
    b_scale: tuple[int, ...]

    @property
    def row(self) -> Profile:
        """Return the profile of the arithmetic."""
        return self.product.row

    def steps(self) -> DotProduct:
        """Return the products and steps of the definition."""
        of = self.product
        formats = of.arguments("a_format", "b_format", "scale_format")
        return dot_product(self.a, self.b, self.c, of.row, of.k, a_scale=self.a_scale, b_scale=self.b_scale, **formats)

    def scales(self, i: int) -> tuple[int, int]:
        """Return the codes of the scales of a and b for product i."""
        block = len(self.a) // len(self.a_scale)
        return self.a_scale[i // block], self.b_scale[i // block]

    def exact(self) -> Fraction | None:
        """Return the exact sum of C and all products, or None where an operand is NaN or infinite."""
        of = self.product
        values = [value_of(self.c, of.row.d_format)]
        for i, (x, y) in enumerate(zip(self.a, self.b, strict=True)):
            factors = [value_of(x, of.a_format), value_of(y, of.b_format)]
            if of.scale_format is not None:
                factors += [value_of(scale, of.scale_format) for scale in self.scales(i)]
            if not all(map(is_number, factors)):
                return None
            values.append(math.prod(Fraction(factor) for factor in factors))
        return sum((Fraction(value) for value in values), Fraction(0)) if is_number(values[0]) else None


def is_number(value: Fraction | float) -> bool:
    """Return whether a value is finite."""
    return isinstance(value, Fraction) or value == 0


def head(question: Question, result: int) -> Wording:
    """Return the result, the instruction and its evidence."""
    of, row = question.product, question.row
    value = number_of(result, row.d_format)
    c, c_value = bits_of(question.c, row.d_format), number_of(question.c, row.d_format)
    lines = [f"D = {bits_of(result, row.d_format)} = {value}{_expression(result, row.d_format)}"]
    if of.c is not None:
        lines.append(f"C = {c} = {c_value}{_expression(question.c, row.d_format)}")
    lines += instruction(of)
    facts = {
        "d": str(bits_of(result, row.d_format)),
        "value": plain(value),
        "c": str(c),
        "c_value": plain(c_value),
        **instruction_facts(of),
    }
    return Wording(tuple(lines), facts)


def _expression(code: int, element: ElementType) -> str:
    if isinstance(element, Integer) or element is F64:
        return ""
    found = anatomy(code, element).expression
    return f" = {found}" if found else ""


def instruction(of: MmaArguments) -> list[str]:
    """Return lines on the instruction, how a step works, and the evidence."""
    row = of.row
    scales = f", scales {of.scale_format}" if of.scale_format else ""
    turned = "".join(f", {name} negated" for name in "ab" if getattr(of, f"negate_{name}"))
    name = f"{row.target} {row.unit} {of.a_format} x {of.b_format} -> {row.d_format}, K = {of.k}{scales}{turned}"
    total = of.a.shape[-1]
    if of.given is not None and of.given < total:
        name += f"; {counted(of.given, 'product')} given, {counted(total - of.given, 'zero')} appended"
    elif total > of.k:
        name += f", {total // of.k} in a chain"
    return [name, arithmetic(row), str(row.evidence)]


def instruction_facts(of: MmaArguments) -> dict[str, Any]:
    """Return the facts about the instruction for JSON."""
    row, total = of.row, of.a.shape[-1]
    return {
        **facts_of(row, "target unit"),
        **facts_of(of, "a_format=a_format.name b_format=b_format.name d_format=d_format.name k"),
        "products": total,
        "zeros_appended": 0 if of.given is None else total - of.given,
        "scale_format": None if of.scale_format is None else of.scale_format.name,
        **facts_of(of, "negate_a negate_b"),
        **facts_of(row, "length fraction"),
        "rounding": str(row.rounding),
        "zero_exponent": row.zero_exponent,
        "order": str(row.order),
        "c_enters": str(row.c_enters),
        **facts_of(row, "level=evidence.level.word evidence=evidence.what"),
    }


def compared(question: Question, result: int) -> Table:
    """Return a table of the exact sum, the sum rounded once, the float32 loop and the derived bound."""

    of, row = question.product, question.row
    exact, got = question.exact(), value_of(result, row.d_format)

    def error(value: Fraction | float | None) -> Number | None:
        """Return the result minus a value, or None where one of them is not finite."""
        if value is None or not is_number(value) or not is_number(got):
            return None
        return number(Fraction(got) - Fraction(value))

    def line(what: str, code: int, element: ElementType) -> tuple[Cell, ...]:
        """Return an entry of the table for a code."""
        return (what, bits_of(code, element), number_of(code, element), error(value_of(code, element)))

    rows: list[tuple[Cell, ...]] = [("exact sum", None, None if exact is None else number(exact), error(exact))]
    if exact is not None and not row.d_format.is_integer:
        once = rounded(exact.numerator, 1 - exact.denominator.bit_length(), TO_NEAREST[row.d_format])
        rows.append(line("exact sum, rounded once", once, row.d_format))
    operands = (np.array([question.a], of.a.dtype), np.array([question.b], of.b.dtype), of.c)
    if row.d_format in (F32, F16) and not row.scales:
        names = of.arguments("a_format", "b_format")
        single = None if of.c is None else of.c.astype(np.float32)
        loop = numerics.fma_product(operands[0], operands[1], single, **names)
        rows.append(line("float32 FMA, ascending k", int(loop.view(np.uint32).item()), F32))
    wanted = of.arguments(
        "unit", "target", "a_format", "b_format", "d_format", "a_scale", "b_scale", "scale_format", "k"
    )
    bound = numerics.error_bound(*operands, **wanted).item()
    upward = Context(prec=6, rounding=ROUND_CEILING)
    most = f"at most {upward.create_decimal(Decimal(bound)).normalize():g}" if np.isfinite(bound) else "none"
    if row.d_format.is_integer:
        most += ", modulo 2^32"
    rows.append(("derived bound", None, None, Number(bound, most)))
    return Table(COMPARED, tuple(rows), key="compared")


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


PRODUCT_COLUMNS = (
    Column("i", align="right", strong=True),
    Column("a"),
    Column("a_value", label="=", gap=1),
    Column("b"),
    Column("b_value", label="=", gap=1),
    Column("product", align="right"),
)


def document(question: Question, *, zeros: bool = False) -> Document:
    """Return the result, the steps that lead to it, and the values it is compared with.

    Unless `zeros`, zero products are only counted. So are steps of zero products that leave C unchanged.
    """
    dot = question.steps()
    parts: list[Part] = [head(question, dot.result)]
    row = question.row
    if row.method.groups or row.method.flushes or row.d_format.is_integer:
        parts.append(_products(question, dot, zeros))
    if dot.steps:
        parts += _tables(question, dot, zeros)
    else:
        parts.append(_integer_sum(question, dot))
    parts.append(compared(question, dot.result))
    return Document(tuple(parts), f"one dot product of {row.name}", (row.source,))


def _products(question: Question, dot: DotProduct, zeros: bool) -> Table:
    """Return the table of products, for steps whose terms are groups or trees of products."""
    rows = []
    for i, term in enumerate(dot.products):
        if zeros or not is_zero(term):
            rows.append((i, *_operands(question, i), _value(term)))
    return Table(PRODUCT_COLUMNS, tuple(rows), key="products")


def _operands(question: Question, i: int) -> tuple[Cell, ...]:
    of = question.product
    pairs = ((question.a[i], of.a_format), (question.b[i], of.b_format))
    return tuple(cell for code, name in pairs for cell in (bits_of(code, name), number_of(code, name)))


def _value(term: Term) -> Number:
    if term.kind is IS_NAN:
        return number(float("nan"))
    if term.kind is INFINITE:
        return number(float("-inf") if term.negative else float("inf"))
    return number(term.value)


def _tables(question: Question, dot: DotProduct, zeros: bool) -> list[Part]:
    steps, left_out = shown_steps(question, dot, zeros)
    parts: list[Part] = [_terms(question, steps, zeros), _steps(question, steps)]
    if left_out:
        line = f"{counted(left_out, 'more step')} of zero products alone: C stays as it is"
        parts.append(Wording((line,), {"steps_left_out": left_out}))
    return parts


def _terms(question: Question, steps: list[Shown], zeros: bool) -> Table:
    """Return the table of all terms of all steps."""
    row = question.row
    several = len(steps) > 1
    scaled, grouped = bool(question.a_scale), row.method.groups
    plain = not row.method.flushes
    columns = (
        Column("step", align="right", text=several),
        Column("term", strong=True),
        Column("a", text=not grouped and plain),
        Column("a_value", label="=", gap=1, drop=3, text=not grouped and plain),
        Column("b", text=not grouped and plain),
        Column("b_value", label="=", gap=1, drop=4, text=not grouped and plain),
        Column("a_scale", label="scale a", text=scaled, drop=0 if grouped else 2),
        Column("a_scale_value", label="=", gap=1, text=scaled, drop=5),
        Column("b_scale", label="scale b", text=scaled, drop=0 if grouped else 2),
        Column("b_scale_value", label="=", gap=1, text=scaled, drop=5),
        Column("value", align="right"),
        Column("exponent", label="2^", align="right", text=plain),
        Column("units", align="right", text=plain),
        Column("lost", align="right", text=plain),
    )
    rows = []
    for shown in steps:
        for line in shown.lines:
            is_spare = line.place is not None or not line.label  # a product, or the +0 before a late C
            if zeros or not (is_zero(line.term) and is_spare):
                value = (_value(line.term), line.term.exponent, line.units, line.lost)
                rows.append((shown.number, line.label or "+0", *_factors(question, line), *value))
    return Table(columns, tuple(rows), key="terms")


def _factors(question: Question, line: Line) -> tuple[Cell, ...]:
    """Return the operands and scales of a product, each as bits and as a number. A group of products has only scales."""
    operands: tuple[Cell, ...] = (None,) * 4
    scales: tuple[Cell, ...] = (None,) * 4
    format, i = question.product.scale_format, line.place
    if i is not None and not question.row.method.groups:
        operands = _operands(question, i)
    if i is not None and format is not None:
        scales = tuple(cell for code in question.scales(i) for cell in (bits_of(code, format), number_of(code, format)))
    return *operands, *scales


def _steps(question: Question, steps: list[Shown]) -> Table:
    """Return the table of steps and their results."""
    row = question.row
    special = any(reason(question, shown) for shown in steps)
    plain = not row.method.flushes
    columns = (
        Column("step", align="right", strong=True),
        Column("products", drop=2),
        Column("zeros", label="of them 0", align="right", drop=3),
        Column("exponent", label="E", align="right", text=plain),
        Column("largest", label="from", drop=5, text=plain),
        Column("unit", text=plain),
        Column("units", label="sum [units]", align="right", text=plain),
        Column("sum", label="=", gap=1, drop=1, text=plain),
        Column("result"),
        Column("value", label="=", gap=1),
        Column("lost", label="rounding lost", align="right", drop=4, text=plain),
        Column("rule", text=special),
    )
    return Table(columns, tuple(_step_cells(question, shown) for shown in steps), key="steps")


def _step_cells(question: Question, shown: Shown) -> tuple[Cell, ...]:
    """Return the cells of a step: its products, E, the unit, the sum, the result and what rounding lost."""
    step, format = shown.step, question.row.d_format
    taken: tuple[Cell, ...] = (None,) * 5  # E, its term, the unit, the sum in units and as a number
    lost = None
    if step.quantum is not None:
        unit = Fraction(2) ** step.quantum
        total, got = step.total * unit, value_of(step.result, format)
        aligned = (
            (None, "exact") if shown.adds_c or question.row.method.rounds_each else (step.exponent, largest(shown))
        )
        taken = (*aligned, Number(unit, f"2^{step.quantum}"), step.total, number(total))
        lost = number(total - Fraction(got)) if is_number(got) else None
    return (
        shown.number,
        "C" if shown.adds_c else _spans(step.places),
        shown.zeros,
        *taken,
        bits_of(step.result, format),
        number_of(step.result, format),
        lost,
        reason(question, shown),
    )


def _spans(places: tuple[int, ...]) -> str:
    """Return the i of a step: 0..31, or 0, 1, 4, 5, ... where they are not consecutive."""
    if places[-1] - places[0] == len(places) - 1:
        return f"{places[0]}..{places[-1]}" if len(places) > 1 else str(places[0])
    return ", ".join(map(str, places[:4])) + (", ..." if len(places) > 4 else "")


def _integer_sum(question: Question, dot: DotProduct) -> Wording:
    exact = question.exact()
    assert exact is not None
    c, wrapped = value_of(question.c, question.row.d_format), exact - dot.result
    line = f"sum of products {exact - Fraction(c)} + C {c} = {exact}"
    turns = f", less {wrapped // (1 << 32)} x 2^32 = {dot.result}" if wrapped else ""
    return Wording((line + turns,), {"c": int(c), "exact_sum": int(exact), "wrapped": int(wrapped // (1 << 32))})
