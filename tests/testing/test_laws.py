"""Each law passes on the right kernel and fails on the one that breaks it."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from refsim.errors import Kind, RefsimError
from refsim.kernels import Promise
from refsim.testing import laws
from refsim.testing.assertions import BitsDiffer
from refsim.testing.recipes import Tensor
from refsim.testing.runs import examine

PROBLEM = Tensor(40, "bf16", "specials")
ALL = (laws.agrees_with_oracle, laws.deterministic, laws.inputs_unchanged)


@pytest.mark.parametrize("law", ALL)
def test_right_kernel_obeys(law, halve_kernel, fake_device):
    law(halve_kernel, PROBLEM, fake_device())


def test_wrong_value_disagrees_with_the_oracle(halve_kernel, fake_device, right_halve):
    def off_by_one(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[33] ^= 1

    with pytest.raises(BitsDiffer, match=r"first   y\[33\]") as caught:
        laws.agrees_with_oracle(halve_kernel, PROBLEM, fake_device(off_by_one))
    assert caught.value.mismatch.first.owner.startswith("written by block 1, thread 1, address 0x1")
    laws.inputs_unchanged(halve_kernel, PROBLEM, fake_device(off_by_one))


def test_changing_result_is_not_deterministic(halve_kernel, fake_device, right_halve):
    runs = []

    def counts(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        runs.append(0)
        launcher.view(y)[0] = len(runs)

    with pytest.raises(BitsDiffer, match="two runs of halve differ"):
        laws.deterministic(halve_kernel, PROBLEM, fake_device(counts))


def test_written_input_is_found(halve_kernel, fake_device, right_halve):
    def scribbles(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(x)[39] = 5

    with pytest.raises(BitsDiffer, match=r"input x\[39\]"):
        laws.inputs_unchanged(halve_kernel, PROBLEM, fake_device(scribbles))
    laws.agrees_with_oracle(halve_kernel, PROBLEM, fake_device(scribbles))


def test_an_upload_that_is_writable_may_be_written(halve_kernel, fake_device, right_halve):
    def in_place(launcher, problem):
        x = launcher.upload(problem.codes(), name="x", writable=True)
        launcher.launch("halve", (1,), (32,), [x, np.uint64(problem.n), x])
        return {"y": launcher.read(x)}

    for law in ALL:
        law(replace(halve_kernel, run=in_place), PROBLEM, fake_device())


def test_outputs_may_be_arrays_of_ml_dtypes(halve_kernel, fake_device, right_halve):
    """On either side, from the launcher's buffer or from the oracle: the bits count, and the format must be the declared one."""

    def run(launcher, problem):
        x = launcher.upload(problem.codes().view(ml_dtypes.bfloat16), name="x")
        y = launcher.output(problem.n, np.uint16, name="y")
        launcher.launch("halve", (1,), (32,), [x, np.uint64(problem.n), y])
        return {"y": launcher.read(y).view(ml_dtypes.bfloat16)}

    def typed(problem, kind=ml_dtypes.bfloat16):
        return {"y": halve_kernel.oracle(problem)["y"].view(kind)}

    for kernel in (
        replace(halve_kernel, run=run),
        replace(halve_kernel, oracle=typed),
        replace(halve_kernel, run=run, oracle=typed),
    ):
        for law in ALL:
            law(kernel, PROBLEM, fake_device())

        def wrong(launcher, x, n, y):
            right_halve(launcher, x, n, y)
            launcher.view(y)[7] ^= 1

        with pytest.raises(BitsDiffer, match=r"first   y\[7\]"):
            laws.agrees_with_oracle(kernel, PROBLEM, fake_device(wrong))
    with pytest.raises(RefsimError, match="format-mismatch"):
        laws.agrees_with_oracle(
            replace(halve_kernel, oracle=lambda one: typed(one, np.float16)), PROBLEM, fake_device()
        )


def test_promise_decides_what_counts(halve_kernel, fake_device, right_halve):
    def other_nan(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        codes = launcher.view(y)
        codes[(codes & 0x7FFF) > 0x7F80] ^= 0x8000

    relaxed = replace(halve_kernel, promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD)
    laws.agrees_with_oracle(relaxed, PROBLEM, fake_device(other_nan))
    with pytest.raises(BitsDiffer):
        laws.agrees_with_oracle(halve_kernel, PROBLEM, fake_device(other_nan))


def test_declared_owner_stands_in_where_the_device_cannot_tell(halve_kernel, fake_device):
    def wrong(launcher, x, n, y):
        launcher.view(y)[:] = 1

    declared = replace(halve_kernel, owner=lambda problem, output, index: (7, index))
    seen = laws.observe(declared, PROBLEM, fake_device(wrong, sees_owners=False))
    assert seen.mismatches[0].first.owner == "written by block 7, thread 0"


def test_mistake_that_fits_is_suspected(halve_kernel, fake_device, right_halve):
    def forgets_the_sign(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[:] &= 0x7FFF

    def unsigned(problem):
        return {"y": halve_kernel.oracle(problem)["y"] & 0x7FFF}

    suspecting = replace(halve_kernel, suspects={"sign lost": unsigned, "all right": halve_kernel.oracle})
    seen = laws.observe(suspecting, PROBLEM, fake_device(forgets_the_sign))
    assert seen.mismatches[0].suspects == ("sign lost: bit for bit what that gives",)
    assert str(seen.mismatches[0]).endswith("likely cause: sign lost: bit for bit what that gives")
    assert laws.observe(suspecting, PROBLEM, fake_device()).mismatches == ()


def test_promised_conflicts_are_a_finding(halve_kernel, fake_device):
    device = fake_device(
        conflicts=("ldmatrix.x4 at PTX line 3: 8 wavefronts", "st.shared.f32 at PTX line 9: 2 wavefronts")
    )
    promising = replace(halve_kernel, conflict_free=("ldmatrix",))
    finding = examine(promising, PROBLEM, device).finding
    assert (finding.status, finding.mismatch) == ("fail", None)
    assert finding.text.splitlines() == [
        "[bank-conflicts] promised are none",
        "ldmatrix.x4 at PTX line 3: 8 wavefronts",
    ]
    assert examine(halve_kernel, PROBLEM, device).finding is None


def test_owner_of_a_matrix_knows_how_far_its_rows_lie_apart(halve_kernel, fake_device, right_halve):
    def wrong(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[23] ^= 1

    def first_columns(run):
        return lambda *given: {"y": run(*given)["y"].reshape(4, 10)[:, :6]}

    matrix = replace(halve_kernel, run=first_columns(halve_kernel.run), oracle=first_columns(halve_kernel.oracle))
    (mismatch,) = laws.observe(matrix, PROBLEM, fake_device(wrong)).mismatches
    whole = laws.observe(halve_kernel, PROBLEM, fake_device(wrong)).mismatches[0]
    assert (mismatch.first.index, mismatch.first.owner) == ((2, 3), whole.first.owner)


def test_undeclared_outputs_and_foreign_problems_are_refused(halve_kernel, fake_device):
    with pytest.raises(RefsimError, match="wrong-output"):
        laws.observe(replace(halve_kernel, outputs={"z": "bf16"}), PROBLEM, fake_device())
    with pytest.raises(RefsimError, match="bad-recipe"):
        laws.observe(halve_kernel, 7, fake_device())


def never_launches(kernel):
    """The kernel whose run hands over what the oracle would."""
    return replace(kernel, run=lambda launcher, problem: kernel.oracle(problem))


@pytest.mark.parametrize("law", ALL)
def test_outputs_without_a_launch_are_the_users_error(law, halve_kernel, fake_device):
    with pytest.raises(RefsimError, match="nothing-launched") as caught:
        law(never_launches(halve_kernel), PROBLEM, fake_device())
    assert caught.value.exit_code == 2
    assert "on all 2 test cases of its corpus" in caught.value.what


def test_a_trivial_problem_may_be_answered_without_a_launch(halve_kernel, fake_device):
    """As long as some problem of the corpus is not; one that owes no elements needs no launch at all."""

    def seldom(launcher, problem):
        return halve_kernel.run(launcher, problem) if problem.n > 8 else halve_kernel.oracle(problem)

    trivial = Tensor(3, "bf16", "ties")
    for law in ALL:
        law(replace(halve_kernel, run=seldom), trivial, fake_device())
        law(never_launches(halve_kernel), Tensor(0, "bf16"), fake_device())
    with pytest.raises(RefsimError, match="nothing-launched"):
        laws.observe(replace(halve_kernel, run=seldom, corpus=(trivial,)), trivial, fake_device())


def test_a_launch_that_faults_elsewhere_is_a_launch(halve_kernel, fake_device):
    def faults(launcher, x, n, y):
        raise RefsimError("guard-violated", "a band was written", kind=Kind.FAULT)

    def seldom(launcher, problem):
        return halve_kernel.run(launcher, problem) if problem.n > 8 else halve_kernel.oracle(problem)

    laws.agrees_with_oracle(replace(halve_kernel, run=seldom), Tensor(3, "bf16", "ties"), fake_device(faults))


@pytest.mark.parametrize(
    ("shape", "index", "element"), [((80,), (7,), 3), ((5, 16), (2, 5), 18), ((2, 20), (1, 4), 24), ((3, 3), (1, 1), 4)]
)
def test_owner_of_codes_is_the_owner_of_what_holds_them(halve_kernel, fake_device, shape, index, element):
    """40 elements of memory hold an output of twice as many, which were packed in them, or of fewer."""
    want = np.zeros(shape, np.uint8)
    got = want.copy()
    got[index] = 1

    def run(launcher, problem):
        halve_kernel.run(launcher, problem)
        return {"y": got}

    kernel = replace(halve_kernel, run=run, oracle=lambda _: {"y": want}, outputs={"y": ""})
    (mismatch,) = laws.observe(kernel, PROBLEM, fake_device()).mismatches
    assert mismatch.first.index == index
    assert mismatch.first.owner.startswith(f"written by block {element // 32}, thread {element % 32}, ")
