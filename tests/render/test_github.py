"""The log of a workflow: text, then a command for each notice, escaped as GitHub unescapes it."""

from pathlib import Path

from refsim.render import Document, Notice, Wording, rendered
from refsim.render.github import annotation

NASTY = "50 % a,b:c\r\nnext ::error::no"


def unescaped(words: str) -> str:
    """As the runner reads it: ActionCommand.cs unescapes %25 last."""
    for code, mark in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        words = words.replace(code, mark)
    return words


def test_a_notice_stands_at_its_line_from_the_root_on(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    file = tmp_path / "src" / "k.cu"
    assert annotation(Notice("k: fail", "wrong", file, 41)) == "::error file=src/k.cu,line=41,title=k%3A fail::wrong"
    monkeypatch.delenv("GITHUB_WORKSPACE")
    monkeypatch.chdir(tmp_path / "..")
    assert annotation(Notice("k", "wrong", file, 41)).startswith(f"::error file={tmp_path.name}/src/k.cu,line=41,")
    monkeypatch.chdir("/")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    assert annotation(Notice("k", "wrong", file)) == f"::error file={file},title=k::wrong"


def test_without_a_file_it_is_a_plain_one():
    assert annotation(Notice("k", "wrong", level="warning")) == "::warning title=k::wrong"


def test_nothing_ends_a_command_or_a_property():
    line = annotation(Notice(NASTY, NASTY))
    assert "\n" not in line
    assert "\r" not in line
    title, _, message = line.removeprefix("::error title=").partition("::")
    assert "," not in title
    assert unescaped(title) == NASTY
    assert unescaped(message) == NASTY


def test_the_text_stands_before_the_commands():
    document = Document((Wording(("said",), {}),), notices=(Notice("a", "b"), Notice("c", "d")))
    assert rendered(document, "github")[0] == "said\n::error title=a::b\n::error title=c::d\n"
    assert rendered(document, "text")[0] == "said\n"
