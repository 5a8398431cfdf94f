"""Who is blamed: planted miscompiles, wrong models, races, open bits, edits."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.blamed.planted import CONTRACTED, PLANTED, POLYNOMIAL, last_wins, polynomial, sums
from conformance.blamed.stand_in import InProcess, StandInSilicon
from refsim.blame import GivenCubin, GivenLaunch, examined, of_launch
from refsim.blame.builds import ELF
from refsim.blame.examining import examined_without_gpu
from refsim.errors import RefsimError

SOUND = InProcess("ptxas 13.0.88")


@pytest.mark.parametrize("edit", PLANTED.values(), ids=PLANTED)
def test_a_build_that_disagrees_with_the_others_is_blamed(edit):
    wrong = InProcess("ptxas 13.5.37", 2, (edit,))
    found = examined(polynomial(), [SOUND, wrong], StandInSilicon(), repeats=2)
    assert (found.verdict, found.exit_code) == ("ptxas", 1)
    assert [row.build for row in found.culprits] == [wrong]
    assert [row.state for row in found.rows] == ["equal", "differs"]
    assert found.culprits[0].first.startswith("arg1[")


def test_equal_words_blame_nobody():
    found = examined(polynomial(), [SOUND, InProcess("ptxas 13.5.37")], StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code, found.culprits) == ("none", 0, ())


def test_where_every_build_writes_the_same_other_words_the_model_is_asked():
    edit = (PLANTED["rounding"],)
    found = examined(polynomial(), [InProcess("a", 0, edit), InProcess("b", 3, edit)], StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code) == ("model", 1)


def test_builds_that_are_wrong_in_two_ways_blame_ptxas():
    builds = [InProcess("a", 0, (PLANTED["rounding"],)), InProcess("b", 3, (PLANTED["constant"],))]
    assert examined(polynomial(), builds, StandInSilicon(), repeats=1).verdict == "ptxas"


def test_one_build_alone_decides_nothing():
    found = examined(polynomial(), [InProcess("a", 3, (PLANTED["constant"],))], StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code) == ("undecided", 1)


def test_words_that_change_from_run_to_run_are_a_race():
    silicon = StandInSilicon(later=PLANTED["constant"])
    found = examined(polynomial(), [SOUND], silicon, repeats=2)
    assert (found.verdict, found.rows[0].state) == ("race", "varies")
    assert "runs of one cubin differ" in found.because[0]


def test_a_race_that_the_simulator_finds_is_blamed_before_anything_runs():
    silicon = StandInSilicon()
    found = examined(last_wins(), [SOUND], silicon, repeats=1)
    assert (found.verdict, found.exit_code, silicon.loads) == ("race", 1, 0)
    assert found.because[0].startswith("[race]")


def test_a_fault_that_is_no_race_is_the_kernels():
    text = POLYNOMIAL.replace("setp.ge.u32 %p1, %r4, %r5;", "setp.ge.u32 %p1, %r4, 99;")
    found = examined(polynomial(text), [SOUND], StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code) == ("kernel", 1)
    assert found.because[0].startswith("[out-of-bounds]")


def test_open_arithmetic_is_named_and_nobody_blamed():
    other = InProcess("b", 3, (PLANTED["constant"],))
    found = examined(polynomial(CONTRACTED), [SOUND, other], StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code) == ("open", 5)
    assert "mul.f32 at PTX line" in found.because[0]


OTHER_SUM = ("red.global.add.f32 [%rd2], %f1", "red.global.add.f32 [%rd2], 0f3F800001")
OTHER_STORE = ("add.rn.f32 %f2, %f1, 0f3F800000", "add.rn.f32 %f2, %f1, 0f3F800001")


def test_a_word_that_no_open_bit_reaches_is_compared():
    """A sum of atomics excuses itself, and not its neighbour."""
    found = examined(sums(), [SOUND, InProcess("b", 3, (OTHER_SUM,))], StandInSilicon(), repeats=1)
    assert (found.verdict, [row.state for row in found.rows]) == ("open", ["equal", "open"])
    assert found.because == ("sums: red.global.add.f32 at PTX line 17",)
    found = examined(sums(), [SOUND, InProcess("b", 3, (OTHER_SUM, OTHER_STORE))], StandInSilicon(), repeats=1)
    assert (found.verdict, [row.state for row in found.rows]) == ("ptxas", ["equal", "differs"])
    assert found.rows[1].first.startswith("arg1[")
    assert not found.rows[1].first.startswith("arg1[0]")


def test_builds_that_differ_in_open_words_alone_are_alike():
    builds = [InProcess("a", 0, (OTHER_STORE,)), InProcess("b", 3, (OTHER_SUM, OTHER_STORE))]
    assert examined(sums(), builds, StandInSilicon(), repeats=1).verdict == "model"


def test_sums_whose_order_is_open_may_vary_and_other_words_may_not():
    for later, verdict, state in ((OTHER_SUM, "open", "open"), (OTHER_STORE, "race", "varies")):
        found = examined(sums(), [SOUND], StandInSilicon(later=later), repeats=2)
        assert (found.verdict, found.rows[0].state) == (verdict, state)
    fused = StandInSilicon(later=PLANTED["constant"])
    assert examined(polynomial(CONTRACTED), [SOUND], fused, repeats=2).verdict == "race", (
        "one cubin has one contraction"
    )


def test_a_launch_that_the_driver_refuses_blames_nobody():
    class Refusing(StandInSilicon):
        def loaded_cubin(self, cubin, text, source):
            if b"0f3FC00001" in cubin:
                raise RefsimError("driver-refused", "the driver refused the launch: out of resources")
            return super().loaded_cubin(cubin, text, source)

    hungry = InProcess("ptxas 13.0.88", 0, (PLANTED["constant"],))
    found = examined(polynomial(), [SOUND, hungry], Refusing(), repeats=1)
    assert (found.verdict, [row.state for row in found.rows]) == ("none", ["equal", "refused"])
    assert "out of resources" in found.rows[1].first
    edited = InProcess("mine", 3, (PLANTED["constant"],), is_edited=True)
    found = examined(polynomial(), [SOUND, edited], Refusing(), repeats=1)
    assert (found.verdict, found.exit_code) == ("not-run", 5)
    assert found.because[0].startswith("what was edited was not run: [driver-refused]")


def test_of_what_was_edited_alone_changing_words_blame_the_edit():
    silicon = StandInSilicon(later=("0f41200000", "0fC1200000"))
    edited = InProcess("mine", 3, (("0f40490FDB", "0f41200000"),), is_edited=True)
    wanted = InProcess("ptxas 13.0.88", 3, (("0f41200000", "10.0"),))
    found = examined(polynomial(), [wanted, edited], silicon, repeats=2)
    assert (found.verdict, [row.state for row in found.rows]) == ("edited", ["equal", "varies"])
    assert not found.is_shrinkable, "no text is held to words that change"


def test_an_edited_text_is_held_beside_the_builds_of_the_kernels_own():
    edited = POLYNOMIAL.replace(*PLANTED["add-sub"])
    builds = [SOUND, InProcess("ptxas 13.0.88", 3, is_edited=True)]
    found = examined(polynomial(), builds, StandInSilicon(), edited=edited, repeats=1)
    assert (found.verdict, [row.state for row in found.rows]) == ("edited", ["equal", "differs"])


def test_without_a_gpu_an_edited_text_is_edited_where_it_writes_other_words():
    equal, other = f"{POLYNOMIAL}// as it was\n", POLYNOMIAL.replace(*PLANTED["add-sub"])
    assert examined_without_gpu(polynomial(), [SOUND], edited=equal).verdict == "simulated"
    assert examined_without_gpu(polynomial(), [SOUND], edited=other).verdict == "edited"


def test_a_launch_is_cooperative_where_that_was_asked_for():
    """5,000 blocks are not resident at once, which only a cooperative launch asks for."""
    x = np.zeros(4, np.float32)
    launch = GivenLaunch("polynomial", (5000,), (8,), (x, x, np.uint32(4)))
    found = examined_without_gpu(of_launch(POLYNOMIAL, "sm_90a", launch, name="p.ptx"), [SOUND])
    assert found.verdict == "simulated"
    asked = of_launch(POLYNOMIAL, "sm_90a", replace(launch, cooperative=True), name="p.ptx")
    with pytest.raises(RefsimError, match="a cooperative grid of 5,000 blocks"):
        examined_without_gpu(asked, [SOUND])


def test_machine_code_that_was_given_is_run_as_it_is(tmp_path):
    image = ELF + POLYNOMIAL.replace(*PLANTED["add-sub"]).encode()
    found = examined(polynomial(), [SOUND, GivenCubin(tmp_path / "mine.cubin", image)], StandInSilicon(), repeats=1)
    assert (found.verdict, found.culprits[0].build.label) == ("edited", "mine.cubin")


def test_a_build_that_ends_in_a_fault_differs():
    wrong = InProcess("b", 3, (("setp.ge.u32 %p1, %r4, %r5", "setp.ge.u32 %p1, %r4, 99"),))
    found = examined(polynomial(), [SOUND, wrong], StandInSilicon(), repeats=1)
    assert (found.verdict, found.rows[1].state) == ("ptxas", "faults")
    assert found.rows[1].first.startswith("[out-of-bounds]")


def test_a_kernel_without_an_element_blames_nobody():
    launch = GivenLaunch("polynomial", (1,), (8,), (np.zeros(0, np.float32), np.zeros(0, np.float32), np.uint32(0)))
    with pytest.raises(RefsimError, match="nothing-compared"):
        examined(of_launch(POLYNOMIAL, "sm_90a", launch, name="empty.ptx"), [SOUND], StandInSilicon(), repeats=1)
    no_array = GivenLaunch("polynomial", (1,), (8,), (np.uint32(0),))
    with pytest.raises(RefsimError, match="is given no array"):
        of_launch(POLYNOMIAL, "sm_90a", no_array, name="empty.ptx")
    assert of_launch(POLYNOMIAL, "sm_90a", no_array, name="empty.ptx", compares=False).entries == ("polynomial",)
