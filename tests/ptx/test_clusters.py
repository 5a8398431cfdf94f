"""Clusters: the shared memory of other blocks, the barrier of a cluster, and what it orders."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
PROLOGUE = """
    .shared .align 8 .b32 s[64];
    .reg .b32 %r<24>; .reg .b64 %d<12>; .reg .pred %p<8>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank; mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x; mad.lo.u32 %r6, %r4, %r5, %r1; mul.wide.u32 %d2, %r6, 4; add.s64 %d3, %d1, %d2;
    add.u32 %r7, %r2, 1; rem.u32 %r7, %r7, %r3;
    mov.u32 %r8, s; shl.b32 %r9, %r1, 2; add.u32 %r8, %r8, %r9;
    mad.lo.u32 %r10, %r4, 1000, %r1;
"""
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# Everybody writes its own block's memory, meets, reads the next block's, and meets again before it exits.
RING = f"""
    st.shared.u32 [%r8], %r10;
    {MEET}
    mapa.shared::cluster.u32 %r11, %r8, %r7;
    ld.shared::cluster.u32 %r12, [%r11];
    {MEET}
    st.global.u32 [%d3], %r12; ret;"""
LATER = pytest.mark.ci("two random schedules, one of them with a warp that comes late, are tried in every run")
SCHEDULES = pytest.mark.parametrize(
    ("policy", "seed"),
    [
        *(("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)),
        *(pytest.param("random", seed, marks=LATER) for seed in range(3, 7)),
    ],
)


def program(body: str) -> ptx.Program:
    return ptx.load(f"{HEAD}.visible .entry k(.param .u64 out)\n{{ {PROLOGUE} {body} }}\n")


def run(body: str, blocks=8, threads=64, cluster=4, **options) -> np.ndarray:
    out = np.zeros(blocks * threads, np.uint32)
    program(body).launch("k", blocks, threads, [out], cluster=cluster, **options)
    return out.reshape(blocks, threads)


def next_block(blocks: int, threads: int, cluster: int) -> np.ndarray:
    block, thread = np.arange(blocks)[:, None], np.arange(threads)
    return (block // cluster * cluster + (block + 1) % cluster) * 1000 + thread


def fails(body: str, code: str, **options) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, **options)
    assert caught.value.code == code
    return caught.value


@SCHEDULES
@pytest.mark.parametrize(("blocks", "cluster"), [(8, 4), (6, 2), (16, 16), (6, 3), (4, 1)])
def test_a_ring_of_blocks(policy, seed, blocks, cluster):
    assert (run(RING, blocks, 64, cluster, policy=policy, seed=seed) == next_block(blocks, 64, cluster)).all()


def test_the_barrier_without_a_cluster_is_one_of_the_block():
    assert (run(RING, 4, 64, None) == next_block(4, 64, 1)).all()


@pytest.mark.parametrize("threads", [32, 40, 64])
def test_generic_addresses_reach_the_other_block(threads):
    body = f"""
        cvt.u64.u32 %d4, %r8; cvta.shared.u64 %d4, %d4; st.u32 [%d4], %r10;
        {MEET}
        mapa.u64 %d5, %d4, %r7; ld.u32 %r12, [%d5];
        getctarank.u64 %r13, %d5; setp.ne.u32 %p1, %r13, %r7; @%p1 trap;
        isspacep.shared::cluster %p2, %d5; @!%p2 trap;
        isspacep.shared::cta %p3, %d4; @!%p3 trap;
        isspacep.shared %p4, %d5; setp.ne.u32 %p5, %r7, %r2; and.pred %p4, %p4, %p5; @%p4 trap;
        cvta.to.shared.u64 %d6, %d5; cvt.u32.u64 %r14, %d6; mapa.shared::cluster.u32 %r15, %r8, %r7;
        setp.ne.u32 %p6, %r14, %r15; @%p6 trap;
        getctarank.shared::cluster.u32 %r16, %r8; setp.ne.u32 %p7, %r16, %r2; @%p7 trap;
        {MEET}
        st.global.u32 [%d3], %r12; ret;"""
    assert (run(body, 8, threads) == next_block(8, threads, 4)).all()


@SCHEDULES
def test_atomics_in_the_memory_of_one_block(policy, seed):
    body = f"""
        mov.u32 %r11, 0; st.shared.u32 [%r8], %r11;
        {MEET}
        mov.u32 %r12, s; mov.u32 %r13, 0; mapa.shared::cluster.u32 %r12, %r12, %r13;
        atom.add.shared::cluster.u32 %r14, [%r12], 1;
        {MEET}
        ld.shared::cluster.u32 %r15, [%r12];
        {MEET}
        st.global.u32 [%d3], %r15; ret;"""
    assert (run(body, policy=policy, seed=seed) == 4 * 64).all()


def test_clusters_of_two_dimensions_share_among_their_own():
    body = RING.replace("%r10", "%r2")
    out = np.zeros(8 * 64, np.uint32)
    # Block (x, y) of a 2 x 4 grid in clusters of 2 x 2 has rank x + 2 (y mod 2); its number is taken from %ctaid.y as well.
    text = body.replace(
        "st.global.u32 [%d3]",
        """mov.u32 %r20, %ctaid.y; mov.u32 %r21, %nctaid.x; mul.lo.u32 %r20, %r20, %r21;
        mul.lo.u32 %r20, %r20, %r5; mul.wide.u32 %d8, %r20, 4; add.s64 %d3, %d3, %d8; st.global.u32 [%d3]""",
    )
    program(text).launch("k", (2, 4), 64, [out], cluster=(2, 2))
    rank = np.array([x + 2 * (y % 2) for y in range(4) for x in range(2)])
    assert (out.reshape(8, 64) == ((rank + 1) % 4)[:, None]).all()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (
            "mov.u32 %r7, 4; mapa.shared::cluster.u32 %r11, %r8, %r7; ret;",
            "invalid-operand",
            "rank 4 of a cluster of 4",
        ),
        ("mapa.u64 %d5, %d1, %r7; ret;", "invalid-operand", "not in shared memory"),
        (RING.replace("ld.shared::cluster", "ld.shared"), "out-of-bounds", "of the cluster"),
        (
            RING.replace("mapa.shared::cluster.u32 %r11, %r8, %r7;", "add.u32 %r11, %r8, 0x9000000;"),
            "out-of-bounds",
            "of a cluster of 4",
        ),
        (
            RING.replace("mapa.shared::cluster.u32 %r11, %r8, %r7;", "add.u32 %r11, %r8, 1024;"),
            "out-of-bounds",
            "past the end",
        ),
        ("barrier.cluster.wait; ret;", "barrier-misuse", "without an arrival"),
        ("barrier.cluster.arrive; barrier.cluster.arrive; ret;", "barrier-misuse", "second arrival"),
        (
            "setp.eq.u32 %p1, %r2, 0; @%p1 bra DONE; " + MEET + " DONE: bar.sync 0; ret;",
            "deadlock",
            "barrier.cluster.wait",
        ),
    ],
)
def test_misuse(body, code, said):
    if "DONE" in body:  # rank 0 never arrives, and stays: it waits for a barrier that its other warp never reaches
        body = body.replace("DONE: bar.sync 0;", "DONE: setp.lt.u32 %p2, %r1, 32; @%p2 bar.sync 0, 96;")
    assert said in fails(body, code).what


def test_a_block_that_exits_counts_as_arrived():
    body = f"setp.eq.u32 %p1, %r2, 3; @%p1 bra DONE; {MEET} st.global.u32 [%d3], %r10; DONE: ret;"
    assert (run(body)[:3] == next_block(8, 64, 1)[:3]).all()


EXITS_EARLY = {
    "no barrier after the read": f"{RING[: RING.rindex('barrier.cluster.arrive')]} st.global.u32 [%d3], %r12; ret;",
    "one block leaves": RING.replace("mapa", "setp.eq.u32 %p1, %r2, 1; @%p1 bra DONE; mapa", 1).replace(
        "ret;", "DONE: ret;"
    ),
    "the last barrier is relaxed": RING[::-1].replace("esaeler.evirra", "dexaler.evirra", 1)[::-1],
}


@SCHEDULES
@pytest.mark.parametrize("name", EXITS_EARLY)
def test_a_block_exits_while_another_uses_its_memory(name, policy, seed):
    error = fails(EXITS_EARLY[name], "out-of-bounds", policy=policy, seed=seed)
    assert "exited" in error.what


AWAIT = "AWAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r13], 0; @!%p3 bra AWAIT;"
ONE_WAITS = f"""
    .shared .align 8 .b64 bar; mov.u32 %r13, bar; setp.eq.u32 %p1, %r1, 0; st.shared.u32 [%r8], %r10;
    @%p1 mbarrier.init.shared::cta.b64 [%r13], 1; fence.mbarrier_init.release.cluster; {MEET}
    @!%p1 bra DONE; setp.eq.u32 %p2, %r2, 1; @%p2 bra AWAIT;
    mapa.shared::cluster.u32 %r11, %r8, %r7; ld.shared::cluster.u32 %r12, [%r11]; st.global.u32 [%d3], %r12;
    mapa.shared::cluster.u32 %r14, %r13, %r7; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14]; bra DONE;
    {AWAIT}
    DONE: ret;"""


@SCHEDULES
def test_one_thread_that_waits_for_the_reader_keeps_the_memory(policy, seed):
    """The other threads of its block exit at once."""
    assert run(ONE_WAITS, 2, 64, 2, policy=policy, seed=seed)[0, 0] == 1000
    error = fails(ONE_WAITS.replace(AWAIT, "AWAIT:"), "out-of-bounds", blocks=2, cluster=2, policy=policy, seed=seed)
    assert "exited" in error.what


FENCED = "{fence} barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"


@SCHEDULES
@pytest.mark.parametrize("fence", ["fence.acq_rel.cluster;", "fence.sc.cluster;", "fence.acq_rel.gpu;"])
def test_a_fence_releases_by_a_relaxed_arrival(policy, seed, fence):
    """An older fence of wider scope is not the one that counts."""
    body = RING.replace(MEET, f"fence.acq_rel.gpu; {MEET}", 1).replace(
        f"{MEET} ret;", f"{FENCED.format(fence=fence)} ret;"
    )
    for text in (RING.replace(MEET, FENCED.format(fence=fence)), body):
        assert (run(text, policy=policy, seed=seed) == next_block(8, 64, 4)).all()


def test_a_fence_of_a_block_does_not_release_to_the_cluster():
    for text in ("", "fence.acq_rel.cta;"):
        fails(RING.replace(MEET, FENCED.format(fence=text), 1), "race")


# Thread 0 of block 0 of each pair stores into its neighbour's memory; the neighbour polls, and both exit.
TOLD = """
    .shared .align 4 .b32 flags[2]; mov.u32 %r13, flags; setp.ne.u32 %p1, %r1, 0; @%p1 bra $made;
    mov.u32 %r17, 0; st.shared.u32 [%r13], %r17; st.shared.u32 [%r13+4], %r17;
    $made: {meet}
    @%p1 bra $end; mov.u32 %r18, 1; mapa.shared::cluster.u32 %r14, %r13, %r7;
    {before} st.relaxed.cluster.shared::cluster.u32 [%r14], %r18;
    $poll: ld.relaxed.cluster.shared.u32 %r15, [%r13]; setp.eq.u32 %p2, %r15, 0; {again}
    $end: st.global.u32 [%d3], %r10; ret;"""


@SCHEDULES
def test_a_block_may_exit_after_it_saw_a_relaxed_store(policy, seed):
    run(TOLD.format(meet=MEET, before="", again="@%p2 bra $poll;"), policy=policy, seed=seed)


@pytest.mark.parametrize(
    "before",
    [
        "st.relaxed.cluster.shared::cluster.u32 [%r14+4], %r18;",  # another store, which nobody saw
        "ld.relaxed.cluster.shared::cluster.u32 %r19, [%r14+4];",  # a read of the neighbour's memory
    ],
)
def test_a_block_may_not_exit_before_what_it_did_not_see(before):
    fails(TOLD.format(meet=MEET, before=before, again="@%p2 bra $poll;"), "out-of-bounds")


def test_a_block_may_not_exit_before_a_store_that_it_does_not_wait_for():
    body = TOLD.format(meet=MEET, before="", again="")
    fails(body.replace("ld.relaxed.cluster.shared.u32 %r15, [%r13];", "mov.u32 %r15, 0;"), "out-of-bounds")


WRONG = {
    "no barrier before the read": RING.replace(MEET, "", 1),
    "a relaxed arrival": RING.replace("arrive.release", "arrive.relaxed", 1),
    "a barrier of the block alone": RING.replace(MEET, "bar.sync 0;", 1),
    "no barrier before the next write": RING.replace(
        f"{MEET}\n    st.global", f"st.shared.u32 [%r8], %r1; {MEET} st.global"
    ),
}


@SCHEDULES
@pytest.mark.parametrize("name", WRONG)
def test_what_the_barrier_alone_orders(name, policy, seed):
    error = fails(WRONG[name], "race", policy=policy, seed=seed)
    assert "block" in error.where + error.what


@SCHEDULES
def test_arrivals_and_waits_apart(policy, seed):
    """Work between arrive and wait, a CTA barrier in between, several phases."""
    body = """
        mov.u32 %r17, 0; mov.u32 %r18, 0;
        LOOP:
        add.u32 %r19, %r10, %r17; st.shared.u32 [%r8], %r19;
        barrier.cluster.arrive;
        mul.lo.u32 %r20, %r17, %r17;
        barrier.cluster.wait;
        mapa.shared::cluster.u32 %r11, %r8, %r7; ld.shared::cluster.u32 %r12, [%r11]; add.u32 %r18, %r18, %r12;
        barrier.cluster.arrive.release; bar.sync 0; barrier.cluster.wait.acquire;
        add.u32 %r17, %r17, 1; setp.lt.u32 %p1, %r17, 3; @%p1 bra LOOP;
        st.global.u32 [%d3], %r18; ret;"""
    assert (run(body, policy=policy, seed=seed) == 3 * next_block(8, 64, 4) + 3).all()


# Thread 0 of each block makes an object, all meet, and each block arrives at that of the next one and waits for its own.
NEIGHBOURS = """
    .shared .align 8 .b64 ready; mov.u32 %r13, ready; setp.ne.u32 %p1, %r1, 0; @%p1 bra $made;
    mbarrier.init.shared.b64 [%r13], {threads}; {fence}
    $made: {meet}
    mapa.shared::cluster.u32 %r14, %r13, %r7; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];
    $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r13], 0; @!%p2 bra $wait;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    st.global.u32 [%d3], %r10; ret;"""
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
INIT_FENCE = "fence.mbarrier_init.release.cluster;"


@SCHEDULES
@pytest.mark.parametrize(("fence", "meet"), [(INIT_FENCE, RELAXED), ("", MEET), ("fence.acq_rel.cluster;", MEET)])
def test_an_object_is_ready_for_the_cluster(policy, seed, fence, meet):
    run(NEIGHBOURS.format(fence=fence, meet=meet, threads=64), policy=policy, seed=seed)


@pytest.mark.parametrize(("fence", "meet"), [("", RELAXED), (INIT_FENCE, ""), (INIT_FENCE, "bar.sync 0;")])
def test_an_object_that_the_cluster_may_not_see_yet(fence, meet):
    body = NEIGHBOURS.format(fence=fence, meet=meet, threads=64)
    codes = set()
    for seed in range(4):
        with pytest.raises(RefsimError) as caught:
            run(body, policy="random", seed=seed)
        codes.add((caught.value.code, "not initialized" in caught.value.what))
    assert codes <= {("race", False), ("barrier-misuse", True)}


def test_what_comes_before_a_fence_of_inits_is_not_released_by_it():
    """The fence is one of mbarrier objects alone: data needs a release of its own."""
    body = RING.replace(MEET, f"{INIT_FENCE} {RELAXED}", 1)
    fails(body, "race")


# Each thread of block 0 writes and fences; one thread stores a flag behind a barrier. Block 1 polls it, fences and reads.
SEQUENTIAL = """
    setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r1, 0; mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d1, %d4;
    @!%p1 bra READ;
    st.global.u32 [%d4+4], 7; fence.sc.{first}; bar.sync 0; @%p2 st.relaxed.gpu.global.u32 [%d1], 1; ret;
    READ: ld.relaxed.gpu.global.u32 %r11, [%d1]; setp.eq.u32 %p3, %r11, 0; @%p3 bra READ;
    fence.sc.{second}; ld.global.u32 %r12, [%d4+4]; ret;"""


@SCHEDULES
@pytest.mark.parametrize(("first", "second"), [("cluster", "cluster"), ("gpu", "cluster"), ("cluster", "sys")])
def test_fences_before_a_barrier_order_what_their_scopes_include(policy, seed, first, second):
    run(SEQUENTIAL.format(first=first, second=second), 2, cluster=2, policy=policy, seed=seed)


@pytest.mark.parametrize(
    ("first", "second", "cluster"), [("cta", "gpu", 2), ("gpu", "cta", 2), ("cluster", "gpu", 1), ("gpu", "cluster", 1)]
)
def test_a_fence_orders_nothing_outside_its_scope(first, second, cluster):
    fails(SEQUENTIAL.format(first=first, second=second), "race", blocks=2, cluster=cluster)


def test_a_deadlock_says_who_came_before_and_not_again():
    body = """
    .shared .align 8 .b64 pair[2]; mov.u32 %r13, pair; setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r13+8], 2; bar.sync 0; setp.lt.u32 %p3, %r1, 1; setp.eq.u32 %p4, %r1, 32;
    @%p3 bra $first; @%p4 bra $second; ret;
    $second: mbarrier.arrive.shared.b64 _, [%r13+8];
    $wait2: mbarrier.try_wait.parity.shared.b64 %p2, [%r13+8], 0; @!%p2 bra $wait2; ret;
    $first: mbarrier.arrive.shared.b64 _, [%r13+8];
    $wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r13+8], 0; @!%p2 bra $wait;
    mbarrier.arrive.shared.b64 _, [%r13+8];
    $again: mbarrier.try_wait.parity.shared.b64 %p2, [%r13+8], 1; @!%p2 bra $again;
    st.global.u32 [%d3], %r10; ret;"""
    said = fails(body, "deadlock", blocks=1, cluster=None).what
    assert "(pair+8) of block (0, 0, 0): 1 of 2 arrivals are missing" in said
    assert "for phase 1 of the mbarrier" in said
    assert (
        "thread (32, 0, 0) of block (0, 0, 0) came to it in the phase before, by mbarrier.arrive.shared.b64 at" in said
    )
    assert "and now has exited" in said


def test_a_deadlock_names_arrivals_that_nobody_executed():
    body = """
    .shared .align 8 .b64 one; mov.u32 %r13, one; setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r13], 1; bar.sync 0; setp.gt.u32 %p3, %r1, 900; @!%p3 bra $wait;
    mbarrier.arrive.release.cta.shared.b64 _, [%r13];
    $wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r13], 0; @!%p2 bra $wait; ret;"""
    said = fails(body, "deadlock", blocks=1, cluster=None).what
    assert "no thread has executed mbarrier.arrive.release.cta.shared.b64 at PTX line" in said
    assert " (one) of block (0, 0, 0)" in said


def test_a_poll_that_never_ends_is_a_deadlock_also_beside_a_barrier_of_the_warp():
    """One lane waits for a word that nobody writes, the others of its warp at the barrier that it would come to."""
    body = f"""
    st.shared.u32 [%r8], 0; bar.sync 0; setp.eq.u32 %p1, %r1, 0; @!%p1 bra $meet;
    $poll: ld.acquire.cta.shared.u32 %r11, [s+16]; setp.eq.u32 %p2, %r11, 7; @!%p2 bra $poll;
    $meet: {MEET} ret;"""
    error = fails(body, "deadlock", blocks=2, cluster=2)
    assert "2 threads (first thread (0, 0, 0) of block (0, 0, 0), warps 0 of 2 blocks) wait at ld.acquire" in error.what
    assert "a loop that polls memory ends" in error.rule
    assert "mbarrier: a phase completes" in fails(NOBODY_ARRIVES, "deadlock", blocks=1, cluster=None).rule
    apart = "setp.eq.u32 %p1, %r2, 1; @%p1 bra $other; barrier.cluster.arrive; barrier.cluster.wait; $other: ret;"
    apart = apart.replace("$other: ret;", "ret; $other: bar.sync 1, 128; ret;")
    assert "barrier.cluster: all threads of the cluster" in fails(apart, "deadlock", blocks=2, cluster=2).rule


NOBODY_ARRIVES = """
    .shared .align 8 .b64 one; mov.u32 %r13, one; setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r13], 1; bar.sync 0;
    $wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r13], 0; @!%p2 bra $wait; ret;"""


def test_a_deadlock_says_how_many_are_at_a_barrier():
    body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra $all; bar.sync 3, 128; ret; $all: ret;"
    assert "32 of the 128 threads of barrier 3 are there" in fails(body, "deadlock", blocks=1, cluster=None).what
    body = """setp.eq.u32 %p1, %r2, 1; @%p1 bra $other; barrier.cluster.arrive; barrier.cluster.wait; ret;
    $other: bar.sync 1, 128; ret;"""
    said = fails(body, "deadlock", blocks=2, cluster=2).what
    assert "64 of the 128 threads of the cluster have arrived, thread (0, 0, 0) of block (1, 0, 0) has not" in said
