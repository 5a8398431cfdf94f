"""Answers as small view models, and their output formats: text, json, jsonl, csv, md, svg, html, github."""

from refsim.errors import check_named
from refsim.render.cells import number as number
from refsim.render.view import ALERT as ALERT
from refsim.render.view import EMPTY as EMPTY
from refsim.render.view import BitFields as BitFields
from refsim.render.view import Bits as Bits
from refsim.render.view import Cell as Cell
from refsim.render.view import Coded as Coded
from refsim.render.view import Column as Column
from refsim.render.view import Command as Command
from refsim.render.view import Document as Document
from refsim.render.view import Entry as Entry
from refsim.render.view import Excerpt as Excerpt
from refsim.render.view import Fact as Fact
from refsim.render.view import Grid as Grid
from refsim.render.view import Interval as Interval
from refsim.render.view import Notice as Notice
from refsim.render.view import Number as Number
from refsim.render.view import Part as Part
from refsim.render.view import Picture as Picture
from refsim.render.view import Record as Record
from refsim.render.view import Section as Section
from refsim.render.view import Table as Table
from refsim.render.view import Wording as Wording
from refsim.render.view import facts_of as facts_of

FORMS = ("text", "json", "jsonl", "csv", "md", "svg", "html", "github")


def rendered(
    document: Document, form: str = "text", *, width: int | None = None, colour: bool = False, citations: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return (the document in one of FORMS with a newline at the end, hints to show next to it but never in it).

    `width` (columns) and `colour` apply to text only. `citations` adds the sources. Raises RefsimError for an unknown
    form and for a document that the form cannot hold (several tables as csv).
    """
    from importlib import import_module

    check_named("output form", form, FORMS)
    module = import_module(f"refsim.render.{'json' if form == 'jsonl' else form}")
    if form in ("text", "github"):
        body, hints = module.write(document, width=width, colour=colour, citations=citations)
        return body, hints
    write = module.write_lines if form == "jsonl" else module.write
    return write(document, citations=citations), document.hints
