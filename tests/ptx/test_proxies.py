"""Proxy fences between what threads write and what asynchronous units read: where one is enough, and where none is."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = """.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<12>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .pred %p<8>; .shared .align 1024 .b8 tile[8192];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;
    shr.u32 %r3, %r1, 5; shr.u32 %r4, %r2, 4; cvt.u64.u32 %d3, %r4; or.b64 %d3, %d3, 0x100080000;
    setp.ne.u32 %p1, 0, 0; setp.lt.u32 %p2, %r1, 128; setp.eq.u32 %p3, %r1, 0; setp.eq.u32 %p4, %r1, 140;
    rem.u32 %r5, %r1, 128; shl.b32 %r5, %r5, 4; add.u32 %r5, %r5, %r2; mov.b32 %r6, 0x38383838;
"""
WRITE = "st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};"
FENCE = "fence.proxy.async.shared::cta;"
SYNC = "bar.sync 0;"
PRODUCT = """wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0,%f1,%f2,%f3}, %d3, %d3, %p1, 1, 1;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""
OUT = "st.global.f32 [%d2], %f0;"


def run(body: str, threads: int = 128, **options: object) -> tuple[ptx.Trace, np.ndarray]:
    out = np.zeros(threads, np.float32)
    trace = ptx.load(f"{HEAD}{body} ret; }}").launch("k", 1, threads, [out], **options)
    return trace, out


def is_missing(body: str, threads: int = 128, **options: object) -> bool:
    """Whether the check says that a fence is missing; nothing else may go wrong, and the numbers are right."""
    try:
        _, out = run(body, threads, **options)
    except RefsimError as error:
        assert error.code == "missing-proxy-fence", error
        return True
    assert (out[:128] == 32).all()
    return False


POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])
ONE = "@%p3 fence.proxy.async;"


def apart(writer: str, issuer: str) -> str:
    """The second warpgroup writes, the first one multiplies."""
    return f"@%p2 bra $product; {writer} ret; $product: {issuer} {PRODUCT} {OUT}"


# What stands between the writes of 128 threads and their product, and whether that is enough.
BETWEEN = {
    "by the writers": (FENCE + SYNC, False),
    "of all memory": ("fence.proxy.async;" + SYNC, False),
    "of the cluster's memory": ("fence.proxy.async.shared::cluster;" + SYNC, False),
    "released to the cluster": ("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" + SYNC, False),
    "by those that issue": (SYNC + FENCE, False),
    "acquired by those that issue": (
        SYNC + "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
        False,
    ),
    "by one thread between two barriers": (SYNC + ONE + SYNC, False),
    "nowhere": (SYNC, True),
    "of global memory": ("fence.proxy.async.global;" + SYNC, True),
    "a fence of threads": ("fence.acq_rel.cluster;" + SYNC, True),
    "by one thread behind the barrier": (SYNC + ONE, True),
    "by one thread before the barrier": (ONE + SYNC, True),
    "of aliases": ("fence.proxy.alias;" + SYNC, True),
    "of inits": ("fence.mbarrier_init.release.cluster;" + SYNC, True),
}


@POLICIES
@pytest.mark.parametrize("where", BETWEEN)
def test_a_fence_between_writes_and_a_product(where: str, policy: str, seed: int) -> None:
    between, missing = BETWEEN[where]
    assert is_missing(WRITE + between + PRODUCT + OUT, policy=policy, seed=seed) == missing


@POLICIES
@pytest.mark.parametrize("count", [1, 300])
def test_a_fence_is_for_what_comes_before_it(count: int, policy: str, seed: int) -> None:
    again = WRITE.replace("%r6", "%r7")
    body = "mov.b32 %r7, 0x38383838;" + WRITE + FENCE * count + again + SYNC + PRODUCT + OUT
    assert is_missing(body, policy=policy, seed=seed)
    assert not is_missing(WRITE + FENCE * count + SYNC + PRODUCT + OUT, policy=policy, seed=seed)


@POLICIES
@pytest.mark.parametrize(
    ("writer", "issuer", "missing"),
    [
        (WRITE + FENCE + "bar.arrive 1, 256;", "bar.sync 1, 256;", False),
        (WRITE + "bar.arrive 1, 256;", "bar.sync 1, 256;" + FENCE, False),
        (WRITE + "bar.arrive 1, 256;" + FENCE, "bar.sync 1, 256;", True),
        (WRITE + "bar.arrive 1, 256;", FENCE + "bar.sync 1, 256;", True),
    ],
)
def test_another_warpgroup_writes(writer: str, issuer: str, missing: bool, policy: str, seed: int) -> None:
    """A fence behind the arrival, or before the wait, is not on the way."""
    assert is_missing(apart(writer, issuer), 256, policy=policy, seed=seed) == missing


INIT = ".shared .align 8 .b64 full; @%p3 mbarrier.init.shared.b64 [full], 128; bar.sync 0;"
ARRIVE = "mbarrier.arrive.shared.b64 _, [full];"
WAIT = "$wait: mbarrier.try_wait.parity.shared.b64 %p5, [full], 0; @!%p5 bra $wait;"


@POLICIES
@pytest.mark.parametrize(
    ("before", "behind", "waited", "missing"),
    [(FENCE, "", "", False), ("", "", FENCE, False), ("", FENCE, "", True), ("", "", "", True)],
)
def test_an_mbarrier_is_no_fence(before: str, behind: str, waited: str, missing: bool, policy: str, seed: int) -> None:
    body = INIT + apart(WRITE + before + ARRIVE + behind, WAIT + waited)
    assert is_missing(body, 256, policy=policy, seed=seed) == missing


def test_the_copy_of_a_thread_is_a_write_of_it() -> None:
    """cp.async goes through the generic proxy, whoever waits for it."""
    copied = "cp.async.ca.shared.global [%r5], [%d2], 4; cp.async.wait_all;"
    for body, codes in ((WRITE + FENCE + copied, {"missing-proxy-fence"}), (WRITE + copied + FENCE, set())):
        trace, _ = run(body + SYNC + PRODUCT + OUT, checks=RECORD)
        assert {each.code for each in trace.findings} == codes


RECORD = ptx.Checks("record", "record", "record", "record")


def test_the_finding_names_both_and_the_check_can_be_left_out() -> None:
    trace, _ = run(WRITE + SYNC + PRODUCT + OUT, checks=RECORD)
    (found,) = trace.findings
    assert found.what.startswith(
        "reads 16 B at shared address 0x400 (byte 0 of shared memory) through the async proxy; "
    )
    assert "thread (0, 0, 0) of block (0, 0, 0) wrote there by st.shared.v4.b32 at PTX line 10, and no " in found.what
    assert "wgmma.mma_async" in found.where
    off = ptx.Checks(off=("missing-proxy-fence",))
    assert not run(WRITE + SYNC + PRODUCT + OUT, checks=off)[0].findings


def test_what_nothing_orders_is_a_race_and_no_matter_of_fences() -> None:
    """Only the lanes of the warpgroup that wrote may be missing a fence: others are missing everything."""
    trace, _ = run(apart(WRITE + FENCE, ""), 256, checks=RECORD)
    assert {each.code for each in trace.findings} <= {"race", "uninitialised"}
    assert trace.findings
