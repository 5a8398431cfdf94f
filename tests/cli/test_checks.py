"""Checks on the command line: the table, the page that shows it, and checks left out."""

import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "conformance/reports/checks.md"
MARKED = re.compile(r"(<!-- checks -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def test_the_report_holds_the_tables(refsim, request):
    """To write it anew: pytest tests/cli/test_checks.py --refresh-golden"""
    table = refsim("ptx", "coverage", "--checks", "--as", "md").out.partition("\n\n")[2]
    text = PAGE.read_text()
    if request.config.getoption("--refresh-golden", default=False):
        PAGE.write_text(MARKED.sub(lambda found: f"{found[1]}{table}{found[3]}", text))
        return
    assert MARKED.search(text)[2] == table


def test_every_check_of_the_table_can_be_left_out(refsim, kernels):
    rows = json.loads(refsim("ptx", "coverage", "--checks", "--as", "json").out)["checks"]
    for row in rows:
        run = refsim("simulate", "turn.ptx", "turn", "--arg", "zeros:f32:64", "--without", row["check"], "--as", "json")
        assert row["check"] in json.loads(run.out)["without"]


def test_a_launch_says_what_was_left_out(refsim, kernels):
    command = ("simulate", "turn.ptx", "arrivals", "--block", "128", "--arg", "zeros:u32:1", "--arg", "zeros:u32:128")
    assert refsim(*command, "--policy", "all").code == 1
    run = refsim(*command, "--policy", "all", "--without", "schedule-dependent")
    assert run.code == 0
    assert "without              schedule-dependent" in run.out
    assert "without schedule-dependent" in run.out.splitlines()[-1]


ONE_PROBLEM = """
from dataclasses import replace
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
amax = load_kernel_file(bundled_kernels()).FP8_AMAX
KERNELS = [replace(amax, corpus=amax.corpus[:1])]
"""


def test_a_verdict_says_what_was_left_out(refsim, tmp_path):
    (tmp_path / "one.py").write_text(ONE_PROBLEM)
    command = ("verify", "--kernels", str(tmp_path / "one.py"), "--device", "sim", "--cases", "1")
    run = refsim(*command, "--without", "race", "--as", "json")
    assert run.code == 0
    left = json.loads(run.out)["device"]["without"]
    assert left == (
        "race, ordered-by-convergence, equal-stores, shared-barrier, stale-read, missing-proxy-fence, unfenced-refill, "
        "missing-grid-wait"
    )


@pytest.mark.parametrize("name", ["trap", "rase"])
def test_names_that_are_no_checks_are_refused(refsim, kernels, name):
    run = refsim("simulate", "turn.ptx", "turn", "--without", name)
    assert (run.code, run.out) == (2, "")
    assert "unknown-check" in run.err
