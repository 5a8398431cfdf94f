"""Warnings of a launch that fail under a promise of bits: accesses that only the meeting of a warp orders, unless the launch
relies on it. A block that exits during a bulk store of its shared memory always fails."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim.errors import RefsimError
from refsim.kernels import Bounded, Kernel, Promise
from refsim.testing import run_campaign

BETWEEN = """extern "C" __global__ void pairs(const float *x, float *y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  const unsigned other = __shfl_xor_sync(~0u, threadIdx.x, 1);
  y[threadIdx.x] = tile[other];
}
"""
ORDERED = BETWEEN.replace("  const", "  __syncwarp();\n  const")
SIM = refsim.device.open("sim", "sm_80")


@dataclass(frozen=True)
class First:
    value: int = 3


def verdict(source, promise=Promise.BITWISE, device=SIM, **options):
    def run(launcher, problem):
        x, y = launcher.upload(values(problem), name="x"), launcher.output(32, np.float32, name="y")
        launcher.launch("pairs", 1, 32, [x, y], **options)
        return {"y": launcher.read(y).view(np.uint32)}

    def values(problem):
        return np.arange(problem.value, problem.value + 32, dtype=np.float32)

    def oracle(problem):
        want = values(problem)[np.arange(32) ^ 1]
        return {"y": Bounded(want, 0.0) if promise.is_bounded else want.view(np.uint32)}

    recipes = st.builds(First, st.integers(1, 9))
    kernel = Kernel("pairs", oracle, recipes, run, {"y": "f32"}, First, (First(),), promise, source=source)
    return run_campaign(kernel, device, cases=1, suspect_seconds=0)


def test_bits_fail_and_the_finding_says_what_to_do():
    found = verdict(BETWEEN)
    assert found.status == "fail"
    assert found.finding.startswith("[ordered-by-convergence] pairs: reads 4 B at shared address")
    assert "source.cu:5" in found.finding
    assert "warp_synchronous=True" in found.finding.splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "promise", "options", "notes"),
    [
        (ORDERED, Promise.BITWISE, {}, 0),
        (BETWEEN, Promise.BITWISE, {"warp_synchronous": True}, 1),
        (BETWEEN, Promise.WITHIN(1, because="a shuffle of the operands"), {}, 1),
        (BETWEEN, Promise.BOUNDED(because="a copy"), {}, 1),
        (
            BETWEEN.replace("tile[other];", "tile[other];  // refsim: allow ordered-by-convergence"),
            Promise.BITWISE,
            {},
            0,
        ),
    ],
)
def test_what_is_said_or_waived_or_promised_otherwise_passes(source, promise, options, notes):
    found = verdict(source, promise, **options)
    assert found.status == "pass", found.finding
    assert sum("warning [ordered-by-convergence]" in note for note in found.notes) == notes


def test_the_option_is_true_or_false():
    with pytest.raises(RefsimError, match="warp_synchronous=1 is not allowed"):
        verdict(ORDERED, warp_synchronous=1)


STORED = """extern "C" __global__ void pairs(const float *x, float *y) {
  __shared__ alignas(128) float tile[32];
  tile[threadIdx.x ^ 1] = x[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;\\n cp.async.bulk.commit_group;"
                 ::"l"(y), "r"((unsigned)__cvta_generic_to_shared(tile)) : "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""


def test_a_block_exits_after_its_store_has_read():
    device = refsim.device.open("sim", "sm_90a")
    assert verdict(STORED, device=device).status == "pass"
    found = verdict(STORED.replace("wait_group.read 0", "wait_group.read 1"), device=device)
    assert found.status == "fail"
    assert found.finding.startswith("[unfinished-store] a block exits whose shared memory this copy reads")
