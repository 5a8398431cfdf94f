"""Programmatic launches on the simulated GPU, which run behind the launch before them, then beside it."""

from dataclasses import dataclass

import numpy as np
import pytest

from refsim import device, ptx
from refsim.device.schedules import SeededPolicy, early
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.ptx.machine import launch
from refsim.testing import laws

HEAD = ".version 8.5\n.target sm_90\n.address_size 64\n"
ENTRY = """.visible .entry NAME(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<5>; .shared .align 16 .b64 bar; .shared .align 16 .b32 s[64];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r1;
    mul.wide.u32 %d2, %r3, 4; add.s64 %d2, %d1, %d2; setp.eq.u32 %p1, %r1, 0; setp.ge.u32 %p2, %r1, 32;
    BODY ret; }
"""
EARLY, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
WRITE, READ = "st.global.u32 [%d2], %r3;", "ld.global.u32 %r4, [%d2]; st.global.u32 [%d2+8192], %r4;"
LATE_WRITE = f"mov.u32 %r5, 0; loop: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 40; @%p3 bra loop; {WRITE}"
COPIED = """@%p1 mbarrier.init.shared.b64 [bar], 64; fence.mbarrier_init.release.cluster; bar.sync 0;
    @!%p1 bra arrive; mul.wide.u32 %d3, %r2, 256; add.s64 %d3, %d1, %d3;
    WAITS mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%d3], 256, [bar];
    arrive: mbarrier.arrive.shared.b64 %d5, [bar];
    poll: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra poll;
    mov.u32 %r5, s; shl.b32 %r6, %r1, 2; add.u32 %r5, %r5, %r6; ld.shared.u32 %r4, [%r5]; st.global.u32 [%d2+8192], %r4;"""


def module(*bodies: str) -> str:
    return HEAD + "".join(
        ENTRY.replace("NAME", f"k{number}").replace("BODY", body) for number, body in enumerate(bodies)
    )


def launched(
    *bodies: str, without: tuple[str, ...] = (), grid: int = 4, policy: ptx.SchedulePolicy | None = None
) -> str:
    """The code of what is found when entries are launched one after another, all but the first programmatically; or "ok"
    where the numbers behind the first 8 KB are those that the first entry writes, "zero" where nobody wrote them."""
    with device.open("sim" if policy is None else f"sim:{policy}", "sm_90", without=without).loaded(
        module(*bodies), "k.ptx"
    ) as gpu:
        out = gpu.upload(np.zeros(4096, np.uint32), name="out", writable=True)
        try:
            for number in range(len(bodies)):
                gpu.launch(f"k{number}", grid, 64, [out], programmatic=number > 0)
        except RefsimError as error:
            return error.code
        found = gpu.read(out)[2048 : 2048 + 64 * grid]
    if found.any():
        return "ok" if found.tolist() == list(range(64 * grid)) else "other bytes"
    return "zero"


RIGHT = {
    "early, then waits": (EARLY + WRITE, WAIT + READ, "ok"),
    "early and slow": (EARLY + LATE_WRITE, WAIT + READ, "ok"),
    "late": (LATE_WRITE + EARLY, WAIT + READ, "ok"),
    "some blocks exit instead": ("setp.ge.u32 %p4, %r2, 2; @%p4 bra on;" + EARLY + "on:" + WRITE, WAIT + READ, "ok"),
    "one thread waits": (EARLY + LATE_WRITE, f"@%p1 {WAIT} bar.sync 0;" + READ, "ok"),
    "a prologue of its own": (EARLY + WRITE, f"st.global.u32 [%d2+4096], %r1; {WAIT}" + READ, "ok"),
    "what the other read is written behind the wait": (EARLY + READ, WAIT + WRITE, "zero"),
    "a copy engine reads behind the wait, and others poll": (EARLY + LATE_WRITE, COPIED.replace("WAITS", WAIT), "ok"),
    "nobody lets it begin": (WRITE, READ, "ok"),
}
WRONG = {
    "no wait": (EARLY + LATE_WRITE, READ),
    "a late trigger": (LATE_WRITE + EARLY + "st.global.u32 [%d2], %r3;", READ),
    "written while it is read": (EARLY + READ, WRITE),
    "waits behind the read": (EARLY + WRITE, READ + WAIT),
    "a copy engine reads before the wait": (EARLY + LATE_WRITE, COPIED.replace("WAITS", "") + WAIT),
    "no barrier behind the one that waits": (EARLY + LATE_WRITE, f"@%p1 {WAIT}" + READ),
}


@pytest.mark.parametrize("policy", [None, "lazy", "random"])
@pytest.mark.parametrize(("first", "second", "said"), RIGHT.values(), ids=RIGHT)
def test_a_launch_that_waits_is_right_under_all_schedules(first, second, said, policy):
    assert launched(first, second, policy=policy) == said


@pytest.mark.parametrize(("first", "second"), WRONG.values(), ids=WRONG)
def test_a_launch_that_does_not_wait_is_found(first, second):
    assert launched(first, second) == "missing-grid-wait"


@pytest.mark.parametrize("name", ["no wait", "written while it is read", "waits behind the read"])
def test_bytes_tell_too_since_launches_overlap(name):
    assert launched(*WRONG[name], without=("missing-grid-wait",)) == "schedule-dependent"


@pytest.mark.parametrize(
    "first",
    [
        LATE_WRITE + EARLY,
        f"setp.ne.u32 %p4, %r2, 0; @%p4 bra others; {WRITE} {EARLY} ret; others: {LATE_WRITE} {EARLY}",
    ],
)
def test_a_launch_begins_no_sooner_than_all_blocks_let_it(first):
    """Nothing is promised of the bytes; in the simulator they are there where blocks let others begin behind their writes."""
    assert launched(first, READ, without=("missing-grid-wait",)) == "ok"


def test_blocks_that_run_in_waves_begin_in_the_last_one(monkeypatch):
    """Three waves of each; the second launch reads from its own second wave on what the last of the first one writes."""
    monkeypatch.setattr(launch, "few_ctas", lambda *asked: 4)
    turned = "add.s64 %d3, %d1, 3068; sub.s64 %d4, %d2, %d1; sub.s64 %d3, %d3, %d4; ld.global.u32 %r4, [%d3];"
    reads = f"{turned} mov.u32 %r4, %r3; st.global.u32 [%d2+8192], %r4;"
    assert launched(EARLY + LATE_WRITE, WAIT + reads, grid=12) == "ok"
    assert launched(EARLY + LATE_WRITE, reads, grid=12) == "missing-grid-wait"


@pytest.mark.parametrize(
    ("middle", "said"),
    [
        (WAIT + EARLY, "ok"),
        (EARLY + WAIT, "missing-grid-wait"),
        (f"@%p1 {WAIT} bar.sync 0; @%p1 {EARLY}", "ok"),
        (f"@%p1 {WAIT} @%p2 {EARLY}", "missing-grid-wait"),
        (WAIT, "ok"),
    ],
)
def test_a_third_launch_may_begin_before_the_first_has_ended(middle, said):
    """The third reads what the first wrote, which the second has waited for, or not, when it lets the third begin."""
    assert launched(EARLY + WRITE, middle, READ) == said


def test_unwritten_bits_are_followed_through_both_launches():
    """The second hands on the upper half of a word that nobody wrote, and uses the lower one."""
    part = "st.global.u16 [%d2+4096], %r3;"
    whole = "ld.global.u32 %r4, [%d2+4096]; and.b32 %r4, %r4, 0xffff; st.global.u32 [%d2], %r4;"
    with device.open("sim", "sm_90").loaded(module(EARLY + part, WAIT + whole, EARLY + whole), "k.ptx") as gpu:
        out = gpu.output(4096, np.uint32, name="out")
        gpu.launch("k0", 4, 64, [out])
        gpu.launch("k1", 4, 64, [out], programmatic=True)
        assert gpu.read(out)[:256].tolist() == list(range(256))
        gpu.launch("k2", 4, 64, [out])
        gpu.launch("k1", 4, 64, [out], programmatic=True)


def test_older_targets_have_no_such_launch():
    text = module(WRITE).replace("sm_90", "sm_80")
    with device.open("sim", "sm_80").loaded(text, "k.ptx") as gpu:
        out = gpu.upload(np.zeros(4096, np.uint32), name="out", writable=True)
        with pytest.raises(RefsimError, match="programmatic serialization on sm_80") as caught:
            gpu.launch("k0", 4, 64, [out], programmatic=True)
    assert caught.value.code == "bad-launch"


def test_an_order_says_that_it_begins_early():
    orders = early((SeededPolicy("eager"), SeededPolicy("random", 2)))
    assert [str(order) for order in orders] == [
        "the eager policy, begun before the launch before it ended",
        "random schedule 2, begun before the launch before it ended",
    ]


# ---- a kernel of two launches ----------------------------------------------------------------------------------------

TWICE = """
#include <cuda_device_runtime_api.h>
extern "C" __global__ void first(const float* x, float* between, unsigned n) {
    cudaTriggerProgrammaticLaunchCompletion();
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) between[i] = x[i] + 1.0f;
}
extern "C" __global__ void second(const float* between, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    WAIT
    if (i < n) y[i] = between[i] * 2.0f;
}
"""


@dataclass(frozen=True)
class Numbers:
    """The numbers below n."""

    n: int

    def array(self):
        return np.arange(self.n, dtype=np.float32)


def twice(wait):
    def run(launcher, problem):
        n = problem.n
        x = launcher.upload(problem.array(), name="x")
        between, y = (launcher.output(n, np.float32, name=name) for name in ("between", "y"))
        launcher.launch("first", n // 64 + 1, 64, [x, between, np.uint32(n)])
        launcher.launch("second", n // 64 + 1, 64, [between, y, np.uint32(n)], programmatic=True)
        return {"y": launcher.read(y)}

    return Kernel(
        name="twice",
        source=TWICE.replace("WAIT", wait),
        run=run,
        oracle=lambda problem: {"y": (problem.array() + np.float32(1)) * np.float32(2)},
        outputs={"y": "f32"},
        problem=None,
        recipe=Numbers,
    )


def test_a_kernel_may_launch_its_entries_programmatically():
    gpu = device.open("sim", "sm_90a")
    laws.agrees_with_oracle(twice("cudaGridDependencySynchronize();"), Numbers(150), gpu)
    with pytest.raises(RefsimError, match="no griddepcontrol\\.wait comes first"):
        laws.agrees_with_oracle(twice(""), Numbers(150), gpu)
