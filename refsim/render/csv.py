"""Documents as comma-separated values: one table, with column names in the first line."""

import csv
import io
from typing import Any

from refsim.errors import RefsimError
from refsim.render.json import rows
from refsim.render.view import Document, Part, Record, Wording


def write(document: Document, *, citations: bool = False) -> str:
    """Return the document's one table as CSV, one row a line; entries at the top of the JSON object are left out.

    Objects become a column per key (nearest_even_low), lists of objects a column per index (neighbours_0_code); lists
    of plain values share a cell, separated by spaces. Raises RefsimError for a document with several parts.
    """
    parts = [part for part in document.parts if not _headline(part)] or document.parts
    if len(parts) != 1:
        what = f"this answer has {len(parts)} parts, and CSV holds one table"
        raise RefsimError("form-does-not-fit", what, help="--as json or --as jsonl holds all of them")
    flat = [dict(_flat("", row)) for row in rows(parts[0], citations)]
    names = list(dict.fromkeys(name for row in flat for name in row))
    # an object that is None in some row (the neighbors of a NaN) makes no column of its own
    names = [name for name in names if not any(other.startswith(f"{name}_") for other in names) or _filled(name, flat)]
    lines = io.StringIO()
    writer = csv.DictWriter(lines, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return lines.getvalue()


def _headline(part: Part) -> bool:
    return isinstance(part, Record | Wording) and (not part.key or (isinstance(part, Wording) and part.is_beside))


def _filled(name: str, flat: list[dict[str, Any]]) -> bool:
    return any(row.get(name) is not None for row in flat)


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        inner = {str(place): each for place, each in enumerate(value)}.items()
    elif isinstance(value, list):
        return [(prefix, " ".join(map(str, value)))]
    else:
        return [(prefix, str(value).lower() if isinstance(value, bool) else value)]
    return [pair for key, each in inner for pair in _flat(f"{prefix}_{key}" if prefix else key, each)]
