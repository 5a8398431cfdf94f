"""A kernel that leaves something in its module's variables is run twice over one module: a process loads a module once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing import PromiseNotKept, laws, run_campaign
from refsim.testing.recipes import Tensor
from refsim.testing.replay import replay_case

LAST_BLOCK = """
__device__ unsigned arrived;
__device__ float partial[8];
extern "C" __global__ void total(const int* x, int* y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = ARRIVE == gridDim.x - 1;
    if (last) {
      __threadfence();
      int sum = 0;
      for (unsigned i = 0; i < gridDim.x; i++) sum += ((volatile float*)partial)[i];
      *y = sum;
      RESET;
    }
  }
}"""
COUNTED = {"ARRIVE": "atomicAdd(&arrived, 1)"}
BEYOND = """
__device__ int at;
extern "C" __global__ void total(const int* x, int* y) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += x[i];
    y[at] = sum;
    at = 1 << 20;
  }
}"""


def _run(launcher, problem):
    x = launcher.upload(problem.codes().view(np.int32) & 0xFFFF, name="x")
    y = launcher.output(1, np.int32, name="y")
    launcher.launch("total", problem.n, 32, [x, y])
    return {"y": launcher.read(y)}


def _total(source: str, **given) -> Kernel:
    problems = st.builds(Tensor, st.integers(1, 8), st.just("f32"), st.just("bits"), st.integers(0, 99))
    return Kernel(
        "total",
        lambda problem: {"y": np.array([(problem.codes().view(np.int32) & 0xFFFF).sum()], np.int32)},
        problems,
        _run,
        {"y": ""},
        recipe=Tensor,
        source=source,
        corpus=(Tensor(4, "f32", "bits"),),
        **given,
    )


FORGETFUL = _total(LAST_BLOCK, defines=COUNTED | {"RESET": ""})


@pytest.fixture(scope="module")
def device():
    return refsim.device.open("sim:eager", "sm_90a")


@pytest.mark.parametrize(
    "defines",
    [COUNTED | {"RESET": "arrived = 0"}, {"ARRIVE": "atomicInc(&arrived, gridDim.x - 1)", "RESET": ""}],
    ids=["reset", "wraps"],
)
def test_a_kernel_that_puts_its_counter_back_passes(device, defines):
    verdict = run_campaign(_total(LAST_BLOCK, defines=defines), device, cases=4)
    assert verdict.status == "pass", str(verdict)
    assert (verdict.cases, verdict.counts) == (5, {"y": (5, 0), "input x": (verdict.counts["input x"][0], 0)})


def test_a_kernel_right_in_its_first_launch_only_fails_everywhere(device, tmp_path):
    """No block of the second launch is the last one, so that nobody writes: unwritten output, or other bits."""
    verdict = run_campaign(FORGETFUL, device, cases=4, failures_dir=tmp_path)
    assert (verdict.status, verdict.problem["n"]) == ("fail", 1)
    assert "second run over one module" in verdict.finding
    assert "arrived" in verdict.finding
    assert "fresh_module=True" in verdict.finding
    assert replay_case(verdict.replay, device, FORGETFUL).finding == verdict.finding
    with pytest.raises(PromiseNotKept, match="stateful"):
        laws.agrees_with_oracle(FORGETFUL, Tensor(4, "f32", "bits"), device)


def test_a_kernel_may_ask_for_a_new_module_each_time(device):
    assert run_campaign(replace(FORGETFUL, fresh_module=True), device, cases=4).status == "pass"


def test_a_fault_of_the_second_run_is_a_fault(device):
    verdict = run_campaign(_total(BEYOND), device, cases=4)
    assert verdict.status == "fail"
    assert "[out-of-bounds]" in verdict.finding
    assert "second run over one module, at as the first left it" in verdict.finding


def test_what_a_kernel_never_changed_costs_no_second_run(device):
    """Tables and counters at their first value again leave nothing behind."""
    source = "__device__ int table[4] = {1, 2, 3, 4};" + BEYOND.replace("at = 1 << 20;", "at = 0;")
    with device.launcher(_total(source).code) as launcher:
        _run(launcher, Tensor(4, "f32", "bits"))
        assert len(launcher.traces) == 1
        assert launcher.findings().changed_variables == ()
    with device.launcher(FORGETFUL.code) as launcher:
        _run(launcher, Tensor(4, "f32", "bits"))
        assert launcher.findings().changed_variables == ("arrived", "partial")
    with pytest.raises(RefsimError, match="second run"):
        laws.observe(_total(BEYOND), Tensor(4, "f32", "bits"), device)
