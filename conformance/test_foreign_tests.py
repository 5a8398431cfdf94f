"""The lists of other packages' tests, how runs of them are judged, and what the committed report says."""

import json
from pathlib import Path

import pytest

from conformance.foreign_tests.__main__ import (
    CAUSES,
    FAILED,
    NOT_RUN,
    PACKAGES,
    PASSED,
    REPORTS,
    SKIPPED,
    WRONG,
    Outcome,
    key,
    listed,
    of_package,
    outcomes,
    page,
)

JUNIT = """<testsuites><testsuite>
<testcase classname="cudapy.test_math.TestMath" name="test_sin"/>
<testcase classname="test_driver" name="test_flip[int32-1]"><skipped/></testcase>
<testcase classname="cudapy.test_math.TestMath" name="test_cos"><failure>E  x.UnsupportedError: cuMemAllocManaged is not simulated
</failure></testcase>
<testcase classname="cudapy.test_math.TestMath" name="test_tan"><failure>E  AssertionError: 1 != 2
</failure></testcase>
</testsuite></testsuites>
"""


def test_a_run_is_read_test_by_test(tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(JUNIT)
    found = outcomes(tmp_path / "run.xml")
    assert {name: each.word for name, each in found.items()} == {
        key("a/test_math.py::TestMath::test_sin"): PASSED,
        key("test_driver.py::test_flip[int32-1]"): SKIPPED,
        key("test_math.py::TestMath::test_cos"): FAILED,
        key("test_math.py::TestMath::test_tan"): FAILED,
    }
    causes = {name[-1]: each.cause for name, each in found.items() if each.word == FAILED}
    assert causes == {"test_cos": "managed memory (cuMemAllocManaged)", "test_tan": WRONG}


def test_a_later_run_counts_and_what_never_ran_is_told(tmp_path: Path) -> None:
    node = listed("pycuda")[0]
    file, group, name = node.split("::")
    for number, inner in enumerate(("<failure>E x</failure>", ""), 1):
        case = f'<testcase classname="{Path(file).stem}.{group}" name="{name}">{inner}</testcase>'
        (tmp_path / f"pycuda.{number}.xml").write_text(f"<testsuite>{case}</testsuite>")
    found = of_package("pycuda", tmp_path)
    assert found.pop(node).word == PASSED
    assert {each.word for each in found.values()} == {NOT_RUN}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_list_names_each_test_once(package: str) -> None:
    nodes = listed(package)
    assert len(nodes) == len(set(map(key, nodes)))
    assert all("::test_" in node and node.partition("::")[0].endswith(".py") for node in nodes)


def test_the_report_holds_what_was_promised() -> None:
    """At least 300 tests chosen, 80 % of them pass, none returns a wrong result, every failure has one of at most 15 causes."""
    report = json.loads((REPORTS / "foreign_tests.json").read_text())
    assert {package: list(tests) for package, tests in report.items()} == {each: listed(each) for each in PACKAGES}
    ended = [each for tests in report.values() for each in tests.values()]
    assert len(ended) >= 300
    assert sum(each["word"] == PASSED for each in ended) >= 0.8 * len(ended)
    causes = {each["cause"] for each in ended if each["word"] == FAILED}
    assert WRONG not in causes
    assert causes <= {each.name for each in CAUSES}
    assert len(CAUSES) <= 15


def test_the_page_is_that_of_the_report() -> None:
    report = json.loads((REPORTS / "foreign_tests.json").read_text())
    found = {package: {node: Outcome(**each) for node, each in tests.items()} for package, tests in report.items()}
    assert (REPORTS / "foreign_tests.md").read_text() == page(found)


def test_another_version_of_a_package_has_a_table_of_its_own() -> None:
    """Triton 3.6.0: what passes and why the rest does not; no result is wrong, and nothing is left out."""
    report = json.loads((REPORTS / "foreign_tests_triton_3.6.0.json").read_text())
    assert {package: list(tests) for package, tests in report.items()} == {"triton": listed("triton")}
    found = {package: {node: Outcome(**each) for node, each in tests.items()} for package, tests in report.items()}
    assert (REPORTS / "foreign_tests_triton_3.6.0.md").read_text() == page(found, "Triton 3.6.0")
    ended = list(found["triton"].values())
    assert sum(each.word == PASSED for each in ended) >= 0.8 * len(ended)
    assert WRONG not in {each.cause for each in ended}
