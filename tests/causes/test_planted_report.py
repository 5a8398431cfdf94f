"""The figures of conformance/reports/explain_diff.md are those of its two JSON reports."""

import json
from pathlib import Path

REPORTS = Path(__file__).parents[2] / "conformance/reports"
PAGE = (REPORTS / "explain_diff.md").read_text("utf-8")


def figures(*rows: tuple[str, object]) -> list[str]:
    """Return the rows of a table that the page lacks."""
    return [row for what, value in rows if (row := f"| {what} | {value} |") not in PAGE]


def test_the_page_has_the_figures_of_the_planted_pairs():
    report = json.loads((REPORTS / "explain_diff.json").read_text("utf-8"))
    found, pairs = report["summary"], report["pairs"]
    also = sum(bool(row["planted"]) and row["right"] and not row["alone"] for row in pairs)
    unknown = (
        "without a known cause (noise, an accumulator of 17 bits, a shuffled K, stochastic rounding, one flipped bit)"
    )
    assert found["command"] in PAGE
    assert not figures(
        ("with a planted cause", found["planted"]),
        ("planted cause named", found["named_right"]),
        ("planted cause named, and nothing else", found["named_right_and_nothing_else"]),
        ("planted cause named, and other causes that give the same bits", also),
        (unknown, found["held_out"]),
        ("without a known cause, and a cause named", found["held_out_named"]),
        ("equal", found["equal"]),
        ("equal, and a cause named", found["equal_named"]),
        ("products of 128 x 128 x 512", found["median_seconds_128x128x512"]),
        ("outputs of quantizers", found["median_seconds_of_quantisers"]),
    )
    assert found["held_out_named"] == found["equal_named"] == 0


def test_the_page_has_the_figures_of_the_broken_kernels():
    found = json.loads((REPORTS / "explain_diff_broken.json").read_text("utf-8"))["summary"]
    assert found["command"] in PAGE
    assert not figures(
        ("all", found["kernels"]),
        ("with another output", found["asked"]),
        ("with a name in the table", found["with_a_name"]),
        ("named right", found["named_right"]),
        ("named otherwise", found["named_otherwise"]),
        ("without a fitting cause", found["held_out"]),
        ("without a fitting cause, and a cause named", found["held_out_named"]),
    )
