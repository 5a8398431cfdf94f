"""An oracle that could never say no: its own output, inputs that it changes, chance, bounds that nothing breaks."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from refsim import device
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.kernels import Bounded, Promise
from refsim.testing import laws, run_campaign
from refsim.testing import strategies as rst
from refsim.testing.oracle_checks import Slack, slack
from refsim.testing.recipes import Tensor, corpus_tensors

CORPUS = (Tensor(5, "bf16", "gaussian"), Tensor(9, "bf16", "gaussian"))


def zeros(launcher, x, n, y):
    """A kernel that is wrong everywhere."""
    launcher.view(y)[:] = 0


def remembering(kernel):
    """A run that leaves what it returns where an oracle may find it."""
    left = []

    def run(launcher, problem):
        left.append(kernel.run(launcher, problem))
        return left[-1]

    return run, left


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[:], lambda y: y.view(np.int16)])
def test_an_oracle_that_returns_what_run_returned_is_refused(halve_kernel, fake_device, view):
    run, left = remembering(halve_kernel)
    kernel = replace(halve_kernel, run=run, oracle=lambda problem: {"y": view(left[-1]["y"])}, corpus=CORPUS)
    with pytest.raises(RefsimError, match="oracle-not-own") as caught:
        run_campaign(kernel, fake_device(zeros), cases=0)
    assert caught.value.exit_code == 2


def test_an_oracle_that_copies_what_run_returned_is_refused_when_it_is_asked_again(halve_kernel, fake_device):
    run, left = remembering(halve_kernel)
    kernel = replace(halve_kernel, run=run, oracle=lambda problem: {"y": left[-1]["y"].copy()}, corpus=CORPUS)
    with pytest.raises(RefsimError, match=r"oracle-differs|bad-shape"):
        run_campaign(kernel, fake_device(zeros), cases=0)


def test_an_oracle_of_chance_is_refused(halve_kernel, fake_device):
    asked = iter(range(100))

    def oracle(problem):
        want = halve_kernel.oracle(problem)
        return {"y": want["y"] ^ np.uint16(next(asked) >= len(CORPUS))}

    with pytest.raises(RefsimError, match="oracle-differs") as caught:
        run_campaign(replace(halve_kernel, oracle=oracle, corpus=CORPUS), fake_device(), cases=0)
    assert "5 of 5 of 'y'" in caught.value.what


@pytest.mark.parametrize("is_simulated", [False, True])
def test_an_oracle_that_writes_into_what_was_uploaded_is_refused(halve_kernel, fake_device, is_simulated):
    codes = cache(Tensor.codes)

    def run(launcher, problem):
        launcher.upload(codes(problem), name="kept")
        return halve_kernel.run(launcher, problem)

    def oracle(problem):
        codes(problem)[0] ^= 1
        return halve_kernel.oracle(problem)

    device = replace(fake_device(), is_simulated=is_simulated)
    with pytest.raises(RefsimError, match="oracle-changes-input") as caught:
        run_campaign(replace(halve_kernel, run=run, oracle=oracle, corpus=CORPUS), device, cases=0)
    assert "'kept'" in caught.value.what


def test_run_may_fill_one_array_several_times(halve_kernel, fake_device):
    staging = np.zeros(4, np.uint16)

    def run(launcher, problem):
        for name in ("first", "second"):
            staging[:] += 1
            launcher.upload(staging, name=name)
        return halve_kernel.run(launcher, problem)

    assert run_campaign(replace(halve_kernel, run=run, corpus=CORPUS), fake_device(), cases=0)


def bounded(kernel, bound):
    """The kernel under a bound; `bound` makes it of the value that it bounds."""

    def oracle(problem):
        value = decode(kernel.oracle(problem)["y"], "bf16")
        return {"y": Bounded(value, bound(value))}

    return replace(kernel, oracle=oracle, promise=Promise.BOUNDED(because="a test"), corpus=CORPUS)


@pytest.mark.parametrize("bound", [np.inf, 1e308])
def test_bounds_that_nothing_breaks_are_refused(halve_kernel, fake_device, bound):
    with pytest.raises(RefsimError, match="bad-bound") as caught:
        run_campaign(bounded(halve_kernel, lambda value: np.full(value.shape, bound)), fake_device(), cases=0)
    assert "all 14 elements" in caught.value.what


def test_a_bound_is_no_bound_from_the_value_to_the_largest_of_the_other_sign():
    value, largest = np.array([1.0, -1.0, 0.0]), 448.0
    for bound, count in ((largest + 1, 3), (np.nextafter(largest + 1, 0), 1), (np.nextafter(largest, 0), 0)):
        assert slack({"y": Bounded(value, np.full(3, bound))}, {"y": "e4m3"}).any_number == count


@pytest.mark.parametrize(("prefix", "is_right"), [("st.sharde", False), ("st.shared", True), ("ldmatrix", False)])
def test_a_promise_without_conflicts_names_an_instruction(halve_kernel, prefix, is_right):
    cuda = """extern "C" __global__ void k(unsigned* y) {
        __shared__ unsigned s[32]; s[threadIdx.x] = y[threadIdx.x]; __syncthreads();
        y[threadIdx.x] = s[31 - threadIdx.x]; }"""

    def run(launcher, problem):
        y = launcher.upload(np.arange(32, dtype=np.uint32), name="y", writable=True)
        launcher.launch("k", 1, 32, [y])
        return {"y": launcher.read(y)}

    def oracle(problem):
        return {"y": np.arange(32, dtype=np.uint32)[::-1]}

    kernel = replace(
        halve_kernel, source=cuda, run=run, oracle=oracle, outputs={"y": ""}, entries=(), conflict_free=(prefix,)
    )
    if is_right:
        assert laws.observe(kernel, CORPUS[0], device.open("sim")).conflicts == ()
        return
    with pytest.raises(RefsimError, match="no instruction of the kernel begins so"):
        laws.observe(kernel, CORPUS[0], device.open("sim"))


def test_bounds_that_zeros_keep_are_noted(halve_kernel, fake_device):
    wide = run_campaign(bounded(halve_kernel, lambda value: 2 * np.abs(value) + 1), fake_device(), cases=0)
    tight = run_campaign(bounded(halve_kernel, lambda value: np.abs(value) / 256), fake_device(), cases=0)
    assert [verdict.status for verdict in (wide, tight)] == ["pass", "pass"]
    assert "every bound of 14 elements reaches zero" in " ".join(wide.notes)
    assert "zero" not in " ".join(tight.notes)


def test_slack_counts_numbers_alone():
    want = {
        "y": Bounded(np.array([0.0, 1.0, 4.0, np.nan, np.inf]), np.array([0.0, 1.0, 3.0, np.inf, np.inf])),
        "bits": np.zeros(7, np.uint8),
    }
    assert slack(want, {"y": "f32", "bits": ""}) == Slack(5, 0, 1, floats=5, hidden=2)
    assert (Slack(5, 0, 1) + Slack(1, 1, 1)).notes() == ()


def tree(values):
    """The sum of 32 strided partial sums, added in halves: the order of a warp that shuffles."""
    sums = np.zeros(32, np.float32)
    for row in np.append(values, np.zeros(-len(values) % 32, np.float32)).reshape(-1, 32):
        sums += row
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


def summing(kernel, add, **changes):
    """A kernel that adds bf16 numbers to one f32 in the order of `tree`; its oracle adds by `add`."""

    def run(launcher, x):
        codes, y = launcher.upload(x.codes(), name="x"), launcher.output(1, np.uint32, name="y")
        launcher.launch("tree", 1, 32, [codes, y])
        return {"y": launcher.read(y)}

    @np.errstate(all="ignore")
    def oracle(x):
        return {"y": np.float32([add(decode(x.codes(), "bf16", dtype=np.float32))]).view(np.uint32)}

    promise = Promise.BITWISE_EXCEPT_NAN_PAYLOAD
    chosen = {"problem": rst.tensors("bf16"), "corpus": (), "outputs": {"y": "f32"}, "promise": promise}
    return replace(kernel, run=run, oracle=oracle, **{**chosen, **changes})


@np.errstate(all="ignore")
def summed(launcher, x, y):
    launcher.view(y).view(np.float32)[0] = tree(decode(launcher.view(x), "bf16", dtype=np.float32))


def test_a_sum_in_another_order_fails_or_is_noted_with_most_seeds(halve_kernel, numpy_device):
    kernel, device = summing(halve_kernel, np.sum), numpy_device({"tree": summed})
    verdicts = [run_campaign(kernel, device, seed=seed, suspect_seconds=0) for seed in range(8)]
    noted = ["of 25 generated outputs are NaN or 0, which hides order" in "".join(each.notes) for each in verdicts]
    failed = [each.status == "fail" for each in verdicts]
    assert (sum(failed), sum(map(max, failed, noted))) == (5, 7), "a campaign of 25 cases may miss it"


@pytest.mark.parametrize(
    "changes",
    [
        {"corpus": corpus_tensors("bf16", large=False)},
        {"problem": rst.tensors("bf16", fills=("gaussian",), max_patches=0)},
    ],
)
def test_a_sum_of_ordinary_numbers_has_no_note(halve_kernel, numpy_device, changes):
    verdict = run_campaign(summing(halve_kernel, tree, **changes), numpy_device({"tree": summed}))
    assert (verdict.status, verdict.notes) == ("pass", ())


@pytest.mark.parametrize(
    ("floats", "hidden", "ordinary", "is_noted"),
    [
        (24, 6, 0, False),
        (24, 7, 0, True),
        (24, 7, 1, False),
        (9, 9, 0, False),
        (10, 10, 0, True),
        (199, 100, 0, True),
        (202, 101, 0, False),
        (202, 102, 0, True),
        (204, 103, 0, True),
    ],
)
def test_few_ordinary_outputs_are_noted(floats, hidden, ordinary, is_noted):
    notes = Slack(floats=floats, hidden=hidden, ordinary=ordinary).notes()
    assert [f"{hidden} of {floats} " in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize(("format", "dtype", "steps"), [("bf16", np.uint16, 0x7F7F), ("", np.uint8, 128)])
def test_ulps_from_zero_to_the_largest_are_no_bound(halve_kernel, format, dtype, steps):
    from refsim.testing.oracle_checks import check_ulps

    got = np.zeros(1, dtype)
    check_ulps(replace(halve_kernel, promise=Promise.WITHIN(steps - 1, because="a test")), "y", got, format)
    with pytest.raises(RefsimError, match="bad-bound"):
        check_ulps(replace(halve_kernel, promise=Promise.WITHIN(steps, because="a test")), "y", got, format)
