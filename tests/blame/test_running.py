"""What two runs have in common, and what of a difference is excused."""

import numpy as np
import pytest

from refsim.blame.running import RunWords
from refsim.errors import Kind, RefsimError


def run(*words, **named):
    return RunWords({"y": np.array(words, np.uint32)}, **named)


def ended(code):
    return RunWords(None, RefsimError(code, f"ended by {code}", kind=Kind.FAULT))


def test_the_first_difference_is_said_with_its_place_and_how_many_there_are():
    assert run(1, 2, 3).first_difference(run(1, 5, 4)) == "y[1]: 0x00000002, model 0x00000005; 2 of 3 differ"
    assert run(1, 2, 3).first_difference(run(1, 5, 4), {"y": np.array([True, True, False])}) == (
        "y[2]: 0x00000003, model 0x00000004; 1 of 3 differ"
    )
    assert run(1, 2).first_difference(run(1, 2)) == ""
    assert run(1, 2).first_difference(run(1)) == "y has another shape"
    assert run(1, 2).first_difference(RunWords({})) == "y has another shape"
    assert run(1).first_difference(ended("race")) == "[race] ended by race"


def test_runs_agree_by_words_or_by_the_kind_of_their_fault():
    assert run(1, 2).agrees(run(1, 2))
    assert not run(1, 2).agrees(run(1, 3))
    assert not run(1, 2).agrees(RunWords({"y": np.array([1, 2], np.uint32), "z": np.zeros(1, np.uint32)}))
    assert not run(1).agrees(ended("race"))
    assert not ended("race").agrees(run(1))
    assert ended("race").agrees(ended("race"))
    assert not ended("race").agrees(ended("launch-failed"))


def test_only_words_that_hang_on_open_bits_are_excused():
    model = run(1, 2, open_bits=("mul.f32",), open_words={"y": np.array([False, True])})
    assert model.excuses(run(1, 9), model)
    assert not model.excuses(run(9, 2), model)
    assert not model.excuses(run(1), model)
    assert not model.excuses(ended("race"), model)
    assert not model.excuses(RunWords({"z": np.array([1, 2], np.uint32)}), model)
    assert not run(1, 2).excuses(run(1, 9), run(1, 2)), "nothing is open"
    assert run(1, 2, open_bits=("mul.f32",)).excuses(ended("race"), model), "where nobody can tell, everything may be"


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("k: red.global.add.f32 at PTX line 3", True),
        ("k: atom.add.noftz.f16x2 at PTX line 3", True),
        ("k: cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 at PTX line 9", True),
        (
            "k: mul.f32 at PTX line 3 feeds add.f32 at PTX line 4: ptxas may contract them into one fma; write .rn",
            False,
        ),
        ("k: ex2.approx.f32 at PTX line 3: as on sm_90, unverified on sm_120a", False),
        ("redundant: mul.f32 at PTX line 3", False),
    ],
)
def test_sums_by_atomics_depend_on_the_order(statement, answer):
    assert run(1, open_bits=(statement,)).depends_on_order is answer
    assert run(1, open_bits=("redundant: mul.f32 at PTX line 3", statement)).depends_on_order is answer
