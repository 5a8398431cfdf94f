"""Which pyproject.toml a CUDA file belongs to, and what its table may say."""

from pathlib import Path

import pytest

from refsim.device.kernel_sources import paths_of, project_include
from refsim.errors import Kind, RefsimError


def said(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder / "pyproject.toml"


def include(*folders: str) -> str:
    return f"[tool.refsim]\ninclude = {list(folders)}\n"


def test_the_nearest_project_above_counts_and_its_paths_begin_there(tmp_path: Path) -> None:
    said(tmp_path / "a", include("outer", "../beside"))
    (tmp_path / "a/b/c").mkdir(parents=True)
    outer = [tmp_path / "a/outer", tmp_path / "a/../beside"]
    for place in ("a", "a/k.cu", "a/b", "a/b/c", "a/b/c/k.cu"):
        assert project_include(tmp_path / place) == outer
    said(tmp_path / "a/b", "[tool.other]\n")
    assert project_include(tmp_path / "a/b/c/k.cu") == []
    assert project_include(tmp_path / "a/k.cu") == outer


def test_a_relative_file_belongs_to_the_project_of_the_working_folder(tmp_path: Path, monkeypatch) -> None:
    said(tmp_path, include("headers"))
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert project_include(Path("k.cu")) == [tmp_path / "headers"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[tool.refsim]\ninclude = 'headers'\n", "include must be a list of paths, not 'headers'"),
        ("[tool.refsim]\ninclude = ['a', 3]\n", "include must be a list of paths, not ['a', 3]"),
        ("[tool.refsim]\ninclude = {a = 1}\n", "include must be a list of paths, not {'a': 1}"),
        (f"[tool.refsim]\ninclude = 0x{'f' * 9000}\n", "include must be a list of paths, not int"),
        (f"[tool.refsim]\ninclude = '{'x' * 99}'\n", f"not '{'x' * 56}..."),
        ("tool = 3\n", "tool is a table, not 3"),
        ("tool = []\n", "tool is a table, not []"),
        ("[tool]\nrefsim = ''\n", "refsim is a table, not ''"),
        ("[tool", "not TOML"),
        ("x = " + "[" * 9000, "not TOML"),
        ("x = " + "9" * 5000, "not TOML"),
    ],
)
def test_what_is_no_list_of_paths_is_one_error(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(RefsimError) as caught:
        paths_of(said(tmp_path, text), "include")
    assert (caught.value.code, caught.value.kind) == ("bad-file", Kind.UNREADABLE)
    assert what in caught.value.what
    assert len(caught.value.what) < 200
