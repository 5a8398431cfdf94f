"""One dot product step by step: the terms of each step, their alignment, the lost bits, and the comparison."""

from fractions import Fraction

from refsim.cli.answers.dotlines import Line, Shown, is_zero, largest, reason, shown_steps
from refsim.cli.answers.dotproduct import Question, compared, head, is_number
from refsim.cli.elements import bits_of, number_of, value_of
from refsim.errors import counted
from refsim.numerics.dot.definition import DotProduct
from refsim.numerics.dot.terms import INFINITE, IS_NAN, Term
from refsim.render import Cell, Column, Document, Number, Part, Table, Wording, number

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
            if zeros or not (line.is_zero and is_spare):
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
