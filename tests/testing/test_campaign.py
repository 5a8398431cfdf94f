"""The campaign finds what is broken, shrinks it, writes it down, and blames the right side."""

import itertools
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from refsim.errors import Kind, RefsimError
from refsim.testing import campaign, run_campaign
from refsim.testing.recipes import Tensor
from refsim.testing.replay import load_case, replay_case
from refsim.testing.verdicts import Verdict


def test_right_kernel_passes(halve_kernel, fake_device):
    verdict = run_campaign(halve_kernel, fake_device(), profile="quick")
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(halve_kernel.corpus) + 25
    assert verdict.exit_code == 0
    assert str(verdict).startswith("pass  halve on fake numpy: 27 cases")


def test_wrong_tail_shrinks_to_one_patched_element(halve_kernel, fake_device, right_halve):
    """The last element beyond 1000 is copied, not halved: the smallest problem has 1001 elements."""

    def wrong_tail(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if n > 1000:
            launcher.view(y)[-1] = launcher.view(x)[-1]

    verdict = run_campaign(halve_kernel, fake_device(wrong_tail), profile="ci")
    assert verdict.status == "fail"
    problem = verdict.problem
    assert problem["n"] == 1001
    assert "misalign_elements" not in problem
    assert verdict.mismatch.count == 1
    assert verdict.mismatch.patterns == ("only the last element",)
    assert "written by block 31, thread 8" in verdict.finding
    assert "address 0x1" in verdict.finding


def test_nan_bug_shrinks_to_a_single_nan(halve_kernel, fake_device, right_halve):
    def drops_nan(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        codes = launcher.view(y)
        codes[(codes & 0x7FFF) > 0x7F80] = 0

    verdict = run_campaign(halve_kernel, fake_device(drops_nan), cases=200)
    assert verdict.status == "fail"
    assert verdict.problem["n"] == 1
    assert verdict.problem_text.startswith("Tensor(n=1, format='bf16'")


def test_failure_is_written_and_replays(halve_kernel, fake_device, tmp_path):
    def wrong(launcher, x, n, y):
        launcher.view(y)[:] = 0x3F80

    verdict = run_campaign(halve_kernel, fake_device(wrong), failures_dir=tmp_path)
    assert verdict.problem == {"n": 1, "format": "bf16"}
    assert str(verdict).splitlines()[-1] == f"repeat  refsim replay {verdict.replay}"
    assert load_case(verdict.replay, halve_kernel) == (halve_kernel, Tensor(1, "bf16"))
    again = replay_case(verdict.replay, fake_device(wrong), halve_kernel)
    assert (again.status, again.mismatch, again.cases) == ("fail", verdict.mismatch, 1)
    assert replay_case(verdict.replay, fake_device(), halve_kernel).status == "pass"
    assert [path.name for path in tmp_path.iterdir()] == [verdict.replay.rpartition("/")[2]]


def test_kernel_that_fails_now_and_then_fails(halve_kernel, fake_device, right_halve):
    runs = []

    def races(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        runs.append(n)
        if n and len(runs) == 20:
            launcher.view(y)[0] ^= 1

    verdict = run_campaign(halve_kernel, fake_device(races), profile="ci")
    assert verdict.status == "fail"
    assert verdict.finding.endswith("not every run of this test case fails: the kernel does not repeat its results")


def test_failure_of_the_corpus_alone_is_reported(halve_kernel, fake_device, right_halve):
    def wrong_for_nine_bits(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if np.array_equal(launcher.view(x), halve_kernel.corpus[1].codes()):
            launcher.view(y)[3] ^= 1

    verdict = run_campaign(halve_kernel, fake_device(wrong_for_nine_bits))
    assert verdict.status == "fail"
    assert verdict.cases == 2
    assert verdict.problem_text == repr(halve_kernel.corpus[1])


def test_verdict_survives_json(halve_kernel, fake_device, tmp_path):
    def infinite(launcher, x, n, y):
        launcher.view(y)[:] = 0x7F80

    verdict = run_campaign(halve_kernel, fake_device(infinite), failures_dir=tmp_path)
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert Verdict.from_json(json.loads(text)) == verdict


def test_profiles_without_seed_repeat_themselves(halve_kernel, fake_device):
    verdicts = [run_campaign(halve_kernel, fake_device(), cases=10).to_json() | {"seconds": 0} for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["seed"] is None


def test_night_prints_its_seed_and_the_seed_repeats_it(halve_kernel, fake_device):
    events = []
    night = run_campaign(halve_kernel, fake_device(), profile="night", cases=10, on_progress=events.append)
    assert f"profile night, seed {night.seed}" in str(night)
    assert {event.seed for event in events} == {night.seed}
    assert [event.done for event in events] == list(range(1, night.cases + 1))
    again = run_campaign(halve_kernel, fake_device(), profile="night", cases=10, seed=night.seed)
    assert (again.cases, again.elements) == (night.cases, night.elements)


def test_the_search_for_suspects_is_a_phase_of_a_campaign_whose_bits_differ(halve_kernel, fake_device, right_halve):
    def wrong(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[:1] ^= 1

    for entry, seconds, looked in ((wrong, 1.0, True), (wrong, 0.0, False), (right_halve, 1.0, False)):
        events = []
        device = fake_device(entry, sees_owners=False)
        run_campaign(halve_kernel, device, cases=3, suspect_seconds=seconds, on_progress=events.append)
        assert [event.phase for event in events].count("suspects") == looked
        assert (events[-1].phase == "suspects") is looked


def test_a_search_without_a_cause_says_so(halve_kernel, fake_device, right_halve):
    def wrong(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[:1] ^= 1

    verdict = run_campaign(halve_kernel, fake_device(wrong, sees_owners=False), cases=3)
    ended = "the search ended before its limit of 10 s of processor time"
    assert verdict.notes == (f"no likely cause found: {ended}",)
    assert run_campaign(halve_kernel, fake_device(wrong, sees_owners=False), suspect_seconds=0).notes == ()


def test_guard_violation_fails_with_the_text_of_the_fault(halve_kernel, fake_device, right_halve):
    def stores_whole_vectors(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y, beyond=-int(n) % 8)[int(n) :] = 0

    verdict = run_campaign(halve_kernel, fake_device(stores_whole_vectors))
    assert verdict.status == "fail"
    assert verdict.mismatch is None
    assert verdict.finding.startswith("[guard-violated] halve wrote after buffer 'y'")
    assert verdict.problem["n"] == 1


def test_written_input_fails(halve_kernel, fake_device, right_halve):
    def scribbles(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(x)[:] |= 1

    verdict = run_campaign(halve_kernel, fake_device(scribbles))
    assert verdict.status == "fail"
    assert verdict.mismatch.name == "input x"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefsimError("timeout", "no end after 10^6 steps", kind=Kind.FAULT), "timeout"),
        (RefsimError("deadlock", "two warps wait", kind=Kind.FAULT), "fail"),
        (RefsimError("unsupported-instruction", "no clause for tex", kind=Kind.INCONCLUSIVE), "unsupported"),
    ],
)
def test_device_error_becomes_a_status(halve_kernel, fake_device, error, status):
    def raises(launcher, x, n, y):
        raise error

    verdict = run_campaign(halve_kernel, fake_device(raises))
    assert verdict.status == status
    assert error.what in verdict.finding


def test_timeout_is_written_as_a_case(halve_kernel, fake_device, tmp_path):
    def never_ends(launcher, x, n, y):
        raise RefsimError("timeout", "no end after 10^6 steps", kind=Kind.FAULT)

    verdict = run_campaign(halve_kernel, fake_device(never_ends), failures_dir=tmp_path)
    assert load_case(verdict.replay, halve_kernel)[1] == halve_kernel.corpus[0]


def test_error_of_the_request_is_raised(halve_kernel, fake_device):
    def lacks_compiler(launcher, x, n, y):
        raise RefsimError("compiler-missing", "no NVRTC", kind=Kind.MISSING)

    with pytest.raises(RefsimError, match="compiler-missing"):
        run_campaign(halve_kernel, fake_device(lacks_compiler))


def test_inexact_arithmetic_makes_the_verdict_inconclusive(halve_kernel, fake_device):
    verdict = run_campaign(halve_kernel, fake_device(inexact=("rcp.approx.ftz.f32 at PTX line 7",)))
    assert verdict.status == "inexact"
    assert verdict.exit_code == Kind.INCONCLUSIVE.value
    assert "PTX line 7" in verdict.finding


def test_a_note_is_passed_on_and_changes_no_verdict(halve_kernel, fake_device):
    verdict = run_campaign(halve_kernel, fake_device(notes=("4 B of x were never written",)))
    assert (verdict.status, verdict.exit_code, verdict.finding) == ("pass", 0, "")
    assert verdict.notes == ("4 B of x were never written",)
    assert "note  4 B of x were never written" in verdict.lines()
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_time_limit_ends_a_campaign_inconclusively(halve_kernel, fake_device):
    device = fake_device()
    verdict = run_campaign(halve_kernel, device, time_limit=0.0)
    assert verdict.status == "timeout"
    assert device.launches == 0


@pytest.fixture
def ticking(monkeypatch):
    """A clock of the campaign that goes on by a second each time it is looked at: it begins at 0, case n is at n."""
    ticks = itertools.count()
    monkeypatch.setattr(
        campaign, "time", SimpleNamespace(monotonic=lambda: float(next(ticks)), process_time=time.process_time)
    )


def test_a_campaign_goes_on_up_to_its_time_limit_and_passes_nothing(halve_kernel, fake_device, ticking):
    verdict = run_campaign(halve_kernel, fake_device(), time_limit=5.0)
    assert (verdict.status, verdict.exit_code, verdict.cases, verdict.replay) == ("timeout", 5, 5, "")
    assert verdict.finding == "the time limit ended the campaign after 5 cases"


def test_a_failure_is_made_smaller_after_the_time_limit_as_well(halve_kernel, fake_device, ticking):
    def wrong(launcher, x, n, y):
        launcher.view(y)[:] = 0x3F80

    verdict = run_campaign(halve_kernel, fake_device(wrong), time_limit=2.0)
    assert (verdict.status, verdict.cases, verdict.problem) == ("fail", 2, {"n": 1, "format": "bf16"})


def test_a_verdict_without_a_failure_leaves_no_case(halve_kernel, fake_device, tmp_path):
    def needs_more(launcher, x, n, y):
        raise RefsimError("unsupported-instruction", "no clause for tex", kind=Kind.INCONCLUSIVE)

    for device in (fake_device(inexact=("rcp.approx.ftz.f32 at PTX line 7",)), fake_device(needs_more)):
        verdict = run_campaign(halve_kernel, device, failures_dir=tmp_path)
        assert (verdict.status in ("inexact", "unsupported"), verdict.replay, list(tmp_path.iterdir())) == (
            True,
            "",
            [],
        )


def test_crash_of_the_host_function_is_the_users_error(halve_kernel, fake_device):
    def crashes(launcher, x, n, y):
        raise ZeroDivisionError("host")

    with pytest.raises(RefsimError, match="user-code-raised") as caught:
        run_campaign(halve_kernel, fake_device(crashes))
    assert caught.value.what == ("run of kernel halve raised ZeroDivisionError: host on Tensor(n=0, format='bf16')")
    assert "in crashes" in caught.value.where
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("request_", [{"profile": "cii"}, {"cases": -1}, {"seed": 0.5}, {"cases": True}])
def test_bad_request_is_refused(halve_kernel, fake_device, request_):
    with pytest.raises(RefsimError):
        run_campaign(halve_kernel, fake_device(), **request_)


def test_campaign_that_compares_nothing_is_no_pass(halve_kernel, fake_device):
    for kernel, said in (
        (replace(halve_kernel, corpus=()), "0 cases of kernel halve"),
        (replace(halve_kernel, corpus=(Tensor(0, "bf16"),) * 2), "2 cases of kernel halve"),
    ):
        with pytest.raises(RefsimError, match="nothing-compared") as caught:
            run_campaign(kernel, fake_device(), cases=0)
        assert (caught.value.exit_code, caught.value.what[: len(said)]) == (2, said)


def test_campaign_without_a_launch_is_the_users_error(halve_kernel, fake_device, tmp_path):
    idle = replace(halve_kernel, run=lambda launcher, problem: halve_kernel.oracle(problem))
    with pytest.raises(RefsimError, match="nothing-launched") as caught:
        run_campaign(idle, fake_device(), failures_dir=tmp_path)
    assert (caught.value.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_json_counts_every_output_and_lists_the_first_elements_of_each(halve_kernel, fake_device, right_halve):
    """Over all cases until the first that fails, of two outputs; the smallest case may have fewer elements than are listed."""

    def wrong(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if n >= 100:
            launcher.view(y)[40:] ^= 1

    def twice(result):
        return {"y": result["y"], "same": result["y"] ^ 0, "z": result["y"] ^ 2}

    def run(launcher, problem):
        return {**twice(halve_kernel.run(launcher, problem)), "same": halve_kernel.oracle(problem)["y"]}

    two = replace(
        halve_kernel,
        outputs={"y": "bf16", "same": "", "z": ""},
        run=run,
        oracle=lambda problem: twice(halve_kernel.oracle(problem)),
    )
    record = run_campaign(two, fake_device(wrong), suspect_seconds=0).to_json()
    assert record["problem"]["n"] == 100
    assert [each["name"] for each in record["mismatches"]] == ["y", "z"]
    for each in record["mismatches"]:
        assert (each["count"], each["total"], each["elements_left_out"]) == (60, 100, 44)
        assert [element["index"] for element in each["elements"]] == [[at] for at in range(40, 56)]
        assert each["elements"][0] == each["first"]
    counts = record["counts"]
    assert counts["same"]["differing"] == counts["input x"]["differing"] == 0
    assert counts["y"] == counts["z"]
    assert record["elements"] == 3 * counts["y"]["elements"]
    assert record["differing"] == 2 * counts["y"]["differing"] > 0
