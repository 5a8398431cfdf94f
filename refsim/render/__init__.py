"""Answers as small view models, and their output formats: text, json, jsonl, csv, md, svg, html, github."""

from refsim.errors import unknown
from refsim.render.cells import number
from refsim.render.view import (
    ALERT,
    EMPTY,
    BitFields,
    Bits,
    Cell,
    Coded,
    Column,
    Command,
    Document,
    Entry,
    Excerpt,
    Fact,
    Grid,
    Interval,
    Notice,
    Number,
    Part,
    Picture,
    Record,
    Section,
    Table,
    Wording,
)

__all__ = [
    "ALERT",
    "EMPTY",
    "FORMS",
    "BitFields",
    "Bits",
    "Cell",
    "Coded",
    "Column",
    "Command",
    "Document",
    "Entry",
    "Excerpt",
    "Fact",
    "Grid",
    "Interval",
    "Notice",
    "Number",
    "Part",
    "Picture",
    "Record",
    "Section",
    "Table",
    "Wording",
    "number",
    "rendered",
]

FORMS = ("text", "json", "jsonl", "csv", "md", "svg", "html", "github")


def rendered(
    document: Document, form: str = "text", *, width: int | None = None, colour: bool = False, citations: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return (the document in one of FORMS with a newline at the end, hints to show next to it but never in it).

    `width` (columns) and `colour` apply to text only. `citations` adds the sources. Raises RefsimError for an unknown
    form and for a document that the form cannot hold (several tables as csv).
    """
    from importlib import import_module

    if form not in FORMS:
        raise unknown("output form", form, list(FORMS))
    module = import_module(f"refsim.render.{form}")
    if form in ("text", "github"):
        body, hints = module.write(document, width=width, colour=colour, citations=citations)
        return body, hints
    return module.write(document, citations=citations), document.hints
