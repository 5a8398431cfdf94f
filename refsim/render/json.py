"""Documents as one JSON object: the keys of their parts, and `sources` on request."""

import json
from typing import Any

from refsim.render.cells import plain
from refsim.render.view import EMPTY, Document, Grid, Part, Picture, Record, Table, Wording
from refsim.sources import Source


def write(document: Document, *, citations: bool = False) -> str:
    """Return indented JSON with a newline at the end; NaN and infinities are the strings "nan", "inf" and "-inf"."""
    return json.dumps(tree(document, citations=citations), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def tree(document: Document, *, citations: bool = False) -> dict[str, Any]:
    """Return the document as plain dicts, lists, strings and numbers."""
    found: dict[str, Any] = {}
    for part in document.parts:
        if isinstance(part, Record | Wording) and not part.key:
            found |= rows(part, citations)[0]
        elif isinstance(part, Record | Wording):
            found[part.key] = rows(part, citations)[0]
        else:
            if isinstance(part, Picture):
                found |= {entry.name: plain(entry.value) for entry in part.about}
            found[part.key] = rows(part, citations)
    if citations and document.sources:
        found["sources"] = [source_fields(source) for source in document.sources]
    return found


def rows(part: Part, citations: bool) -> list[dict[str, Any]]:
    """Return a part as flat objects: one per row of a table, code of a grid, cell of a picture; one for a record."""
    match part:
        case Table():
            shown = part.shown(citations)
            return [{part.columns[place].name: plain(row[place]) for place in shown} for row in part.rows]
        case Grid():
            return [
                {"code": str(part.code(position)), "value": plain(value)} for position, value in enumerate(part.values)
            ]
        case Picture():
            return _cells(part)
        case Record():
            return [{entry.name: plain(entry.value) for entry in part.entries}]
        case Wording():
            return [dict(part.facts)]


def _cells(picture: Picture) -> list[dict[str, Any]]:
    places = [{picture.axes[0]: row, picture.axes[1]: col} for row in picture.row_labels for col in picture.col_labels]
    names = [fact.name for fact in picture.facts]
    columns = [fact.values for fact in picture.facts]
    return [
        place | {name: plain(value) for name, value in zip(names, values, strict=True) if value is not None}
        for place, colour, *values in zip(places, picture.colours, *columns, strict=True)
        if colour != EMPTY
    ]


def source_fields(source: Source) -> dict[str, str]:
    """Return a citation as an object of its parts."""
    cited = source.document
    title = f"{cited.title} {cited.edition}".strip()
    return {"document": cited.key, "title": title, "place": source.place, "address": cited.address}


def write_lines(document: Document, *, citations: bool = False) -> str:
    """Return one object per line; if there are several parts, `part` names the part of each line."""
    lines = []
    for part in document.parts:
        label = {"part": part.key} if len(document.parts) > 1 else {}
        lines += [label | row for row in rows(part, citations)]
    if citations:
        lines += [{"source": source_fields(source)} for source in document.sources]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
