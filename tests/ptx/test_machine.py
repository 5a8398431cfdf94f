"""The machine: divergence, meetings, barriers, deadlocks, schedules; kernels written in PTX for one purpose each."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.machine import schedules

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
PROLOGUE = """
    .reg .b32 %r<20>; .reg .b64 %d<8>; .reg .pred %p<8>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d3, %d1, %d2;
"""


def program(body: str, declarations: str = "") -> ptx.Program:
    return ptx.load(f"{HEAD}{declarations}.visible .entry k(.param .u64 out)\n{{{PROLOGUE}{body}\n}}\n")


def run(
    body: str,
    threads: int,
    grid: int = 1,
    *,
    policy: str = "eager",
    seed: int = 0,
    declarations: str = "",
    checks: ptx.Checks | None = None,
) -> np.ndarray:
    out = np.zeros(threads, np.uint32)
    program(body, declarations).launch("k", (grid,), (threads,), [out], policy=policy, seed=seed, checks=checks)
    return out


POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1), ("random", 2)])


@POLICIES
def test_lanes_that_diverge_meet_again(policy, seed):
    body = """
        and.b32 %r2, %r1, 3; setp.eq.s32 %p1, %r2, 0; @%p1 bra ZERO;
        setp.eq.s32 %p2, %r2, 1; @%p2 bra ONE;
        mov.u32 %r3, 300; bra DONE;
        ZERO: mov.u32 %r3, 100; bra DONE;
        ONE: mov.u32 %r3, 200;
        DONE: add.s32 %r4, %r3, %r2; st.global.u32 [%d3], %r4; ret;"""
    lane = np.arange(77) % 4
    want = np.array([100, 201, 302, 303])[lane]
    assert (run(body, 77, policy=policy, seed=seed) == want).all()


@POLICIES
def test_a_loop_runs_as_often_as_each_lane_needs(policy, seed):
    body = """
        mov.u32 %r2, 0; mov.u32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
        add.s32 %r3, %r3, %r2; add.s32 %r2, %r2, 1; bra LOOP;
        DONE: st.global.u32 [%d3], %r3; ret;"""
    lane = np.arange(70)
    assert (run(body, 70, policy=policy, seed=seed) == lane * (lane - 1) // 2).all()


@POLICIES
def test_a_swap_in_a_divergent_loop_keeps_both_registers(policy, seed):
    body = """
        mov.u32 %r2, 1; mov.u32 %r3, 2; mov.u32 %r5, 0;
        LOOP: setp.ge.u32 %p1, %r5, %r1; @%p1 bra DONE;
        mov.u32 %r4, %r2; mov.u32 %r2, %r3; mov.u32 %r3, %r4; add.s32 %r5, %r5, 1; bra LOOP;
        DONE: mad.lo.s32 %r6, %r2, 10, %r3; st.global.u32 [%d3], %r6; ret;"""
    assert (run(body, 40, policy=policy, seed=seed) == np.where(np.arange(40) % 2, 21, 12)).all()


def test_a_guard_keeps_the_other_lanes():
    body = """
        setp.lt.u32 %p1, %r1, 5; mov.u32 %r2, 7; @%p1 add.s32 %r2, %r1, 100;
        @!%p1 mov.u32 %r3, 1; @%p1 mov.u32 %r3, 2; add.s32 %r2, %r2, %r3;
        st.global.u32 [%d3], %r2; ret;"""
    lane = np.arange(33)
    assert (run(body, 33) == np.where(lane < 5, lane + 102, 8)).all()


@POLICIES
def test_a_shuffle_waits_for_the_lanes_of_its_mask(policy, seed):
    """Half of the warp comes late; the exchange still sees its registers."""
    body = """
        setp.lt.u32 %p1, %r1, 16; @%p1 bra FAST;
        mul.lo.s32 %r2, %r1, 10; bra MEET;
        FAST: mul.lo.s32 %r2, %r1, 1000;
        MEET: shfl.sync.bfly.b32 %r3|%p2, %r2, 16, 31, -1; st.global.u32 [%d3], %r3; ret;"""
    partner = np.arange(32) ^ 16
    assert (run(body, 32, policy=policy, seed=seed) == np.where(partner < 16, partner * 1000, partner * 10)).all()


@POLICIES
def test_shared_memory_behind_a_barrier(policy, seed):
    body = """
        .shared .align 4 .b8 tile[512];
        mov.u32 %r2, tile; shl.b32 %r3, %r1, 2; add.s32 %r4, %r2, %r3; st.shared.u32 [%r4], %r1;
        bar.sync 0;
        xor.b32 %r5, %r3, 508; add.s32 %r6, %r2, %r5; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d3], %r7; ret;"""
    assert (run(body, 128, policy=policy, seed=seed) == np.arange(128)[::-1]).all()


MISSING_BARRIER = """
    .shared .align 4 .b8 tile[512];
    mov.u32 %r2, tile; shl.b32 %r3, %r1, 2; add.s32 %r4, %r2, %r3; st.shared.u32 [%r4], %r1;
    xor.b32 %r5, %r3, 508; add.s32 %r6, %r2, %r5; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d3], %r7; ret;"""


@POLICIES
def test_a_missing_barrier_is_found_under_every_schedule(policy, seed):
    with pytest.raises(RefsimError) as caught:
        run(MISSING_BARRIER, 128, policy=policy, seed=seed)
    assert caught.value.code in ("race", "uninitialised")


def test_without_the_race_check_a_missing_barrier_shows_under_some_schedule():
    off = ptx.Checks(races="off")
    assert (run(MISSING_BARRIER, 128, checks=off) == np.arange(128)[::-1]).all(), "in lockstep the race is invisible"
    caught = 0
    for seed in range(4):
        try:
            run(MISSING_BARRIER, 128, policy="random", seed=seed, checks=off)
        except RefsimError as error:
            assert error.code == "uninitialised"
            caught += 1
    assert caught > 0


def test_named_barriers_count_warps():
    """Warp 0 produces and arrives, warp 1 waits for 64 threads at barrier 3."""
    body = """
        .shared .align 4 .b8 tile[128];
        mov.u32 %r2, tile; and.b32 %r8, %r1, 31; shl.b32 %r3, %r8, 2; add.s32 %r4, %r2, %r3;
        setp.ge.u32 %p1, %r1, 32; @%p1 bra CONSUME;
        add.s32 %r5, %r1, 500; st.shared.u32 [%r4], %r5; bar.arrive 3, 64; st.global.u32 [%d3], %r1; ret;
        CONSUME: bar.sync 3, 64; ld.shared.u32 %r6, [%r4]; st.global.u32 [%d3], %r6; ret;"""
    want = np.concatenate([np.arange(32), np.arange(32) + 500])
    for policy, seed in (("eager", 0), ("random", 5), ("random", 6)):
        assert (run(body, 64, policy=policy, seed=seed) == want).all()


def test_barrier_reductions():
    body = """
        setp.lt.u32 %p1, %r1, 40;
        bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 1, %p1;
        selp.b32 %r3, 1000, 0, %p2; selp.b32 %r4, 100, 0, %p3; add.s32 %r5, %r2, %r3; add.s32 %r5, %r5, %r4;
        st.global.u32 [%d3], %r5; ret;"""
    assert (run(body, 96) == 140).all()


def test_threads_that_left_are_not_waited_for():
    body = "setp.ge.u32 %p1, %r1, 64; @%p1 ret; bar.sync 0; st.global.u32 [%d3], 9; ret;"
    assert (run(body, 96) == np.where(np.arange(96) < 64, 9, 0)).all()


def test_a_deadlock_names_who_waits_where():
    body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 64; ret; A: bar.sync 2, 64; ret;"
    with pytest.raises(RefsimError) as caught:
        run(body, 64)
    assert caught.value.code == "deadlock"
    assert "32 threads (first thread (0, 0, 0) of block (0, 0, 0)" in caught.value.what


@pytest.mark.parametrize("poll", ["add.u32 %r4, [%d3], 0", "or.b32 %r4, [%d3], 0", "exch.b32 %r4, [%d3], 0"])
def test_a_poll_by_an_atomic_that_changes_nothing_is_a_deadlock(poll):
    body = f"AGAIN: atom.relaxed.gpu.global.{poll}; setp.eq.s32 %p1, %r4, 0; @%p1 bra AGAIN; ret;"
    with pytest.raises(RefsimError) as caught:
        run(body, 32, checks=ptx.Checks(seconds=30))
    assert caught.value.code == "deadlock"


def test_a_spinning_group_does_not_starve_what_it_waits_for():
    """The waiting loop stands before the store that releases it: the lowest program counter first would never end."""
    body = """
        setp.ne.s32 %p1, %r1, 0; @%p1 bra SPIN; bra RELEASE;
        SPIN: ld.volatile.global.u32 %r2, [%d1]; setp.eq.s32 %p2, %r2, 0; @%p2 bra SPIN; st.global.u32 [%d3], %r2; ret;
        RELEASE: st.volatile.global.u32 [%d1], 42; ret;"""
    assert (run(body, 64) == 42).all()


def test_an_endless_loop_ends_at_the_time_limit():
    with pytest.raises(RefsimError) as caught:
        program("LOOP: bra LOOP;").launch("k", (1,), (32,), [np.zeros(32, np.uint32)], checks=ptx.Checks(seconds=0.2))
    assert caught.value.code == "timeout"


def test_brx_goes_where_the_index_says():
    body = """
        and.b32 %r2, %r1, 1; TABLE: .branchtargets EVEN, ODD; brx.idx %r2, TABLE;
        EVEN: st.global.u32 [%d3], 2; ret;
        ODD: st.global.u32 [%d3], 1; ret;"""
    assert (run(body, 32) == 2 - np.arange(32) % 2).all()


def test_blocks_and_threads_in_three_dimensions():
    body = """
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mad.lo.s32 %r2, %r3, %r4, %r2;
        mov.u32 %r5, %ntid.x; mov.u32 %r6, %tid.y; mad.lo.s32 %r1, %r6, %r5, %r1; mad.lo.s32 %r1, %r2, 8, %r1;
        mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2; add.s32 %r7, %r1, 1; st.global.u32 [%d3], %r7; ret;"""
    out = np.zeros(48, np.uint32)
    program(body).launch("k", (3, 2), (4, 2), [out])
    assert (out == np.arange(48) + 1).all()


def test_local_and_constant_and_global_variables():
    declarations = ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n.global .align 4 .u32 counter;\n"
    body = """
        .local .align 16 .b8 stack[16]; .reg .b64 %s<4>;
        mov.u64 %s1, stack; cvta.local.u64 %s2, %s1; st.u32 [%s2+4], %r1; ld.local.u32 %r2, [%s1+4];
        and.b32 %r3, %r1, 3; mul.wide.u32 %s3, %r3, 4; mov.u64 %s1, table; add.s64 %s1, %s1, %s3; ld.const.u32 %r4, [%s1];
        add.s32 %r5, %r2, %r4; atom.global.add.u32 %r6, [counter], 1; st.global.u32 [%d3], %r5; ret;"""
    lane = np.arange(64)
    assert (run(body, 64, declarations=declarations) == lane + np.array([10, 20, 30, 40])[lane % 4]).all()


@POLICIES
def test_atomics_on_one_address_hand_out_every_old_value_once(policy, seed):
    body = """
        atom.global.add.u32 %r2, [%d1], 3; bar.sync 0; setp.eq.s32 %p1, %r1, 0; @%p1 ret; st.global.u32 [%d3], %r2; ret;"""
    out = run(body, 64, policy=policy, seed=seed)
    assert out[0] == 192
    assert set(out[1:] % 3) == {0}
    assert len(set(out[1:])) == 63


@pytest.mark.parametrize("space", ["shared", "global"])
def test_lanes_add_floats_at_one_address_in_lane_order_and_in_any_where_schedules_are_random(space):
    """Numbers up to 31 and 2^24, beside which the last bit of an odd one is rounded away: another order is another sum."""
    declarations = ".shared .align 4 .b32 word;\n.global .align 4 .b32 counter;\n"
    name = {"shared": "word", "global": "counter"}[space]
    body = f"""
        .reg .f32 %f<2>; setp.eq.s32 %p1, %r1, 0; @%p1 st.{space}.u32 [{name}], 0; bar.sync 0;
        cvt.rn.f32.u32 %f1, %r1; @%p1 mov.f32 %f1, 0f4b800000;
        red.{space}.add.f32 [{name}], %f1; bar.sync 0; ld.{space}.u32 %r2, [{name}]; st.global.u32 [%d3], %r2; ret;"""
    summands = np.arange(32, dtype=np.float32)
    summands[0] = 2**24
    in_turn = np.add.accumulate(summands)[-1:].view(np.uint32)[0]
    assert (run(body, 32, declarations=declarations) == in_turn).all()
    drawn = {int(run(body, 32, declarations=declarations, policy="random", seed=seed)[0]) for seed in range(1, 9)}
    assert len(drawn) > 1


@pytest.mark.parametrize("places", [1, 3])
def test_nothing_is_lost_of_what_lanes_add_in_a_random_order(places):
    """Whole numbers have one sum in every order: each place has it, whichever lane came last."""
    declarations = ".global .align 4 .b32 words[4];\n"
    body = f"""
        .reg .f32 %f<2>; .reg .b64 %d<9>; mov.u64 %d4, words; rem.u32 %r3, %r1, {places}; mad.wide.u32 %d5, %r3, 4, %d4;
        setp.lt.s32 %p1, %r1, {places}; @%p1 st.global.u32 [%d5], 0; bar.sync 0;
        cvt.rn.f32.u32 %f1, %r1; red.global.add.f32 [%d5], %f1; bar.sync 0;
        ld.global.u32 %r2, [%d5]; st.global.u32 [%d3], %r2; ret;"""
    want = [np.float32(sum(range(lane % places, 32, places))).view(np.uint32) for lane in range(32)]
    for seed in range(4):
        assert run(body, 32, declarations=declarations, policy="random", seed=seed).tolist() == want


def test_arguments_are_checked_before_anything_runs():
    kernel = program("ret;")
    for args, code in (
        ([], "bad-argument"),
        ([np.uint32(1)], "bad-argument"),
        ([7], "bad-argument"),
    ):
        with pytest.raises(RefsimError) as caught:
            kernel.launch("k", (1,), (32,), args)
        assert caught.value.code == code
    with pytest.raises(RefsimError, match="nearest: k"):
        kernel.launch("kk", (1,), (32,), [])
    with pytest.raises(RefsimError, match="launch-limit"):
        kernel.launch("k", (1,), (2048,), [np.uint64(0)])


def test_unknown_instructions_name_the_nearest_form_and_the_line():
    with pytest.raises(RefsimError) as caught:
        run("add.s33 %r1, %r1, %r1;", 32)
    assert caught.value.code == "unknown-instruction"
    assert "add.s33" in caught.value.what
    assert "add" in caught.value.help
    assert "PTX line" in caught.value.where


def test_instructions_of_newer_targets_are_refused():
    body = ".reg .b16 %h; .reg .b32 %f;\ncvt.rn.satfinite.e4m3x2.f32 %h, %f, %f;"
    text = f"{HEAD.replace('sm_90a', 'sm_80')}.entry k()\n{{{body}}}"
    with pytest.raises(RefsimError) as caught:
        ptx.load(text).launch("k", (1,), (32,), [])
    assert caught.value.code == "wrong-target"
    assert "sm_89" in caught.value.what


def test_a_spinning_group_leaves_time_for_the_one_that_holds_the_lock(monkeypatch):
    """The lock is given back at a counter above the loop that waits for it, several blocks later."""
    monkeypatch.setattr(schedules, "FAIRNESS", 128)
    out = np.zeros(32 * 8, np.uint32)
    body = """
        mov.u32 %r2, lock; mov.u32 %r9, 0; and.b32 %r3, %r1, 31; setp.ne.s32 %p2, %r3, 0;
        setp.eq.s32 %p1, %r1, 0; @%p1 st.shared.v2.u32 [%r2], {%r9, %r9};
        bar.sync 0;
        @%p2 bra JOIN;
        SPIN: atom.shared.cas.b32 %r4, [%r2], 0, 1; setp.ne.s32 %p3, %r4, 0; @%p3 bra SPIN;
        fence.acq_rel.cta; ld.shared.u32 %r5, [%r2+4]; add.s32 %r5, %r5, 1; bra A;
        A: setp.eq.s32 %p4, %r5, 100; @%p4 bra B; add.s32 %r6, %r5, 0;
        B: bra C;
        C: st.shared.u32 [%r2+4], %r6; fence.acq_rel.cta; atom.shared.exch.b32 %r4, [%r2], 0;
        JOIN: bar.sync 0;
        ld.shared.u32 %r5, [%r2+4]; st.global.u32 [%d3], %r5; ret;"""
    declared = ".shared .align 8 .b8 lock[8];\n"
    trace = program(body, declared).launch("k", (1,), (len(out),), [out])
    assert (out == 8).all()
    assert trace.instructions < 12_000


def test_a_group_between_two_that_spin_gets_its_turn(monkeypatch):
    monkeypatch.setattr(schedules, "FAIRNESS", 128)
    body = """
        mov.u32 %r2, flag; setp.eq.s32 %p1, %r1, 0; @%p1 st.shared.u32 [%r2], 0; bar.sync 0;
        setp.ge.u32 %p2, %r1, 64; @%p2 bra HIGH; setp.ge.u32 %p2, %r1, 32; @%p2 bra WORK;
        LOW: ld.volatile.shared.u32 %r3, [%r2]; setp.eq.s32 %p3, %r3, 0; @%p3 bra LOW; bra DONE;
        WORK: mov.u32 %r4, 0;
        LOOP: add.s32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 50; @%p3 bra LOOP;
        st.volatile.shared.u32 [%r2], 1; bra DONE;
        HIGH: ld.volatile.shared.u32 %r3, [%r2]; setp.eq.s32 %p3, %r3, 0; @%p3 bra HIGH;
        DONE: mov.u32 %r5, 7; st.global.u32 [%d3], %r5; ret;"""
    out = run(body, 96, declarations=".shared .align 4 .b8 flag[4];\n", checks=ptx.Checks(seconds=10))
    assert (out == 7).all()
