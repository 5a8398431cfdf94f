"""One row of values quantized by groups: the scale of each group, and the code of each value."""

from typing import TYPE_CHECKING

from refsim.cli.answers.anatomy import anatomy, as_bits, exact_value
from refsim.errors import counted
from refsim.formats import F32
from refsim.render import Column, Document, Table, number
from refsim.scaling import NanRule, Quotient, ScaleKind, dequantize, quantize

if TYPE_CHECKING:
    from refsim.cli.values import Value
    from refsim.formats import Format
    from refsim.render import Cell

GROUPS_OF_VALUES = (
    Column("group", label="group", strong=True),
    Column("values", unit="", gap=1),
    Column("amax", label="amax", gap=3),
    Column("scale", label="scale", gap=3, strong=True),
    Column("factor", label="=", gap=1),
)
QUANTIZED_VALUES = (
    Column("group", text=False),
    Column("given", strong=True),
    Column("code", strong=True),
    Column("fields"),
    Column("value", gap=3),
    Column("back", label="times the scale", gap=3),
)


def quantized(
    values: "list[Value]", row: "Format", width: int, kind: ScaleKind, quotient: Quotient, nan: NanRule
) -> Document:
    """Return every group with its scale, then every value with its code and the float32 product of code and scale."""
    import numpy as np

    from refsim.cli.values import to_double
    from refsim.conversions import encode

    patterns = encode([to_double(value) for value in values], F32).reshape(1, -1)
    made = quantize(patterns, F32, group=(1, width), to=row, scale=kind, quotient=quotient, nan=nan)
    back = dequantize(made.codes, made.scales, row, group=(1, width))[0]
    with np.errstate(all="ignore"):
        magnitudes = np.abs(patterns[0].view(np.float32))
    if nan == "ignored":
        magnitudes = np.nan_to_num(magnitudes, nan=0.0, posinf=np.inf)
    groups: list[tuple[Cell, ...]] = []
    for at, (scale, factor) in enumerate(zip(made.scales[0], made.factors[0], strict=True)):
        mine = magnitudes[at * width : (at + 1) * width]
        bits = as_bits(int(scale.view(kind.format.code_dtype)), kind.format)
        groups.append((at, counted(len(mine), "value"), number(float(mine.max())), bits, number(float(factor))))
    elements: list[tuple[Cell, ...]] = []
    for place, (value, code, result) in enumerate(zip(values, made.codes[0], back, strict=True)):
        shown = anatomy(int(code), row)
        product = number(exact_value(int(result), F32))
        elements.append((place // width, value.written, shown.code, shown.fields, shown.value, product))
    tables = (
        Table(GROUPS_OF_VALUES, tuple(groups), key="groups", headings=False),
        Table(QUANTIZED_VALUES, tuple(elements), key="values"),
    )
    return Document(tables, f"{row} in groups of {width}", (kind.source,))
