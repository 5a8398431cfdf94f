"""Options of `refsim explain-diff` for products of integers: files of integers, zero points, the type of the output."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from refsim.cli.arguments import load_codes, load_named, names_array
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.causes import IntegerOperands, WeightOperands
    from refsim.formats import ElementType, Format, Integer

OUTPUTS = ("s32", "s8", "u8")
OPTIONS = (
    click.option("--a-zero", metavar="VALUE|FILE", help="Zero points of A, integers: a number, or one for each row."),
    click.option("--b-zero", metavar="VALUE|FILE", help="Zero points of B, likewise."),
    click.option("--d-zero", metavar="VALUE", type=int, help="Zero point of an output in s8 or u8."),
    click.option("--d-format", type=click.Choice(OUTPUTS), help="Integer type of the output, if not in its file."),
)
ZERO_OPTIONS = ("a_zero", "b_zero", "d_zero")


def integer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, in the order of OPTIONS."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def integer_types(
    a_format: "str | ElementType | None", b_format: "str | ElementType | None"
) -> "tuple[Integer, Integer] | None":
    """Return the types of both operands, or None unless both are integers."""
    from refsim.formats import Integer, element_named

    if a_format is None:
        return None
    types = element_named(a_format), element_named(b_format or a_format)
    return types if isinstance(types[0], Integer) and isinstance(types[1], Integer) else None  # type: ignore[return-value]


def weight_operands(
    a: "tuple[Any, Format]",
    right: Path,
    b_format: "str | ElementType | None",
    *,
    begin: Any,
    b_scale: Any,
    b_zero: str | None,
    a_zero: str | None,
    d_zero: int | None,
    a_scale: Any,
    m_indices: Any = None,
    global_scale: Any = None,
    scale_format: str | None = None,
    **chosen: Any,
) -> "WeightOperands | None":
    """Return the operands of a product with narrow weights: A in 16 bits, B in 8 or 4. Return None for other widths.

    Raises RefsimError for options that such a product does not take.
    """
    from refsim.causes import WeightOperands
    from refsim.formats import Integer, element_named

    stored = load_named(right) if b_format is None else None
    held = b_format if stored is None else stored.format
    row = None if held is None else element_named(held)
    if row is None or row.bits > 8 or a[1].bits != 16:
        return None
    beside = {
        "--a-scale": a_scale,
        "--a-zero": a_zero,
        "--d-zero": d_zero,
        "--global-scale": global_scale,
        "--scale-format": scale_format,
    }
    for option, value in {**beside, "--m-indices": m_indices}.items():
        if value is not None:
            raise RefsimError("usage", f"{option} with narrow weights", rule="--b-scale and --b-zero")
    if b_scale is None:
        raise RefsimError("usage", "narrow weights without scales", help="give --b-scale too")
    if isinstance(row, Integer):
        codes, zero = integer_words(right, row), zero_points(b_zero, "--b-zero", row)
    elif b_zero is None:
        codes, zero = load_codes(right, row).codes, 0
    else:
        raise RefsimError("usage", f"zero points of {row}", help="integers have some")
    return WeightOperands(a=a[0], a_format=a[1], b=codes, b_format=row, b_scale=b_scale, b_zero=zero, c=begin, **chosen)


def integer_words(path: Path, row: "Integer", key: str | None = None) -> Any:
    """Return the integers of a file as unsigned codes. A byte with two 4-bit codes gives two, the lower half first."""
    from refsim.causes.integer_operands import codes_or_extended
    from refsim.formats import E4M3, F32

    codes = load_codes(path, F32 if row.code_dtype.itemsize == 4 else E4M3, key).codes
    limit = row.code_limit
    if row.code_dtype.itemsize > 1 or limit > 255 or not codes.size:
        return codes
    if codes_or_extended(codes, row).all():
        return codes % limit
    return np.stack([codes % limit, codes // limit], axis=-1).reshape(*codes.shape[:-1], -1)


def integer_output(path: Path, operand: "Integer", d_format: str | None, key: str | None) -> "tuple[Any, ElementType]":
    """Return the codes and type of an output: the file's type, else s32 or the type of A by element width."""
    from refsim.formats import S32, element_named

    if d_format is not None:
        row = element_named(d_format)
        return integer_words(path, row, key), row  # type: ignore[arg-type]
    if (stored := load_named(path, key)) is not None:
        return stored.codes, stored.format
    try:
        return integer_words(path, S32, key), S32
    except RefsimError as error:
        if error.code != "format-mismatch":
            raise
    return integer_words(path, operand, key), operand


def integer_operands(
    left: Path,
    right: Path,
    types: "tuple[Integer, Integer]",
    *,
    begin: Path | None,
    a_zero: str | None,
    b_zero: str | None,
    d_zero: int | None,
    a_scale: Any,
    b_scale: Any,
) -> "IntegerOperands":
    """Return the operands of a product of integers, read from files; `a_scale` and `b_scale` are read already."""
    from refsim.causes import IntegerOperands
    from refsim.formats import S32

    return IntegerOperands(
        a=integer_words(left, types[0]),
        b=integer_words(right, types[1]),
        a_format=types[0],
        b_format=types[1],
        c=None if begin is None else integer_words(begin, S32).view(np.int32),
        a_zero=zero_points(a_zero, "--a-zero", types[0]),
        b_zero=zero_points(b_zero, "--b-zero", types[1]),
        d_zero=d_zero or 0,
        a_scale=a_scale,
        b_scale=b_scale,
    )


def zero_points(word: str | None, option: str, row: "Integer") -> Any:
    """Return zero points: an integer, or the array of a file in int32, f32 or the operand's own type."""
    from refsim.computations.integer_products import values_of
    from refsim.formats import F32, S32

    if word is None:
        return 0
    if not names_array(word):
        try:
            return int(word)
        except ValueError:
            raise RefsimError("bad-value", f"{word!r} is not an integer", option, help="an integer or a file") from None
    codes, held = integer_output(Path(word), row, None, None)
    return codes.view(np.float32) if held is F32 else values_of(codes, S32 if held is S32 else row)
