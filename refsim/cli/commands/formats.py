"""refsim formats: the definitions of all number formats, or all derived facts of one."""

import math
from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import answers
from refsim.cli.names import FORMAT
from refsim.render import Bits, Column, Document, Entry, Number, Record, Table

if TYPE_CHECKING:
    from refsim.formats import Format


def _min_normal(row: "Format") -> Number | None:
    return None if row.twos_complement else _power(row.min_normal)


def _widths(row: "Format") -> str:
    return f"{int(row.signed)}/{row.exponent_bits}/{row.mantissa_bits}"


COLUMNS = (
    Column("format", strong=True, of="name"),
    Column("bits", align="right", drop=5),
    Column("fields", label="s/e/m", of=_widths),
    Column("bias", align="right"),
    Column("max", align="right", of=lambda row: _extreme(row.max_code, row)),
    Column("max_code", label="code", drop=1, of=lambda row: _bits(row.max_code, row)),
    Column("min_normal", label="min normal", drop=4, of=_min_normal),
    Column("min_subnormal", label="min subnormal", of=lambda row: _power(row.quantum) if row.has_zero else None),
    Column("nan", label="NaN", drop=2, of=lambda row: _bits(row.nan_code, row)),
    Column("infinity", label="inf", drop=3, of=lambda row: _bits(row.infinity_code, row)),
    Column("negative_zero", label="-0", drop=3, of="has_negative_zero"),
    Column("source", citation=True),
)


@click.command()
@click.argument("row", metavar="[NAME]", required=False, type=FORMAT)
@answers
def command(row: "Format | None") -> Document:
    """List all number formats, or show everything about the format NAME.

    The column s/e/m gives the bits of sign, exponent and mantissa. The columns NaN and inf give the code that NVIDIA
    hardware writes for NaN and for +infinity. Example: e4m3 has bias 7, and its largest value is 448, code 0x7e.

    \b
      refsim formats
      refsim formats e4m3 --source
    """
    from refsim.formats import FORMATS

    if row is not None:
        return Document((Record(tuple(_entries(row))),), f"format {row}", (row.source,))
    return Document((Table.of(COLUMNS, FORMATS, key="formats"),), "formats")


def _entries(row: "Format") -> list[Entry]:
    """Return everything about one format."""
    from refsim.conversions import encode

    lowest = int(encode([row.min_value], row)[0])
    return [
        Entry("format", row.name),
        Entry("aliases", row.aliases or None),
        Entry("bits", row.bits),
        Entry("padding_bits", row.padding_bits or None, label="padding bits"),
        Entry("fields", _widths(row), label="s/e/m"),
        Entry("bias", row.bias),
        Entry("max", _extreme(row.max_code, row)),
        Entry("max_code", _bits(row.max_code, row), label="max code"),
        Entry("min", _extreme(lowest, row)),
        Entry("min_code", _bits(lowest, row), label="min code"),
        Entry("min_normal", _min_normal(row), label="min normal"),
        Entry("min_subnormal", _power(row.quantum) if row.has_zero else None, label="min subnormal"),
        Entry("nan", _bits(row.nan_code, row), label="NaN"),
        Entry("nan_codes", _nan_codes(row), label="NaN codes"),
        Entry("infinity", _bits(row.infinity_code, row), label="inf"),
        Entry("negative_zero", _bits(row.sign_mask, row) if row.has_negative_zero else None, label="-0"),
        Entry("specials", row.specials.value),
        Entry("overflow", row.overflow, label="beyond max"),
        Entry("array_dtype", row.code_dtype.name, label="array of codes"),
    ]


def _bits(code: int | None, row: "Format") -> Bits | None:
    return None if code is None else Bits(code, row.bits + row.padding_bits)


def _power(value: float) -> Number:

    return Number(value, f"2^{math.frexp(value)[1] - 1}")


def _extreme(code: int, row: "Format") -> Number:
    from refsim.cli.answers.anatomy import code_number, exact_value

    return code_number(code, row) if row.mantissa_bits else _power(exact_value(code, row))


def _nan_codes(row: "Format") -> str | None:
    """Return the ranges of NaN codes: 0x7d to 0x7f, 0xfd to 0xff for E5M2."""
    if row.nan_code is None:
        return None
    first = row.nan_code if row.infinity_code is None else row.infinity_code + (1 << row.padding_bits)
    last = row.nan_code | ((1 << row.padding_bits) - 1)
    both = [(first, last)]
    if row.signed and row.has_negative_zero:
        both.append((first | row.sign_mask, last | row.sign_mask))
    spelled = [(str(_bits(low, row)), str(_bits(high, row))) for low, high in both]
    return ", ".join(low if low == high else f"{low} to {high}" for low, high in spelled)
