"""refsim numerics: the arithmetic of every tensor core, and how many bits its accumulator keeps."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import answering
from refsim.cli.names import TARGET, UNIT, Name
from refsim.cli.options import Options, option
from refsim.cli.registry import Group
from refsim.errors import RefsimError, counted
from refsim.render import Cell, Column, Document, Table

if TYPE_CHECKING:
    from refsim.formats import ElementType
    from refsim.numerics.rows import Profile


def _types_of(row: "Profile") -> str:
    a, b = _joined(row.a_formats), _joined(row.b_formats)
    return f"{a if a == b else f'{a} x {b}'} -> {row.d_format}"


def _joined(formats: "Iterable[ElementType]") -> str:
    return "|".join(format.name for format in formats)


OPERAND_TYPE = Name("operand type", "refsim.cli.products:operand_types", metavar="FORMAT")
ROWS = (
    Column("target", strong=True),
    Column("unit", strong=True),
    Column("types", of=_types_of),
    Column("k", label="K", drop=4, of=lambda row: ", ".join(map(str, row.k))),
    Column("length", label="L", align="right"),
    Column("fraction", label="F", align="right"),
    Column("rounding", of=lambda row: str(row.rounding)),
    Column("zero_exponent", label="zero exponent", align="right", drop=5),
    Column("order", drop=7, of=lambda row: str(row.order)),
    Column("c_enters", label="C", of=lambda row: str(row.c_enters)),
    Column("scales", drop=6, of=lambda row: ", ".join(f"{name}/{block}" for name, block in row.scales) or None),
    Column("level", of="evidence.level.word"),
    Column("evidence", drop=8, of="evidence.what"),
    Column("source", citation=True),
)
BITS_COLUMNS = (
    Column("targets", strong=True),
    Column("unit", strong=True),
    Column("types"),
    Column("kept", label="bits kept"),
    Column("result", label="bits of the result"),
    Column("length", label="products a step", align="right", drop=2),
    Column("c_enters", label="C enters", drop=3),
    Column("level", drop=1),
    Column("evidence", drop=4),
    Column("source", citation=True),
)


class Filters(Options):
    """The entries to show."""

    target: str | None = option("Only this architecture.", type=TARGET)
    unit: str | None = option("Only this unit.", type=UNIT)
    type: str | None = option("Only operands of this format.", "-t", "--format", type=OPERAND_TYPE)


class ListOptions(Filters):
    """The options of `refsim numerics list`."""

    sparse: bool = option("List products with a sparse A.")


@click.group(cls=Group)
def command() -> None:
    """Show how each tensor core computes a dot product: one entry for each chip, unit and set of types."""


@answering(command, "list")
def list_rows(asked: ListOptions) -> Document:
    """List the arithmetic of every instruction, and its evidence.

    A step takes L products and C, aligns them to their largest exponent E, and cuts the bits below 2^(E - F).

    \b
    Columns:
      K              products of one instruction
      L              products that one step adds; with --sparse, products of
                     the stored values, which are half of K
      F              bits that a step keeps below its largest exponent
      rounding       how the result of a step is rounded
      zero exponent  exponent that a zero product has in the alignment
      order          which products make one step
      C              early: aligned with the products; late: added after them
      level          silicon: equal to recorded hardware; independent:
                     independent models agree; formula: a document only;
                     unverified: not checked on hardware

    \b
      refsim numerics list
      refsim numerics list --target sm_90a -t e4m3 --source
    """
    from refsim.numerics.sparse import sparse_rows

    chosen = _chosen(asked)
    table = Table.of(ROWS, sparse_rows(chosen) if asked.sparse else chosen)
    return Document((table,), "the arithmetic of tensor cores", hints=(counted(len(table.rows), "row"),))


@answering(command, "bits")
def bits(asked: Filters) -> Document:
    """Show how many bits each accumulator keeps.

    A step keeps the leading bit and the F bits after it, counted from the largest exponent of the products and C. Lower
    bits are cut. The result then has its own number of bits. Example: Hopper's FP8 wgmma keeps 14 and returns 14. Entries
    with equal arithmetic share a line.

    \b
      refsim numerics bits
      refsim numerics bits -t e4m3 --as md
    """
    from refsim.evidence import Level
    from refsim.numerics.rows import kept_bits, result_bits, where_c_enters

    groups: dict[tuple[Cell, ...], list[Profile]] = {}
    for row in _chosen(asked):
        known = row.unit, row.d_format.name, kept_bits(row), result_bits(row)
        key = *known, row.length, where_c_enters(row), row.evidence.level.word
        groups.setdefault(key, []).append(row)
    rows = []
    for (of, result, *widths, _, enters, level), group in groups.items():
        targets = ", ".join(dict.fromkeys(row.target for row in group))
        types = ", ".join(dict.fromkeys(_joined(row.a_formats) for row in group))
        evidence = "; ".join(_evidence(group)), group[0].source
        length = None if group[0].evidence.level is Level.UNVERIFIED else group[0].length
        rows.append((targets, of, f"{types} -> {result}", *widths, length, enters, level, *evidence))
    return Document((Table(BITS_COLUMNS, tuple(rows), key="accumulators"),), "how many bits an accumulator keeps")


def _chosen(asked: Filters) -> "list[Profile]":
    """Return the entries that match the filters. Raises RefsimError with the known names where none matches."""
    from refsim.cli.product_options import known, type_name
    from refsim.cli.products import operand_types, targets, units
    from refsim.formats import element_named
    from refsim.numerics.profiles import chip, rows_of

    target, unit = asked.target, asked.unit
    if target is not None:
        known(target, targets(), "target", chip)
    if unit is not None:
        known(unit, units(), "unit")
    name = None if asked.type is None else type_name(asked.type, operand_types(), "operand type")
    rows, type = rows_of(target, unit), None if name is None else element_named(name)
    found = [row for row in rows if type is None or type in (*row.a_formats, *row.b_formats)]
    if not found:
        wanted = " ".join(each for each in (target, unit, name) if each)
        here = rows or rows_of(target)
        help = f"known: {'; '.join(dict.fromkeys(row.name for row in here))}"
        raise RefsimError("unknown-arithmetic", f"no known arithmetic is {wanted}", help=help)
    return found


def _evidence(rows: "list[Profile]") -> Iterable[str]:
    """Return the evidence of the entries, each once, with the chips or types it holds for where they differ."""
    found: dict[str, list[Profile]] = {}
    for row in rows:
        found.setdefault(row.evidence.what, []).append(row)
    if len(found) == 1:
        return found
    several = len({row.target for row in rows}) > 1
    return [
        f"{', '.join(dict.fromkeys(row.target if several else _joined(row.a_formats) for row in members))}: {what}"
        for what, members in found.items()
    ]
