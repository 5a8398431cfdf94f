"""docs/glossary.md has every status and accuracy contract, in order and once; each entry links to a page that exists."""

import re
from pathlib import Path

import pytest

from refsim.kernels import Promise
from refsim.testing.verdicts import MEANING

PAGE = Path(__file__).parents[1] / "docs/glossary.md"
ENTRY = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
ENTRIES = ENTRY.findall(PAGE.read_text("utf-8"))
TERMS = [term.replace("`", "").casefold() for term, _ in ENTRIES]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub spell them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_terms_are_sorted_and_unique() -> None:
    assert sorted(set(TERMS)) == TERMS


def test_every_status_and_every_accuracy_contract_has_an_entry() -> None:
    contracts = [name for name in vars(Promise) if name.isupper()]
    assert "BITWISE" in contracts
    assert {name.casefold() for name in (*MEANING, *contracts)} - set(TERMS) == set()


@pytest.mark.parametrize(("term", "text"), ENTRIES, ids=TERMS)
def test_an_entry_links_to_a_page_and_anchor_that_exist(term: str, text: str) -> None:
    links = LINK.findall(text)
    assert links, term
    for name, anchor in links:
        page = PAGE.parent / name if name else PAGE
        assert page.is_file(), f"{term}: {name}"
        assert not anchor or anchor in anchors(page), f"{term}: {name}#{anchor}"
