"""The mistakes planted in kernels: the table is sound, each mistake shows, and verdicts are as the table says."""

import re

import pytest

from conformance.explained_kernels import trials
from conformance.explained_kernels.__main__ import page
from conformance.explained_kernels.cases import cases
from refsim import device
from refsim.causes import DiffExplanation
from refsim.causes.explanation import DiffOutcome
from refsim.causes.search import Named
from refsim.computations.ways import Cause
from refsim.sources import PTX
from refsim.testing import laws

LEAST_MISTAKES, LEAST_KERNELS, LEAST_CONTROLS = 66, 11, 15
TABLE = trials.planted()


def said(*words: str, differing: int = 5) -> DiffExplanation:
    named = tuple(Named((Cause(each, "", "", None, PTX["st"]),), differing, is_whole=True) for each in words)
    outcome = DiffOutcome.EXPLAINED if words else DiffOutcome.UNEXPLAINED
    return DiffExplanation(outcome, differing, 9, 9, named)


def test_the_list_is_long_enough_and_every_answer_is_a_pattern():
    assert len(TABLE) >= LEAST_MISTAKES
    assert len({cases()[each.case].kernel.name for each in TABLE.values()}) >= LEAST_KERNELS
    assert len(trials.controls()) >= LEAST_CONTROLS
    assert {each.kind for each in TABLE.values() if not each.says} == set(trials.answers())
    assert all(re.compile(pattern) for pattern in (*trials.answers().values(), *(each.says for each in TABLE.values())))
    assert set(TABLE).isdisjoint(trials.controls())


@pytest.mark.sampled(16, "the others in CI")
@pytest.mark.parametrize("name", TABLE)
def test_a_planted_mistake_shows(name, tmp_path):
    case = cases()[TABLE[name].case]
    seen = laws.observe(TABLE[name].kernel(tmp_path), case.problem, device.open("sim", case.target))
    assert any(each.count for each in seen.mismatches)


def test_a_text_that_does_not_stand_once_is_refused(tmp_path):
    mistake = trials.Planted("other", "groups", "amax", "", (("", "float", "double"),))
    with pytest.raises(ValueError, match="other: 'float' stands"):
        mistake.kernel(tmp_path)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"q": said("pads not written"), "scales": said()}, trials.RIGHT),
        ({"q": said("format", "pads not written")}, trials.RIGHT),
        ({"q": said("pads not written"), "scales": said("format")}, trials.WRONG),
        ({"q": said("another factor")}, trials.UNNAMED),
        ({"q": said("format")}, trials.WRONG),
        ({"q": said()}, trials.UNNAMED),
        ({"q": said(differing=0)}, trials.NO_DIFFERENCE),
    ],
)
def test_every_output_with_a_name_needs_the_right_one(found, verdict):
    mistake = trials.Planted("other", "groups", "pads", "", ())
    assert trials.of_mistake(mistake, found) == verdict


def test_a_permutation_is_located_by_a_number_of_its_words():
    mistake = TABLE["int8-rows-8-apart"]
    assert mistake.is_located(["rows 8 apart are exchanged"])
    assert not mistake.is_located(["rows 32 apart are exchanged"])


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("groups-code-plus-one", True),
        ("groups-neighbour-scale", True),
        ("groups-inverse-stored", True),
        ("uncast-scale-inverse", True),
        ("sm120-c1-c2", True),
        ("half-a-registers", True),
        ("int8-b-registers", True),
        ("int8-dequant-zero-minus-one", True),
        ("int8-bytes-exchanged", True),
        ("low-bits/matmul_f16", False),
    ],
)
def test_a_mistake_is_asked_about(name, is_named):
    row = trials.asked(name)
    assert row["verdict"] == trials.RIGHT
    assert bool(row["says"]) == is_named
    text = page(trials.summary([row], "python -m conformance.explained_kernels"), [row])
    assert f"| {name} | {row['kernel']} | right |" in text
