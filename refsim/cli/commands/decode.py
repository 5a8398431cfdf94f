"""refsim decode: the values and fields of codes."""

from typing import TYPE_CHECKING

from refsim.cli.arguments import codes_in, format_field, leading_format, missing_format
from refsim.cli.delivery import answering
from refsim.cli.options import Options, argument
from refsim.errors import RefsimError
from refsim.render import Column, Document, Table

if TYPE_CHECKING:
    from refsim.formats import Format

COLUMNS = (
    Column("format", text=False, of="format.name"),
    Column("code", strong=True),
    Column("fields"),
    Column("value", gap=3),
    Column("expression", label="=", gap=1),
    Column("class", gap=3, of="kind"),
    Column(
        "neighbours", label="neighbors", gap=3, of=lambda code: None if code.kind == "nan" else (code.below, code.above)
    ),
    Column("nearest_even", label="nearest-even:", gap=3, of="interval"),
)


class DecodeOptions(Options):
    """The options of `refsim decode`."""

    row: "Format | None" = format_field()
    codes: tuple[str, ...] = argument("[FORMAT] CODE...|-|FILE", required=True)


@answering()
def command(asked: DecodeOptions) -> Document:
    """Decode CODEs of a format: fields, exact value, class, neighbors, and the interval of reals that round to the code.

    A code is hexadecimal (0x7e), binary (0b01111110) or decimal (126). The word - reads codes from standard input. A FILE
    is text or npy, npz, safetensors or raw. A decimal with ~ before it is rounded; the binary expression is exact. The
    interval holds for rounding to nearest-even. Above the largest value, the overflow policy decides.

    \b
      refsim decode -t e4m3 0x7e 0xff
      refsim decode e4m3 0x7e 0xff
      refsim decode -t bf16 weights.npy --as csv
    """
    from refsim.cli.answers.anatomy import anatomy

    row, codes = leading_format(asked.codes, asked.row)
    if row is None:
        raise missing_format(*codes)
    if not codes:
        raise RefsimError("missing-argument", "no code is given", "refsim decode", help=f"refsim decode {row} 0x1")
    found = [anatomy(code, row) for code in codes_in(codes, row)]
    return Document((Table.of(COLUMNS, found, key="codes", headings=False),), f"decode {row}", (row.source,))
