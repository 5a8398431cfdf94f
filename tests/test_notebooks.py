"""The notebooks of the site run from top to bottom, as they do when it is built."""

import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALL = sorted(path for path in NOTEBOOKS.glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("notebook", ALL, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = CELL.findall(notebook.read_text("utf-8"))
    assert len(cells) > 1
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell, notebook.name, "exec"), names)


def test_the_index_names_every_notebook() -> None:
    index = (NOTEBOOKS / "index.md").read_text("utf-8")
    assert sorted(re.findall(r"^([a-z-]+)$", index, re.MULTILINE)) == [path.stem for path in ALL]
