"""The bring-ups of an H200 and of an H100 that are committed: they are whole, they pass, and pages are made of them."""

from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

import refsim
from refsim.bringup.conversions import is_of_8_bits
from refsim.bringup.html_report import page
from refsim.bringup.report import changes_since, read_report
from refsim.bringup.tensor_cores import instructions
from refsim.silicon.operand_starts import START_FORMS
from refsim.silicon.vectors import recordings
from refsim.testing.verdicts import PASS

REPORTS = Path(refsim.__file__).parents[1] / "conformance" / "reports"
CHIPS = {"h200": "NVIDIA H200", "h100": "NVIDIA H100 80GB HBM3"}


@pytest.fixture(scope="module", params=CHIPS)
def chip(request):
    return request.param


@pytest.fixture(scope="module")
def report(chip):
    return read_report(REPORTS / chip / "bringup.json")


def test_every_case_passes_on_real_silicon(report, chip):
    assert not report.simulated
    assert report.facts["device"] == CHIPS[chip]
    assert {case.status for case in report.cases} == {PASS}
    assert report.exit_code == 0


def test_no_instruction_is_left_out(report):
    opcodes = [row.name for row in instructions("sm_90a")]
    assert [case.name for case in report.of("numerics")] == opcodes
    assert [case.name for case in report.of("layouts") if case.name in opcodes] == opcodes
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


def test_a_page_is_made_of_it(report, chip):
    text = page(replace(report, changes=()))
    assert [case.name for case in report.cases if escape(case.name) not in text] == []
    assert f"{sum(case.words for case in report.cases):,}" in text


def test_the_second_chip_does_what_the_first_did():
    """Beside facts nothing is another: no status, no count, no parameter. The H100 was not asked for starts of operands."""
    old, new = (read_report(REPORTS / chip / "bringup.json") for chip in CHIPS)
    changed = {change.case for change in changes_since(old, new.cases, new.facts)}
    starts = {f"layouts: starts of wgmma operands, {form.name}" for form in START_FORMS}
    assert changed - {"refsim"} - starts == {"device", "memory"}


def test_the_model_went_through_all_inputs_of_conversions_into_8_bits(report):
    known = recordings("conversions")
    whole = [case.name for case in report.of("conversions") if case.words == 1 << 32 and not case.recorded]
    assert whole == [name for name, row in known.items() if "digests" in row.arrays and is_of_8_bits(row)]
    assert len(whole) == 12
    assert {case.recorded for case in report.cases} == {0, (1 << 32) - (14 << 16)}
