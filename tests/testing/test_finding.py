"""One observation, one finding: which mismatch stands for it, and what is said of bits that stayed open."""

import numpy as np
import pytest

from refsim.compare import bits
from refsim.errors import Kind, RefsimError
from refsim.testing.decisions import DecisionBits, Finding, Observation, blamed, decide, listed, with_open_bits


def observed(*mismatches, elements=1, reached=None):
    return Observation({}, mismatches, elements, (), (), reached=reached)


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_of_several_outputs_stands_for_all_and_all_are_said(halve_kernel, order):
    want = np.zeros(4, np.uint16)
    near, far = (bits(want + np.uint16(ulps), want, "bf16", name=name) for ulps, name in ((1, "near"), (9, "far")))
    found = decide(halve_kernel, observed(*(near, far)[::order]), None)
    assert found.mismatch is far
    assert "near" in found.text
    assert "far" in found.text


def test_a_list_says_how_many_it_leaves_out():
    assert listed("abcdef") == "a; b; c; d; e; f"
    assert listed("abcdefgh") == "a; b; c; d; e; f; and 2 more"


@pytest.mark.parametrize(("elements", "reached", "followed"), [(5, (), 1), (0, (), 0), (5, None, 0)])
def test_a_run_of_no_elements_follows_no_bits(elements, reached, followed):
    known = DecisionBits()
    known.note(observed(elements=elements, reached=reached))
    assert known.followed == followed


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("timeout", Kind.FAULT, "timeout"),
        ("race", Kind.FAULT, "fail"),
        ("bad-kernel", Kind.INCONCLUSIVE, "unsupported"),
    ],
)
def test_an_error_is_the_kernels_by_its_kind(code, kind, status):
    assert blamed(RefsimError(code, "x", kind=kind), None).status == status


@pytest.mark.parametrize("code", ["timeout", "race"])
def test_an_error_that_is_not_the_kernels_is_raised(code):
    with pytest.raises(RefsimError):
        blamed(RefsimError(code, "x", kind=Kind.USAGE), None)


@pytest.mark.parametrize("is_open", [True, False])
def test_open_bits_of_another_case_are_not_said_of_a_finding_without_any(halve_kernel, is_open):
    known = DecisionBits({"rcp.approx.f32 at PTX line 7": None})
    text, notes = with_open_bits(halve_kernel, Finding("fail", "1 differs", None, is_open=is_open), known)
    assert (text == "1 differs") is not is_open
    assert ("rcp.approx" in text) is is_open
    assert notes == ()
