"""Documents as one SVG drawing: pictures as colored cells with tooltips, everything else as lines of text.

There is no script and no external resource. Cells that belong together (a lane, a bank) are one group, so that a style
alone highlights them under the pointer. The background follows the reader's system.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from refsim.render import cells
from refsim.render.tabular import record_pairs
from refsim.render.view import ALERT, EMPTY, Document, Fact, Part, Picture, Record

PALETTE_HUES, SHADES = 8, 4
LIGHT, DARK = "light", "dark"
INK = {LIGHT: "#1c1c1c", DARK: "#f2f2f2"}
PAPER = {LIGHT: "#ffffff", DARK: "#16181a"}
HOLE = {LIGHT: "#f4f5f6", DARK: "#1e2124"}
FAINT = {LIGHT: "#666666", DARK: "#9a9a9a"}
ALERTING = {LIGHT: "#ff9d94", DARK: "#a3231d"}
# Lightness of the first shade, its step, chroma, its step. Text on every shade has a contrast above 4.5.
_RAMPS = {LIGHT: (0.94, -0.055, 0.040, 0.022), DARK: (0.31, 0.058, 0.060, 0.014)}


def fill(colour: int, mode: str) -> str:
    """Return the color of a cell as hex: hue colour // 4 of the circle, shade colour % 4 from faint to strong."""
    hue, shade = divmod(colour, SHADES)
    start, step, chroma, chroma_step = _RAMPS[mode]
    return _hex(start + step * shade, chroma + chroma_step * shade, math.radians(250 - hue * 360 / PALETTE_HUES))


def _hex(lightness: float, chroma: float, hue: float) -> str:
    """Return an OKLCH color as clipped sRGB hex: equal steps of lightness look equal in every hue."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(each, 0.0), 1.0))):02x}" for each in linear)


def _gamma(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


GLYPH, LINE, MARGIN = 6, 13, 16  # a 10 px monospace glyph is 6 px wide
FONT = "ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono','Liberation Mono',monospace"


@dataclass
class _Drawing:
    """The elements from the top down, their size, and the colors they use."""

    elements: list[str] = field(default_factory=list)
    width: int = 0
    height: int = MARGIN
    colours: set[int] = field(default_factory=set)

    def line(self, text: str, kind: str = "") -> None:
        """Add a line of text; `kind` is its CSS class."""
        self.height += LINE + 3 * (kind == "title")
        mark = f' class="{kind}"' if kind else ""
        shown = escape(cells.printable(text), quote=False)
        self.elements.append(f'<text{mark} x="{MARGIN}" y="{self.height - 4}" xml:space="preserve">{shown}</text>')
        self.width = max(self.width, round(len(text) * GLYPH * (1.3 if kind == "title" else 1)))


def write(document: Document, *, citations: bool = False) -> str:
    """Return the drawing: the title, the picture, then the parts in order."""
    drawing = _Drawing()
    if document.title:
        drawing.line(document.title, "title")
    for part in [document.drawing, *document.parts] if document.drawing else document.parts:
        drawing.height += LINE // 2
        _part(drawing, part, document, citations)
    if citations:
        drawing.height += LINE // 2
        for source in document.sources:
            drawing.line(f"{source}  {source.document.address}", "faint")
    return _document(drawing, document.title)


def _document(drawing: _Drawing, title: str) -> str:
    """Return the SVG text of a finished drawing."""
    width, height = drawing.width + 2 * MARGIN, drawing.height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="refsim" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(cells.printable(title or "refsim"))}">\n'
        f'<style>\n{_style(drawing.colours)}\n</style>\n<rect class="paper" width="{width}" height="{height}"/>\n'
        + "\n".join(drawing.elements)
        + "\n</svg>\n"
    )


def _style(colours: set[int]) -> str:
    """Return the style sheet for both color schemes."""
    rules = [
        f".refsim{{font:10px {FONT}}}",
        ".refsim text{white-space:pre}",
        ".refsim .title{font-size:13px;font-weight:600}",
        ".refsim .strong{font-weight:600}",
        ".refsim .over{pointer-events:none}",
        ".refsim .thin,.refsim .thick{fill:none;stroke-width:1}",
        ".refsim .thick{stroke-width:2.5}",
        ".refsim .cells>g{transition:opacity .08s}",
        ".refsim .cells:hover>g{opacity:.22}",
        ".refsim .cells>g:hover{opacity:1}",
        *_inks(LIGHT, colours),
        "@media (prefers-color-scheme:dark){",
        *_inks(DARK, colours),
        "}",
    ]
    return "\n".join(rules)


def _inks(mode: str, colours: set[int]) -> Iterator[str]:
    yield f".refsim text{{fill:{INK[mode]}}}.refsim .paper{{fill:{PAPER[mode]}}}"
    yield f".refsim .faint,.refsim .faint text{{fill:{FAINT[mode]}}}"
    yield f".refsim .thin,.refsim .thick{{stroke:{PAPER[mode]}}}.refsim .hole{{fill:{HOLE[mode]}}}"
    yield "".join(
        f".refsim .c{each}{{fill:{ALERTING[mode] if each == ALERT else fill(each, mode)}}}" for each in sorted(colours)
    )


def _part(drawing: _Drawing, part: Part, document: Document, citations: bool) -> None:
    if isinstance(part, Picture):
        _picture(drawing, part)
        return
    from refsim.render import text

    alone = Document((part,), sources=document.sources if citations else ())
    for line in text.write(alone)[0].splitlines():
        drawing.line(line)


def _picture(drawing: _Drawing, picture: Picture) -> None:
    """Draw a caption, labels of columns and rows, the cells in groups, lines between cells, and their text."""
    if picture.about:
        about = Record(tuple(picture.about))
        drawing.line("   ".join(f"{label} {value}" for label, value in record_pairs(about)), "faint")
    drawing.line(_caption(picture), "faint")
    words = [_marked(picture, name) for name in picture.written]
    glyphs = 2 + max(1, *(len(str(label)) for label in picture.col_labels), *(len(w) for line in words for w in line))
    wide, tall = glyphs * GLYPH, LINE * len(words) + 5
    left = MARGIN + GLYPH * (1 + max(len(str(label)) for label in picture.row_labels))
    top = drawing.height + LINE + 4
    across, down = len(picture.col_labels), len(picture.row_labels)
    drawing.elements += [
        *_labels(picture, left, top, wide, tall),
        f'<rect class="hole" x="{left}" y="{top}" width="{across * wide}" height="{down * tall}"/>',
        f'<g class="cells" transform="translate({left} {top}) scale({wide} {tall})">',
        *_groups(picture),
        "</g>",
        f'<g class="over" transform="translate({left} {top})">',
        *_lines(picture, wide, tall),
        *_words(words, across, glyphs, tall, picture.fact(picture.written[0]).symbol),
        "</g>",
    ]
    drawing.colours |= set(picture.colours) - {EMPTY}
    drawing.width = max(drawing.width, left + across * wide - MARGIN)
    drawing.height = top + down * tall + LINE // 2


def _caption(picture: Picture) -> str:
    held = ", ".join(
        f"{symbol} {name}" for name in picture.written if (symbol := picture.fact(name).symbol)
    ) or ", ".join(picture.written)
    return f"{picture.axes[0]} down, {picture.axes[1]} across; in a cell: {held}; the pointer lights up one {picture.together}"


def _marked(picture: Picture, name: str) -> list[str]:
    fact = picture.fact(name)
    shown = zip(picture.colours, _spelled(fact), strict=True)
    return ["" if colour == EMPTY else f"{fact.symbol}{value}" for colour, value in shown]


def _spelled(fact: Fact) -> Sequence[object]:
    """Return the values of a fact as text; whole numbers stay numbers, because most values are numbers."""
    if {type(value) for value in fact.values} <= {int}:
        return fact.values
    return [cells.text(value) for value in fact.values]


def _labels(picture: Picture, left: int, top: int, wide: int, tall: int) -> Iterator[str]:
    """Yield the numbers of columns above the cells and of rows next to them."""
    yield '<g class="faint" text-anchor="middle">'
    for at, label in enumerate(picture.col_labels):
        yield f'<text x="{left + at * wide + wide // 2}" y="{top - 5}">{label}</text>'
    yield '</g><g class="faint" text-anchor="end">'
    for at, label in enumerate(picture.row_labels):
        yield f'<text x="{left - 5}" y="{top + at * tall + tall // 2 + 4}">{label}</text>'
    yield "</g>"


def _groups(picture: Picture) -> Iterator[str]:
    """Yield one group for all cells with one value of `together`, in it one for each color; a cell is a unit square."""
    across = len(picture.col_labels)
    groups: dict[object, dict[int, list[int]]] = {}
    for place, (key, colour) in enumerate(zip(picture.fact(picture.together).values, picture.colours, strict=True)):
        if colour != EMPTY:
            groups.setdefault(key, {}).setdefault(colour, []).append(place)
    tips = _tips(picture)
    squares = [
        f'<path d="M{col} {row}h1v1h-1"><title>' for row in range(len(picture.row_labels)) for col in range(across)
    ]
    for colours in groups.values():
        yield "<g>"
        for colour, places in colours.items():
            body = "".join([f"{squares[place]}{tips[place]}</title></path>" for place in places])
            yield f'<g class="c{colour}">{body}</g>'
        yield "</g>"


def _tips(picture: Picture) -> list[str]:
    """Return the tooltip of every cell: its place on the first line, its facts on the second."""
    shown = [fact for fact in picture.facts if fact.tip]
    columns = [
        [escape(each, quote=False) if isinstance(each, str) else each for each in _spelled(fact)] for fact in shown
    ]
    down, across, *names = (_in_pattern(name) for name in (*picture.axes, *(fact.name for fact in shown)))
    pattern = f"{down} %d {across} %d\n" + " ".join(f"{name} %s" for name in names)
    rows = [row for row in picture.row_labels for _ in picture.col_labels]
    cols = list(picture.col_labels) * len(picture.row_labels)
    return [pattern % each for each in zip(rows, cols, *columns, strict=True)]


def _in_pattern(name: str) -> str:
    return escape(cells.printable(name.replace("_", " ")), quote=False).replace("%", "%%")


def _lines(picture: Picture, wide: int, tall: int) -> Iterator[str]:
    """Yield lines in the background color between the cells, thicker before every block."""
    down, across = len(picture.row_labels), len(picture.col_labels)
    for kind in ("thin", "thick"):
        rows = [at for at in range(1, down) if (picture.row_labels[at] % picture.blocks[0] == 0) == (kind == "thick")]
        cols = [at for at in range(1, across) if (picture.col_labels[at] % picture.blocks[1] == 0) == (kind == "thick")]
        path = "".join(f"M0 {at * tall}h{across * wide}" for at in rows)
        path += "".join(f"M{at * wide} 0v{down * tall}" for at in cols)
        if path:
            yield f'<path class="{kind}" d="{path}"/>'


def _words(words: list[list[str]], across: int, glyphs: int, tall: int, symbol: str) -> Iterator[str]:
    """Yield one text per line of cells: fixed-width words, which `textLength` fits to the cells."""
    for line, each in enumerate(words):
        padded = [f" {word}".ljust(glyphs) if symbol else f"{word} ".rjust(glyphs) for word in each]
        mark = ' class="strong"' if line == 0 and len(words) > 1 else ""
        yield f"<g{mark}>"
        for row in range(len(each) // across):
            text = "".join(padded[row * across : row * across + across]).rstrip()
            if not text:
                continue
            y = row * tall + LINE * (line + 1) - 1
            yield f'<text x="0" y="{y}" textLength="{len(text) * GLYPH}" xml:space="preserve">{escape(text, quote=False)}</text>'
        yield "</g>"
