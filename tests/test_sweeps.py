"""What a profile runs of a sweep: spread over all values, the same in every worker, whole where something asks for it."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sweeps import CASES, ROWS, WHOLE, Sweeps, left_out, named_in, spread, thin_in

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest

@pytest.mark.parametrize("other", "xyz")
@pytest.mark.parametrize("number", range(10))
def test_sweep(number, other):
    assert number != 11

@pytest.mark.parametrize("number", [0, *(pytest.param(each, marks=pytest.mark.ci("larger")) for each in range(1, 9))])
def test_marked(number):
    pass

@pytest.mark.sampled(7, "others are like them")
@pytest.mark.parametrize("number", range(9))
def test_sampled(number):
    pass
"""
CONFTEST = """
def pytest_configure(config):
    from tests.sweeps import Sweeps

    for mark in ("ci", "sampled"):
        config.addinivalue_line("markers", mark)
    config.pluginmanager.register(Sweeps("{profile}"))
"""


def test_a_spread_has_all_values_before_it_repeats_some() -> None:
    sets = [{"a": a, "b": b} for a in range(2) for b in range(4)]
    assert spread(sets, 2) == [0, 5]
    assert spread(sets, 4) == [0, 2, 5, 7]
    for sizes in ((3, 4), (4, 4, 2), (2, 3, 4)):
        sets = [dict(zip("abc", values, strict=False)) for values in itertools.product(*map(range, sizes))]
        kept = [sets[place] for place in spread(sets, max(sizes))]
        assert all(len({each[name] for each in kept}) == size for name, size in zip("abc", sizes, strict=False))
        assert spread(sets, len(sets) + 1) == list(range(len(sets)))


def test_places_of_one_parameter_lie_all_over_the_list() -> None:
    for count in (9, 20, 100, 377):
        kept = [0, *spread([{"number": number} for number in range(count)], CASES), count]
        assert max(after - before for before, after in itertools.pairwise(kept)) <= count * 0.62 + 1


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(SUITE)

    def of(profile: str, *arguments: str) -> str:
        (tmp_path / "conftest.py").write_text(CONFTEST.format(profile=profile))
        plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False).stdout

    return of


def test_what_is_left_out_is_counted_and_the_rest_runs(run) -> None:
    assert CASES == 3
    output = run("quick")
    assert "15 passed, 33 deselected" in output  # 3 of 30, all 9 of which 8 have a mark of their own, 3 of 9
    assert "quick: 33 cases of 2 sweeps of more than 3 were left out: --refsim-profile=ci runs them all" in output


def test_in_ci_a_sweep_is_as_large_as_its_mark_says(run) -> None:
    output = run("ci")
    assert "46 passed, 2 deselected" in output
    assert "LEFT [2] test_it.py::test_sampled: others are like them: --refsim-profile=night" in output


def test_who_names_a_file_or_chooses_gets_all(run) -> None:
    assert "48 passed" in run("quick", "test_it.py")
    assert "30 passed, 18 deselected" in run("quick", "-k", "test_sweep")


def test_what_a_row_of_mutants_names_is_kept() -> None:
    class Case:
        def __init__(self, number: int) -> None:
            self.nodeid, self.callspec = f"f.py::test_t[{number}]", self
            self.indices = {"number": number}

        def get_closest_marker(self, name: str) -> None:
            return None

    cases = [Case(number) for number in range(20)]

    def left(*named: str) -> set[int]:
        gone = left_out(cases, "quick", named)
        return {case.indices["number"] for each in gone.values() for case in each}

    assert len(left()) == 17
    some = min(left())
    assert left(f"f.py::test_t[{some}]") == left() - {some}
    assert left("f.py::test_t") == left("f.py") == set()


@pytest.mark.parametrize("names", [named_in(ROWS), thin_in(WHOLE)], ids=["of mutants", "whole"])
def test_tests_that_a_table_names_run_in_quick(names: frozenset[str], request: pytest.FixtureRequest) -> None:
    """Those whose files this run has collected, which in a run of all tests is every one."""
    config, items = request.config, request.session.items
    if (
        config.option.keyword
        or config.option.markexpr
        or config.getoption("lf", False)
        or "::" in " ".join(config.args)
    ):
        pytest.skip("this run has chosen some tests of a file")
    collected = {item.nodeid.partition("::")[0] for item in items}
    running = [item.nodeid for item in items if not any(item.get_closest_marker(mark) for mark in ("ci", "night"))]
    there = {part for nodeid in running for part in (nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0])}
    asked = {name for name in names if name.partition("::")[0] in collected}
    if not asked:
        pytest.skip("the table names no test of the files that this run has collected")
    assert asked - there == set()


def test_the_hooks_tell_the_reporting_process_what_workers_left_out() -> None:
    plugin, lines = Sweeps("quick"), []
    plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"refsim_left": {"f.py::test_t": 3}}))
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines[0].startswith("quick: 3 cases of 1 sweeps of more than 3 were left out")
