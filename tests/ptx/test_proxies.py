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


POLICIES = pytest.mark.parametrize(
    ("policy", "seed"),
    [
        ("eager", 0),
        ("lazy", 0),
        ("random", 1),
        pytest.param("random", 2, marks=pytest.mark.ci("another random order is tried in every run")),
    ],
)
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


# ---- copy engines
BULK = """.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<12>; .reg .b64 %d<8>; .reg .pred %p<8>; .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar[4];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;
    mov.u32 %r3, bar; shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r2; setp.eq.u32 %p3, %r1, 0; setp.ge.u32 %p2, %r1, 32;
    @%p3 mbarrier.init.shared.b64 [%r3], 32; @%p3 mbarrier.init.shared.b64 [%r3+8], 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
STORE = """@!%p3 bra $stored; cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 128; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0; $stored:"""
LOAD = """mbarrier.arrive.expect_tx.shared.b64 _, [%r3+8], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3+8];
    $full{0}: mbarrier.try_wait.parity.shared.b64 %p5, [%r3+8], {0}; @!%p5 bra $full{0};"""
PUT, ONCE = "st.shared.u32 [%r5], %r1;", "@%p3 bra $l; bra $e; $l:" + LOAD.format(0) + "$e:"


def bulk(body: str, *, threads: int = 32, policy: str = "eager", seed: int = 0):
    """The codes of findings and of notes."""
    out = np.arange(256, dtype=np.uint32)
    program = ptx.load(f"{BULK}{body} ret; }}")
    trace = program.launch("k", 1, threads, [out], cluster=1, checks=RECORD, policy=policy, seed=seed)
    return {each.code for each in trace.findings}, {each.code for each in trace.notes}


def test_what_a_copy_wrote_is_read_by_those_who_waited_for_its_mbarrier() -> None:
    """One thread of the warp waits and another reads: the text says which wait that one lacks, which is not a bulk group's."""
    program = ptx.load(f"{BULK}{ONCE} ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2+512], %r6; ret; }}")
    with pytest.raises(RefsimError, match="no wait between that sees the mbarrier complete at which") as caught:
        program.launch("k", 1, 32, [np.arange(256, dtype=np.uint32)], cluster=1)
    assert caught.value.code == "race"


@POLICIES
@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (PUT + "fence.proxy.async.shared::cta; bar.sync 0;" + STORE, set()),
        (PUT + "bar.sync 0; fence.proxy.async;" + STORE, set()),
        (PUT + "bar.sync 0;" + STORE, {"missing-proxy-fence"}),
        (PUT + "fence.proxy.async.global; bar.sync 0;" + STORE, {"missing-proxy-fence"}),
        (PUT + "fence.proxy.async; bar.sync 0; " + ONCE, set()),
        (PUT + "bar.sync 0; " + ONCE, {"missing-proxy-fence"}),
        (
            "st.global.u32 [%d2], %r1; fence.proxy.async.global; bar.sync 0; @%p3 bra $l; bra $e; $l:"
            + LOAD.format(0)
            + "$e:",
            set(),
        ),
        (
            "st.global.u32 [%d2], %r1; bar.sync 0; " + ONCE,
            {"missing-proxy-fence"},
        ),
        ("@%p3 bra $l; bra $e; $l:" + LOAD.format(0) + LOAD.format(1) + "$e:", set()),
    ],
)
def test_copy_engines_and_threads(body: str, codes: set[str], policy: str, seed: int) -> None:
    assert bulk(body, policy=policy, seed=seed)[0] == codes


@POLICIES
@pytest.mark.parametrize("behind", ["", "fence.mbarrier_init.release.cluster;", "fence.proxy.async.shared::cta;"])
def test_a_copy_completes_at_an_mbarrier_that_no_proxy_fence_follows(behind: str, policy: str, seed: int) -> None:
    """mbarrier objects are accessed through the generic proxy, also by copy engines: a barrier of the threads is enough."""
    head = BULK.replace("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", f"{behind} bar.sync 0;")
    read = "bar.sync 0; ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2+512], %r6;"
    out = np.arange(256, dtype=np.uint32)
    program = ptx.load(f"{head}{ONCE}{read} ret; }}")
    trace = program.launch("k", 1, 32, [out], cluster=1, policy=policy, seed=seed)
    assert not (trace.findings)
    assert not (trace.warnings)
    assert not (trace.notes)
    assert (out[128:160] == out[:32]).all()


FILL = "@%p2 bra $reader; setp.ne.u32 %p1, %r1, 0; @%p1 bra $end;" + LOAD.format(0)
READER = (
    "$reader: mbarrier.try_wait.parity.shared.b64 %p5, [%r3+8], 0; @!%p5 bra $reader; ld.shared.u32 %r6, [%r5+-128];"
)
EMPTY = "$empty: mbarrier.try_wait.parity.shared.b64 %p5, [%r3], 0; @!%p5 bra $empty;"
GONE = "mbarrier.arrive.shared.b64 _, [%r3];"


@POLICIES
@pytest.mark.parametrize(
    ("released", "waited", "notes"),
    [
        (GONE, EMPTY, {"unfenced-refill"}),
        ("fence.proxy.async;" + GONE, EMPTY, set()),
        (GONE, EMPTY + "fence.proxy.async;", set()),
    ],
)
def test_a_refill_behind_reads_is_a_note_where_an_mbarrier_alone_orders_it(
    released, waited, notes, policy, seed
) -> None:
    body = f"{FILL} {waited} {LOAD.format(1)} bra $end; {READER} {released} $end:"
    codes, found = bulk(body + "st.global.u32 [%d2+256], %r1;", threads=64, policy=policy, seed=seed)
    assert codes == set()
    assert found == notes
