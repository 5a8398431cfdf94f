"""The reading guide's table of the simulated GPU names the files that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import refsim.ptx

ROOT = Path(refsim.ptx.__file__).parent
GUIDE = Path(__file__).parent.parent / "docs" / "reading-guide.md"
SECTION = "## The simulated GPU, file by file"


def named(guide: str) -> list[str]:
    """The files that the table's first column names, in order."""
    table = guide.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]


def files(root: Path) -> Iterator[str]:
    """Every file with code in it: an __init__ that is a docstring alone marks a room and needs no row."""
    for path in sorted(root.rglob("*.py")):
        if path.name != "__init__.py" or len(ast.parse(path.read_text()).body) > 1:
            yield path.relative_to(root).as_posix()


def test_the_table_equals_the_tree() -> None:
    rows = named(GUIDE.read_text())
    assert len(rows) == len(set(rows)), "a file has two rows"
    assert not (missing := sorted(set(files(ROOT)) - set(rows))), f"{GUIDE.name} has no row for {missing}"
    assert not (gone := sorted(set(rows) - set(files(ROOT)))), f"{GUIDE.name} has rows for files that are gone: {gone}"


@pytest.mark.parametrize("path", re.findall(r"`((?:refsim/|gpu/)[\w/]+\.py)`", GUIDE.read_text()))
def test_every_path_that_the_guide_names_is_there(path: str) -> None:
    assert (GUIDE.parent.parent / path).is_file()
