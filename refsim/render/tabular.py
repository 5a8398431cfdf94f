"""Parts of a document as rows of plain strings, shared by Markdown and HTML."""

from dataclasses import dataclass

from refsim.render import cells
from refsim.render.view import EMPTY, Grid, Picture, Record, Table


@dataclass(frozen=True)
class Tabular:
    """Strings under headings; `right` says which columns are aligned to the right."""

    headings: list[str]
    rows: list[list[str]]
    right: list[bool]


def tabular(part: Table | Grid | Record | Picture, citations: bool) -> Tabular:
    """Return the strings of a part: a grid keeps its widest form, a record becomes two columns."""
    match part:
        case Table():
            shown = [place for place in part.shown(citations) if part.columns[place].text]
            columns = [part.columns[place] for place in shown]
            rows = [[cells.text(row[place]) for place in shown] for row in part.rows]
            headings = [column.heading if part.headings else column.name for column in columns]
            return Tabular(headings, rows, [column.align == "right" for column in columns])
        case Grid():
            spelled = [str(value) for value in part.values]
            starts = range(0, len(spelled), part.columns)
            rows = [[str(part.code(start)), *spelled[start : start + part.columns]] for start in starts]
            headings = ["", *(f"+{place:x}" for place in range(part.columns))]
            return Tabular(headings, rows, [False] + [True] * part.columns)
        case Picture():
            wide = len(part.col_labels)
            words = cell_words(part, ":")
            rows = [[str(label), *words[wide * at : wide * at + wide]] for at, label in enumerate(part.row_labels)]
            return Tabular([corner(part), *map(str, part.col_labels)], rows, [True] * (wide + 1))
        case Record():
            return Tabular(["", ""], [list(pair) for pair in record_pairs(part)], [False, False])


def record_pairs(record: Record) -> list[tuple[str, str]]:
    """Return (label, value with its unit) of every entry that has a value."""
    return [
        (entry.heading, f"{cells.text(entry.value)} {entry.unit}".rstrip())
        for entry in record.entries
        if entry.value is not None and entry.value != ()
    ]


def cell_words(picture: Picture, between: str) -> list[str]:
    """Return the text of each cell, several facts separated by `between`; "" for a cell that does not exist."""
    columns = [picture.fact(name).values for name in picture.written]
    shown = zip(picture.colours, *columns, strict=True)
    return ["" if colour == EMPTY else between.join(map(cells.text, each)) for colour, *each in shown]


def corner(picture: Picture) -> str:
    """Return the label in the corner of a picture's table: t:v for thread and value."""
    if len(picture.written) == 1:
        return picture.written[0]
    return ":".join(picture.fact(name).symbol or name for name in picture.written)
