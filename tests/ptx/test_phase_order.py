"""What mbarriers order across a cluster, and what relaxed arrivals and waits need besides."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .shared .align 8 .b64 bar; .shared .align 4 .b32 tile[64];
    .reg .b32 %r<24>; .reg .b64 %d<12>; .reg .pred %p<8>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %ctaid.x; mov.u32 %r5, %ntid.x;
    mad.lo.u32 %r6, %r3, %r5, %r1; mul.wide.u32 %d2, %r6, 4; add.s64 %d3, %d1, %d2;
    mov.u32 %r7, bar; mov.u32 %r8, tile; shl.b32 %r9, %r1, 2; add.u32 %r8, %r8, %r9; xor.b32 %r10, %r9, 252;
    mov.u32 %r20, tile; add.u32 %r10, %r10, %r20; add.u32 %r11, %r6, 100;
    setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r2, 0;
"""
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(1, 5))]
# 64 threads of one block: each stores, arrives, waits, and reads what another warp's thread stored.
BLOCK = """
    @%p1 mbarrier.init.shared::cta.b64 [%r7], 64; bar.sync 0;
    st.shared.u32 [%r8], %r11;
    {before}
    mbarrier.arrive.{arrive}.shared::cta.b64 %d4, [%r7];
WAIT:
    mbarrier.try_wait.{wait}.shared::cta.b64 %p3, [%r7], %d4;
    @!%p3 bra WAIT;
    {behind}
    ld.shared.u32 %r12, [%r10];
    st.global.u32 [%d3], %r12; ret; }}
"""
RELAXED = {"arrive": "relaxed.cta", "wait": "relaxed.cta"}
FENCED = {"before": "fence.release.cta;", "behind": "fence.acquire.cta;"}
ORDERED = {"arrive": "release.cta", "wait": "acquire.cta", "before": "", "behind": ""}
# Block 1 of a cluster stores to block 0 and arrives there, where its threads wait.
CLUSTER = """
    @%p1 mbarrier.init.shared::cta.b64 [%r7], 64;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    @%p2 bra WAIT;
    mov.u32 %r13, 0; mapa.shared::cluster.u32 %r14, %r8, %r13; mapa.shared::cluster.u32 %r15, %r7, %r13;
    st.shared::cluster.u32 [%r14], %r11;
    mbarrier.arrive.{arrive}shared::cluster.b64 _, [%r15];
    bra END;
WAIT:
    mbarrier.try_wait.parity.{wait}shared::cta.b64 %p3, [%r7], 0;
    @!%p3 bra WAIT;
    ld.shared.u32 %r12, [%r10];
    st.global.u32 [%d3], %r12;
END:
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; ret; }}
"""


def run(body: str, blocks: int, policy: str, seed: int) -> np.ndarray:
    out = np.zeros(64 * blocks, np.uint32)
    ptx.load(HEAD + body).launch("k", blocks, 64, [out], cluster=blocks, policy=policy, seed=seed)
    return out


def races(body: str, blocks: int) -> None:
    for schedule in SCHEDULES:
        with pytest.raises(RefsimError) as caught:
            run(body, blocks, *schedule)
        assert caught.value.code == "race", schedule


@pytest.mark.parametrize(
    "how",
    [
        {},
        RELAXED | FENCED,
        {"arrive": "relaxed.cta", "before": "fence.acq_rel.cta;"},
        {"wait": "relaxed.cta", "behind": "fence.acq_rel.gpu;"},
    ],
    ids=str,
)
def test_arrivals_release_and_waits_acquire(how: dict[str, str]) -> None:
    for schedule in SCHEDULES:
        assert (run(BLOCK.format(**ORDERED | how), 1, *schedule) == 163 - np.arange(64)).all()


@pytest.mark.parametrize(
    "how",
    [
        {"arrive": "relaxed.cta"},
        {"wait": "relaxed.cta"},
        RELAXED,
        RELAXED | {"before": "fence.release.cta;"},
        RELAXED | {"behind": "fence.acquire.cta;"},
    ],
    ids=str,
)
def test_relaxed_ones_order_nothing(how: dict[str, str]) -> None:
    races(BLOCK.format(**ORDERED | how), 1)


def test_arrivals_from_elsewhere_release_to_the_cluster() -> None:
    right = CLUSTER.format(arrive="release.cluster.", wait="acquire.cluster.")
    for schedule in SCHEDULES:
        assert (run(right, 2, *schedule)[:64] == 100 + 64 + 63 - np.arange(64)).all()


@pytest.mark.parametrize(
    ("arrive", "wait"),
    [
        ("", "acquire.cluster."),
        ("relaxed.cluster.", "acquire.cluster."),
        ("release.cluster.", ""),
        ("release.cluster.", "relaxed.cluster."),
    ],
)
def test_what_does_not_reach_the_cluster_orders_nothing_there(arrive: str, wait: str) -> None:
    races(CLUSTER.format(arrive=arrive, wait=wait), 2)


def test_only_arrivals_reach_another_block() -> None:
    body = CLUSTER.format(arrive="release.cluster.", wait="acquire.cluster.")
    remote = "cvt.u64.u32 %d5, %r15; add.u64 %d5, %d5, 0x2000000000; mbarrier.try_wait.parity.b64 %p3, [%d5], 1;"
    with pytest.raises(RefsimError, match="an mbarrier of another CTA is waited for") as caught:
        run(body.replace("bra END;", remote + "bra END;"), 2, "eager", 0)
    assert caught.value.code == "barrier-misuse"
