"""Documents as JSON lines: one object per row, code or record."""

import json

from refsim.render.json import rows, source_fields
from refsim.render.view import Document


def write(document: Document, *, citations: bool = False) -> str:
    """Return one object per line; if there are several parts, `part` names the part of each line."""
    lines = []
    for part in document.parts:
        label = {"part": part.key} if len(document.parts) > 1 else {}
        lines += [label | row for row in rows(part, citations)]
    if citations:
        lines += [{"source": source_fields(source)} for source in document.sources]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
