"""One dot product: its codes, the instruction in words, and the values that its result is compared with."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from refsim.cli.answers.anatomy import anatomy
from refsim.cli.elements import bits_of, number_of, value_of
from refsim.errors import counted
from refsim.formats import F16, F32, F64, ElementType, Integer
from refsim.numerics.descriptions import arithmetic
from refsim.numerics.dot.definition import DotProduct, dot_product
from refsim.numerics.dot.terms import rounded
from refsim.numerics.roundings import TO_NEAREST
from refsim.numerics.rows import Profile
from refsim.render import Cell, Column, Number, Table, Wording, number
from refsim.render.cells import plain

if TYPE_CHECKING:
    from refsim.cli.products import MmaArguments

COMPARED = (
    Column("compared", label="compared with", strong=True),
    Column("code"),
    Column("value", label="=", gap=1),
    Column("error", label="D less that", align="right"),
)


@dataclass(frozen=True)
class Question:
    """One dot product: its operand codes; `product` is the matrix product that contains it."""

    product: "MmaArguments"
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
        return dot_product(
            self.a,
            self.b,
            self.c,
            of.row,
            of.k,
            a_format=of.a_format,
            b_format=of.b_format,
            a_scale=self.a_scale,
            b_scale=self.b_scale,
            scale_format=of.scale_format,
        )

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
            values.append(_multiplied(factors))
        return sum((Fraction(value) for value in values), Fraction(0)) if is_number(values[0]) else None


def is_number(value: Fraction | float) -> bool:
    """Return whether a value is finite."""
    return isinstance(value, Fraction) or value == 0


def _multiplied(factors: list[Fraction | float]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= Fraction(factor)
    return result


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


def instruction(of: "MmaArguments") -> list[str]:
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


def instruction_facts(of: "MmaArguments") -> dict[str, Any]:
    """Return the facts about the instruction for JSON."""
    row, total = of.row, of.a.shape[-1]
    return {
        "target": row.target,
        "unit": row.unit,
        "a_format": of.a_format.name,
        "b_format": of.b_format.name,
        "d_format": row.d_format.name,
        "k": of.k,
        "products": total,
        "zeros_appended": 0 if of.given is None else total - of.given,
        "scale_format": None if of.scale_format is None else of.scale_format.name,
        "negate_a": of.negate_a,
        "negate_b": of.negate_b,
        "length": row.length,
        "fraction": row.fraction,
        "rounding": str(row.rounding),
        "zero_exponent": row.zero_exponent,
        "order": str(row.order),
        "c_enters": str(row.c_enters),
        "level": row.evidence.level.word,
        "evidence": row.evidence.what,
    }


def compared(question: Question, result: int) -> Table:
    """Return a table of the exact sum, the sum rounded once, the float32 loop and the derived bound."""
    import numpy as np

    from refsim import numerics

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
    most = f"at most {_upward(bound)}" if np.isfinite(bound) else "none"
    if row.d_format.is_integer:
        most += ", modulo 2^32"
    rows.append(("derived bound", None, None, Number(bound, most)))
    return Table(COMPARED, tuple(rows), key="compared")


def _upward(bound: float) -> str:
    """Return a bound with six digits, rounded up."""
    return f"{Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(bound)).normalize():g}"
