"""The committed table of layouts is the one that the layouts give."""

from pathlib import Path

from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS
from tests.checkpoints.report import page

ROOT = Path(__file__).parents[2]


def test_the_report_is_that_of_the_layouts() -> None:
    assert (ROOT / "conformance/reports/checkpoints.md").read_text("utf-8") == page()


def test_figures_of_the_pages_are_counts_of_layouts() -> None:
    read, written = len(CHECKPOINT_LAYOUTS), sum(1 for row in CHECKPOINT_LAYOUTS if row.made)
    assert f"[{read} layouts](" in (ROOT / "docs/formats-and-conversions.md").read_text("utf-8")
    assert f"read {read} layouts" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"writes {written} of them" in (ROOT / "CHANGELOG.md").read_text("utf-8")
