"""Documents as plain text: aligned, never wider than asked, a grid never wrapped."""

import textwrap
from dataclasses import dataclass

from refsim.render import cells
from refsim.render.tabular import cell_words, corner, record_pairs
from refsim.render.view import (
    COLOURS,
    EMPTY,
    Cell,
    Column,
    Command,
    Document,
    Grid,
    Part,
    Picture,
    Record,
    Table,
    Wording,
)

NARROWEST_COLUMN = 20
LEAST_WRAPPED = 12  # a wrapped column of words is not made narrower than this
HUES = (34, 36, 32, 33, 31, 35, 94, 96)  # terminal colors for the eight hues of a picture


@dataclass(frozen=True)
class Style:
    """Terminal escapes, or none of them."""

    colour: bool = False

    def strong(self, line: str) -> str:
        """Return the line in bold."""
        return f"\x1b[1m{line}\x1b[0m" if self.colour and line else line

    def faint(self, line: str) -> str:
        """Return the line dimmed."""
        return f"\x1b[2m{line}\x1b[0m" if self.colour and line else line

    def hue(self, colour: int, line: str) -> str:
        """Return the line in the hue of a picture's color; an alert is inverse."""
        if not self.colour or colour == EMPTY:
            return line
        return f"\x1b[{HUES[colour // 4] if colour < COLOURS else 7}m{line}\x1b[0m"


def write(
    document: Document, *, width: int | None = None, colour: bool = False, citations: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return (the text of a document, hints such as the columns that did not fit into `width`).

    With `width` None lines have any length. Columns of words wrap. Tables that still do not fit first lose columns that
    may be dropped, then become one record per row. Sentences continue on the next line between two of their cells.
    """
    style, room = Style(colour), None if width is None else max(width, NARROWEST_COLUMN)
    blocks, hints = [], list(document.hints)
    for part in document.parts:
        lines, dropped = _part(part, room, style, citations)
        blocks.append("\n".join(line.rstrip() for line in lines))
        if dropped:
            hints.append(
                f"left out at {width} columns: {', '.join(dropped)} (all of it: a wider terminal, or --as json)"
            )
    if citations and document.sources:
        cited = [(str(source), source.document.address) for source in document.sources]
        blocks.append(
            "\n".join(line for source in cited for line in _labelled([("source", "  ".join(source))], room, style))
        )
    return "".join(block + "\n" for block in _spaced(blocks)), tuple(hints)


def _spaced(blocks: list[str]) -> list[str]:
    return [block if place == 0 else f"\n{block}" for place, block in enumerate(block for block in blocks if block)]


def _part(part: Part, width: int | None, style: Style, citations: bool) -> tuple[list[str], list[str]]:
    match part:
        case Table() if part.headings:
            return _headed(part, width, style, citations)
        case Table():
            return _sentences(part, width, style), []
        case Grid():
            return _grid(part, width, style), []
        case Picture():
            return _picture(part, width, style)
        case Record():
            return _labelled(record_pairs(part), width, style), []
        case Wording():
            return [piece for line in part.lines for piece in _stated(line, width)], []


def _stated(line: str, width: int | None) -> list[str]:
    return _wrapped(cells.printable(line), None if isinstance(line, Command) else width, "  ")


def _wrapped(line: str, width: int | None, indent: str) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def _labelled(pairs: list[tuple[str, str]], width: int | None, style: Style) -> list[str]:
    margin = max((len(label) for label, _ in pairs), default=0) + 2
    lines = []
    for label, value in pairs:
        room = None if width is None else max(width - margin, NARROWEST_COLUMN)
        first, *others = _wrapped(value, room, "") or [""]
        lines.append(style.faint(label) + " " * (margin - len(label)) + first)
        lines += [" " * margin + other for other in others]
    return lines


def _headed(table: Table, width: int | None, style: Style, citations: bool) -> tuple[list[str], list[str]]:
    """Return the lines of a table and the dropped columns.

    Columns of words become narrower and wrap; then columns are dropped; at last each row becomes a record.
    """
    shown = [place for place in table.shown(citations) if table.columns[place].text]
    spelled = {
        place: [table.columns[place].heading, *(cells.text(row[place]) or "-" for row in table.rows)] for place in shown
    }
    widths = {place: max(map(len, spelled[place])) for place in shown}
    least = {place: _least(table, place, spelled[place], widths[place]) for place in shown}
    dropped: list[str] = []
    while width is not None and _total(table, shown, least) > width:
        droppable = [place for place in shown if table.columns[place].drop]
        if not droppable:
            return _records(table, citations, width, style), []
        victim = max(droppable, key=lambda place: table.columns[place].drop)
        shown.remove(victim)
        dropped.append(table.columns[victim].spoken)
    if width is not None:
        widths = _narrowed(table, shown, widths, least, width)
    lines: list[str] = []
    for row in range(len(table.rows) + 1):
        lines += _lines(table, [(place, spelled[place][row], widths[place]) for place in shown], style, row == 0)
    return lines, dropped


def _least(table: Table, place: int, words: list[str], natural: int) -> int:
    """Return the least width of a column in characters: its longest word if it holds words, else its full width."""
    phrases = all(isinstance(row[place], str | tuple | None) for row in table.rows)
    if not phrases or table.columns[place].align == "right":
        return natural
    longest = max((len(part) for word in words for part in word.split()), default=0)
    return min(natural, max(longest, LEAST_WRAPPED))


def _narrowed(
    table: Table, shown: list[int], natural: dict[int, int], least: dict[int, int], width: int
) -> dict[int, int]:
    """Return the widths of columns after the widest columns have lost characters until all fit."""
    widths = dict(natural)
    while _total(table, shown, widths) > width:
        widest = max((place for place in shown if widths[place] > least[place]), key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _total(table: Table, shown: list[int], widths: dict[int, int]) -> int:
    return sum(widths[place] + table.columns[place].gap for place in shown) - table.columns[shown[0]].gap


def _lines(table: Table, spelled: list[tuple[int, str, int]], style: Style, heading: bool) -> list[str]:
    """Return one row as the lines of its highest cell."""
    wrapped = [_wrapped(word, width, "") for _, word, width in spelled]
    wide = [(place, width, cell) for (place, _, width), cell in zip(spelled, wrapped, strict=True)]
    lines = range(max(map(len, wrapped)))
    rows = ([(place, cell[at] if at < len(cell) else "", width) for place, width, cell in wide] for at in lines)
    return [_line(table, row, style, heading) for row in rows]


def _line(table: Table, spelled: list[tuple[int, str, int]], style: Style, heading: bool) -> str:
    line = ""
    for place, word, width in spelled:
        column = table.columns[place]
        padding = " " * (width - len(word))
        inked = style.faint(word) if heading else style.strong(word) if column.strong else word
        line += " " * (column.gap if line else 0) + (padding + inked if column.align == "right" else inked + padding)
    return line


def _records(table: Table, citations: bool, width: int, style: Style) -> list[str]:
    """Return each row as a record of labels and values."""
    lines: list[str] = []
    shown = [place for place in table.shown(citations) if table.columns[place].text]
    for row in table.rows:
        pairs = [(table.columns[place].spoken, cells.text(row[place])) for place in shown if row[place] is not None]
        lines += ["", *_labelled(pairs, width, style)]
    return lines[1:]


def _sentences(table: Table, width: int | None, style: Style) -> list[str]:
    """Return each row as a sentence, aligned if all fit, else folded."""
    shown = [place for place, column in enumerate(table.columns) if column.text and not column.citation]
    shown = [place for place in shown if any(row[place] is not None for row in table.rows)]
    sentences = [_said_once([_phrase(table.columns[place], row[place]) for place in shown]) for row in table.rows]
    spelled = dict(zip(shown, zip(*sentences, strict=True), strict=True))
    widths = {place: max(map(len, spelled[place]), default=0) for place in shown}
    if width is None or not shown or _total(table, shown, widths) <= width:
        inked = ([(spelled[place][row], widths[place]) for place in shown] for row in range(len(table.rows)))
        return [_inked(table, shown, each, style) for each in inked]
    lines = []
    for row in range(len(table.rows)):
        lines += _folded(table, [(place, spelled[place][row]) for place in shown], width, widths[shown[0]], style)
    return lines


def _said_once(phrases: list[str]) -> list[str]:
    """Return the phrases without repetitions of the phrase before: the class of a NaN is its value."""
    said = ""
    for place, phrase in enumerate(phrases):
        if phrase == said:
            phrases[place] = ""
        said = phrase or said
    return phrases


def _phrase(column: Column, cell: Cell) -> str:
    return "" if cell is None else " ".join(filter(None, (column.label, cells.text(cell), column.unit)))


def _inked(table: Table, shown: list[int], spelled: list[tuple[str, int]], style: Style) -> str:
    line = ""
    for place, (phrase, width) in zip(shown, spelled, strict=True):
        line += " " * (table.columns[place].gap if line else 0) + _ink(table.columns[place], phrase, style)
        line += " " * (width - len(phrase))
    return line


def _ink(column: Column, phrase: str, style: Style) -> str:
    if column.strong or not column.label or not phrase:
        return style.strong(phrase) if column.strong else phrase
    return style.faint(column.label) + phrase.removeprefix(column.label)


def _folded(table: Table, phrases: list[tuple[int, str]], width: int, first: int, style: Style) -> list[str]:
    """Return one sentence over several lines, broken between cells; `first` is the width of its first cell.

    Cells with a gap of one space stay together: `448 = 1.110b x 2^8` is broken only if a line cannot hold it.
    """
    (place, phrase), *others = phrases
    lines, line, used = [], _ink(table.columns[place], phrase, style) + " " * (first - len(phrase)), first
    margin = first + 2
    for unit in _units(table, [(place, phrase) for place, phrase in others if phrase], width - margin):
        gap = table.columns[unit[0][0]].gap
        length = sum(len(phrase) for _, phrase in unit) + len(unit) - 1
        if used + gap + length > width:
            lines.append(line)
            line, used, gap = " " * margin, margin, 0
        line += " " * gap + " ".join(_ink(table.columns[place], phrase, style) for place, phrase in unit)
        used += gap + length
    return [*lines, line]


def _units(table: Table, phrases: list[tuple[int, str]], room: int) -> list[list[tuple[int, str]]]:
    """Return the phrases grouped into units that stay on one line of `room` characters."""
    units: list[list[tuple[int, str]]] = []
    for place, phrase in phrases:
        together = sum(len(each) + 1 for _, each in units[-1]) + len(phrase) if units else 0
        if units and table.columns[place].gap == 1 and together <= room:
            units[-1].append((place, phrase))
        else:
            units.append([(place, phrase)])
    return units


def _grid(grid: Grid, width: int | None, style: Style) -> list[str]:
    """Return the widest form that fits: short exact spellings first, then fewer columns; no value is rounded or cut."""
    label = len(str(grid.code(0)))
    columns = min(grid.columns, len(grid.values))
    while True:
        for spelled in ([each.text for each in grid.values], [each.short or each.text for each in grid.values]):
            widths = [max(map(len, spelled[place::columns])) for place in range(columns)]
            widths = [max(each, len(f"+{place:x}")) for place, each in enumerate(widths)]
            if width is None or columns == 1 or label + sum(widths) + 2 * columns <= width:
                return _grid_lines(grid, columns, widths, spelled, style)
        columns //= 2


def _grid_lines(grid: Grid, columns: int, widths: list[int], spelled: list[str], style: Style) -> list[str]:
    label = len(str(grid.code(0)))
    headings = "".join(f"  {f'+{place:x}':>{width}}" for place, width in enumerate(widths))
    lines = [style.faint(" " * label + headings)] if columns > 1 else []
    for start in range(0, len(spelled), columns):
        row = spelled[start : start + columns]
        values = "".join(f"  {value:>{width}}" for value, width in zip(row, widths, strict=False))
        lines.append(style.strong(str(grid.code(start))) + values)
    return lines


def _picture(picture: Picture, width: int | None, style: Style) -> tuple[list[str], list[str]]:
    """Return the columns that fit, from the first on, and a list with the range of columns left out."""
    words, wide = cell_words(picture, ":"), len(picture.col_labels)
    above = corner(picture)
    margin = max(len(above), *(len(str(label)) for label in picture.row_labels))
    widths = [max(map(len, [str(label), *words[at::wide]])) for at, label in enumerate(picture.col_labels)]
    fitting, gap = wide, 2
    while width is not None and margin + fitting * (max(widths[:fitting]) + gap) > width and fitting > 1:
        fitting, gap = (fitting, 1) if gap == 2 else (fitting - 1, 1)
    room = gap + max(widths[:fitting])
    heading = "".join(f"{label:>{room}}" for label in picture.col_labels[:fitting])
    lines = [style.faint(f"{above:>{margin}}{heading}")]
    for at, label in enumerate(picture.row_labels):
        places = range(at * wide, at * wide + fitting)
        inked = "".join(style.hue(picture.colours[at], f"{words[at]:>{room}}") for at in places)
        lines.append(style.strong(f"{label:>{margin}}") + inked)
    rest = picture.col_labels[fitting:]
    left_out = f"{picture.axes[1]} {rest[0]}" + (f" to {rest[-1]}" if len(rest) > 1 else "") if rest else ""
    return lines, [left_out] if rest else []
