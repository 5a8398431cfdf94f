"""refsim encode: the code of a value, and its rounding error."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from refsim.cli.arguments import leading_format, missing_format, parse_code, refuse_options, require_few, words_in
from refsim.cli.delivery import answering
from refsim.cli.names import FORMAT, Name
from refsim.cli.options import Options, argument, option
from refsim.errors import RefsimError
from refsim.render import Bits, Cell, Column, Document, Number, Table, number

if TYPE_CHECKING:
    from refsim.cli.answers.anatomy import Anatomy
    from refsim.cli.values import Value
    from refsim.conversions import Conversion
    from refsim.conversions.rounding import RoundingName
    from refsim.formats import Format, Overflow

COLUMNS = (
    Column("format", text=False, of="row.name"),
    Column("given", strong=True, of="value.written"),
    Column("operand", label="read as"),
    Column("code", strong=True, of="shown.code"),
    Column("fields", of="shown.fields"),
    Column("value", gap=3, of="shown.value"),
    Column("expression", label="=", gap=1, of="shown.expression"),
    Column("class", gap=3, of="shown.kind"),
    Column("error", label="error", gap=3, of=lambda each: each.errors[0]),
    Column("error", unit="ulp", label="=", gap=1, of=lambda each: each.errors[1]),
    Column("neighbours", label="neighbors", gap=3),
)


@dataclass(frozen=True)
class Encoded:
    """The code of a value. `operand` is the value that the instruction read, None where it read the value exactly."""

    value: "Value"
    code: int
    row: "Format"
    operand: Bits | None = None

    @property
    def shown(self) -> "Anatomy":
        """Return the code, taken apart."""
        from refsim.cli.answers.anatomy import anatomy

        return anatomy(self.code, self.row)

    @property
    def errors(self) -> tuple[Number | None, Number | None]:
        """Return code minus value, absolutely and in ulp of the code; None where one of them is not finite."""

        from refsim.cli.answers.anatomy import exact_value, step

        value, exact = exact_value(self.code, self.row), self.value.exact
        if not math.isfinite(value) or (isinstance(exact, float) and not math.isfinite(exact)):
            return None, None
        error = Fraction(value) - Fraction(exact)
        return _signed(error), _signed(error / step(self.code, self.row)) if error else None

    @property
    def neighbours(self) -> Cell:
        """Return the values below and above a code that differs from the value."""
        error, _ = self.errors
        return (self.shown.below, self.shown.above) if error is not None and error.value else None


class EncodeOptions(Options):
    """The options of `refsim encode`."""

    row: "Format | None" = option("Number format of the codes.", "-t", "--format", type=FORMAT)
    rounding: "RoundingName | None" = option(
        "nearest-even (the default), toward-zero, up, down, ties-away; or rne, rtz, ru, rd, rna.",
        metavar="RULE",
        type=Name("rounding", "refsim.conversions:ROUNDINGS"),
    )
    overflow: "Overflow | None" = option(
        "Result above the largest value: saturate, nan or inf. By default as the format's instructions do: inf "
        "in f16, bf16, tf32, f32.",
        metavar="POLICY",
        type=Name("overflow", "refsim.conversions:OVERFLOWS"),
    )
    nan: str | None = option("Code of a NaN (default: the format's own).", metavar="CODE")
    via: str | None = option(
        "Convert as this instruction or library, such as cvt.rn.satfinite.e4m3x2.f32 or torch.float8_e4m3fn.",
        metavar="CONVERSION",
        type=Name("conversion", "refsim.conversions:CONVERSIONS"),
    )
    values: tuple[str, ...] = argument("[FORMAT] VALUE...|-", required=True)


@answering(context_settings={"ignore_unknown_options": True})
def command(asked: EncodeOptions) -> Document:
    """Encode each VALUE: its code, rounded once from the value as written, and the rounding error.

    A value is decimal (0.3), a hexadecimal float (0x1.8p3), nan, inf, or the bit pattern of any format (f32:0x3f800000).
    The word - reads values from standard input. The error is the value of the code minus the VALUE. With --via, refsim
    first rounds the VALUE to the type that the instruction reads, and shows this if the value changes.

    \b
      refsim encode -t e4m3 0.3 -1000 nan
      refsim encode -t e5m2 65536 --overflow inf
      refsim encode -t bf16 inf
      refsim encode --via cvt.rp.satfinite.ue8m0x2.f32 0x1.8p3
    """
    from refsim.cli.values import parse_value

    row, values, via = asked.row, asked.values, asked.via
    if via is None:
        row, values = leading_format(values, row)
    words = list(words_in(values))
    if not words and values == ():
        way = f"refsim encode {row or f'--via {via}'} 0.3"
        raise RefsimError("missing-argument", "no value is given", "refsim encode", help=way)
    require_few(len(words), "refsim.encode(values, format) in Python takes arrays of any size")
    refuse_options(words)
    if via is None:
        if row is None:
            raise missing_format(*words, otherwise="; or give --via CONVERSION")
        found, source = _by_rule([parse_value(word) for word in words], row, asked), row.source
    else:
        conversion = _conversion(via, row, asked)
        row, source = conversion.to, conversion.source
        found = _by_conversion([parse_value(word) for word in words], conversion)
    table = Table.of(COLUMNS, found, key="values", headings=False)
    return Document((table,), f"encode {row}", (source,))


def _by_rule(values: "list[Value]", row: "Format", asked: EncodeOptions) -> list[Encoded]:
    from refsim.cli.values import to_double
    from refsim.conversions import encode

    nan_code = None if asked.nan is None else parse_code(asked.nan, row, "--nan")
    doubles, rounding = [to_double(value) for value in values], asked.rounding or "nearest-even"
    codes = encode(doubles, row, rounding, asked.overflow, nan_code)
    return [Encoded(value, int(code), row) for value, code in zip(values, codes, strict=True)]


def _conversion(via: str, row: "Format | None", asked: EncodeOptions) -> "Conversion":
    """Return the conversion of --via. Raises RefsimError for options that contradict it, and for random rounding."""
    from refsim.conversions import conversion_named

    conversion = conversion_named(via)
    for name in ("rounding", "overflow", "nan"):
        if getattr(asked, name) is not None:
            rule = "a conversion fixes its own rounding, overflow and NaN"
            raise RefsimError("usage", f"--{name} contradicts --via", via, rule)
    if row is not None and row != conversion.to:
        raise RefsimError(
            "usage", f"{via} gives {conversion.to}, not {row}", help=f"leave out -t, or -t {conversion.to}"
        )
    if conversion.random_positions:
        what = f"{via} needs random bits, and this command has none"
        help = f"in Python: refsim.convert({via!r}, ..., random_bits=...)"
        raise RefsimError("random-bits", what, rule=str(conversion.source), help=help)
    return conversion


def _by_conversion(values: "list[Value]", conversion: "Conversion") -> list[Encoded]:
    """Return the codes of a conversion. Every slot of the operand registers holds the value; the lowest is read."""
    import numpy as np

    from refsim.cli.answers.anatomy import as_bits, exact_value
    from refsim.cli.values import to_double
    from refsim.conversions import convert, encode

    reads, slots = conversion.reads, conversion.elements // conversion.operand_count
    overflow: Overflow = "inf" if reads.has_infinity else "saturate"
    operands = encode([to_double(value) for value in values], reads, "nearest-even", overflow)
    slot_bits = 8 * conversion.operand_dtype.itemsize // slots
    register = sum(operands.astype(conversion.operand_dtype) << (slot_bits * slot) for slot in range(slots))
    register = np.asarray(register, conversion.operand_dtype)
    results = convert(conversion.name, *[register] * conversion.operand_count)
    mask = (1 << (8 * conversion.result_dtype.itemsize // conversion.elements)) - 1
    found = []
    for value, operand, result in zip(values, operands, results, strict=True):
        unchanged = value.is_nan or exact_value(int(operand), reads) == value.exact
        shown = None if unchanged else as_bits(int(operand), reads)
        found.append(Encoded(value, int(result) & mask, conversion.to, shown))
    return found


def _signed(value: Fraction) -> Number:
    spelled = number(value)
    if value <= 0:
        return spelled
    return Number(value, f"~+{spelled.text[1:]}" if spelled.text.startswith("~") else f"+{spelled.text}")
