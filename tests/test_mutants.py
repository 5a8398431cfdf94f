"""The rows of mutants.toml can be tried in this tree; `python tests/mutants.py` tries them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

HERE = Path(__file__).parent
tool, draw = (load_kernel_file(HERE / name) for name in ("mutants.py", "draw_mutants.py"))
ROWS = tool.mutants()


def test_each_edit_changes_one_place_and_names_tests_that_exist() -> None:
    assert [fault for row in ROWS for fault in row.faults(HERE.parent)] == []


def test_hundreds_of_mutants_have_names_of_their_own() -> None:
    assert len(ROWS) >= 320
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


def test_an_anchor_that_moved_is_named() -> None:
    row = tool.Mutant("gone", "area", "refsim/errors.py", "no such text", "x", ("tests/no_such_test.py",))
    assert list(row.faults(HERE.parent)) == [
        "gone: 'no such text' stands 0 times in refsim/errors.py",
        "gone: there is no tests/no_such_test.py",
    ]


def test_the_table_counts_by_the_folder_of_the_edit_and_says_what_lives() -> None:
    names = {"a": "refsim/ptx/checks/races.py", "b": "refsim/ptx/checks/marks.py", "c": "refsim/files/npz.py"}
    rows = [tool.Mutant(name, "topic", file, "x | y", "x & y", ("t",)) for name, file in names.items()]
    excused = replace(rows[1], survives="the two are equal here")
    text = tool.table({rows[0]: "killed by t", excused: "survived", rows[2]: "killed by t"})
    assert "| ptx/checks | 1 | 2 | 50.0 % | 1 | 100.0 % |" in text
    assert "| files | 1 | 1 | 100.0 % |  | 100.0 % |" in text
    assert "| all | 2 | 3 | 66.7 % | 1 | 100.0 % |" in text
    assert "| b | `refsim/ptx/checks/marks.py` | `x \\| y` becomes `x & y` | the two are equal here |" in text


def test_only_the_tables_of_a_report_are_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n")
    tool.renewed(page, "new")
    assert page.read_text() == "before\n<!-- tables -->\nnew\n<!-- end of tables -->\nafter\n"


def test_a_draw_is_the_same_every_time_and_offers_no_text_of_an_error(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        'def f(x: "int | None" = 3) -> int:\n    if x < 4:\n        raise ValueError(5 + 6)\n    return x\n'
    )
    edits = set(draw.drawn(source, "source.py", 99))
    assert edits == {
        ("if x < 4:", "if x <= 4:"),
        ("if x < 4:", "if x < 5:"),
        ('def f(x: "int | None" = 3) -> int:', 'def f(x: "int | None" = 4) -> int:'),
    }
    assert list(draw.drawn(source, "source.py", 1)) == list(draw.drawn(source, "source.py", 1))
