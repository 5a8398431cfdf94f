"""Documents as one self-contained HTML page, light or dark as the reader's system is."""

from html import escape

from refsim.render import cells, svg
from refsim.render.tabular import Tabular, tabular
from refsim.render.view import Document, Part, Picture, Wording

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d8d8d8; --faint: #666 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181a; --line: #3a3d40; --faint: #9a9a9a } }
body { margin: 2rem; color: var(--ink); background: var(--paper); font: 15px/1.45 system-ui, sans-serif }
div { overflow-x: auto; margin: 0 0 1.5rem } pre { white-space: pre-wrap }
pre, td { font-family: ui-monospace, monospace; font-size: 13px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--faint); font-weight: 500 } .right { text-align: right }
td, th { padding: .15rem .7rem .15rem 0; border-bottom: 1px solid var(--line); white-space: nowrap }
""".strip()


def write(document: Document, *, citations: bool = False) -> str:
    """The page: no script, nothing fetched, every text escaped."""
    title = escape(document.title or "refsim")
    parts = [document.drawing, *document.parts] if document.drawing else document.parts
    body = "\n".join(f"<div>{_part(part, citations)}</div>" for part in parts)
    if citations and document.sources:
        items = [
            f'<li><a href="{escape(each.document.address)}">{escape(str(each))}</a></li>' for each in document.sources
        ]
        body += f"\n<ul>{''.join(items)}</ul>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>\n{STYLE}\n</style>\n'
        f"</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _part(part: Part, citations: bool) -> str:
    if isinstance(part, Wording):
        return f"<pre>{escape(chr(10).join(cells.printable(line) for line in part.lines))}</pre>"
    if isinstance(part, Picture):
        return svg.write(Document((part,)))
    return _table(tabular(part, citations))


def _table(table: Tabular) -> str:
    kinds = [' class="right"' if each else "" for each in table.right]
    head = "".join(
        f'<th scope="col"{kind}>{escape(each)}</th>' for kind, each in zip(kinds, table.headings, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
