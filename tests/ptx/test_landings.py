"""What a wait makes visible: the bytes are there for the thread that waited, and for its warp behind a barrier."""

import re
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.async_ops.copy_visibility import LISTED, Landings

POLICIES = pytest.mark.parametrize("policy", ptx.POLICIES)
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.file 1 "kernel.cu"
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<20>; .reg .b64 %d<8>; .reg .pred %p<4>; .shared .align 16 .b8 tile[4096];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 16, %d1;
    mov.u32 %r2, tile; mad.lo.u32 %r3, %r1, 16, %r2; xor.b32 %r4, %r1, 1; mad.lo.u32 %r5, %r4, 16, %r2;
    setp.lt.u32 %p1, %r1, 16;
    cp.async.cg.shared.global [%r3], [%d2], 16;
    cp.async.wait_all;
"""
OWN, PARTNER, HALF = "ld.shared.u32 %r10, [%r3];", "ld.shared.u32 %r10, [%r5];", "ld.shared.u16 %h1, [%r5+6];"


def run(body: str, threads: int = 32, **options: object) -> tuple[RefsimError, ...]:
    lines = [f".loc 1 {number} 1\n{line}" for number, line in enumerate(body.strip().splitlines(), 1)]
    text = "\n".join([HEAD, ".reg .b16 %h<2>;", *lines, "ret;", "}", ""])
    out = np.zeros(4 * threads, np.uint32)
    return ptx.load(text).launch("k", (2,), (threads,), [out], **options).findings


def finding(body: str, threads: int = 32, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, threads, **options)
    return caught.value


@POLICIES
@pytest.mark.parametrize("threads", [32, 64])
def test_a_thread_may_read_what_it_copied_itself(threads: int, policy: str) -> None:
    assert run(OWN, threads, policy=policy) == ()


@POLICIES
@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("read", [PARTNER, HALF])
def test_another_lane_needs_a_barrier(read: str, threads: int, policy: str) -> None:
    error = finding(read, threads, policy=policy)
    assert error.code == "read-before-wait"
    assert re.search(r"that thread \((1|33), 0, 0\) of block \(0, 0, 0\) copied", error.what)
    assert "no barrier of the warp between" in error.what
    assert "(kernel.cu:1)" in error.where
    for barrier in ("bar.warp.sync -1;", "bar.sync 0;"):
        assert run(f"{barrier}\n{read}", threads, policy=policy) == ()


def test_reading_one_s_own_first_hides_nothing() -> None:
    assert "(kernel.cu:2)" in finding(f"{OWN}\n{PARTNER}").where
    assert run(f"{OWN}\nbar.warp.sync -1;\n{PARTNER}") == ()


def test_a_barrier_of_some_lanes_serves_those() -> None:
    halves = f"@%p1 bar.warp.sync 0xffff;\n@%p1 {PARTNER}"
    assert run(halves) == ()
    assert run(f"{OWN}\n{halves}") == ()
    assert "(kernel.cu:3)" in finding(f"{halves}\n@!%p1 {PARTNER}").where


def test_what_is_written_anew_is_no_copy_any_more() -> None:
    assert run("st.shared.u32 [%r3], %r1;\n" + PARTNER) == ()


def test_it_can_be_recorded_or_left_unseen() -> None:
    (recorded,) = run(PARTNER, checks=ptx.Checks(copies="record"))
    assert recorded.code == "read-before-wait"
    assert run(PARTNER, checks=ptx.Checks(copies="off")) == ()


def test_rounds_of_copies_without_a_barrier_are_not_listed_for_ever() -> None:
    """Each thread waits for what it copied itself, round by round; what another lane copied is found at the end too."""
    rounds = """mov.u32 %r11, 0;
LOOP: cp.async.cg.shared.global [%r3], [%d2], 16; cp.async.wait_all;
add.s32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, 200; @%p2 bra LOOP;"""
    listed = []
    keep = Landings.add

    def add(self: Landings, *arguments: Any) -> None:
        keep(self, *arguments)
        listed.append(len(self.recent))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Landings, "add", add)
        assert run(f"{rounds}\n{OWN}") == ()
    assert len(listed) > 200
    assert max(listed) <= LISTED
    assert "(kernel.cu:4)" in finding(f"{rounds}\n{PARTNER}").where
