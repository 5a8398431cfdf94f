"""A narrow terminal shows every column of every table: words wrap, and a column that goes is one that may and is named."""

import shlex

import pytest

from refsim.cli import delivery
from refsim.render import Document, Table, rendered
from tests.cli.test_golden import ANSWERS

TABLES = {
    **{name: words for name, words in ANSWERS.items() if not name.startswith("diff-")},
    "coverage": "ptx coverage",
    "coverage-checks": "ptx coverage --checks",
    "coverage-forms": "ptx coverage --forms",
    "coverage-file": "ptx coverage turn.ptx",
    "doctor": "doctor",
    "kernels": "kernels",
    "layout-list-all": "layout list",
    "layout-holds-wide": "layout holds mma.m16n8k16.bf16.a 5",
    "numerics-list-all": "numerics list",
    "sources": "sources",
    "scales-all": "scales show",
}
SHOWN_OF = 40  # rows of a table whose words are looked for


@pytest.mark.usefixtures("two_files", "dumps", "kernels")
@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("name", TABLES)
def test_no_column_vanishes_unsaid(name, columns, refsim, monkeypatch):
    seen: list[Document] = []

    def watched(document, *arguments, **options):
        seen.append(document)
        return rendered(document, *arguments, **options)

    monkeypatch.setattr(delivery, "rendered", watched)
    run = refsim(*shlex.split(TABLES[name]), columns=columns)
    assert run.code in (0, 1, 5), run.err
    said = "\n".join(line for line in run.err.splitlines() if line.startswith("left out at"))
    words = set(run.out.split())
    tables = [part for part in seen[0].parts if isinstance(part, Table) and part.headings]
    if len(tables) == len(seen[0].parts):
        wide = [line for line in run.out.splitlines() if len(line) > columns]
        assert [line for line in wide if len(max(line.split(), key=len)) < columns // 2] == []
    for table in tables:
        for place in table.shown("--source" in TABLES[name]):
            column = table.columns[place]
            if not column.text:
                continue
            if column.drop and column.spoken in said:
                continue
            if column.heading.strip() and any(row[place] is not None for row in table.rows):
                assert set(column.spoken.split()) <= words, column
            lost = [row[place] for row in table.rows[:SHOWN_OF] if not _words(row[place]) <= words]
            assert lost == [], column


def _words(cell) -> set[str]:
    """What a cell of words or of a whole number must leave on the screen."""
    return set(str(cell).split()) if isinstance(cell, str | int) and not isinstance(cell, bool) else set()


@pytest.mark.parametrize(
    ("command", "column"), [("desc decode wgmma-smem 0x4000004000000041", "meaning"), ("kernels", "summary")]
)
@pytest.mark.parametrize("columns", [80, 60])
def test_the_column_that_says_it_stays(command, column, columns, refsim):
    run = refsim(*shlex.split(command), columns=columns)
    assert column in run.out.splitlines()[0].split()
