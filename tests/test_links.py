"""Every relative link of a page of Markdown leads to a file of the checkout, and to a heading where it names one."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "conformance/reports").rglob("*.md"),
    *(ROOT / "gpu").rglob("*.md"),
]
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\((?!https?:)([^)\s]+)\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings as GitHub and MyST make them: "Which compiler?" is which-compiler."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S), re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings)


def broken(page: Path, text: str) -> Iterator[str]:
    """Yield the target of every link whose file or heading does not exist; code spans hold no links."""
    for target in LINK.findall(
        re.sub(r"`[^`\n]*`", "", re.sub(r"^( {4}[^\n]*|```.*?^```)$", "", text, flags=re.M | re.S))
    ):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert list(broken(page, page.read_text("utf-8"))) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    text = "# A b, `c`?\n\n[1](#a-b-c) [2](a.md#a-b-c) [3](b.md) [4](#none) `[5](no.md)` [6](https://example.org)\n"
    page.write_text(text)
    assert list(broken(page, text)) == ["b.md", "#none"]
