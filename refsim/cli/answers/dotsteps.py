"""One dot product step by step: what each step took, what it aligned to, what it cut, and what it is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from refsim.cli.answers.dotproduct import Question, compared, counted, head, is_number
from refsim.cli.elements import bits_of, number_of, value_of
from refsim.numerics.dot.definition import GROUP, DotProduct, Step
from refsim.numerics.dot.terms import FINITE, INFINITE, NAN, Term
from refsim.numerics.profiles import Profile
from refsim.render import Cell, Column, Document, Number, Part, Statement, Table, number

PRODUCTS = (
    Column("i", align="right", strong=True),
    Column("a"),
    Column("a_value", label="=", gap=1),
    Column("b"),
    Column("b_value", label="=", gap=1),
    Column("product", align="right"),
)


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
        return self.term.kind is FINITE and self.term.exponent is None


def document(question: Question, *, zeros: bool = False) -> Document:
    """The answer, the steps that led to it, and what the result is compared with.

    Zero products are counted, not listed, unless `zeros`; so are steps of nothing else that leave C as it is.
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
    """The products themselves, where a step takes something made of them."""
    rows = []
    for i, term in enumerate(dot.products):
        if zeros or not Line("", term).is_zero:
            rows.append((i, *_operands(question, i), _value(term)))
    return Table(PRODUCTS, tuple(rows), key="products")


def _operands(question: Question, i: int) -> tuple[Cell, ...]:
    of = question.product
    pairs = ((question.a[i], of.a_format), (question.b[i], of.b_format))
    return tuple(cell for code, name in pairs for cell in (bits_of(code, name), number_of(code, name)))


def _value(term: Term) -> Number:
    if term.kind is NAN:
        return number(float("nan"))
    if term.kind is INFINITE:
        return number(float("-inf") if term.negative else float("inf"))
    return number(term.value)


@dataclass(frozen=True)
class Shown:
    """A step with its number, the lines of its terms and how many products are zero."""

    number: int
    step: Step
    lines: tuple[Line, ...]
    zeros: int
    adds_c: bool


def shown_steps(question: Question, dot: DotProduct, zeros: bool) -> tuple[list[Shown], int]:
    """The steps to list, and how many were left out: those of zero products alone that change nothing."""
    row, found, left_out = question.row, [], 0
    late = row.adds_c_last
    carried, outer, code = "C", "C", question.c
    for place, step in enumerate(dot.steps):
        adds_c = late and not step.places
        if late and place % (len(row.steps(question.product.k)) + 1) == 0:
            carried, code = "", 0
        labels = (carried, outer) if adds_c else (carried,)
        count = sum(Line("", dot.products[i]).is_zero for i in step.places)
        idle = not adds_c and count == len(step.places) and step.result == code and step.exponent is not None
        if idle and not zeros and place:
            left_out += 1
            continue
        found.append(Shown(place + 1, step, tuple(_lines(question, step, labels)), count, adds_c))
        carried, code = f"D of step {place + 1}", step.result
        if adds_c or not late:
            outer = carried
    return found, left_out


def _lines(question: Question, step: Step, labels: tuple[str, ...]) -> Iterator[Line]:
    """The terms of a step under their labels; those that CDNA3 adds first come before their sum."""
    row, quantum = question.row, step.quantum
    special = step.exponent is None
    aligned: tuple[int | None, ...] = (None,) * len(step.terms) if special else step.aligned
    if step.sums:
        places = [step.places[start :: len(step.sums)] for start in range(len(step.sums))]
        for each, part in zip(step.sums, places, strict=True):
            for i, term, count in zip(part, each.terms, each.aligned, strict=True):
                yield Line(str(i), term, i, count, each.quantum)
        exponent = max(each.exponent for each in step.sums)
        total = sum((each.total * Fraction(2) ** each.quantum for each in step.sums), Fraction(0))
        yield Line("their sum", _as_term(total, exponent), None, aligned[0], quantum)
        yield Line(labels[0], step.terms[-1], None, aligned[1], quantum)
        return
    if row.method.flushes:
        for label, term in zip(("their tree", *labels), step.terms, strict=False):
            yield Line(label, term)
        return
    named: list[tuple[str, int | None]] = [*_term_places(row, step), *((label, None) for label in labels)]
    for (name, place), term, units in zip(named, step.terms, aligned, strict=True):
        yield Line(name, term, place, units, quantum)


def _as_term(value: Fraction, exponent: int) -> Term:
    """A sum as a term: an integer of 2^-bits with the exponent that it was aligned to."""
    scaled = value / Fraction(2) ** exponent
    bits = scaled.denominator.bit_length() - 1
    return Term(value < 0, abs(scaled.numerator), exponent if value else None, bits)


def _term_places(row: Profile, step: Step) -> list[tuple[str, int]]:
    """The label of each product or group of a step, and the i where it begins."""
    if not row.method.groups:
        return [(str(i), i) for i in step.places]
    starts = step.places[::GROUP]
    return [(f"{start}..{start + GROUP - 1}", start) for start in starts]


def _tables(question: Question, dot: DotProduct, zeros: bool) -> list[Part]:
    steps, left_out = shown_steps(question, dot, zeros)
    parts: list[Part] = [_terms(question, steps, zeros), _steps(question, steps)]
    if left_out:
        line = f"{counted(left_out, 'more step')} of zero products alone: C stays as it is"
        parts.append(Statement((line,), {"steps_left_out": left_out}))
    return parts


def _terms(question: Question, steps: list[Shown], zeros: bool) -> Table:
    """Every term of every step."""
    row, of = question.row, question.product
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
            if line.is_zero and not zeros and (line.place is not None or not line.label):
                continue
            names: tuple[Cell, ...] = (None,) * 4
            scales: tuple[Cell, ...] = (None,) * 4
            if line.place is not None:
                names = (None,) * 4 if grouped else _operands(question, line.place)
                if of.scale_format is not None:
                    name = of.scale_format
                    scales = tuple(f(code, name) for code in question.scales(line.place) for f in (bits_of, number_of))
            rows.append((
                shown.number, line.label or "+0", *names, *scales, _value(line.term), line.term.exponent, line.units, line.lost,
            ))  # fmt: skip
    return Table(columns, tuple(rows), key="terms")


def _steps(question: Question, steps: list[Shown]) -> Table:
    """What every step came to."""
    row = question.row
    special = any(shown.step.exponent is None and _reason(question, shown) for shown in steps)
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
    step, name = shown.step, question.row.d_format
    result, value = bits_of(step.result, name), number_of(step.result, name)
    products = "C" if shown.adds_c else _spans(step.places)
    reason = _reason(question, shown)
    if step.quantum is None:
        return (shown.number, products, shown.zeros, None, None, None, None, None, result, value, None, reason)
    unit = Fraction(2) ** step.quantum
    total, got = step.total * unit, value_of(step.result, name)
    exact = shown.adds_c or question.row.method.rounds_each
    return (
        shown.number, products, shown.zeros, None if exact else step.exponent, "exact" if exact else _largest(shown),
        Number(unit, f"2^{step.quantum}"), step.total, number(total), result, value,
        number(total - Fraction(got)) if is_number(got) else None, reason,
    )  # fmt: skip


def _spans(places: tuple[int, ...]) -> str:
    """The i of a step: 0..31; 0, 1, 4, 5, ... where they are no run."""
    if places[-1] - places[0] == len(places) - 1:
        return f"{places[0]}..{places[-1]}" if len(places) > 1 else str(places[0])
    return ", ".join(map(str, places[:4])) + (", ..." if len(places) > 4 else "")


def _largest(shown: Shown) -> str:
    """The term whose exponent is E: the first of them, or the zeros where none has it."""
    top = shown.step.exponent
    largest = [line for line in shown.lines if line.term.exponent == top and line.quantum == shown.step.quantum]
    if not largest:
        return "a zero"
    return largest[0].label if largest[0].place is None else f"term {largest[0].label}"


def _reason(question: Question, shown: Shown) -> str | None:
    """The NaN or the infinity that decided a step, None where it was computed."""
    step = shown.step
    if step.exponent is not None:
        return None
    terms = [(line.label, line.place, line.term) for line in shown.lines]
    for label, place, term in terms:
        if term.kind is NAN:
            return f"NaN: {_blame(question, label, place)}"
    signs = {term.negative: label for label, _, term in terms if term.kind is INFINITE}
    if len(signs) == 2:
        return f"NaN: infinities of both signs, {signs[False]} and {signs[True]}"
    return f"infinity: {next(iter(signs.values()))} is infinite" if signs else None


def _blame(question: Question, label: str, place: int | None) -> str:
    """Why a term is NaN: an operand, a scale, or infinity times zero."""
    if place is None:
        return f"{label} is NaN"
    of, i = question.product, place
    if of.scale_format is not None:
        for side, code in zip("ab", question.scales(i), strict=True):
            if value_of(code, of.scale_format) != value_of(code, of.scale_format):
                return f"the scale of {side} for {label} is NaN"
    for side, code, name in (("a", question.a[i], of.a_format), ("b", question.b[i], of.b_format)):
        if value_of(code, name) != value_of(code, name):
            return f"{side}[{i}] is NaN"
    return f"product {i} is infinity times zero"


def _integer_sum(question: Question, dot: DotProduct) -> Statement:
    exact = question.exact()
    assert exact is not None
    c, wrapped = value_of(question.c, question.row.d_format), exact - dot.result
    line = f"sum of products {exact - Fraction(c)} + C {c} = {exact}"
    turns = f", less {wrapped // (1 << 32)} x 2^32 = {dot.result}" if wrapped else ""
    return Statement((line + turns,), {"c": int(c), "exact_sum": int(exact), "wrapped": int(wrapped // (1 << 32))})
