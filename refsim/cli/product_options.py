"""Options of a matrix product: its operands, their types, and the instruction."""

import re
from typing import Any

import click

from refsim.cli.extents import Whole
from refsim.cli.names import TARGET, UNIT, Name
from refsim.cli.options import Options, argument, option
from refsim.errors import RefsimError, unknown


def known(name: str, names: list[str], kind: str, canonical: Any = str) -> None:
    """Raise RefsimError for a name that is not in `names`; its help lists the nearest."""
    try:
        is_known = canonical(name) in names
    except RefsimError:
        is_known = False
    if not is_known:
        raise unknown(kind, name, names)


def type_name(name: str, names: list[str], kind: str) -> str:
    """Return the canonical name of a format or alias. Raises RefsimError for a type that no entry takes."""
    from refsim.formats import element_named

    try:
        found = element_named(name).name
    except RefsimError as error:
        if error.code == "ambiguous-name":
            raise
        found = name
    known(found, names, kind)
    return found


class Types(Name):
    """The name of an operand type or a result type."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the canonical name of a type. Raises RefsimError for a type that no entry has."""
        return type_name(str(value), self.known(), self.name)


OPERAND = Types("operand type", "refsim.cli.products:operand_types", metavar="FORMAT")
RESULT = Types("result type", "refsim.cli.products:result_types", metavar="FORMAT")
SCALE = Types("scale type", "refsim.cli.products:scale_types", metavar="FORMAT")


class ElementParam(click.ParamType):  # type: ignore[type-arg]
    """ROW,COL of the result."""

    name, metavar = "place", "ROW,COL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (row, column). Raises RefsimError bad-value."""
        match = re.fullmatch(r" *([0-9]{1,11}) *, *([0-9]{1,11}) *", str(value))
        if match is None:
            raise RefsimError("bad-value", f"{value!r} is not an element", "--at", "an element is ROW,COL, as 17,42")
        return int(match[1]), int(match[2])


class MmaOptions(Options):
    """The options of `refsim mma`."""

    opcode: str | None = argument(type=UNIT)
    a: str = option(
        "Row of A: codes (0x38) or values (1.5,-2); or a file of M x K.", required=True, metavar="LIST|FILE"
    )
    b: str = option("Column of B; or a file of N x K, the transpose of B.", required=True, metavar="LIST|FILE")
    c: str | None = option("C, as a code or a value of the result's type (default: 0).", metavar="VALUE|FILE")
    explain: bool = option("Show one dot product step by step.")
    at: tuple[int, int] | None = option("Compute one element of the product of two files.", type=ElementParam())
    unit: str | None = option("wgmma, mma.sync, tcgen05.f16, ..., or an opcode.", metavar="UNIT|OPCODE", type=UNIT)
    target: str = option("Architecture.", default="sm_90a", type=TARGET)
    both: str | None = option("Type of A and B, if no file names it.", "-t", "--format", type=OPERAND)
    a_format: str | None = option("Type of A.", type=OPERAND)
    b_format: str | None = option("Type of B.", type=OPERAND)
    d_format: str | None = option("Type of C and D (default: f32 where possible).", type=RESULT)
    k: int | None = option("K of one instruction (default: the largest).", type=Whole(min=1))
    a_scale: str | None = option("Scales of A, one for each block; or a file of M x blocks.", metavar="LIST|FILE")
    b_scale: str | None = option("Scales of B, likewise.", metavar="LIST|FILE")
    scale_format: str | None = option("Type of the scales: e8m0 or ue4m3.", type=SCALE)
    negate_a: bool = option("Negate A, if the instruction can.")
    negate_b: bool = option("Negate B, if the instruction can.")
    key: str | None = option("Name of the tensor, if files hold several.")
    zeros: bool = option("Also list zero products.")
