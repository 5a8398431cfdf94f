"""Broken links of a built site are found: a missing file, a missing anchor, a missing picture."""

from pathlib import Path

from tests.site_links import broken, main


def test_missing_files_anchors_and_pictures_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="#top">1</a><a href="#none">2</a><img src="no.svg">')
    links = ("../a.html#top", "../a.html#none", "b.html", "c%20d.html", "https://example.org/x#y", "..")
    (tmp_path / "sub/b.html").write_text("".join(f'<a href="{link}">x</a>' for link in links))
    (tmp_path / "sub/c d.html").write_text("")
    assert list(broken(tmp_path)) == ["a.html: #none", "a.html: no.svg", "sub/b.html: ../a.html#none", "sub/b.html: .."]


def test_a_site_without_broken_links_ends_with_0(tmp_path: Path, capsys) -> None:
    (tmp_path / "index.html").write_text('<a href="index.html"></a>')
    assert main(str(tmp_path)) == 0
    assert capsys.readouterr().out == "every internal link leads to a file and an anchor\n"
