"""What docs/explain-diff.md says of planted pairs are the figures of the report."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_figures_of_the_report():
    report = json.loads((ROOT / "conformance/reports/explain_diff.json").read_text("utf-8"))
    page = " ".join((ROOT / "docs/explain-diff.md").read_text("utf-8").split())
    found, pairs = report["summary"], report["pairs"]
    also = sum(bool(row["planted"]) and row["right"] and not row["alone"] for row in pairs)
    for words in (
        found["command"],
        f"Of {found['planted']} pairs with a planted cause it named that cause in {found['named_right']}.",
        f"In {found['named_right_and_nothing_else']} pairs it named nothing else, in {also} causes",
        f"Of {found['held_out']} pairs whose cause no row stands for",
        f"of {found['equal']} equal ones none",
        f"the median was {found['median_seconds_128x128x512']} s of processor time",
        f"of quantisers' outputs {found['median_seconds_of_quantisers']} s",
    ):
        assert words in page, words
    assert found["held_out_named"] == found["equal_named"] == 0
