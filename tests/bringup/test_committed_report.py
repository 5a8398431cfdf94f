"""The bring-up of an H200 that is committed: it is whole, it passes, and its page says the same."""

from pathlib import Path

import pytest

import refsim
from refsim.bringup.html_report import page
from refsim.bringup.report import read_report
from refsim.bringup.tensor_cores import instructions
from refsim.silicon.vectors import recordings
from refsim.testing.verdicts import PASS

FOLDER = Path(refsim.__file__).parents[1] / "conformance" / "reports" / "h200"


@pytest.fixture(scope="module")
def report():
    return read_report(FOLDER / "bringup.json")


def test_every_case_passes_on_real_silicon(report):
    assert not report.simulated
    assert report.facts["device"] == "NVIDIA H200"
    assert {case.status for case in report.cases} == {PASS}
    assert report.exit_code == 0


def test_no_instruction_is_left_out(report):
    opcodes = [row.name for row in instructions("sm_90a")]
    assert [case.name for case in report.of("numerics")] == opcodes
    assert [case.name for case in report.of("layouts")][-len(opcodes) :] == opcodes
    assert [case.name for case in report.of("conversions")] == list(recordings("conversions"))
    assert len(report.of("discovery")) == 36


def test_discovery_found_what_the_rows_say(report):
    for case in report.of("discovery"):
        (row,) = [each for each in instructions("sm_90a") if each.name == case.name]
        profile = row.profile("sm_90a")
        assert case.parameters["fraction"] == profile.fraction
        assert case.parameters["rounding"] == str(profile.rounding)
        assert case.parameters["c_enters"] == profile.c_enters
        assert case.parameters["length"] == len(profile.steps(row.k)[0])


def test_the_page_is_of_the_same_run(report):
    assert (FOLDER / "bringup.html").read_text("utf-8") == page(report)
