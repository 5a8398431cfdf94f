"""Copies to global memory that nothing orders: of the same bytes they are noted, of others they race."""

from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

POLICIES = pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
# Each of two warps fills its own 128 bytes of shared memory, and one lane of it stores them to `out`.
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 seen)
{
    .reg .b32 %r<16>; .reg .b64 %d<6>; .reg .pred %p<4>; .shared .align 128 .b8 tile[256];
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [seen]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mad.lo.u32 %r3, %r1, 4, %r2;
    and.b32 %r4, %r1, 31; shr.u32 %r5, %r1, 5; shl.b32 %r6, %r5, 7; add.u32 %r6, %r6, %r2; setp.ne.u32 %p1, %r4, 0;
    mov.u32 %r7, VALUE;
    st.shared.u32 [%r3], %r7; fence.proxy.async; bar.warp.sync -1; @%p1 bra $end;
    STORE
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    READ
$end: ret;
}
"""
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r6], 128;"
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r6], 128;"
READ = "mad.wide.u32 %d3, %r5, 4, %d2; ld.global.u32 %r8, [%d1+64]; st.global.u32 [%d3], %r8;"
EQUAL, BY_LANE = "%r4", "%r1"  # the lane's number, or the thread's


def run(value: str, store: str = STORE, read: str = "", policy: str = "eager", **checks: Any) -> tuple[ptx.Trace, Any]:
    text = HEAD.replace("VALUE", value).replace("STORE", store).replace("READ", read)
    out, seen = np.zeros(32, np.uint32), np.zeros(2, np.uint32)
    trace = ptx.load(text).launch("k", 1, 64, [out, seen], policy=policy, seed=3, checks=ptx.Checks(**checks))
    return trace, (out.tolist(), seen.tolist())


@POLICIES
def test_two_copies_of_the_same_bytes_are_noted(policy: str) -> None:
    trace, (out, seen) = run(EQUAL, read=READ, policy=policy)
    assert (out, seen) == (list(range(32)), [16, 16])
    (note,) = trace.notes
    assert note.code == "equal-stores"
    assert (
        "by cp.async.bulk.global.shared::cta.bulk_group at PTX line 11 writes too: the same bytes, with no" in note.what
    )
    assert not run(EQUAL, read=READ, policy=policy, off=("equal-stores",))[0].notes


@POLICIES
@pytest.mark.parametrize(
    ("value", "store"),
    [
        (BY_LANE, STORE),
        ("%r5", STORE),  # bytes that stand there as well, for one of the two
        (EQUAL, f"setp.eq.u32 %p2, %r5, 0; @%p2 {STORE} @!%p2 {ADD}"),
        (EQUAL, f"setp.eq.u32 %p2, %r5, 0; @!%p2 {STORE} @%p2 {ADD}"),
        (EQUAL, f"setp.eq.u32 %p2, %r5, 0; @!%p2 {ADD} @%p2 {STORE}"),  # 0 + x, then x
        (EQUAL, f"setp.eq.u32 %p2, %r5, 0; @%p2 {STORE} @!%p2 st.global.u32 [%d1+4], 7;"),
    ],
)
def test_other_bytes_race(value: str, store: str, policy: str) -> None:
    with pytest.raises(RefsimError) as caught:
        run(value, store, policy=policy)
    assert caught.value.code == "race"


@POLICIES
def test_one_thread_may_store_a_tile_twice_but_not_two_tiles(policy: str) -> None:
    """Nothing waits between the two copies of one thread either."""
    twice = f"setp.eq.u32 %p2, %r5, 1; @%p2 bra $end; {STORE} {STORE}"
    assert {note.code for note in run(EQUAL, twice, policy=policy)[0].notes} == {"equal-stores"}
    other = f"setp.eq.u32 %p2, %r5, 1; @%p2 bra $end; {STORE} add.u32 %r6, %r6, 16; {STORE.replace('128', '112')}"
    with pytest.raises(RefsimError, match="race"):
        run(EQUAL, other, policy=policy)


TWICE = """.version 9.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 from, .param .u64 out)
{
    .reg .b32 %r<8>; .reg .b64 %d<8>; .shared .align 16 .b8 tile[512];
    ld.param.u64 %d1, [from]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 4; add.u32 %r2, %r2, %r3; mad.wide.u32 %d3, %r1, 16, %d1; mad.wide.u32 %d2, %r1, 4, %d2;
    cp.async.cg.shared.global [%r2], [%d3], 16;
    BETWEEN
    cp.async.WIDTH;
    cp.async.commit_group; cp.async.wait_group LEFT; ld.shared.u32 %r4, [%r2]; st.global.u32 [%d2], %r4;
    ret;
}
"""
SAME, PART = "cg.shared.global [%r2], [%d3], 16", "ca.shared.global [%r2], [%d3], 8"


def copied_twice(width: str, values: Any, between: str = "", left: int = 0, policy: str = "eager") -> Any:
    text = TWICE.replace("WIDTH", width).replace("BETWEEN", between).replace("LEFT", str(left))
    out = np.zeros(32, np.uint32)
    return ptx.load(text).launch("k", 1, 32, [values, out], policy=policy, seed=3), out


@POLICIES
@pytest.mark.parametrize("between", ["", "cp.async.commit_group;"])
def test_a_thread_may_copy_the_same_bytes_to_shared_memory_twice(between: str, policy: str) -> None:
    values = np.arange(200, dtype=np.uint32)
    trace, out = copied_twice(SAME, values, between, policy=policy)
    assert out.tolist() == list(range(0, 128, 4))
    (note,) = trace.notes
    assert note.code == "equal-stores"
    assert "while cp.async.cg.shared.global at PTX line 9 of thread (0, 0, 0)" in note.what
    assert note.what.endswith("; the bytes are the same")


@POLICIES
@pytest.mark.parametrize("width", [PART, SAME.replace("%d3", "%d3+16"), f"{SAME}, 8", SAME.replace("%r2", "%r5")])
def test_other_bytes_of_a_thread_or_bytes_of_another_thread_race(width: str, policy: str) -> None:
    own = "xor.b32 %r5, %r3, 16; mov.u32 %r6, tile; add.u32 %r5, %r5, %r6;"  # the place of the next lane
    values = np.arange(200, dtype=np.uint32) if "r5" not in width else np.zeros(200, np.uint32)
    with pytest.raises(RefsimError) as caught:
        copied_twice(width, values, own, policy=policy)
    assert caught.value.code == "race"


@POLICIES
def test_the_second_copy_is_waited_for_as_well(policy: str) -> None:
    with pytest.raises(RefsimError) as caught:
        copied_twice(SAME, np.arange(200, dtype=np.uint32), "cp.async.commit_group;", left=1, policy=policy)
    assert caught.value.code == "read-before-wait"
