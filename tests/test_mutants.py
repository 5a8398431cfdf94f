"""The rows of mutants.toml can be tried in this tree; `python -m tests.mutants` tries them."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from refsim.errors import RefsimError
from tests import mutants
from tests.draw_mutants import drawn
from tests.mutant_trials import trial

HERE = Path(__file__).parent
ROWS = mutants.mutants()


def test_each_edit_changes_one_place_and_names_tests_that_exist() -> None:
    assert [fault for row in ROWS for fault in row.faults(HERE.parent)] == []


def test_hundreds_of_mutants_have_names_of_their_own() -> None:
    assert len(ROWS) >= 320
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


def test_an_anchor_that_moved_is_named() -> None:
    row = mutants.Mutant("gone", "area", "refsim/errors.py", "no such text", "x", ("tests/no_such_test.py",))
    assert list(row.faults(HERE.parent)) == [
        "gone: 'no such text' stands 0 times in refsim/errors.py",
        "gone: there is no tests/no_such_test.py",
    ]


def test_the_table_counts_by_the_folder_of_the_edit_and_says_what_lives() -> None:
    names = {"a": "refsim/ptx/checks/races.py", "b": "refsim/ptx/checks/marks.py", "c": "refsim/files/npz.py"}
    names["d"] = "refsim_run/cupy/raw.py"
    rows = [mutants.Mutant(name, "topic", file, "x | y", "x & y", ("t",)) for name, file in names.items()]
    excused = replace(rows[1], survives="the two are equal here")
    text = mutants.table({rows[0]: "killed by t", excused: "survived", rows[2]: "killed by t", rows[3]: "killed by t"})
    assert "| ptx/checks | 1 | 2 | 50.0 % | 1 | 100.0 % |  |" in text
    assert "| files | 1 | 1 | 100.0 % |  | 100.0 % |  |" in text
    assert "| refsim_run | 1 | 1 | 100.0 % |  | 100.0 % |  |" in text
    assert "| all | 3 | 4 | 75.0 % | 1 | 100.0 % |  |" in text
    assert "| b | `refsim/ptx/checks/marks.py` | `x \\| y` becomes `x & y` | the two are equal here |" in text


@pytest.mark.ci("the tables are written when edits were tried, not with each new edit")
def test_the_report_is_that_of_the_edits() -> None:
    """An edit that is new or changed counts as not tried; no verdict is kept of an edit that is gone."""
    found = mutants.table(mutants.kept(ROWS))
    advice = "python -m tests.mutants --tables writes them; --new --page first tries what has no verdict"
    assert f"<!-- tables -->\n{found}\n<!-- end of tables -->" in mutants.PAGE.read_text("utf-8"), advice
    assert {*json.loads(mutants.VERDICTS.read_text("utf-8"))} <= {row.name for row in ROWS}


def test_a_verdict_counts_for_its_edit_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = mutants.Mutant("a", "topic", "refsim/files/npz.py", "x", "y", ("t",))
    monkeypatch.setattr(mutants, "VERDICTS", tmp_path / "mutants.json")
    monkeypatch.setattr(mutants, "PAGE", tmp_path / "mutants.md")
    mutants.VERDICTS.write_text("{}")
    mutants.PAGE.write_text("<!-- tables -->\n<!-- end of tables -->\n")
    assert mutants.kept([row]) == {row: mutants.NOT_TRIED}
    mutants.keep([row], {row: "killed by t"})
    assert mutants.kept([row]) == {row: "killed"}
    assert "| all | 1 | 1 | 100.0 % |  | 100.0 % |  |" in mutants.PAGE.read_text()
    changed = replace(row, new="z")
    assert mutants.kept([changed]) == {changed: mutants.NOT_TRIED}
    mutants.keep([changed], {})
    assert "| all | 0 | 0 |  |  |  | 1 |" in mutants.PAGE.read_text()


def test_only_the_tables_of_a_report_are_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n")
    mutants.renewed(page, "new")
    assert page.read_text() == "before\n<!-- tables -->\nnew\n<!-- end of tables -->\nafter\n"


def test_a_draw_is_the_same_every_time_and_offers_no_text_of_an_error(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        'def f(x: "int | None" = 3) -> int:\n    if x < 4:\n        raise ValueError(5 + 6)\n    return x\n'
    )
    edits = set(drawn(source, "source.py", 99))
    assert edits == {
        ("if x < 4:", "if x <= 4:"),
        ("if x < 4:", "if x < 5:"),
        ('def f(x: "int | None" = 3) -> int:', 'def f(x: "int | None" = 4) -> int:'),
    }
    assert list(drawn(source, "source.py", 1)) == list(drawn(source, "source.py", 1))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name, text in {
        "gpu/sums.py": "def total(x, y):\n    return x + y\n",
        "tests/test_sums.py": "from gpu.sums import total\n\ndef test_total():\n    assert total(2, 3) == 5\n\n"
        "def test_zero():\n    assert total(0, 0) == 0\n\ndef test_red():\n    assert total(1, 1) == 3\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        ("test_total", "killed by tests/test_sums.py::test_total"),
        ("test_zero", "survived"),
        ("test_red", "broken: tests/test_sums.py::test_red fails without the edit"),
        ("test_none", "broken: exit code 4"),
    ],
)
def test_an_edit_is_killed_by_a_test_that_passes_without_it(tree: Path, test: str, verdict: str) -> None:
    row = mutants.Mutant("minus", "t", "gpu/sums.py", "x + y", "x - y", (f"tests/test_sums.py::{test}",))
    (shard,) = mutants.plan_of([row], tree).shards
    assert trial(json.loads(shard.ask)) == {"verdict": verdict}
    assert (tree / row.file).read_text() == "def total(x, y):\n    return x + y\n"


def test_a_tree_that_changed_is_another_campaign(tree: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tree, tmp_path / "other")
    plan = mutants.plan_of(mutants.mutants()[:1], other)
    (other / "gpu/sums.py").write_text("def total(x, y):\n    return y + x\n")
    assert mutants.plan_of(mutants.mutants()[:1], other).digest != plan.digest
    with pytest.raises(RefsimError, match="other-sources"):
        trial(json.loads(plan.shards[0].ask))
