"""What a finding says is missing: the statement that lacks half of an order; mending that statement ends the finding."""

import re
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx import events
from refsim.ptx.checks import journal
from refsim.ptx.checks.orders import barrier_events
from refsim.testing.kernel_files import load_kernel_file

HEAD = """.version 9.0
.target sm_90
.address_size 64
.file 1 "k.cu"
.visible .entry k(.param .u64 out, .param .u64 work) {
    .reg .b32 %r<20>; .reg .b64 %d<12>; .reg .pred %p<8>; .shared .align 16 .b8 tile[1024];
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [work]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
    shl.b32 %r3, %r1, 2; cvt.u64.u32 %d3, %r3; add.s64 %d4, %d2, %d3; add.s64 %d5, %d1, %d3; mov.u32 %r4, tile;
    add.s32 %r5, %r4, %r3; xor.b32 %r6, %r3, 128; add.s32 %r6, %r4, %r6; setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r1, 0;
    setp.lt.u32 %p3, %r1, 32; mov.u32 %r8, 7;
"""
SCHEDULES = pytest.mark.parametrize(("policy", "seed"), [("eager", 1), ("lazy", 1), ("random", 2), ("random", 5)])


def run(body: str, blocks: int, threads: int, policy: str, seed: int, **launch: int) -> None:
    out, work = np.zeros(256, np.uint32), np.zeros(1024, np.uint32)
    lines = [f".loc 1 {number} 1\n{line}" for number, line in enumerate(body.strip().splitlines(), 1)]
    program = ptx.load("\n".join([HEAD, *lines, "ret;", "}", ""]))
    program.launch("k", (blocks,), (threads,), [out, work], policy=policy, seed=seed, **launch)


def said(body: str, *shape, **launch: int) -> str:
    """What the finding says after its `between`."""
    with pytest.raises(RefsimError) as caught:
        run(body, *shape, **launch)
    return re.sub(r"PTX line \d+ ", "", caught.value.what.partition(" between: ")[2] or caught.value.what)


# Block 0 writes a word (line 1) and a flag (line 3); block 1 polls the flag (line 5) and reads the word (line 7).
FLAG = """@%p1 st.global.u32 [%d4+128], 5;
@%p1 FENCE;
@%p1 STORE [%d4], 1;
@%p1 bra DONE;
POLL: LOAD %r9, [%d4]; setp.eq.u32 %p4, %r9, 0; @%p4 bra POLL;
AFTER;
ld.global.u32 %r10, [%d4+128]; st.global.u32 [%d5], %r10;
DONE:"""
RIGHT = {
    "FENCE": "fence.acq_rel.gpu",
    "STORE": "st.volatile.global.u32",
    "LOAD": "ld.volatile.global.u32",
    "AFTER": "fence.acq_rel.gpu",
}
RELEASED = RIGHT | {
    "FENCE": "mov.u32 %r11, 0",
    "STORE": "st.release.gpu.global.u32",
    "LOAD": "ld.acquire.gpu.global.u32",
    "AFTER": "",
}
NO_RELEASE, NO_ACQUIRE = "does not release earlier accesses", "does not order later accesses"
OWN_BLOCK = "its own block only, and the threads are in two: .gpu"


def flag(words: dict[str, str]) -> str:
    return re.sub("|".join(RIGHT), lambda found: words[found[0]], FLAG)


@SCHEDULES
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            RIGHT | {"FENCE": "mov.u32 %r11, 0"},
            f"st.volatile.global.u32 at (k.cu:3) {NO_RELEASE}: no fence before it (release)",
        ),
        (RIGHT | {"AFTER": ""}, f"ld.volatile.global.u32 at (k.cu:5) {NO_ACQUIRE}: no fence after it (acquire)"),
        (RIGHT | {"FENCE": "membar.cta"}, f"membar.cta at (k.cu:2) covers {OWN_BLOCK} (__threadfence)"),
        (RIGHT | {"AFTER": "membar.cta"}, f"membar.cta at (k.cu:6) covers {OWN_BLOCK} (__threadfence)"),
        (
            RELEASED | {"STORE": "st.release.cta.global.u32"},
            f"st.release.cta.global.u32 at (k.cu:3) is strong within {OWN_BLOCK}",
        ),
        (
            RELEASED | {"LOAD": "ld.acquire.cta.global.u32"},
            f"ld.acquire.cta.global.u32 at (k.cu:5) is strong within {OWN_BLOCK}",
        ),
        (
            RIGHT | {"FENCE": "mov.u32 %r11, 0", "AFTER": ""},
            f"st.volatile.global.u32 at (k.cu:3) {NO_RELEASE}: no fence before it (release) and "
            f"ld.volatile.global.u32 at (k.cu:5) {NO_ACQUIRE}: no fence after it (acquire)",
        ),
    ],
)
def test_a_flag_between_blocks_names_the_half_that_it_lacks(words, expected, policy, seed) -> None:
    assert said(flag(words), 2, 1, policy, seed) == expected
    run(flag(RIGHT), 2, 1, policy, seed)
    run(flag(RELEASED), 2, 1, policy, seed)


@SCHEDULES
def test_the_second_wave_of_a_grid_knows_what_the_first_noted(policy, seed) -> None:
    """A grid that is larger than what runs at once: the flag was stored by a block that is gone."""
    body = flag(RIGHT | {"FENCE": "mov.u32 %r11, 0"}).replace("st.global.u32 [%d5], %r10;", "")
    assert said(body, 5000, 1, policy, seed).endswith("no fence before it (release)")


@SCHEDULES
def test_fences_of_all_before_a_barrier_are_not_said_to_be_missing(policy, seed) -> None:
    """All write and fence, meet, and one thread counts by a relaxed atomic: a missing fence after the poll is reported alone."""
    body = """@%p1 st.global.u32 [%d4+128], 5;
        @%p1 membar.gl;
        bar.sync 0;
        and.pred %p5, %p1, %p2; @%p5 red.global.add.u32 [%d2], 1;
        @%p1 bra DONE;
        POLL: ld.relaxed.gpu.global.u32 %r9, [%d2]; setp.eq.u32 %p4, %r9, 0; @%p4 bra POLL;
        AFTER;
        ld.global.u32 %r10, [%d4+128]; st.global.u32 [%d5], %r10;
        DONE:"""
    found = said(body.replace("AFTER;", ""), 2, 64, policy, seed)
    assert found == f"ld.relaxed.gpu.global.u32 at (k.cu:6) {NO_ACQUIRE}: no fence after it (acquire)"
    run(body.replace("AFTER", "membar.gl"), 2, 64, policy, seed)


@SCHEDULES
def test_of_a_write_and_a_later_read_the_read_is_named(policy, seed) -> None:
    """Two blocks take turns; the one that reads gives the word back without a release."""
    body = """@!%p1 bra READ;
        st.global.u32 [%d4+128], 5;
        st.release.gpu.global.u32 [%d4], 1;
        BACK: ld.acquire.gpu.global.u32 %r9, [%d4]; setp.ne.u32 %p4, %r9, 2; @%p4 bra BACK;
        st.global.u32 [%d4+128], 6; bra DONE;
        READ: ld.acquire.gpu.global.u32 %r9, [%d4]; setp.ne.u32 %p4, %r9, 1; @%p4 bra READ;
        ld.global.u32 %r10, [%d4+128];
        st.ORDER.gpu.global.u32 [%d4], 2;
        DONE:"""
    with pytest.raises(RefsimError) as caught:
        run(body.replace("ORDER", "relaxed"), 2, 1, policy, seed)
    assert "overwrites 4 B" in caught.value.what
    assert "(k.cu:7) reads" in caught.value.what
    assert f"(k.cu:8) {NO_RELEASE}" in caught.value.what
    run(body.replace("ORDER", "release"), 2, 1, policy, seed)


# Warp 0 writes (line 1) and comes to a barrier (line 2); warp 1 comes to one (line 4) and reads what warp 0 wrote (line 5).
BARRIER = """@%p3 st.shared.u32 [%r5], %r1;
@%p3 FIRST;
@%p3 bra DONE;
SECOND;
ld.shared.u32 %r10, [%r6]; st.global.u32 [%d5], %r10;
DONE: mov.u32 %r11, 1;"""


@SCHEDULES
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            "bar.arrive 2, 64; @%p3 bar.sync 1, 32",
            "bar.sync 1, 32",
            "barrier 1 (bar.sync at (k.cu:4)) was passed without warp 0, which came to barrier 2 (bar.arrive at (k.cu:2))",
        ),
        (
            "bar.sync 1, 64",
            "bar.arrive 1, 64",
            "barrier 1 (bar.arrive at (k.cu:4)) does not wait: accesses after it have no order",
        ),
    ],
)
def test_named_barriers_that_do_not_meet(first, second, expected, policy, seed) -> None:
    def body(one: str, two: str) -> str:
        return BARRIER.replace("FIRST", one).replace("SECOND", two)

    assert said(body(first, second), 1, 64, policy, seed) in (expected, expected.partition(", which")[0])
    run(body("bar.arrive 1, 64", "bar.sync 1, 64"), 1, 64, policy, seed)


@SCHEDULES
def test_a_wait_that_leaves_too_many_groups(policy, seed) -> None:
    copy = "cp.async.ca.shared.global [%r5], [%d4], 4; cp.async.commit_group;"
    other = copy.replace("[%r5]", "[%r5+256]")
    body = f"{copy}\n{other}\ncp.async.wait_group {{}};\nld.shared.u32 %r10, [%r5];"
    assert said(body.format(2), 1, 32, policy, seed).endswith(
        "(2 groups back) still writes them: cp.async.wait_group at (k.cu:3) leaves its newest groups in flight, N = 2 of "
        "them; N = 1 would wait for it"
    )
    run(body.format(1), 1, 32, policy, seed)
    missing = body.format(1).replace("cp.async.wait_group 1;", "mov.u32 %r11, 1;")
    assert said(missing, 1, 32, policy, seed).endswith("it lacks a cp.async.wait_group")
    uncommitted = body.format(0).replace(" cp.async.commit_group;", "")
    assert said(uncommitted, 1, 32, policy, seed).endswith("it lacks a cp.async.commit_group and a wait for that group")


@SCHEDULES
def test_an_arrival_at_a_cluster_that_releases_nothing(policy, seed) -> None:
    body = """st.shared.u32 [%r5], %r2;
        barrier.cluster.arrive.ORDER.aligned;
        barrier.cluster.wait.acquire.aligned;
        xor.b32 %r9, %r2, 1; mapa.shared::cluster.u32 %r10, %r5, %r9; ld.shared::cluster.u32 %r12, [%r10];
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"""
    found = said(body.replace("ORDER", "relaxed"), 2, 32, policy, seed, cluster=2)
    assert found == "barrier.cluster.arrive.relaxed.aligned at (k.cu:2) releases nothing (.relaxed)"
    run(body.replace("ORDER", "release"), 2, 32, policy, seed, cluster=2)


def test_a_journal_forgets_the_oldest_and_says_less(monkeypatch) -> None:
    """What is not remembered is not said; the race is."""
    body = flag(RIGHT | {"FENCE": "mov.u32 %r11, 0"})
    monkeypatch.setattr(journal, "_LANES", 2)
    assert said(body, 2, 1, "eager", 1).endswith(
        "with no release (fence and strong write) that the other acquires between"
    )


def test_the_report_of_checks_has_every_hint_of_the_suite() -> None:
    wrong = load_kernel_file(Path(__file__).parent / "suite" / "table.py").WRONG
    page = " ".join((Path(__file__).parents[2] / "conformance/reports/checks.md").read_text("utf-8").split())
    shown = {half for row in wrong for half in row.shows}
    assert len(shown) > 10
    assert [half for half in shown if half not in page] == []


@pytest.mark.parametrize(
    ("whole", "waiting", "kinds"),
    [
        (True, 4, [events.LEAVE, events.MEET_CTA]),
        (False, 4, [events.ARRIVE, events.LEAVE]),
        (False, 0, [events.ARRIVE]),
    ],
)
def test_a_barrier_of_the_whole_block_is_noted_as_a_meeting_and_others_by_who_arrived(whole, waiting, kinds) -> None:
    found = barrier_events(1, np.arange(8), np.arange(waiting), whole=whole)
    assert [event.verb for event in found] == kinds
