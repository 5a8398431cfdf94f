"""Pages of the site that are made of committed reports: each report has one, and it holds what the report says."""

import json

from refsim.testing.kernel_files import load_kernel_file
from tests.bare_machine import ROOT

made = load_kernel_file(ROOT / "docs/report_pages.py")
PAGES = dict(made.report_pages())


def test_every_report_has_a_page_and_the_index_names_it() -> None:
    pages = {made.place_of(path) for path in made.reports()}
    assert len(pages) == len(made.reports()), "two reports have one page"
    assert set(PAGES) == pages | {"reports/index.md"}
    assert [name for name in pages if f"({name.removeprefix('reports/')})" not in PAGES["reports/index.md"]] == []


def test_a_page_of_json_shows_every_count_of_it() -> None:
    held = json.loads((made.REPORTS / "h200/linear.verify.json").read_text("utf-8"))
    page = PAGES["reports/h200/linear.verify.md"]
    assert [row for row in held["verdicts"] if f"| {row['cases']:,} | {row['elements']:,} |" not in page] == []
    assert held["device"]["device"] in page


def test_columns_that_nobody_fills_are_left_out() -> None:
    rows = [{"case": "a", "note": None, "words": 4096}, {"case": "b|c", "words": 0.12345678}]
    assert list(made.grid(rows))[:4] == ["| case | words |", "|---|---|", "| a | 4,096 |", "| b\\|c | 0.1235 |"]


def test_nothing_that_is_made_is_committed_beside_its_json() -> None:
    assert sorted(made.REPORTS.rglob("*.html")) == []


def test_links_of_a_report_lead_to_pages_of_the_site() -> None:
    text = "[a](h200/bringup.json) [b](../../docs/verdicts.md#rules) [c](../chips.py) `f[i](x)` [d](https://e.org)"
    report = made.REPORTS / "h100" / "some.md"
    shown = made.linked(text.replace("](", "](../", 3), report, made.place_of(report))
    assert shown == (
        "[a](../h200/bringup.md) [b](../../verdicts.md#rules) c (`conformance/chips.py`) `f[i](x)` [d](https://e.org)"
    )


def test_links_of_a_page_to_files_are_text_unless_the_site_has_them() -> None:
    text = "[a](../conformance/reports/night.md) [b](verdicts.md) [c](../tests/claims.py) [d](../Makefile)"
    shown = made.linked(text, ROOT / "docs/evidence.md", "evidence.md")
    assert shown == "[a](reports/night.md) [b](verdicts.md) [c](../tests/claims.py) d (`Makefile`)"
