"""Documents as Markdown (GitHub's tables)."""

import re

from refsim.render import cells
from refsim.render.tabular import Tabular, tabular
from refsim.render.view import Document, Part, Wording

_SPECIAL = re.compile(r"([\\`*_|<>\[\]~#])")


def write(document: Document, *, citations: bool = False) -> str:
    """Return a heading, then a table or a code block for each part; all text is escaped."""
    blocks = [f"## {escape(document.title)}"] if document.title else []
    blocks += [_part(part, citations) for part in document.parts]
    if citations and document.sources:
        blocks.append("\n".join(f"- {escape(str(each))}, <{each.document.address}>" for each in document.sources))
    return "\n\n".join(block for block in blocks if block) + "\n"


def escape(line: str) -> str:
    """Return `line` with Markdown's special characters escaped."""
    return _SPECIAL.sub(r"\\\1", cells.printable(line))


def _part(part: Part, citations: bool) -> str:
    if isinstance(part, Wording):
        return "```text\n" + "\n".join(cells.printable(line) for line in part.lines) + "\n```"
    return _table(tabular(part, citations))


def _table(table: Tabular) -> str:
    lines = ["|".join(["", *(f" {escape(heading)} " for heading in table.headings), ""])]
    lines.append("|".join(["", *("---:" if each else "---" for each in table.right), ""]))
    lines += ["|".join(["", *(f" {escape(cell)} " for cell in row), ""]) for row in table.rows]
    return "\n".join(lines)
