"""Barriers of a CTA: who counts, when a phase ends, and what is a deadlock; in lockstep and under random schedules."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), *(("random", seed) for seed in range(1, 5))])


def run(
    body: str, threads: int, *, policy: str = "eager", seed: int = 0, grid: int = 1, off: tuple[str, ...] = ()
) -> np.ndarray:
    """%r1 is the thread, %r9 its lane, %d3 its own word of the result, `tile` 1,024 words of shared memory."""
    text = f"""{HEAD}.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<16>; .reg .b64 %d<4>; .reg .pred %p<8>; .shared .align 4 .b8 tile[4096];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; and.b32 %r9, %r1, 31; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    mov.u32 %r10, tile; shl.b32 %r11, %r1, 2; add.s32 %r12, %r10, %r11;
    {body}\n}}\n"""
    out = np.zeros(threads, np.uint32)
    checks = ptx.Checks(seconds=20, off=off)
    ptx.load(text).launch("k", (grid,), (threads,), [out], policy=policy, seed=seed, checks=checks)
    return out


def deadlock(body: str, threads: int, code: str = "deadlock") -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, threads)
    assert caught.value.code == code
    return caught.value


@POLICIES
@pytest.mark.parametrize("opcode", ["bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync.aligned"])
def test_what_was_stored_before_a_barrier_is_there_behind_it(opcode: str, policy: str, seed: int) -> None:
    """100 threads: the last warp has four."""
    body = f"""st.shared.u32 [%r12], %r1; {opcode} 0; sub.s32 %r2, 99, %r1; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r10;
        ld.shared.u32 %r3, [%r2]; st.global.u32 [%d3], %r3; ret;"""
    assert (run(body, 100, policy=policy, seed=seed) == np.arange(100)[::-1]).all()


def test_a_thread_that_polls_and_counts_is_not_stuck() -> None:
    """Nobody writes, yet its registers change from look to look, and it gives up in the end."""
    body = """mov.u32 %r2, 0;
        $look: ld.volatile.global.u32 %r3, [%d3]; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 3000; @%p1 bra $look;
        st.global.u32 [%d3], %r2; ret;"""
    assert run(body, 1).tolist() == [3000]


@POLICIES
def test_a_guarded_barrier_is_for_whole_warps(policy: str, seed: int) -> None:
    """Warps 0 and 1 meet at barrier 1; the others pass by, since their guard is false."""
    body = """setp.lt.u32 %p1, %r1, 64; st.shared.u32 [%r12], %r1; @%p1 bar.sync 1, 64; mov.u32 %r3, 7;
        xor.b32 %r2, %r11, 252; add.s32 %r2, %r2, %r10; @%p1 ld.shared.u32 %r3, [%r2]; st.global.u32 [%d3], %r3; ret;"""
    want = np.where(np.arange(128) < 64, np.arange(128) ^ 63, 7)
    assert (run(body, 128, policy=policy, seed=seed) == want).all()


def test_an_aligned_barrier_in_half_a_warp_never_completes() -> None:
    error = deadlock("setp.lt.u32 %p1, %r9, 16; @%p1 bar.sync 0; @!%p1 bar.sync 0; ret;", 32, "divergent-sync")
    assert "16 threads" in error.what
    assert "bar.sync" in error.where


@POLICIES
def test_an_unaligned_barrier_gathers_a_warp_from_two_places(policy: str, seed: int) -> None:
    """Without .aligned the halves of a warp may come from different instructions."""
    body = """st.shared.u32 [%r12], %r1; setp.lt.u32 %p1, %r9, 16; @%p1 bra A; add.s32 %r5, %r1, 0; barrier.sync 0; bra ON;
        A: barrier.sync 0; ON: xor.b32 %r2, %r11, 252; add.s32 %r2, %r2, %r10; ld.shared.u32 %r3, [%r2];
        st.global.u32 [%d3], %r3; ret;"""
    assert (run(body, 64, policy=policy, seed=seed) == np.arange(64) ^ 63).all()


@POLICIES
def test_a_warp_counts_once_all_its_lanes_are_there(policy: str, seed: int) -> None:
    """Warp 0 arrives lane by lane, the first ones early: 64 threads are expected, and half a warp is not 32 of them."""
    body = """setp.ge.u32 %p1, %r1, 32; @%p1 bra TAKE;
        setp.lt.u32 %p2, %r9, 16; @%p2 bra WAIT; mov.u32 %r4, 0;
        LOOP: add.s32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 40; @%p3 bra LOOP;
        st.shared.u32 [%r12], 5;
        WAIT: barrier.sync 3, 64; st.global.u32 [%d3], 1; ret;
        TAKE: barrier.sync 3, 64; ld.shared.u32 %r3, [tile+124]; st.global.u32 [%d3], %r3; ret;"""
    assert (run(body, 64, policy=policy, seed=seed) == np.where(np.arange(64) < 32, 1, 5)).all()


def test_a_half_warp_at_a_counted_barrier_is_no_warp() -> None:
    """The other half waits at another barrier: neither has the 32 lanes that make a warp."""
    body = "setp.lt.u32 %p1, %r9, 16; @%p1 bra A; barrier.sync 1, 32; ret; A: barrier.sync 2, 32; ret;"
    assert deadlock(body, 32, "divergent-sync").what.count("16 threads") == 2


@POLICIES
def test_exited_lanes_and_warps_are_not_waited_for(policy: str, seed: int) -> None:
    body = """setp.ge.u32 %p1, %r1, 50; @%p1 exit; setp.eq.u32 %p2, %r9, 3; @%p2 exit; bar.sync 0; st.global.u32 [%d3], 1; ret;"""
    thread = np.arange(96)
    assert (run(body, 96, policy=policy, seed=seed) == ((thread < 50) & (thread % 32 != 3))).all()


@POLICIES
def test_producers_arrive_and_go_on_while_the_consumer_waits(policy: str, seed: int) -> None:
    """Three producing warps, one consumer, two phases of one barrier."""
    body = """setp.ge.u32 %p1, %r1, 96; @%p1 bra TAKE;
        st.shared.u32 [%r12], %r1; bar.arrive 2, 128; bar.sync 3, 128;
        add.s32 %r2, %r1, 1000; st.shared.u32 [%r12], %r2; bar.arrive 2, 128; st.global.u32 [%d3], 1; ret;
        TAKE: bar.sync 2, 128; ld.shared.u32 %r3, [tile+4]; ld.shared.u32 %r4, [tile+380]; bar.sync 3, 128;
        bar.sync 2, 128; ld.shared.u32 %r5, [tile+380]; add.s32 %r3, %r3, %r4; add.s32 %r3, %r3, %r5;
        st.global.u32 [%d3], %r3; ret;"""
    want = np.where(np.arange(128) < 96, 1, 1 + 95 + 1095)
    assert (run(body, 128, policy=policy, seed=seed) == want).all()


@POLICIES
def test_pairs_of_warps_pass_a_counted_barrier_pair_by_pair(policy: str, seed: int) -> None:
    """Four warps at a barrier of 64 threads are two phases; none is left over. Which two warps meet is not theirs to say."""
    body = "bar.sync 5, 64; bar.sync 5, 64; st.global.u32 [%d3], 1; ret;"
    assert run(body, 128, policy=policy, seed=seed, off=("shared-barrier",)).all()
    with pytest.raises(RefsimError, match="shared-barrier") as caught:
        run(body, 128, policy=policy, seed=seed)
    assert "where warps" in caught.value.what


TURNS = """setp.lt.u32 %p1, %r1, 64; @!%p1 bra $second; bar.sync 1, 64; {pass}; bra $end;
    $second: {wait}; bar.sync 1, 64; $end: st.global.u32 [%d3], 1; ret;"""


@POLICIES
@pytest.mark.parametrize(
    ("give", "wait"),
    [
        ("bar.arrive 2, 128", "bar.sync 2, 128"),
        (
            "membar.cta; setp.eq.u32 %p2, %r1, 0; @%p2 st.volatile.shared.u32 [tile], 1",
            "$poll: ld.volatile.shared.u32 %r2, [tile]; setp.ne.u32 %p3, %r2, 1; @%p3 bra $poll; membar.cta",
        ),
    ],
)
def test_pairs_of_warps_may_take_turns_at_one_barrier(give: str, wait: str, policy: str, seed: int) -> None:
    """What hands the turn on, a barrier or a flag, orders the two uses; without it the pairs may mix."""
    start = "st.volatile.shared.u32 [tile], 0; bar.sync 0; "
    turns = start + TURNS.replace("{pass}", give)
    assert run(turns.replace("{wait}", wait), 128, policy=policy, seed=seed).all()
    with pytest.raises(RefsimError, match="shared-barrier"):
        run(turns.replace("{wait}", "mov.u32 %r2, 1"), 128, policy=policy, seed=seed)


def test_a_warp_that_comes_twice_in_one_phase_stands_for_another() -> None:
    body = (
        "setp.ge.u32 %p1, %r1, 32; @%p1 bra $end; bar.arrive 5, 64; bar.sync 5, 64; $end: st.global.u32 [%d3], 1; ret;"
    )
    with pytest.raises(RefsimError, match="shared-barrier") as caught:
        run(body, 64)
    assert "warp 0 comes to barrier 5 again before the phase is complete" in caught.value.what


def test_an_arrival_counts_for_one_of_two_warps_that_wait() -> None:
    """One warp has arrived, two wait for 64 threads: one goes on, the other is there for a phase that nobody completes."""
    body = "setp.ge.u32 %p1, %r1, 32; @%p1 bra WAIT; bar.arrive 5, 64; ret; WAIT: bar.sync 5, 64; ret;"
    with pytest.raises(RefsimError, match="deadlock"):
        run(body, 96)


def test_a_third_warp_waits_for_a_phase_that_never_comes() -> None:
    assert "32 threads" in deadlock("bar.sync 5, 64; ret;", 96).what


@POLICIES
def test_unaligned_arrivals_count_a_warp_once(policy: str, seed: int) -> None:
    """The two halves of warp 0 arrive from different places; the count is 64, not 96."""
    body = """setp.ge.u32 %p1, %r1, 32; @%p1 bra TAKE; setp.lt.u32 %p2, %r9, 16; st.shared.u32 [%r12], %r1;
        @%p2 bra A; barrier.arrive 1, 64; bra ON; A: barrier.arrive 1, 64; ON: st.global.u32 [%d3], 1; ret;
        TAKE: barrier.sync 1, 64; ld.shared.u32 %r3, [tile+12]; ld.shared.u32 %r4, [tile+80]; add.s32 %r3, %r3, %r4;
        st.global.u32 [%d3], %r3; ret;"""
    assert (run(body, 64, policy=policy, seed=seed) == np.where(np.arange(64) < 32, 1, 23)).all()


@POLICIES
@pytest.mark.parametrize(("prefix", "aligned"), [("bar", ""), ("barrier", ".aligned"), ("barrier", "")])
def test_reductions_over_the_threads_that_wait(prefix: str, aligned: str, policy: str, seed: int) -> None:
    body = f"""setp.lt.u32 %p1, %r1, 40; setp.lt.u32 %p4, %r1, 1000;
        {prefix}.red.popc{aligned}.u32 %r2, 0, %p1; {prefix}.red.and{aligned}.pred %p2, 0, %p1;
        {prefix}.red.or{aligned}.pred %p3, 0, !%p4; {prefix}.red.and{aligned}.pred %p5, 0, 96, %p4;
        selp.b32 %r3, 100, 0, %p2; add.s32 %r2, %r2, %r3; selp.b32 %r3, 200, 0, %p3; add.s32 %r2, %r2, %r3;
        selp.b32 %r3, 400, 0, %p5; add.s32 %r2, %r2, %r3; st.global.u32 [%d3], %r2; ret;"""
    assert (run(body, 96, policy=policy, seed=seed) == 440).all()


@POLICIES
def test_every_block_has_barriers_of_its_own(policy: str, seed: int) -> None:
    """Block 1 skips the barrier at which block 0 waits."""
    body = """mov.u32 %r2, %ctaid.x; setp.eq.s32 %p1, %r2, 1; @%p1 bra OUT; bar.sync 0;
        OUT: atom.global.add.u32 %r3, [%d3], 1; ret;"""
    assert (run(body, 64, grid=3, policy=policy, seed=seed) == 3).all()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("bar.sync 16;", "barrier 16 of 16"),
        ("bar.sync 0, 33;", "count of 33"),
        ("bar.sync 0, 0;", "count of 0"),
        ("mov.u32 %r2, 40; bar.arrive 0, %r2;", "count of 40"),
        ("mov.u32 %r2, 99; barrier.sync %r2;", "barrier 99 of 16"),
    ],
)
def test_misuse_is_named(statement: str, what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        run(f"{statement} ret;", 64)
    assert caught.value.code == "barrier-misuse"


@POLICIES
@pytest.mark.parametrize("first", ["bar.sync 1, 64", "bar.arrive 1, 64"])
@pytest.mark.parametrize("second", ["bar.sync 1, 96", "bar.sync 1"])
def test_threads_that_wait_for_different_counts_are_named(first: str, second: str, policy: str, seed: int) -> None:
    body = f"setp.lt.u32 %p1, %r1, 32; @%p1 {first}; @%p1 ret; {second}; ret;"
    with pytest.raises(RefsimError, match=r"while others (wait|arrive) there") as caught:
        run(body, 96, policy=policy, seed=seed)
    assert caught.value.code == "barrier-misuse"


@POLICIES
def test_all_threads_may_be_counted_or_not(policy: str, seed: int) -> None:
    body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 96; bra B; A: bar.sync 1; B: st.global.u32 [%d3], 1; ret;"
    assert (run(body, 96, policy=policy, seed=seed) == 1).all()
