"""Documents as one self-contained HTML page, light or dark as the reader's system is."""

from html import escape

from refsim.render import cells, svg
from refsim.render.tabular import Tabular, tabular
from refsim.render.view import Document, Excerpt, Part, Picture, Record, Section, Wording

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


# Additional style of pages with sections: findings must be readable on a phone, so only code and tables scroll sideways.
PAGE_STYLE = """
:root { --raised: #f5f6f7; --mark: #ffe3df; --good: #14713a; --bad: #b3261e; --open: #8a5a00 }
@media (prefers-color-scheme: dark) {
:root { --raised: #1f2225; --mark: #55211d; --good: #6fd08c; --bad: #ff9d94; --open: #f0c060 } }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1.25rem; box-sizing: border-box }
h1 { font-size: 1.5rem; margin: 0 0 1.25rem } h2 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere }
section { border-top: 1px solid var(--line); padding: 1.25rem 0 .25rem } section > div { margin: .9rem 0 }
.status { font-size: .85rem; font-weight: 600; border: 1px solid; border-radius: 1rem; padding: .05rem .6rem; margin-left: .5rem }
.good { color: var(--good) } .bad { color: var(--bad) } .open { color: var(--open) }
pre { margin: 0; overflow-wrap: anywhere } td { vertical-align: top }
table.record td { white-space: normal; overflow-wrap: anywhere }
table.record td:first-child { color: var(--faint); white-space: nowrap }
.code { margin: 0; background: var(--raised); border-radius: .4rem; overflow-x: auto; padding: .6rem 0 }
.code div { margin: 0; overflow: visible; padding: 0 .9rem; width: max-content; min-width: 100%; box-sizing: border-box }
.code .at { color: var(--faint); padding-bottom: .3rem } .code pre { white-space: pre; display: inline }
.code i { color: var(--faint); font: 13px ui-monospace, monospace; white-space: pre } .code .marked { background: var(--mark) }
@media (max-width: 40rem) { body { margin: 1rem auto } table.record td { display: block; border: 0; padding-right: 0 }
table.record td + td { border-bottom: 1px solid var(--line) } }
""".strip()


def write(document: Document, *, citations: bool = False) -> str:
    """Return the page: no script, no external resource, every text escaped."""
    title = escape(document.title or "refsim")
    parts = [document.drawing, *document.parts] if document.drawing else document.parts
    body = "\n".join(f"<div>{_part(part, citations)}</div>" for part in parts)
    style = STYLE
    if document.page:
        body, style = "\n".join(_section(section, citations) for section in document.page), f"{STYLE}\n{PAGE_STYLE}"
    if citations and document.sources:
        items = [
            f'<li><a href="{escape(each.document.address)}">{escape(str(each))}</a></li>' for each in document.sources
        ]
        body += f"\n<ul>{''.join(items)}</ul>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>\n{style}\n</style>\n'
        f"</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _section(section: Section, citations: bool) -> str:
    status = f' <span class="status {section.tone}">{escape(section.status)}</span>' if section.status else ""
    parts = "\n".join(f"<div>{_part(part, citations)}</div>" for part in section.parts)
    return f"<section>\n<h2>{escape(section.heading)}{status}</h2>\n{parts}\n</section>"


def _excerpt(excerpt: Excerpt) -> str:
    """Return lines of code with their numbers; the marked line has a > in addition to its color."""
    width = len(str(excerpt.last)) + 2
    lines = "\n".join(
        f"<div{' class=marked' if number == excerpt.line else ''}><i>{'>' if number == excerpt.line else ' '}"
        f"{number:>{width}}  </i><pre>{escape(cells.printable(text.expandtabs(4)))}</pre></div>"
        for number, text in excerpt.rows
    )
    return f'<div class="code"><div class="at">{escape(excerpt.name)}:{excerpt.line}</div>\n{lines}</div>'


def _part(part: Part | Excerpt, citations: bool) -> str:
    if isinstance(part, Excerpt):
        return _excerpt(part)
    if isinstance(part, Wording):
        return f"<pre>{escape(chr(10).join(cells.printable(line) for line in part.lines))}</pre>"
    if isinstance(part, Picture):
        return svg.write(Document((part,)))
    if isinstance(part, Record):
        return _record(tabular(part, citations))
    return _table(tabular(part, citations))


def _record(table: Tabular) -> str:
    rows = "\n".join(f"<tr><td>{escape(label)}</td><td>{escape(value)}</td></tr>" for label, value in table.rows)
    return f'<table class="record">\n<tbody>\n{rows}\n</tbody>\n</table>'


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
