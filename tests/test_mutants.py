"""The rows of mutants.toml can be tried in this tree; `python tests/mutants.py` tries them."""

from collections import Counter
from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

HERE = Path(__file__).parent
tool = load_kernel_file(HERE / "mutants.py")
ROWS = tool.mutants()


def test_each_edit_changes_one_place_and_names_tests_that_exist() -> None:
    assert [fault for row in ROWS for fault in row.faults(HERE.parent)] == []


def test_sixty_mutants_have_names_of_their_own() -> None:
    assert len(ROWS) >= 60
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


def test_an_anchor_that_moved_is_named() -> None:
    row = tool.Mutant("gone", "area", "refsim/errors.py", "no such text", "x", ("tests/no_such_test.py",))
    assert list(row.faults(HERE.parent)) == [
        "gone: 'no such text' stands 0 times in refsim/errors.py",
        "gone: there is no tests/no_such_test.py",
    ]
