"""The smallest problem and text that show a difference."""

from dataclasses import replace

import pytest

from conformance.blamed.planted import POLYNOMIAL, polynomial
from conformance.blamed.stand_in import InProcess, StandInSilicon
from refsim.blame import GivenCubin, GivenLaunch, examined, of_launch, shrunk
from refsim.blame.builds import ELF
from refsim.blame.shrinking import left_out

SOUND = InProcess("ptxas 13.0.88")
WRONG = InProcess("ptxas 13.5.37", 2, (("add.rn.f32", "sub.rn.f32"),))


def test_a_launch_has_less_of_one_extent_at_a_time():
    launch = GivenLaunch("k", (5,), (1, 2), ())
    assert [(each.grid, each.block) for each in launch.smaller()] == [
        ((1,), (1, 2)),
        ((2,), (1, 2)),
        ((4,), (1, 2)),
        ((5,), (1, 1)),
    ]


@pytest.mark.parametrize("needed", [{3, 6}, {1}, {8}, set(), set(range(1, 9))])
def test_what_can_go_goes(needed):
    gone = left_out(range(1, 9), lambda items: not needed & set(items))
    assert set(gone) == set(range(1, 9)) - needed


def test_what_goes_only_after_another_has_gone_goes_too():
    gone = left_out(range(4), lambda items: not {0, 2} & set(items) and (3 not in items or 1 in items))
    assert sorted(gone) == [1, 3]


def test_a_planted_miscompile_is_shrunk_to_the_statement_and_what_it_needs():
    silicon = StandInSilicon()
    found = examined(polynomial(), [SOUND, WRONG], silicon, repeats=1)
    case = shrunk(found, silicon, seconds=60)
    assert case is not None
    assert case.is_smallest
    assert case.problem == "polynomial, grid 1, block 1"
    assert "add.rn.f32" in case.text
    assert ".entry other" not in case.text
    assert not {"setp", "bra", "ret;"} & set(case.text.replace(".", " ").split())
    assert case.candidate.instructions == 12
    assert "mov.b64 %rd5, 0;" in case.text, "the index, which thread 0 needs no thread to know"
    assert "// 1.5" not in case.text
    alone = of_launch(case.text, "sm_90a", case.given, name="small.ptx")
    again = examined(alone, [SOUND, WRONG], silicon, repeats=1)
    assert (again.verdict, again.culprits[0].build) == ("ptxas", WRONG)


def test_the_name_that_a_template_has_for_people_stays():
    silicon, named = StandInSilicon(), POLYNOMIAL + "// refsim entry: power<4> = polynomial\n// a remark\n"
    case = shrunk(examined(polynomial(named), [SOUND, WRONG], silicon, repeats=1), silicon, seconds=60)
    assert case is not None
    assert case.text.endswith("// refsim entry: power<4> = polynomial\n")


def test_half_of_the_time_is_kept_for_the_text():
    """A search for a smaller problem that never gives up is ended."""
    calls = []

    def endless(problem, shows):
        while len(calls) < 4000 and shows(problem):
            calls.append(problem)
        return problem

    subject, silicon = replace(polynomial(), smaller=endless), StandInSilicon()
    found = examined(subject, [SOUND, WRONG], silicon, repeats=1)
    case = shrunk(found, silicon, seconds=1)
    assert case is not None
    assert 0 < len(calls) < 4000


def test_of_given_machine_code_only_the_launch_is_shrunk(tmp_path):
    silicon = StandInSilicon()
    given = GivenCubin(tmp_path / "mine.cubin", ELF + POLYNOMIAL.replace("add.rn.f32", "sub.rn.f32").encode())
    case = shrunk(examined(polynomial(), [SOUND, given], silicon, repeats=1), silicon, seconds=60)
    assert case is not None
    assert (case.problem, case.is_smallest) == ("polynomial, grid 1, block 1", False)
    assert case.candidate.text == POLYNOMIAL


def test_nothing_is_shrunk_where_nobody_is_blamed_or_no_time_is_left():
    silicon = StandInSilicon()
    assert shrunk(examined(polynomial(), [SOUND], silicon, repeats=1), silicon) is None
    found = examined(polynomial(), [SOUND, WRONG], silicon, repeats=1)
    assert shrunk(found, silicon, seconds=-1) is None
