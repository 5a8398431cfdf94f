"""refsim approx: the result of an instruction of the special-function unit, with the correctly rounded result."""

import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from refsim.cli.arguments import ARRAY_SUFFIXES, codes_in, refuse_options
from refsim.cli.delivery import answers
from refsim.errors import RefsimError, counted
from refsim.render import Bits, Cell, Column, Document, Number, Table, number
from refsim.sources import PTX

if TYPE_CHECKING:
    from refsim.formats import Format
    from refsim.numerics.special import SpecialForm

COLUMNS = (
    Column("instruction", text=False, of="form.instruction"),
    Column("operand", strong=True, of=lambda each: _one(tuple(map(each.bits, each.operands)))),
    Column("reads", label="read as", drop=3, of=lambda each: _one(tuple(map(number, each.reads)))),
    Column("code", label="result", strong=True, of=lambda each: each.bits(each.code)),
    Column("value", label="=", drop=2),
    Column("error", label="off", unit="ulp", align="right"),
    Column("rounded", label="correctly rounded", of=lambda each: each.bits(each.rounded)),
    Column("steps", label="steps from it", align="right"),
    Column("neighbours", label="its neighbors", drop=4),
    Column("before", label="the operand below gives", drop=5, of=lambda each: each.shifted(0)),
    Column("after", label="the one above", drop=5, of=lambda each: each.shifted(1)),
)


@dataclass(frozen=True)
class _Result:
    """The result of an instruction for some operands, and the exact value of its function."""

    form: "SpecialForm"
    operands: tuple[int, ...]
    code: int

    @property
    def reads(self) -> tuple[float, ...]:
        """Return the values of the operands; with .ftz, a subnormal operand is a zero of its sign."""
        return tuple(self._flushed(_value(code, self.form.format)) for code in self.operands)

    def _flushed(self, value: float) -> float:
        row = self.form.format
        return math.copysign(0.0, value) if self.form.flushes and abs(value) < 2.0 ** (1 - row.bias) else value

    @property
    def exact(self) -> Fraction | float:
        """Return the exact value of the function for these operands."""
        from refsim.numerics.ieee.precise import precise

        return precise(self.form.function, *self.reads)

    @property
    def rounded(self) -> int:
        """Return the code of the exact value rounded once to nearest even; with .ftz, a subnormal result is a zero."""
        from refsim.numerics.ieee.precise import nearest_code

        row = self.form.format
        code = nearest_code(self.exact, row)
        return code & row.sign_mask if _value(code, row) and not self._flushed(_value(code, row)) else code

    def bits(self, code: int) -> Bits:
        """Return a code with the digits of the format."""
        return Bits(code, self.form.format.bits + self.form.format.padding_bits)

    @property
    def value(self) -> Number:
        """Return the result as a number."""
        from refsim.cli.answers.anatomy import code_number

        row, value = self.form.format, _value(self.code, self.form.format)
        return code_number(self.code, row) if row.bits <= 32 else number(value, approximate=repr(value))

    @property
    def error(self) -> Number | None:
        """Return the result minus the exact value, in ulp of the rounded result; None where one is not finite."""
        from refsim.cli.answers.anatomy import step

        row, exact = self.form.format, self.exact
        value, rounded = _value(self.code, row), self.rounded
        is_finite = isinstance(exact, Fraction) or math.isfinite(exact)
        if not math.isfinite(value) or not math.isfinite(_value(rounded, row)) or not is_finite:
            return None
        error = (Fraction(value) - Fraction(exact)) / step(rounded, row)
        return number(error if error.denominator < 1 << 20 else Fraction(float(error)))

    @property
    def steps(self) -> int | None:
        """Return how many numbers of the format the result lies above the correctly rounded one; None for a NaN."""
        row, codes = self.form.format, (self.code, self.rounded)
        if any(_is_nan(code, row) for code in codes):
            return None
        here, there = ((word & ~row.sign_mask) * (-1 if word & row.sign_mask else 1) for word in codes)
        return here - there

    @property
    def neighbours(self) -> tuple[Bits | None, ...] | None:
        """Return the numbers below and above the correctly rounded one, None for a NaN."""
        from refsim.cli.answers.anatomy import neighbours

        row, rounded = self.form.format, self.rounded
        beside = () if _is_nan(rounded, row) else neighbours(rounded, row)
        return tuple(None if code is None or _is_nan(code, row) else self.bits(code) for code in beside) or None

    def shifted(self, side: int) -> Cell:
        """Return the results with each operand in turn replaced by the next number below (side 0) or above (side 1)."""
        import numpy as np

        from refsim.cli.answers.anatomy import neighbours

        row, found = self.form.format, list[Bits | None]()
        for place, code in enumerate(self.operands):
            other = None if _is_nan(code, row) else neighbours(code, row)[side]
            if other is None:
                found.append(None)
                continue
            words = (*self.operands[:place], other, *self.operands[place + 1 :])
            result = self.form.words(*(np.array([word], row.code_dtype) for word in words))
            found.append(self.bits(int(result[0])))
        return _one(tuple(found))


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-t", "--format", "row", metavar="FORMAT", help="f32 (the default), f16, bf16 or f64.")
@click.option("--ftz", is_flag=True, help="Use the form with .ftz: subnormals become zeros.")
@click.argument("instruction")
@click.argument("codes", nargs=-1, required=True, metavar="CODE|VALUE...|-|FILE")
@answers
def command(row: str | None, ftz: bool, instruction: str, codes: tuple[str, ...]) -> Document:
    """Show the result of an .approx INSTRUCTION or div.full on sm_90, and its distance from the exact value.

    INSTRUCTION is a PTX name (ex2.approx.ftz.f32) or its beginning (ex2, div.full). 0x3f000000 and 0b111000 are codes. 0.5, -2
    and inf are values, which are rounded to the format. The word - reads codes from standard input. A FILE is text or npy,
    npz, safetensors or raw. div takes its operands in pairs, or two files. The error is counted in ulp of the correctly
    rounded result. The bits were recorded on sm_90; they are unverified on other targets.

    \b
      refsim approx ex2 0.5
      refsim approx ex2 0x3f000000
      refsim approx lg2 --ftz 0x3f800001 0x00000001
      refsim approx ex2 -t bf16 0x3f0d
      refsim approx div.full 6 3
    """
    import numpy as np

    form = _form(instruction, row, ftz)
    columns = _operands(codes, form)
    words = [np.array(column, form.format.code_dtype) for column in columns]
    found = form.words(*words)
    results = [
        _Result(form, operands, int(code)) for operands, code in zip(zip(*columns, strict=True), found, strict=True)
    ]
    table = Table.of(COLUMNS, results, key="results")
    hints = ["bits of sm_90 and sm_90a, recorded on an H200 and an H100; on other targets they are assumed"]
    if form.by_upper_words:
        hints.append(
            "the upper word of an operand alone is read and written: of a float64 the result is right to some 2^32 ulp"
        )
    return Document((table,), form.instruction, (PTX[form.function],), hints=tuple(hints))


def _form(name: str, row: str | None, ftz: bool) -> "SpecialForm":
    """Return the instruction form that a name and the options select; without --ftz, the form without it comes first.

    Raises RefsimError ambiguous-name where several or none fit.
    """
    from refsim.formats import F32
    from refsim.numerics.special import SPECIAL_FORMS, special_form

    if row is not None and row not in (formats := list(dict.fromkeys(form.format.name for form in SPECIAL_FORMS))):
        help = f"one of {', '.join(formats)}"
        raise RefsimError("unknown-format", f"special functions have no results of {row!r:.40}", "-t", help=help)
    mnemonic, *given = name.split(".")
    fitting = [
        form
        for form in SPECIAL_FORMS
        if form.instruction.split(".")[0] == mnemonic and {*given} <= {*form.instruction.split(".")}
    ]
    if not fitting:
        return special_form(name)  # a form for pairs, or an unknown name
    exactly = [form for form in fitting if form.instruction == name]
    of_format = [form for form in exactly or fitting if row in (None, form.format.name)]
    if row is None and any(form.format == F32 for form in of_format):
        of_format = [form for form in of_format if form.format == F32]
    chosen = [form for form in of_format if form.flushes] if ftz else of_format
    if not ftz and any(not form.flushes for form in chosen):
        chosen = [form for form in chosen if not form.flushes]
    if len(chosen) == 1:
        return chosen[0]
    wanted = " ".join([name, *([f"-t {row}"] if row is not None else []), *(["--ftz"] if ftz else [])])
    what = f"no instruction computes {wanted}" if not chosen else f"{wanted} may be any of {len(chosen)} instructions"
    raise RefsimError(
        "ambiguous-name", what, help=f"known: {', '.join(form.instruction for form in chosen or fitting)}"
    )


def _operands(words: tuple[str, ...], form: "SpecialForm") -> list[list[int]]:
    """Return the codes of each operand. A division takes two files, dividends and divisors, or codes in pairs."""
    lists = [_value_code(word, form.format) or codes_in([word], form.format) for word in words]
    if form.operands == 1:
        return [[code for codes in lists for code in codes]]
    if len(lists) != 2:
        codes = [code for codes in lists for code in codes]
        lists = [codes[::2], codes[1::2]]
    if len(lists[0]) != len(lists[1]):
        what = f"{counted(len(lists[0]), 'dividend')} and {counted(len(lists[1]), 'divisor')}"
        rule = "codes of a division stand in pairs, or in two files of equal length"
        raise RefsimError("operand-count", what, where=form.instruction, rule=rule)
    return lists


def _value_code(word: str, row: "Format") -> list[int]:
    """Return a list with the rounded code of a value, or an empty list for a code, a file or standard input."""
    from refsim.cli.values import parse_value
    from refsim.numerics.ieee.precise import nearest_code

    if word == "-" or word.endswith(ARRAY_SUFFIXES) or os.path.isfile(word) or re.fullmatch(r"0[xXbB]\w+", word):
        return []
    refuse_options([word])
    return [nearest_code(parse_value(word).exact, row)]


def _one(cells: tuple[Cell, ...]) -> Cell:
    return cells[0] if len(cells) == 1 else cells


def _value(code: int, row: "Format") -> float:
    from refsim.numerics.ieee.precise import code_value

    return code_value(code, row)


def _is_nan(code: int, row: "Format") -> bool:
    return math.isnan(_value(code, row))
