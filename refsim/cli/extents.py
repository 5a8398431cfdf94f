"""Arguments with extents: shapes (128x4), ranges of rows or columns (8:16), addresses (0x3a0)."""

import re
from collections.abc import Sequence
from typing import Any

import click

from refsim.cli.options import Options, option
from refsim.cli.spelled import number_in, real_in
from refsim.errors import RefsimError

LARGEST = 1 << 40
_NUMBER = r"(0x[0-9a-fA-F]+|[0-9]+)"


class ShapeParam(click.ParamType):  # type: ignore[type-arg]
    """ROWSxCOLS, turned into two numbers."""

    name = "shape"

    def __init__(self, metavar: str = "ROWSxCOLS") -> None:
        self.metavar = metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (rows, columns), both positive. Raises RefsimError bad-shape."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([0-9]{1,12})\s*[xX,]\s*([0-9]{1,12})", str(value))
        rows, cols = (int(match[1]), int(match[2])) if match else (0, 0)
        if not rows or not cols:
            raise RefsimError("bad-shape", f"{value!r} is not a shape", rule="a shape is ROWSxCOLS, as 128x4")
        return rows, cols


class SpanParam(click.ParamType):  # type: ignore[type-arg]
    """FROM:TO (TO not included), FROM:, :TO or one number."""

    name, metavar = "range", "FROM:TO"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> slice:
        """Return the range as a slice. Raises RefsimError bad-value."""
        if isinstance(value, slice):
            return value
        match = re.fullmatch(r"([0-9]{0,12})(:?)([0-9]{0,12})", str(value))
        if match is None or value in ("", ":"):
            raise RefsimError("bad-value", f"{value!r} is not a range", rule="a range is FROM:TO (8:16), or one number")
        first = int(match[1] or 0)
        return slice(first, first + 1) if not match[2] else slice(first, int(match[3]) if match[3] else None)


class Whole(click.IntRange):
    """A whole number in ASCII digits, in a range. int() also takes digits of other scripts and underscores."""

    name = "n"

    def _describe_range(self) -> str:
        least = f"{self.min} or more" if self.min else ""
        return least if self.max is None else f"{self.min} to {self.max}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises RefsimError not-whole, or the usage error of click for a number outside the range."""
        number = value if isinstance(value, int) else number_in(str(value))
        least, where = int(self.min or 0), param.opts[-1] if param else ""
        if number is None:
            what, rule = f"{str(value)[:40]!r} is not a whole number", "digits 0 to 9, at most 40 of them, or 0x and 0b"
            raise RefsimError("not-whole", what, where, rule, help=f"such as {where} {least or 1}")
        if number < least or (self.max is not None and number > self.max):
            rule = f"{where} is {self._describe_range() or '0 or more'}"
            raise RefsimError("out-of-range", f"{number} is too {'small' if number < least else 'large'}", where, rule)
        return number


class Positive(click.ParamType):  # type: ignore[type-arg]
    """A number above zero, such as a time in seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises RefsimError bad-value."""
        try:
            number = float(value) if isinstance(value, float | int) else real_in(str(value))
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise RefsimError(
                "bad-value", f"{str(value)[:40]!r} is not a number above 0", where=param.opts[-1] if param else ""
            )
        return number


class AddressParam(click.ParamType):  # type: ignore[type-arg]
    """A byte address, decimal or hexadecimal."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the address. Raises RefsimError bad-address."""
        return value if isinstance(value, int) else parse_address(str(value))


def parse_address(word: str) -> int:
    """Return a byte address from 0, decimal or hexadecimal: 0x3a0 is 928."""
    address = number_in(word) if re.fullmatch(_NUMBER, word) else None
    if address is None or address >= LARGEST:
        what = f"{word[:40]!r} is not an address"
        raise RefsimError("bad-address", what, rule="an address is a number of bytes from 0, as 928 or 0x3a0")
    return address


def parse_whole(word: str, what: str) -> int:
    """Return a whole number, negative ones too; the model checks its range. `what` names it in the error."""
    if not re.fullmatch(r"-?[0-9]{1,12}", word):
        if word.startswith("-"):
            raise click.NoSuchOption(word, ctx=click.get_current_context())
        raise RefsimError("not-whole", f"{what} is {word[:40]!r}: a whole number is needed")
    return int(word)


def chosen(span: slice | None, extent: int, what: str) -> Sequence[int]:
    """Return the numbers of a span below `extent`, all for None. Raises RefsimError for a span that begins past it."""
    if span is None:
        return range(extent)
    if span.start >= extent or (span.stop is not None and span.stop <= span.start):
        raise RefsimError("out-of-range", f"{what}s {span.start}:{span.stop or ''} are outside 0..{extent - 1}")
    return range(span.start, extent if span.stop is None else min(span.stop, extent))


class GridWindow(Options):
    """The part of a grid to show."""

    rows: slice | None = option("Only these rows.", type=SpanParam())
    cols: slice | None = option("Only these cols.", type=SpanParam())

    def chosen(self, extents: tuple[int, ...], axes: tuple[str, str] = ("row", "col")) -> list[Sequence[int]]:
        """Return the numbers of the rows and columns to show. Raises RefsimError for a span that begins past them."""
        spans = (self.rows, self.cols)
        return [chosen(span, extent, axis) for span, extent, axis in zip(spans, extents, axes, strict=True)]
