"""refsim table: the value of every code."""

from fractions import Fraction
from typing import TYPE_CHECKING

import click

from refsim.cli.arguments import only_format
from refsim.cli.delivery import answers
from refsim.cli.names import FORMAT
from refsim.errors import RefsimError
from refsim.render import Document, Grid, Number

if TYPE_CHECKING:
    from refsim.formats import Format

WIDEST_BITS = 8
FRACTIONS_BELOW = 0.5  # larger decimals are as short: 0.5625 and 9/16


@click.command()
@click.option("-t", "--format", "option", type=FORMAT, help="Number format, instead of the argument.")
@click.argument("row", metavar="FORMAT", required=False, type=FORMAT)
@answers
def command(row: "Format | None", option: "Format | None") -> Document:
    """Print the value of every code of a FORMAT of at most 8 bits. A code is its row label plus its column label.

    Values are exact. If the table is too wide, it gets fewer columns and shows fractions; nothing is rounded.

    \b
      refsim table e4m3
      refsim table -t e4m3
      refsim table e2m1 --as json
    """
    row = only_format(row, option)
    if row.bits > WIDEST_BITS:
        what, where = f"{row} has 2^{row.bits} codes", f"refsim table {row}"
        help = f"refsim decode -t {row} CODE... shows single codes"
        raise RefsimError("too-large", what, where=where, rule=f"a table has at most 2^{WIDEST_BITS} codes", help=help)
    columns = 16 if row.bits > 6 else 8
    values = tuple(_spelled(code, row) for code in range(row.code_limit))
    return Document((Grid(values, columns, row.bits),), f"table {row}", (row.source,))


def _spelled(code: int, row: "Format") -> Number:

    from refsim.cli.answers.anatomy import anatomy, code_number, exact_value

    value = exact_value(code, row)
    exact = anatomy(code, row).expression
    if exact is None:
        return code_number(code, row)
    if row.mantissa_bits == 0:
        return Number(value, exact)
    spelled = code_number(code, row)
    return Number(value, spelled.text, str(Fraction(value)) if abs(value) < FRACTIONS_BELOW else "")
