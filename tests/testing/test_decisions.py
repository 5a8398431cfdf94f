"""The decision: faults before differing bits, these before bank conflicts, open bits last; the same for CLI, laws and replay."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from refsim.errors import Kind, RefsimError
from refsim.testing import BitsDiffer, Bounded, Promise, PromiseNotKept, Verdict, laws, replay_case, run_campaign
from refsim.testing.decisions import listed
from refsim.testing.recipes import Tensor
from refsim.testing.runs import examine

PROBLEM = Tensor(40, "bf16", "gaussian")
OPEN = "rcp.approx.ftz.f32 at PTX line 7"
ASSUMED = "ex2.approx.ftz.f32 at PTX line 9: as on sm_90, unverified on sm_80"
CONFLICT = "ldmatrix.x4 at PTX line 3: 8 wavefronts"
WITHIN = Promise.WITHIN(2, because="rcp.approx: 1 ulp, and one of the rounding")


def exact(problem):
    return problem.codes().astype(np.uint32).__lshift__(16).view(np.float32).astype(np.float64) / 2


def bounded(halve_kernel, bound=2.0**-7):
    return replace(
        halve_kernel,
        oracle=lambda problem: {"y": Bounded(exact(problem), np.abs(exact(problem)) * bound)},
        promise=Promise.BOUNDED("two roundings to bf16"),
        corpus=(PROBLEM,),
    )


@pytest.fixture
def off_by(right_halve):
    """Makes a kernel whose element 3 is some ulp off."""

    def make(ulps):
        def off(launcher, x, n, y):
            right_halve(launcher, x, n, y)
            if n > 3:
                launcher.view(y)[3] += ulps

        return off

    return make


def status(kernel, device, problem=PROBLEM):
    finding = examine(kernel, problem, device).finding
    return "pass" if finding is None else finding.status


@pytest.mark.parametrize(
    ("promise", "ulps", "seen", "expected"),
    [
        (Promise.BITWISE, 0, {}, "pass"),
        (Promise.BITWISE, 0, {"inexact": (OPEN,)}, "inexact"),
        (Promise.BITWISE_EXCEPT_NAN_PAYLOAD, 0, {"inexact": (OPEN,)}, "inexact"),
        (Promise.BITWISE, 1, {"inexact": (OPEN,)}, "fail"),
        (Promise.BITWISE, 0, {"inexact": (OPEN,), "conflicts": (CONFLICT,)}, "fail"),
        (Promise.BITWISE, 0, {"assumed": (ASSUMED,)}, "assumed"),
        (Promise.BITWISE_EXCEPT_NAN_PAYLOAD, 0, {"assumed": (ASSUMED,)}, "assumed"),
        (Promise.BITWISE, 0, {"assumed": (ASSUMED,), "inexact": (OPEN,)}, "inexact"),
        (Promise.BITWISE, 1, {"assumed": (ASSUMED,)}, "fail"),
        (Promise.BITWISE, 0, {"assumed": (ASSUMED,), "conflicts": (CONFLICT,)}, "fail"),
        (WITHIN, 2, {"assumed": (ASSUMED,)}, "pass"),
        (WITHIN, 3, {"assumed": (ASSUMED,)}, "fail"),
        (WITHIN, 2, {"inexact": (OPEN,)}, "pass"),
        (WITHIN, 3, {"inexact": (OPEN,)}, "fail"),
        (WITHIN, 2, {"conflicts": (CONFLICT,)}, "fail"),
    ],
)
def test_order_of_decisions(halve_kernel, fake_device, off_by, promise, ulps, seen, expected):
    """One table for `verify`, `replay` and the law."""
    kernel = replace(halve_kernel, promise=promise, conflict_free=("ldmatrix",), corpus=(PROBLEM,))
    device = fake_device(off_by(ulps), **seen)
    assert status(kernel, device) == expected
    assert run_campaign(kernel, device, cases=0).status == expected
    if expected == "pass":
        laws.agrees_with_oracle(kernel, PROBLEM, device)
        return
    with pytest.raises(PromiseNotKept if "conflicts" in seen or expected in ("inexact", "assumed") else BitsDiffer):
        laws.agrees_with_oracle(kernel, PROBLEM, device)


def test_bounds_of_the_oracle_decide(halve_kernel, fake_device, off_by):
    assert status(bounded(halve_kernel), fake_device(off_by(1), inexact=(OPEN,))) == "pass"
    assert status(bounded(halve_kernel, 0.0), fake_device(off_by(1), inexact=(OPEN,))) == "fail"
    seen = examine(bounded(halve_kernel, 0.0), PROBLEM, fake_device(off_by(1)))
    assert "elements lie beyond their bound" in seen.finding.text
    assert "written by block 0, thread" in seen.finding.text


def test_output_without_bounds_is_compared_bit_for_bit(halve_kernel, fake_device, off_by):
    kernel = bounded(halve_kernel)

    def run(launcher, problem):
        return {"y": halve_kernel.run(launcher, problem)["y"], "n": np.array([problem.n], np.uint32)}

    def oracle(problem):
        return {**kernel.oracle(problem), "n": np.array([problem.n + wrong], np.uint32)}

    both = replace(kernel, run=run, oracle=oracle, outputs={"y": "bf16", "n": ""})
    wrong = 0
    assert status(both, fake_device(off_by(1))) == "pass"
    wrong = 1
    assert status(both, fake_device(off_by(1))) == "fail"


def test_a_fault_outranks_open_bits_and_differences(halve_kernel, fake_device, right_halve):
    def faults(launcher, x, n, y):
        launcher.view(y)[:] = 1
        raise RefsimError("uninitialised", "4 B were never written; they reached an output", kind=Kind.FAULT)

    finding = examine(halve_kernel, PROBLEM, fake_device(faults, inexact=(OPEN,))).finding
    assert (finding.status, finding.mismatch) == ("fail", None)
    assert finding.text.startswith("[uninitialised]")


@pytest.mark.parametrize("afterwards", ["returns", "raises", "returns nothing"])
def test_a_fault_that_run_swallows_is_the_verdict_still(halve_kernel, fake_device, afterwards):
    def faults(launcher, x, n, y):
        raise RefsimError("out-of-bounds", "lane 3 reads beyond x", kind=Kind.FAULT)

    def swallows(launcher, problem):
        with suppress(RefsimError):
            halve_kernel.run(launcher, problem)
        if afterwards == "raises":
            raise KeyError("y")
        return halve_kernel.oracle(problem) if afterwards == "returns" else None

    finding = examine(replace(halve_kernel, run=swallows), PROBLEM, fake_device(faults)).finding
    assert finding.text.startswith("[out-of-bounds]")


def test_of_faults_that_run_swallows_the_first_is_the_verdict(halve_kernel, fake_device):
    codes = iter(("misaligned", "out-of-bounds"))

    def faults(launcher, x, n, y):
        raise RefsimError(next(codes), "lane 3", kind=Kind.FAULT)

    def tries_twice(launcher, problem):
        with suppress(RefsimError):
            halve_kernel.run(launcher, problem)
        return halve_kernel.run(launcher, problem)

    finding = examine(replace(halve_kernel, run=tries_twice), PROBLEM, fake_device(faults)).finding
    assert finding.text.startswith("[misaligned]")


def test_a_refused_launch_that_run_answers_with_another_is_no_fault(halve_kernel, fake_device):
    def tries_another(launcher, problem):
        with suppress(RefsimError):
            launcher.launch("refuse", 1, 32, [])
        return halve_kernel.run(launcher, problem)

    def refuses(launcher):
        raise RefsimError("bad-launch", "a cluster of 32 blocks")

    device = fake_device()
    device.entries["refuse"] = refuses
    assert examine(replace(halve_kernel, run=tries_another), PROBLEM, device).finding is None


def test_shrinking_keeps_to_a_fault(halve_kernel, fake_device, right_halve):
    """Elements differ from 1 on, guard bands are hurt from 8 on: the fault stands first in the corpus and stays the finding."""

    def both(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if n:
            launcher.view(y)[0] ^= 1
        if n >= 8:
            launcher.view(y, beyond=1)[int(n)] = 0

    kernel = replace(halve_kernel, corpus=(Tensor(9, "bf16", "bits"),))
    verdict = run_campaign(kernel, fake_device(both), cases=50)
    assert verdict.finding.startswith("[guard-violated]")
    assert verdict.problem["n"] == 8


@pytest.mark.ci("a whole campaign; the order of decisions is held in every run")
def test_open_bits_are_counted_over_all_cases(halve_kernel, fake_device, right_halve):
    """The worst is in the last problem of the corpus, the smallest failure elsewhere."""

    def off(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        codes = launcher.view(y)
        codes[:] = np.where(codes == 0, 1, codes)
        if n == 50:
            codes[7] += 241

    corpus = (Tensor(5, "bf16", "zeros"), Tensor(20, "bf16", "ones"), Tensor(50, "bf16", "ones"))
    kernel = replace(halve_kernel, corpus=corpus, promise=Promise.BITWISE)
    verdict = run_campaign(kernel, fake_device(off, inexact=(OPEN,)), cases=0)
    assert (verdict.status, verdict.cases, verdict.elements, verdict.differing) == ("fail", 3, 75, 6)
    assert verdict.worst.worst_text == "worst 241 ulp"
    assert verdict.problem["n"] == 5
    assert "over all cases 6 of 75 elements, worst 241 ulp in y" in verdict.lines()
    assert any(OPEN in line for line in verdict.lines())
    assert Verdict.from_json(verdict.to_json()) == verdict
    shrunk = run_campaign(kernel, fake_device(off, inexact=(OPEN,)), cases=25)
    assert (shrunk.problem["n"], shrunk.mismatch.worst.ulps, shrunk.cases) == (1, 1, 28)
    assert shrunk.worst.worst_text == "worst 241 ulp"


def test_exact_failures_end_a_campaign_at_once(halve_kernel, fake_device, off_by):
    kernel = replace(halve_kernel, corpus=(PROBLEM, PROBLEM, PROBLEM))
    assert run_campaign(kernel, fake_device(off_by(1)), cases=0).cases == 1


def test_pass_by_a_bound_says_what_was_open(halve_kernel, fake_device):
    verdict = run_campaign(replace(halve_kernel, promise=WITHIN), fake_device(inexact=(OPEN,)), cases=2)
    assert verdict.status == "pass"
    assert verdict.notes == (f"bits are open after {OPEN} (judged by the bound)",)


def test_verdict_survives_a_folder_that_cannot_be_written(halve_kernel, fake_device, off_by, tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    verdict = run_campaign(halve_kernel, fake_device(off_by(1)), failures_dir=taken / "cases")
    assert (verdict.status, verdict.exit_code, verdict.replay) == ("fail", 1, "")
    assert f"no replay case in {taken / 'cases'}" in str(verdict)


def test_a_replayed_case_counts_like_a_campaign(halve_kernel, fake_device, off_by, tmp_path):
    kernel = replace(halve_kernel, corpus=(Tensor(9, "bf16", "ones"),))
    verdict = run_campaign(kernel, fake_device(off_by(1)), cases=0, failures_dir=tmp_path)
    again = replay_case(verdict.replay, fake_device(off_by(1)), kernel)
    assert (again.status, again.differing, again.exit_code) == ("fail", 1, 1)


@pytest.mark.parametrize("promise", [Promise.BITWISE, WITHIN])
@pytest.mark.parametrize("first", ["assumed", "inexact"])
def test_of_cases_that_leave_bits_open_the_gravest_is_the_verdict(halve_kernel, fake_device, promise, first):
    """Some problems reach an instruction whose bits are assumed, others one whose bits are open, in whichever order."""
    seen = {"assumed": {"assumed": (ASSUMED,)}, "inexact": {"inexact": (OPEN,)}}
    devices = {name: fake_device(**findings) for name, findings in seen.items()}
    device = devices[first]
    launch = device.launcher

    def launcher(code, **options):
        return launch(code, **options) if device.launches == 0 else devices[other].launcher(code, **options)

    other = next(name for name in seen if name != first)
    device.launcher = launcher
    two = replace(halve_kernel, promise=promise, corpus=(PROBLEM, replace(PROBLEM, n=3)))
    verdict = run_campaign(two, device, cases=0)
    bitwise = promise is Promise.BITWISE
    assert verdict.status == ("inexact" if bitwise else "pass")
    said = verdict.finding if bitwise else "\n".join(verdict.notes)
    assert f"bits are open after {OPEN}" in said
    assert f"bits are assumed after {ASSUMED}" in said
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_what_an_unrolled_loop_says_alike_is_said_once():
    alike = [f"k: ex2 at PTX line {line} (k.cu:9): as on sm_90" for line in range(10, 18)]
    other = "k: mul at PTX line 3 (k.cu:2) feeds add at PTX line 4 (k.cu:2): contracted"
    lines = "PTX lines 10, 11, 12, 13, 14, 15 and 2 more (k.cu:9)"
    assert listed([*alike, other, "addresses"]) == f"k: ex2 at {lines}: as on sm_90; {other}; addresses"
    assert listed([f"text {number}" for number in range(8)]).endswith("text 5; and 2 more")
