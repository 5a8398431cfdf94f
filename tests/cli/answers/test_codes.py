"""Every code that anything raises is explained, and what is shown is what the error says."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import refsim as package
from refsim.bundled import PACKAGES
from refsim.cli.answers.codes import checks, codes, meaning, places, renamed, sample
from refsim.cli.answers.verdicts import junit
from refsim.errors import RefsimError, code_table, unknown_code
from refsim.testing.verdicts import MEANING
from tests.cli.answers.raised import Saying, sayings
from tests.cli.conftest import Run

FORMER = tuple(sorted(code for row in code_table().values() for code in row.get("was", "").split()))
ROOT = Path(package.__file__).parents[1]


def pattern(template: str) -> re.Pattern[str]:
    """What a sentence with values in it looks like: ⟨name⟩ is any text."""
    return re.compile(
        "".join(".*?" if piece.startswith("⟨") else re.escape(piece) for piece in re.split(r"(⟨[^⟩]*⟩)", template))
    )


@cache
def everything() -> dict[str, tuple[Saying, ...]]:
    """All codes, read from the source once for all tests here."""
    return sayings()


def recorded() -> set[tuple[str, str]]:
    """Code and first sentence of every error among the transcripts."""
    texts = (path.read_text("utf-8") for path in (ROOT / "tests/golden").glob("error-*.txt"))
    return {match.groups() for text in texts if (match := re.search(r"^\[([a-z0-9-]+)\] (.*)", text, re.MULTILINE))}


def test_every_recorded_error_is_explained_by_a_sentence_that_it_follows() -> None:
    known = everything()
    assert len(recorded()) > 30
    otherwise = set()
    for code, said in recorded():
        worded = [each.what for each in (known.get(code) or sayings(code)[code]) if each.what]
        if worded and not any(pattern(what).match(said) for what in worded):
            otherwise.add(code)
    assert otherwise == set()


def test_every_code_of_a_raise_in_the_source_is_known() -> None:
    """Found by another way: text behind RefsimError( that looks like a code."""
    known = set(everything())
    written = {
        code
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        for code in re.findall(r'RefsimError\(\s*(?:code=)?"([a-z0-9-]+)"', path.read_text("utf-8"))
    }
    assert len(written) > 100
    assert written - known == set()


@pytest.mark.parametrize(
    ("code", "module", "said"),
    [
        (
            "race",
            "refsim.ptx.checks.race_reports",
            "⟨frees or reads or overwrites or writes⟩ ⟨size⟩ B at ⟨place⟩ that ",
        ),
        ("race", "refsim.ptx.checks.tensor_order", "⟨overwrites or reads⟩ ⟨box⟩ that "),
        ("illegal-fragment", "refsim.layouts.families.core", "⟨instruction⟩ has no ⟨shape⟩ of ⟨type⟩"),
        ("unsupported-feature", "refsim.ptx.text.call_graph", "⟨shown⟩ calls ⟨shown⟩"),
        ("unknown-policy", "refsim.compare.differences", "no NaN policy is called ⟨name⟩"),
    ],
    ids=str,
)
def test_a_sentence_that_is_made_elsewhere_is_found(code: str, module: str, said: str) -> None:
    """By a method, by a property that is the code, by callers in other modules, by a join, by the kind of a name."""
    assert any(each.module == module and each.what.startswith(said) for each in everything()[code])


def test_every_check_says_what_it_finds() -> None:
    assert {"race", "deadlock", "leak"} <= checks().keys() <= everything().keys()
    assert all(row.finds for row in checks().values())


def test_codes_that_stand_in_front_of_a_sentence_are_explained_by_it() -> None:
    (said,) = everything()["model-differs"]
    assert said.what.startswith("the model differs from hardware")
    assert said.module == "refsim.testing.witnesses"
    assert [each.what for each in everything()["bank-conflicts"]].count("promised are none") == 1
    assert {"model-differs", "definition-differs"} <= everything().keys()


def test_few_codes_name_the_kinds_of_mistakes() -> None:
    """Findings have their own names. Every code is in the table with its former codes, and none of the former is raised."""
    of_errors = everything().keys() - checks().keys()
    assert of_errors == code_table().keys()
    assert len(of_errors) <= 200
    assert list(codes()) == sorted(everything())
    assert len(FORMER) == len(set(FORMER)) > 300
    assert set(FORMER) & (everything().keys() | MEANING.keys()) == set()


def test_a_former_code_is_explained_by_the_one_that_replaces_it() -> None:
    """And an error knows the codes that it may have had."""
    assert {renamed(code) for code in FORMER} <= code_table().keys()
    assert renamed("race") == renamed("bad-shape") == ""
    assert "operand-shape" in RefsimError("bad-shape", "").was
    assert RefsimError("race", "").was == ()


def test_a_sample_is_a_message_without_a_hole() -> None:
    shown = {code: sample(code) for code in everything() if sample(code)}
    assert len(shown) > 140
    assert [code for code, text in shown.items() if "⟨" in text or "/tmp" in text or str(ROOT) in text] == []


def test_most_samples_of_errors_follow_a_sentence_of_the_source() -> None:
    """A few sentences are made of parts; more that do not follow are messages of an older refsim: record them again."""
    said = {code: sample(code) for code in everything().keys() - checks().keys() if sample(code)}
    worded = {code: [each.what for each in everything()[code] if each.what] for code in said}
    follow = [code for code in said if any(pattern(what).match(said[code], len(f"[{code}] ")) for what in worded[code])]
    assert len(follow) > 0.9 * len(said)


def test_every_code_has_a_meaning() -> None:
    assert all(meaning(code) for code in everything())


@pytest.mark.parametrize("code", ["race", "bad-shape", "out-of-range", "unknown-format"])
def test_places_in_refsim_are_shown_with_source_only(code: str, refsim: Callable[..., Run]) -> None:
    plain, cited = refsim("explain", code).out, refsim("explain", code, "--source").out
    assert sample(code) in plain
    assert "raised in: refsim." not in plain
    assert "raised in: refsim." in cited


def test_a_code_has_the_places_that_raise_it() -> None:
    """Every module that the reader of the sources finds is among them."""
    for code in ("bad-file", "out-of-range", "unknown-format", "model-differs"):
        assert {each.module for each in everything()[code]} <= set(places(code)), code


def test_a_report_for_ci_has_the_former_codes_of_an_error() -> None:
    text = junit([], ("kernel", RefsimError("assembler-missing", "no ptxas")))
    assert '<property name="was" value="bad-ptxas"/>' in text
    assert "<properties>" not in junit([], ("kernel", RefsimError("usage-of-a-test", "no former code")))


@pytest.mark.parametrize("former", FORMER)
def test_explain_answers_by_a_former_code(former: str, refsim: Callable[..., Run]) -> None:
    made = refsim("explain", former)
    assert (made.code, made.out.splitlines()[0]) == (0, f"{former} is now {renamed(former)}")


def test_every_code_in_brackets_that_the_pages_name_is_explained() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {
        code
        for page in pages
        for line in page.read_text("utf-8").splitlines()
        for code in re.findall(r"(?:^|`)\[([a-z]+(?:-[a-z]+)+)\](?=`| )", line)
    }
    assert {"model-differs", "definition-differs"} <= named
    assert named - set(everything()) == set()


def test_a_sample_is_one_of_its_code_and_a_place_is_a_module() -> None:
    assert [code for code in codes() if sample(code) and not sample(code).startswith(f"[{code}] ")] == []
    assert unknown_code("target format") == "unknown-format"
    assert "refsim.layouts.tiles" in places("out-of-range")  # by refsim.integers.whole
    assert "refsim.device" in places("unknown-device")
    assert "refsim_run.limits_plugin" in places("test-timeout")
