"""refsim sources: the documents that the model cites."""

import click

from refsim.cli.delivery import answers
from refsim.cli.names import Name
from refsim.errors import unknown
from refsim.render import Column, Document, Entry, Part, Record, Table
from refsim.sources import DOCUMENTS

COLUMNS = (Column("key", strong=True), Column("title"), Column("edition", drop=1), Column("address", drop=2))


@click.command()
@click.argument("key", required=False, type=Name("key", "refsim.sources:DOCUMENTS", by="key"))
@answers
def command(key: str | None) -> Document:
    """List the documents that the model cites, or show the document KEY.

    \b
      refsim sources
      refsim sources ptx
    """
    if key is None:
        rows = tuple((each.key, each.title, each.edition or None, each.address) for each in DOCUMENTS)
        return Document((Table(COLUMNS, rows, key="documents"),), "sources")
    for each in DOCUMENTS:
        if each.key == key:
            fields = {"key": each.key, "title": each.title, "edition": each.edition or None, "address": each.address}
            part: Part = Record(tuple(Entry(name, value) for name, value in fields.items()))
            return Document((part,), f"source {key}")
    raise unknown("source", key, [document.key for document in DOCUMENTS])
