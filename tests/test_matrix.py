"""The matrix of versions: what its rows install, what is said of a run, and that the page shows the committed report."""

import json

import pytest

from refsim.testing.kernel_files import load_kernel_file
from tests.bare_machine import ROOT

tool = load_kernel_file(ROOT / "tests/matrix.py")
REPORT = json.loads(tool.REPORT.read_text("utf-8"))


def test_the_least_that_is_admitted_is_installed_by_its_version() -> None:
    least, newest = (tool.Row("3.11", packages, "13.0").requirements() for packages in ("least", "newest"))
    assert "numpy==2.0" in least
    assert "numpy>=2.0" in newest
    assert [each for each in least if ">=" in each] == []
    assert "nvidia-cuda-nvrtc==13.5.*" in tool.Row("3.12", "newest", "13.5").requirements()


def test_the_tests_of_a_row_exist() -> None:
    assert [name for name in tool.CORE if not (ROOT / name.partition("::")[0]).is_file()] == []


@pytest.mark.parametrize(
    "change",
    [{"passed": 0}, {"failed": 1}, {"verdict": "fail"}, {"ptx": "9.0"}],
    ids=lambda change: next(iter(change)),
)
def test_a_row_is_sound_only_if_its_own_compiler_made_a_kernel_that_passes(change: dict[str, object]) -> None:
    row = {"passed": 9, "failed": 0, "verdict": "pass", "ptx": "9.5", "nvidia-cuda-nvrtc": "13.5.37"}
    assert tool.sound(row)
    assert not tool.sound({**row, **change})


def test_a_row_without_its_python_says_so() -> None:
    absent = {"row": "3.14-newest-13.5", "absent": "no Python 3.14 on this machine"}
    assert tool.line(absent) == "3.14-newest-13.5   no Python 3.14 on this machine"
    assert "| 3.14-newest-13.5 | no Python 3.14 on this machine | |" in tool.table({**REPORT, "rows": [absent]})


def test_every_row_was_run_and_is_sound() -> None:
    assert [row["row"] for row in REPORT["rows"]] == [row.name for row in tool.ROWS]
    assert [row["row"] for row in REPORT["rows"] if not tool.sound(row)] == []
    assert {row["ptx"] for row in REPORT["rows"]} == {"9.0", "9.5"}


def test_the_page_shows_the_report() -> None:
    page = tool.PAGE.read_text("utf-8")
    assert page == tool.renewed(page, REPORT)
