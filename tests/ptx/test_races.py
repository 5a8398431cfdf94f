"""Shared memory watched: what each check finds, under every policy, and what it leaves alone; kernels of a few lines."""

from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

POLICIES = pytest.mark.parametrize("policy", ptx.POLICIES)
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.file 1 "kernel.cu"
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .b64 %d<8>; .reg .pred %p<8>; .shared .align 16 .b8 tile[4096];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    mov.u32 %r2, tile; shl.b32 %r3, %r1, 2; add.s32 %r4, %r2, %r3; shr.u32 %r5, %r1, 5; and.b32 %r6, %r1, 31;
    xor.b32 %r7, %r3, 128; add.s32 %r8, %r2, %r7; setp.lt.u32 %p1, %r1, 32; mov.u32 %r9, 7;
"""


def run(
    body: str, threads: int = 64, *, policy: str = "eager", seed: int = 1, grid: int = 1, **checks: str
) -> ptx.Trace:
    """%r4 is the thread's own word of `tile`, %r8 that of its partner in the other warp, %r5 its warp."""
    out = np.zeros(threads * 8, np.uint32)
    lines = [f".loc 1 {number} 1\n{line}" for number, line in enumerate(body.strip().splitlines(), 1)]
    return ptx.load("\n".join([HEAD, *lines, "ret;", "}", ""])).launch(
        "k", (grid,), (threads,), [out], policy=policy, seed=seed, checks=ptx.Checks(**checks)
    )


def finding(body: str, threads: int = 64, **options: Any) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, threads, **options)
    return caught.value


READ_AFTER_WRITE = "st.shared.u32 [%r4], %r1;\nld.shared.u32 %r10, [%r8];"
WRITE_AFTER_READ = "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r10, [%r4];\nst.shared.u32 [%r8], %r9;"
WRITE_AFTER_WRITE = "@%p1 st.shared.u32 [%r4], 1;\n@!%p1 st.shared.u32 [%r8], 2;"
AT_ONCE = "st.shared.u32 [%r2], %r5;"


@pytest.mark.parametrize(
    ("body", "line", "verb", "other"),
    [
        (READ_AFTER_WRITE, 2, "reads 4 B", "st.shared.u32 at PTX line 12 (kernel.cu:1) wrote"),
        (WRITE_AFTER_READ, 4, "overwrites 4 B", "ld.shared.u32 at PTX line 16 (kernel.cu:3) reads"),
        (WRITE_AFTER_WRITE, 2, "writes 4 B", "st.shared.u32 at PTX line 12 (kernel.cu:1) wrote"),
        (AT_ONCE, 1, "writes 4 B", "by the same instruction"),
    ],
)
def test_a_race_names_both_sides(body: str, line: int, verb: str, other: str) -> None:
    error = finding(body)
    assert error.code == "race"
    assert f"(kernel.cu:{line})" in error.where
    assert error.what.startswith(verb)
    assert other in error.what
    assert "warp" in error.what


@POLICIES
@pytest.mark.parametrize("body", [READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, AT_ONCE])
def test_a_race_is_found_under_every_policy(body: str, policy: str) -> None:
    for seed in (1, 2, 3):
        assert finding(body, policy=policy, seed=seed).code in ("race", "uninitialised")


@POLICIES
@pytest.mark.parametrize(
    "body",
    [
        "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r10, [%r8];",
        "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r10, [%r8];\nbar.sync 0;\nst.shared.u32 [%r4], 9;",
        "st.shared.u32 [%r4], %r1;\nld.shared.u32 %r10, [%r4];\nst.shared.u32 [%r4], %r10;",
        "st.shared.u32 [%r2], 3;\nld.shared.u32 %r10, [%r4+1024];".replace("ld.shared", "st.shared").replace(
            "%r10, [%r4+1024]", "[%r4+1024], 3"
        ),
        "@%p1 st.shared.u32 [%r4], 1;\nbar.sync 0;\n@!%p1 st.shared.u32 [%r8], 2;",
    ],
)
def test_ordered_and_separate_accesses_are_no_race(body: str, policy: str) -> None:
    """Behind a barrier, by the same warp, of equal values, or elsewhere."""
    assert run(body, policy=policy).findings == ()


@POLICIES
@pytest.mark.parametrize(
    "reads",
    [
        "@!%p1 ld.shared.u32 %r10, [%r8];\n@%p1 ld.shared.u32 %r10, [%r4];",
        "@%p1 ld.shared.u32 %r10, [%r4];\n@!%p1 ld.shared.u32 %r10, [%r8];",
        "and.b32 %r11, %r3, 127; add.s32 %r11, %r2, %r11; ld.shared.u32 %r10, [%r11];",
    ],
)
def test_a_reader_is_not_hidden_by_one_of_the_writers_own_warp(reads: str, policy: str) -> None:
    """Both warps read a word of warp 0, in either order or at once, and warp 0 overwrites it."""
    body = f"st.shared.u32 [%r4], %r1;\nbar.sync 0;\n{reads}\n@%p1 st.shared.u32 [%r4], 99;"
    assert finding(body, policy=policy, seed=2).code == "race"
    assert run(body.replace("\n@%p1 st", "\nbar.sync 0;\n@%p1 st"), policy=policy).findings == ()


def test_bytes_side_by_side_are_not_one_place() -> None:
    """The granule of the check is the narrowest access of the kernel: here two bytes of one word belong to two warps."""
    body = "add.s32 %r10, %r2, %r6;\nshl.b32 %r11, %r6, 1;\nadd.s32 %r11, %r2, %r11;\nadd.s32 %r11, %r11, %r5;\n"
    assert run(body + "cvt.u16.u32 %h1, %r1;\nst.shared.u8 [%r11], %h1;\nld.shared.u8 %h2, [%r11];").findings == ()


@POLICIES
@pytest.mark.parametrize("consumer", ["bar.sync 3, 64", "barrier.sync 3, 64"])
def test_a_named_barrier_orders_those_that_meet_there(consumer: str, policy: str) -> None:
    """Warp 0 stores and arrives, warp 1 waits and reads; warp 2 is not at that barrier, and its read is a race."""
    body = f"""setp.lt.u32 %p2, %r1, 64;
        @%p1 st.shared.u32 [%r4], %r1;
        @%p1 bar.arrive 3, 64;
        @%p1 bra DONE;
        @%p2 {consumer};
        @%p2 ld.shared.u32 %r10, [%r8];
        {{}}
        DONE: st.global.u32 [%d3], 1;"""
    assert run(body.format(""), 96, policy=policy).findings == ()
    stray = "@!%p2 ld.shared.u32 %r10, [%r3+768];"
    codes = {finding(body.format(stray), 96, policy=policy, seed=seed).code for seed in (1, 2, 3)}
    assert codes <= {"race", "uninitialised"}


def test_an_arrival_orders_nothing_that_comes_after_it() -> None:
    body = """@%p1 st.shared.u32 [%r4], 1;
        @%p1 bar.arrive 3, 64;
        @%p1 st.shared.u32 [%r4+512], 1;
        @!%p1 bar.sync 3, 64;
        @!%p1 ld.shared.u32 %r10, [%r8];
        @!%p1 ld.shared.u32 %r10, [%r8+512];"""
    error = finding(body)
    assert (error.code, "(kernel.cu:6)" in error.where, "(kernel.cu:3) wrote" in error.what) == ("race", True, True)


@POLICIES
def test_many_barriers_keep_their_order(policy: str) -> None:
    """200 rounds of two warps: epochs are numbered anew several times, and a race at the end is still one."""
    loop = """mov.u32 %r11, 0;
        LOOP: st.shared.u32 [%r4], %r11;
        bar.sync 0;
        ld.shared.u32 %r12, [%r8];
        bar.sync 0;
        add.s32 %r11, %r11, 1; setp.lt.u32 %p3, %r11, 200; @%p3 bra LOOP;"""
    assert run(loop, policy=policy).findings == ()
    assert finding(f"{loop}\nst.shared.u32 [%r8], 77;\nld.shared.u32 %r12, [%r4];", policy=policy).code == "race"


@POLICIES
def test_a_barrier_with_a_count_does_not_order_warps_that_have_exited(policy: str) -> None:
    """Warp 0 stores behind its arrival and exits; the others, all that still run, meet without waiting for that."""
    body = """@%p1 bar.arrive 1, 96;
        @%p1 st.shared.u32 [%r2+1024], %r9;
        @%p1 ret;
        bar.sync 1, 96;
        ld.shared.u32 %r10, [%r2+1024];"""
    assert finding(body, 96, policy=policy, initialised="off").code == "race"
    before = body.replace(
        "@%p1 bar.arrive 1, 96;\n        @%p1 st.shared.u32 [%r2+1024], %r9;",
        "@%p1 st.shared.u32 [%r2+1024], %r9;\n        @%p1 bar.arrive 1, 96;",
    )
    assert run(before, 96, policy=policy).findings == ()


@POLICIES
def test_a_barrier_of_the_cta_waits_for_warps_to_exit(policy: str) -> None:
    body = "@%p1 st.shared.u32 [%r4], %r1;\n@%p1 ret;\nbar.sync 0;\nld.shared.u32 %r10, [%r8];"
    assert run(body, policy=policy).findings == ()


@POLICIES
def test_rounds_of_named_barriers_alone_keep_their_order(policy: str) -> None:
    """Two pairs of warps never meet all four; codes run out all the same."""
    body = """shr.u32 %r11, %r5, 1; add.u32 %r13, %r11, 1; mov.u32 %r12, 0;
        LOOP: st.shared.u32 [%r4], %r12;
        bar.sync %r13, 64;
        ld.shared.u32 %r14, [%r8];
        bar.sync %r13, 64;
        add.s32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, 150; @%p3 bra LOOP;"""
    assert run(body, 128, policy=policy).findings == ()


FLAG = """@%p1 st.shared.u32 [%r4], %r1;
        bar.warp.sync -1;
        {} @%p1 st.volatile.shared.u32 [%r2+1024], 1;
        @%p1 bra DONE;
        SPIN: ld.volatile.shared.u32 %r10, [%r2+1024];
        setp.eq.s32 %p2, %r10, 0; @%p2 bra SPIN;
        {} ld.shared.u32 %r10, [%r8];
        DONE: st.global.u32 [%d3], 1;"""


@POLICIES
def test_a_volatile_flag_orders_with_fences_on_both_sides(policy: str) -> None:
    """Warp 0 writes data, then a flag; warp 1 spins on the flag and reads."""
    assert run(FLAG.format("fence.acq_rel.cta;", "fence.acq_rel.cta;"), policy=policy, initialised="off").findings == ()
    for fences in (("", ""), ("membar.cta;", ""), ("", "membar.gl;")):
        assert finding(FLAG.format(*fences), policy=policy, initialised="off").code == "race"


@POLICIES
def test_a_volatile_store_waits_for_the_first_read_of_another_lane(policy: str) -> None:
    """Nobody touched the word before the read of lane 7; lane 5 of its warp stores to it."""
    body = """setp.eq.s32 %p2, %r1, 7; setp.eq.s32 %p3, %r1, 5;
        @%p2 ld.volatile.global.u32 %r10, [%d1]; @%p2 st.global.u32 [%d3+64], %r10;
        {} @%p3 st.volatile.global.u32 [%d1], 1;"""
    assert run(body.format("bar.warp.sync -1;"), 32, policy=policy).findings == ()
    assert finding(body.format(""), 32, policy=policy).code == "race"


ONE_READ = "and.b32 %r11, %r1, 29; setp.eq.s32 %p2, %r11, 5; @%p2 ld.volatile.global.u32 %r10, [%d1];"
TWO_READS = """setp.eq.s32 %p2, %r1, 5; @%p2 ld.volatile.global.u32 %r10, [%d1];
    setp.eq.s32 %p2, %r1, 7; @%p2 ld.volatile.global.u32 %r10, [%d1];"""


@POLICIES
@pytest.mark.parametrize("writer", [5, 7])
@pytest.mark.parametrize("reads", [ONE_READ, TWO_READS])
def test_a_volatile_store_waits_for_the_reads_of_two_lanes(policy: str, writer: int, reads: str) -> None:
    """Lanes 5 and 7 read the word, by one instruction or by two; one of them stores to it."""
    body = f"""{reads} @%p2 st.global.u32 [%d3+64], %r10;
        setp.eq.s32 %p3, %r1, {writer}; {{}} @%p3 st.volatile.global.u32 [%d1], 1;"""
    assert run(body.format("bar.warp.sync -1;"), 32, policy=policy).findings == ()
    assert finding(body.format(""), 32, policy=policy).code == "race"


@POLICIES
def test_one_lane_of_a_volatile_store_races_with_a_volatile_read_of_its_warp(policy: str) -> None:
    """Lane 7 reads the word of lane 5, to which the whole warp then stores. A relaxed read leaves no race."""
    body = """setp.eq.s32 %p2, %r1, 7; @%p2 ld.{}.shared.u32 %r10, [%r2+20];
        {} st.volatile.shared.u32 [%r4], 1;"""
    assert run(body.format("volatile", "bar.warp.sync -1;"), policy=policy, initialised="off").findings == ()
    assert run(body.format("relaxed.cta", ""), policy=policy, initialised="off").findings == ()
    assert finding(body.format("volatile", ""), policy=policy, initialised="off").code == "race"


@POLICIES
@pytest.mark.parametrize("later", [5, 40], ids=["the lane that stores", "a lane of another warp"])
def test_a_later_read_does_not_hide_the_read_of_another_lane(later: int, policy: str) -> None:
    """Lane 7 reads a word, then another thread does; lane 5 of the warp of lane 7 stores to it."""
    body = f"""setp.eq.s32 %p2, %r1, 7; setp.eq.s32 %p3, %r1, 5; setp.eq.s32 %p4, %r1, {later};
        @%p2 ld.volatile.shared.u32 %r10, [%r2]; {{}}
        @%p4 ld.volatile.shared.u32 %r11, [%r2];
        @%p3 st.volatile.shared.u32 [%r2], 1;"""
    assert run(body.format("bar.warp.sync -1;"), policy=policy, initialised="off").findings == ()
    assert finding(body.format(""), policy=policy, initialised="off").code == "race"


@POLICIES
@pytest.mark.parametrize("plain", ["@%p3 ld.shared.u32 %r10, [%r2];", "@%p3 st.shared.u32 [%r2], 2;"])
@pytest.mark.parametrize(
    "volatile", ["@%p2 st.volatile.shared.u32 [%r2], 1;", "@%p1 ld.volatile.shared.u32 %r10, [%r2];"]
)
def test_a_volatile_access_races_with_a_plain_one_of_another_warp(plain: str, volatile: str, policy: str) -> None:
    """Thread 40 or all of warp 1 access the word before thread 0 or all of warp 0 do; two reads are no race."""
    begun = "setp.eq.s32 %p2, %r1, 0; setp.eq.s32 %p3, %r1, 40; @%p2 st.shared.u32 [%r2], 0; bar.sync 0;"
    for accesses in (plain, plain.replace("@%p3", "@!%p1")):
        assert run(f"{begun} {accesses} bar.sync 0; {volatile}", policy=policy).findings == ()
        if "ld" in plain and "ld" in volatile:
            assert run(f"{begun} {accesses} {volatile}", policy=policy).findings == ()
        else:
            assert finding(f"{begun} {accesses} {volatile}", policy=policy).code == "race"


@POLICIES
def test_atomics_race_with_plain_accesses_and_not_with_each_other(policy: str) -> None:
    counted = """setp.eq.s32 %p2, %r1, 0; @%p2 st.shared.u32 [%r2], 0; bar.sync 0;
        atom.shared.add.u32 %r10, [%r2], 1; bar.sync 0; ld.shared.u32 %r10, [%r2];"""
    assert run(counted, policy=policy).findings == ()
    assert finding(counted.replace("[%r2], 0; bar.sync 0;", "[%r2], 0;"), policy=policy).code in (
        "race",
        "uninitialised",
    )


def test_each_block_has_shared_memory_of_its_own() -> None:
    body = "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r10, [%r8];"
    assert run(body, grid=5, policy="random").findings == ()


COPY = """ld.param.u64 %d4, [out]; mad.wide.u32 %d5, %r1, 4, %d4;
    cp.async.ca.shared.global [%r4], [%d5], 4; cp.async.commit_group;
    WAIT
    BARRIER
    ld.shared.u32 %r10, [%r8];
    {}"""


def copying(wait: str, barrier: str, tail: str = "") -> str:
    return COPY.replace("WAIT", wait).replace("BARRIER", barrier).format(tail)


@POLICIES
def test_a_copy_needs_its_wait_and_its_barrier(policy: str) -> None:
    assert run(copying("cp.async.wait_group 0;", "bar.sync 0;"), policy=policy).findings == ()
    for wait in ("", "cp.async.wait_group 1;"):
        error = finding(copying(wait, "bar.sync 0;"), policy=policy)
        assert error.code == "read-before-wait"
        assert "cp.async.ca.shared.global at PTX line" in error.what
        assert "(1 group back)" in error.what
    error = finding(copying("cp.async.wait_all;", ""), policy=policy)
    assert error.code in ("race", "read-before-wait"), "a warp may come before the other has waited"


@POLICIES
def test_the_thread_itself_must_wait_too(policy: str) -> None:
    body = copying("", "").replace("[%r8]", "[%r4]")
    assert finding(body, policy=policy).code == "read-before-wait"


@POLICIES
def test_a_copy_must_not_overwrite_what_others_may_still_read(policy: str) -> None:
    again = "cp.async.ca.shared.global [%r4], [%d5], 4; cp.async.wait_all;"
    error = finding(copying("cp.async.wait_all;", "bar.sync 0;", again), policy=policy)
    assert error.code == "race"
    assert "overwrites" in error.what or "reads" in error.what
    assert run(copying("cp.async.wait_all;", "bar.sync 0;", f"bar.sync 0; {again}"), policy=policy).findings == ()


@POLICIES
@pytest.mark.parametrize("second", ["cp.async.ca.shared.global [%r4], [%d3], 4;", "st.shared.u32 [%r4], 5;"])
def test_bytes_in_flight_must_be_left_alone(second: str, policy: str) -> None:
    """A copy of zeros is in flight; the second copy brings 7."""
    body = f"st.global.u32 [%d3], 7;\ncp.async.ca.shared.global [%r4], [%d3+1024], 4;\n{second}"
    error = finding(body, policy=policy)
    assert (error.code, "still writes them" in error.what) == ("race", True)


@pytest.mark.parametrize(
    ("check", "body", "code"),
    [
        ("races", READ_AFTER_WRITE, "race"),
        ("copies", copying("", "bar.sync 0;"), "read-before-wait"),
        ("initialised", "ld.shared.u32 %r10, [%r4]; st.global.u32 [%d3], %r10;", "uninitialised"),
    ],
)
def test_each_check_can_be_switched_off_and_recorded(check: str, body: str, code: str) -> None:
    assert finding(body).code == code
    assert run(body, **{check: "off"}).findings == ()
    (found,) = run(body, **{check: "record"}).findings
    assert found.code == code
    assert "kernel.cu" in found.where
    with pytest.raises(RefsimError, match="unknown-check"):
        ptx.Checks(**{check: "maybe"})


def test_a_finding_is_recorded_once_for_each_source_line() -> None:
    body = (
        "mov.u32 %r11, 0;\nLOOP: ld.shared.u32 %r10, [%r4]; st.global.u32 [%d3], %r10; add.s32 %r11, %r11, 1; "
        "setp.lt.u32 %p2, %r11, 9; @%p2 bra LOOP;"
    )
    trace = run(f"{body}\nld.shared.u32 %r10, [%r4]; st.global.u32 [%d3+256], %r10;", initialised="record")
    assert [error.code for error in trace.findings] == ["uninitialised", "uninitialised"]
    assert trace.uninitialised == trace.findings


COPY_TO_ONE_PLACE = """ld.param.u64 %d4, [out]; mad.wide.u32 %d5, %r1, 4, %d4;
    cp.async.ca.shared.global [%r2], [%d5], 4; cp.async.wait_all; bar.sync 0; ld.shared.u32 %r10, [%r2];"""


@POLICIES
def test_two_lanes_that_copy_to_one_place_are_a_race(policy: str) -> None:
    """Nothing says which copy comes last, in one warp either; lanes of a warp may copy the same bytes."""
    source = "st.global.u32 [%d3], %r1; bar.sync 0;\n"
    error = finding(source + COPY_TO_ONE_PLACE, 32, policy=policy)
    assert (error.code, "by the same instruction" in error.what) == ("race", True)
    assert run(COPY_TO_ONE_PLACE, 32, policy=policy).findings == (), "zeros everywhere"
    for seed in (1, 2, 3):
        assert finding(COPY_TO_ONE_PLACE, 64, policy=policy, seed=seed).code == "race", "two warps"


def test_a_launch_that_fails_later_tells_what_was_recorded_before() -> None:
    error = finding(f"{READ_AFTER_WRITE}\ntrap;", races="record")
    assert error.code == "trap"
    assert error.help.startswith("recorded before: [race] reads 4 B")
    assert finding("trap;", races="record").help == ""


def test_a_swap_that_fails_beside_one_that_succeeds_is_an_access_of_its_own() -> None:
    """Lane 0 swaps one word, lane 1 finds another value in a second word: two places that are remembered apart."""
    body = """setp.eq.s32 %p2, %r1, 0; @%p2 st.shared.u32 [%r2], 5; @%p2 st.shared.u32 [%r2+4], 1; bar.warp.sync -1;
        setp.eq.s32 %p7, %r1, 5; @%p7 atom.shared.cas.b32 %r10, [%r2+4], 0, 7;
        setp.eq.s32 %p3, %r1, 2; @%p3 atom.shared.exch.b32 %r10, [%r2], 0;
        setp.lt.u32 %p4, %r1, 2; @%p4 atom.shared.cas.b32 %r10, [%r4], 0, 7;
        setp.eq.s32 %p5, %r1, 3; @%p5 atom.shared.exch.b32 %r10, [%r2+4], 9;
        setp.eq.s32 %p6, %r1, 4; @%p6 atom.relaxed.cta.shared.exch.b32 %r10, [%r2], 11;"""
    assert run(body, 32).findings == ()
    assert finding(body + "\n@%p6 st.shared.u32 [%r2+4], 2;", 32).code == "race"


NEIGHBOUR = "xor.b32 %r14, %r3, 4; add.s32 %r15, %r2, %r14;\n"
AGAIN = "@%p1 atom.relaxed.gpu.shared.exch.b32 %r11, [%r4], 3;\n"


@pytest.mark.parametrize("again", [0, 1, 2])
def test_what_an_atomic_took_over_from_still_races_behind_more_of_its_thread(again: int) -> None:
    """Each lane at a word of its own. The store comes after the atomics of its warp, by a barrier, not after the first."""
    body = NEIGHBOUR + "@!%p1 atom.relaxed.gpu.shared.exch.b32 %r10, [%r8], 1;\n"
    body += "@%p1 atom.relaxed.gpu.shared.exch.b32 %r11, [%r4], 2;\n" + AGAIN * again
    error = finding(body + "bar.warp.sync 0xffffffff;\n@%p1 st.shared.u32 [%r15], 4;")
    assert error.code == "race"
    assert "(kernel.cu:2) wrote" in error.what


def test_a_wide_atomic_behind_a_narrow_one_does_not_hide_it() -> None:
    """An atomic of the block, then one of the GPU by another warp; the other block races with the first alone."""
    body = "mov.u32 %r10, %ctaid.x; setp.eq.u32 %p2, %r10, 0; and.pred %p3, %p1, %p2; not.pred %p4, %p1;\n"
    body += "and.pred %p4, %p4, %p2; not.pred %p5, %p2; and.pred %p5, %p5, %p1; cvt.u64.u32 %d4, %r7; add.s64 %d4, %d1, %d4;\n"
    body += (
        "@%p4 atom.relaxed.cta.global.add.u32 %r11, [%d4], 1;\n@%p3 atom.relaxed.gpu.global.add.u32 %r12, [%d3], 1;\n"
    )
    error = finding(body + "@%p5 atom.relaxed.gpu.global.add.u32 %r13, [%d3], 1;", grid=2)
    assert error.code == "race"
    assert "(kernel.cu:3) wrote" in error.what


def test_of_lanes_that_take_turns_at_several_places_the_first_at_each_changes_it() -> None:
    body = "shr.u32 %r14, %r6, 1; shl.b32 %r14, %r14, 2; add.s32 %r15, %r2, %r14;\n"
    body += "@%p1 atom.relaxed.gpu.shared.exch.b32 %r11, [%r15], 1;\n@!%p1 ld.shared.u32 %r12, [%r15+4];"
    assert "(kernel.cu:2) wrote" in finding(body).what
