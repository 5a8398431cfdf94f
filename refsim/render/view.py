"""The answer of a command: a document of tables, grids, records and statements, independent of the output format."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

from refsim.sources import Source


@dataclass(frozen=True)
class Bits:
    """A code of `width` bits: Bits(0x7e, 8) is written 0x7e, in text and JSON."""

    code: int
    width: int

    def __str__(self) -> str:
        return f"0x{self.code:0{(self.width + 3) // 4}x}"


@dataclass(frozen=True)
class Number:
    """A value and its spelling; `text` starts with ~ if it is not exact.

    `short` is another exact spelling for narrow places: 0.001953125 and 1/512.
    """

    value: float | Fraction
    text: str
    short: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Coded:
    """A value with its code: text shows the value, JSON both."""

    code: Bits
    value: Number

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Interval:
    """A range of reals with open or closed ends: [432, 464]."""

    low: Number
    high: Number
    low_closed: bool
    high_closed: bool

    def __str__(self) -> str:
        return f"{'(['[self.low_closed]}{self.low}, {self.high}{')]'[self.high_closed]}"


@dataclass(frozen=True)
class BitFields:
    """The fields of a code from the top bit down, each with its name and binary digits: 0 1111 110."""

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join(digits for _, digits in self.parts)


Cell: TypeAlias = bool | int | str | Bits | Number | Coded | Interval | BitFields | Source | tuple["Cell", ...] | None


@dataclass(frozen=True)
class Column:
    """A column of a table: `key` names it in JSON and CSV, `label` in text, `unit` is appended to both.

    In a narrow terminal the column with the highest `drop` is left out first, columns with 0 never. `gap` is the space
    before it. A `citation` is shown only on request; with `text` False the column appears in machine formats only.
    `of` is the attribute of an entry that the column shows, as "evidence.what", or a function of the entry (default:
    the attribute `key`).
    """

    key: str
    label: str = ""
    unit: str = ""
    align: Literal["left", "right"] = "left"
    drop: int = 0
    gap: int = 2
    strong: bool = False
    citation: bool = False
    text: bool = True
    of: "str | Callable[[Any], Cell]" = ""

    def cell(self, entry: Any) -> Cell:
        """Return the cell of an entry."""
        return attrgetter(self.of or self.key)(entry) if isinstance(self.of, str) else self.of(entry)

    @property
    def name(self) -> str:
        """Return the key in JSON and CSV: error with unit ulp is error_ulp."""
        return f"{self.key}_{self.unit}" if self.unit else self.key

    @property
    def heading(self) -> str:
        """Return the heading: error [ulp]. It is blank for a blank label, next to the column it belongs to."""
        heading = self.label or self.key
        return f"{heading} [{self.unit}]" if self.unit else heading

    @property
    def spoken(self) -> str:
        """Return the heading, or the key if the heading is blank."""
        return self.heading if self.heading.strip() else self.key


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. Without `headings` each row reads as a sentence, labels before their cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    key: str = "rows"
    headings: bool = True

    @classmethod
    def of(
        cls, columns: tuple[Column, ...], entries: Iterable[Any], key: str = "rows", headings: bool = True
    ) -> "Table":
        """Return a table with a row for each entry; a column takes its cell from the entry."""
        rows = tuple(tuple(column.cell(entry) for column in columns) for entry in entries)
        return cls(columns, rows, key, headings)

    def shown(self, citations: bool) -> list[int]:
        """Return the positions of the columns that machine formats show."""
        return [place for place, column in enumerate(self.columns) if citations or not column.citation]


@dataclass(frozen=True)
class Grid:
    """The value of every code, `columns` codes a row in the widest form; narrower forms have half as many."""

    values: tuple[Number, ...]
    columns: int
    width: int
    key: str = "codes"

    def code(self, position: int) -> Bits:
        return Bits(position, self.width)


@dataclass(frozen=True)
class Entry:
    """One line of a record: `key` names it in JSON, `label` in text."""

    key: str
    value: Cell
    label: str = ""
    unit: str = ""

    @property
    def name(self) -> str:
        return f"{self.key}_{self.unit}" if self.unit else self.key

    @property
    def heading(self) -> str:
        return self.label or self.key


@dataclass(frozen=True)
class Record:
    """Keys and values of one thing; if `key` is empty, its entries are at the top of the JSON object."""

    entries: tuple[Entry, ...]
    key: str = ""


class Command(str):
    """A line of a Wording that users type again: it is never wrapped."""


@dataclass(frozen=True)
class Wording:
    """Lines of text, and the facts in them by name (plain JSON values).

    A wording that `is_beside` a table adds to its rows: CSV, which holds one table, leaves it out.
    """

    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    key: str = ""
    is_beside: bool = False


def facts_of(entry: Any, *specs: str) -> dict[str, Any]:
    """Return attributes of an entry by name: facts_of(row, "name bits=code_bits evidence=evidence.what")."""
    pairs = (each.partition("=") for spec in specs for each in spec.split())
    return {key: attrgetter(path or key)(entry) for key, _, path in pairs}


@dataclass(frozen=True)
class Fact:
    """The value of one property in every cell of a picture, row by row; None for a cell without it.

    A `symbol` marks facts that are written into the cells: thread 37 with symbol t is t37. Without `tip` the tooltips
    of the drawing leave a fact out.
    """

    name: str
    values: Sequence[Cell]
    symbol: str = ""
    tip: bool = True


@dataclass(frozen=True)
class Picture:
    """A matrix of cells: a grid in text, an object per cell in JSON and CSV, a drawing in SVG and HTML.

    `written` names the facts shown in each cell, `together` the fact whose equal cells are highlighted together.
    `colours` are 0 to 31 (eight hues of four shades: a lane, or a bank), ALERT, or EMPTY for a cell that does not
    exist. Labels of rows and columns are their numbers; a thicker line precedes every number that `blocks` divides.
    """

    row_labels: Sequence[int]
    col_labels: Sequence[int]
    facts: tuple[Fact, ...]
    written: tuple[str, ...]
    colours: Sequence[int]
    together: str
    axes: tuple[str, str] = ("row", "col")
    blocks: tuple[int, int] = (8, 8)
    about: tuple[Entry, ...] = ()
    key: str = "cells"

    def fact(self, name: str) -> Fact:
        """Return the fact called `name`."""
        return next(fact for fact in self.facts if fact.name == name)


COLOURS, ALERT, EMPTY = 32, 32, -1

Part: TypeAlias = Table | Grid | Record | Wording | Picture


@dataclass(frozen=True)
class Excerpt:
    """A few lines of a source by number, with `line` marked; `name` is the source's name in the finding.

    `file` and `file_line` are where that line can be opened, None if the text is in no file.
    """

    name: str
    line: int
    rows: tuple[tuple[int, str], ...]
    file: Path | None = None
    file_line: int | None = None

    @property
    def first(self) -> int:
        return self.rows[0][0]

    @property
    def last(self) -> int:
        return self.rows[-1][0]

    def lines(self) -> list[str]:
        """Return the name of the source and its lines; the marked line is `> 41 | y[i] = x[i];`."""
        width = len(str(self.last))
        return [
            Command(f"    {self.name}:{self.line}"),
            *(
                Command(f"  {'>' if number == self.line else ' '} {number:>{width}} | {_cut(text)}".rstrip())
                for number, text in self.rows
            ),
        ]


def _cut(text: str) -> str:
    """Return the text with tabs expanded, cut to 140 characters."""
    spread = text.expandtabs(4)
    return spread if len(spread) <= 140 else f"{spread[:137]}..."


@dataclass(frozen=True)
class Notice:
    """An annotation for a reviewer: an error message at a file's line, if it has one."""

    title: str
    message: str
    file: Path | None = None
    line: int | None = None
    level: Literal["error", "warning", "notice"] = "error"


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading; `status` is a word next to it, in the color of its `tone`."""

    heading: str
    parts: tuple["Part | Excerpt", ...]
    status: str = ""
    tone: Literal["good", "bad", "open"] = "open"


@dataclass(frozen=True)
class Document:
    """An answer. `hints` go to standard error in every format and are not part of the answer.

    `drawing` is a picture of the answer for SVG and HTML, shown above the parts. `page` replaces the parts in HTML.
    `notices` are for GitHub, which shows them at lines of code.
    """

    parts: tuple[Part, ...]
    title: str = ""
    sources: tuple[Source, ...] = field(default=())
    hints: tuple[str, ...] = field(default=())
    drawing: Picture | None = None
    page: tuple[Section, ...] = field(default=())
    notices: tuple[Notice, ...] = field(default=())
