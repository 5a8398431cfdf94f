"""docs/glossary.md has every status and accuracy contract, in order and once."""

import re
from pathlib import Path

from refsim.kernels import Promise
from refsim.testing.verdicts import MEANING

PAGE = Path(__file__).parents[1] / "docs/glossary.md"
ENTRY = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = ENTRY.findall(PAGE.read_text("utf-8"))
TERMS = [term.replace("`", "").casefold() for term, _ in ENTRIES]


def test_terms_are_sorted_and_unique() -> None:
    assert sorted(set(TERMS)) == TERMS


def test_every_status_and_every_accuracy_contract_has_an_entry() -> None:
    contracts = [name for name in vars(Promise) if name.isupper()]
    assert "BITWISE" in contracts
    assert {name.casefold() for name in (*MEANING, *contracts)} - set(TERMS) == set()
