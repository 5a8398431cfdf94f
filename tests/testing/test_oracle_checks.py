"""An oracle that could never say no: its own output, inputs that it changes, chance, bounds that nothing breaks."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.kernels import Bounded, Promise
from refsim.testing import run_campaign
from refsim.testing.oracle_checks import Slack, slack
from refsim.testing.recipes import Tensor

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


def test_an_oracle_that_writes_into_what_was_uploaded_is_refused(halve_kernel, fake_device):
    codes = cache(Tensor.codes)

    def run(launcher, problem):
        launcher.upload(codes(problem), name="kept")
        return halve_kernel.run(launcher, problem)

    def oracle(problem):
        codes(problem)[0] ^= 1
        return halve_kernel.oracle(problem)

    with pytest.raises(RefsimError, match="oracle-changes-input") as caught:
        run_campaign(replace(halve_kernel, run=run, oracle=oracle, corpus=CORPUS), fake_device(), cases=0)
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
    from refsim import decode

    def oracle(problem):
        value = decode(kernel.oracle(problem)["y"], "bf16")
        return {"y": Bounded(value, bound(value))}

    return replace(kernel, oracle=oracle, promise=Promise.BOUNDED(because="a test"), corpus=CORPUS)


def test_bounds_that_nothing_breaks_are_refused(halve_kernel, fake_device):
    with pytest.raises(RefsimError, match="bad-bound") as caught:
        run_campaign(bounded(halve_kernel, lambda value: np.full(value.shape, np.inf)), fake_device(), cases=0)
    assert "all 14 elements" in caught.value.what


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
    assert slack(want) == Slack(5, 0, 1)
    assert (Slack(5, 0, 1) + Slack(1, 1, 1)).note() == ""


@pytest.mark.parametrize(("format", "dtype", "steps"), [("bf16", np.uint16, 0x7F7F), ("", np.uint8, 128)])
def test_ulps_from_zero_to_the_largest_are_no_bound(halve_kernel, format, dtype, steps):
    from refsim.testing.oracle_checks import check_ulps

    got = np.zeros(1, dtype)
    check_ulps(replace(halve_kernel, promise=Promise.WITHIN(steps - 1, because="a test")), "y", got, format)
    with pytest.raises(RefsimError, match="bad-bound"):
        check_ulps(replace(halve_kernel, promise=Promise.WITHIN(steps, because="a test")), "y", got, format)
