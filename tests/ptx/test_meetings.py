"""Instructions with a member mask in several places: lanes meet there all the same."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])


def run(
    body: str, threads: int = 64, *, policy: str = "eager", seed: int = 0, divergence: str = "error"
) -> tuple[np.ndarray, ptx.Trace]:
    """%r1 is the thread, %r2 its lane, %p1 whether that is below 16, %r9 what the thread writes."""
    text = f""".version 9.0
.target sm_90a
.address_size 64
.entry k(.param .u64 out) {{
    .reg .b32 %r<16>; .reg .b64 %d<4>; .reg .pred %p<8>; .shared .align 4 .b8 tile[256];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; mad.wide.u32 %d2, %r1, 4, %d1;
    setp.lt.u32 %p1, %r2, 16; mov.u32 %r9, 0; mov.u32 %r10, tile; shl.b32 %r11, %r1, 2; add.u32 %r12, %r10, %r11;
    {body}
    st.global.u32 [%d2], %r9; ret;
}}
"""
    out = np.zeros(threads, np.uint32)
    trace = ptx.load(text).launch(
        "k", (1,), (threads,), [out], policy=policy, seed=seed, checks=ptx.Checks(divergence=divergence, seconds=20)
    )
    return out, trace


@POLICIES
def test_a_warp_barrier_in_both_arms_of_a_branch(policy: str, seed: int) -> None:
    body = """@%p1 bra LOW;
        st.shared.u32 [%r12], %r1; bar.warp.sync -1; bra ON;
        LOW: mul.lo.u32 %r3, %r1, 7; st.shared.u32 [%r12], %r3; bar.warp.sync -1;
        ON: xor.b32 %r4, %r11, 64; add.u32 %r4, %r10, %r4; ld.shared.u32 %r9, [%r4];"""
    other = np.arange(64) ^ 16
    assert (run(body, policy=policy, seed=seed)[0] == np.where(other % 32 < 16, 7 * other, other)).all()


@POLICIES
def test_a_shuffle_in_both_arms_exchanges_across_them(policy: str, seed: int) -> None:
    """The registers differ between the two instructions, and so does the constant operand."""
    body = """@%p1 bra LOW;
        add.u32 %r5, %r1, 1000; shfl.sync.bfly.b32 %r6, %r5, 16, 31, -1; mov.u32 %r9, %r6; bra ON;
        LOW: add.u32 %r7, %r1, 2000; mov.u32 %r13, 16; shfl.sync.bfly.b32 %r9, %r7, %r13, 31, -1;
        ON:"""
    other = np.arange(64) ^ 16
    assert (run(body, policy=policy, seed=seed)[0] == other + np.where(other % 32 < 16, 2000, 1000)).all()


@POLICIES
def test_two_groups_of_a_warp_meet_apart(policy: str, seed: int) -> None:
    body = """@%p1 bra LOW;
        shfl.sync.idx.b32 %r9, %r1, 31, 31, 0xffff0000; bra ON;
        LOW: shfl.sync.idx.b32 %r9, %r1, 3, 31, 0x0000ffff;
        ON:"""
    thread = np.arange(64)
    want = thread // 32 * 32 + np.where(thread % 32 < 16, 3, 31)
    assert (run(body, policy=policy, seed=seed)[0] == want).all()


def test_different_opcodes_do_not_meet() -> None:
    body = "@%p1 bra LOW; shfl.sync.up.b32 %r9, %r1, 1, 0, -1; bra ON; LOW: shfl.sync.down.b32 %r9, %r1, 1, 31, -1; ON:"
    with pytest.raises(RefsimError) as caught:
        run(body)
    assert caught.value.code == "divergent-sync"
    assert "shfl.sync.up.b32" in caught.value.what
    assert "shfl.sync.down.b32" in caught.value.what


def test_a_barrier_in_a_divergent_branch_is_named_with_both_places() -> None:
    body = "@%p1 bra LOW; bar.sync 0; bra ON; LOW: bar.sync 0; ON:"
    with pytest.raises(RefsimError) as caught:
        run(body)
    assert caught.value.code == "divergent-sync"
    assert caught.value.what.count("bar.sync") == 2


@POLICIES
@pytest.mark.parametrize("divergence", ["record", "off"])
def test_lanes_that_poll_are_not_stuck_at_a_barrier(divergence: str, policy: str, seed: int) -> None:
    """Thread 32 polls what warp 0 writes; the others of its warp wait at the barrier for it, and nothing is said of them."""
    body = """setp.eq.s32 %p1, %r1, 0; @%p1 st.shared.u32 [%r10], 0; bar.sync 0;
        setp.ne.s32 %p2, %r1, 32; @%p2 bra WRITE;
        POLL: ld.volatile.shared.u32 %r9, [%r10]; setp.eq.s32 %p2, %r9, 0; @%p2 bra POLL;
        bra ON;
        WRITE: @%p1 st.volatile.shared.u32 [%r10], 5;
        ON: bar.sync 0; ld.volatile.shared.u32 %r9, [%r10];"""
    out, trace = run(body, policy=policy, seed=seed, divergence=divergence)
    assert (out == 5).all()
    assert trace.findings == ()


@POLICIES
@pytest.mark.parametrize("divergence", ["record", "off"])
def test_without_the_check_an_aligned_barrier_gathers_a_warp(divergence: str, policy: str, seed: int) -> None:
    """What each thread stored before its own arm's barrier is there behind it, as on chips since sm_70."""
    body = """@%p1 bra LOW;
        st.shared.u32 [%r12], %r1; bar.sync 0; bra ON;
        LOW: st.shared.u32 [%r12], 7; bar.sync 0;
        ON: xor.b32 %r4, %r11, 192; add.u32 %r4, %r10, %r4; ld.shared.u32 %r9, [%r4];"""
    out, trace = run(body, policy=policy, seed=seed, divergence=divergence)
    other = np.arange(64) ^ 48
    assert (out == np.where(other % 32 < 16, 7, other)).all()
    assert {error.code for error in trace.findings} == ({"divergent-sync"} if divergence == "record" else set())


LEFT_OUT = {  # instructions of all lanes with a mask of the lower 16, and what each lane gets as it executes with all
    "shfl.sync.bfly.b32 %r9, %r1, 1, 31, 0xffff;": np.arange(64) ^ 1,
    "vote.sync.ballot.b32 %r9, %p1, 0xffff;": 0xFFFF,
    "match.any.sync.b32 %r9, %r2, 0xffff;": np.uint32(1) << np.arange(64, dtype=np.uint32) % 32,
    "redux.sync.max.u32 %r9, %r1, 0xffff;": np.arange(64) | 31,
    "bar.warp.sync 0xffff; mov.u32 %r9, 5;": 5,
}


@POLICIES
@pytest.mark.parametrize("divergence", ["record", "off"])
@pytest.mark.parametrize("body", LEFT_OUT)
def test_a_lane_that_its_mask_leaves_out_goes_on_without_the_check(
    body: str, divergence: str, policy: str, seed: int
) -> None:
    """ptxas emits SHFL, VOTE.ANY, MATCH.ANY and REDUX without the mask: the lanes that execute together exchange."""
    with pytest.raises(RefsimError, match="does not name the lane itself"):
        run(body, policy=policy, seed=seed)
    out, trace = run(body, policy=policy, seed=seed, divergence=divergence)
    assert (out == LEFT_OUT[body]).all()
    assert {error.code for error in trace.findings} == ({"divergent-sync"} if divergence == "record" else set())


@POLICIES
def test_lanes_that_their_mask_leaves_out_do_not_wait_for_ever(policy: str, seed: int) -> None:
    """The lanes of the mask are at a barrier that needs the others first."""
    body = """@%p1 bra LOW; add.u32 %r9, %r1, 1; shfl.sync.bfly.b32 %r9, %r9, 1, 31, 0xffff; LOW: bar.sync 0;"""
    thread = np.arange(64)
    out, _ = run(body, policy=policy, seed=seed, divergence="off")
    assert (out == np.where(thread % 32 < 16, 0, (thread ^ 1) + 1)).all()


@POLICIES
def test_a_warp_barrier_orders_nothing_for_a_lane_that_its_mask_leaves_out(policy: str, seed: int) -> None:
    body = """st.shared.u32 [%r12], %r1; bar.warp.sync MASK;
        xor.b32 %r4, %r11, 4; add.u32 %r4, %r10, %r4; ld.shared.u32 %r9, [%r4];"""
    run(body.replace("MASK", "-1"), policy=policy, seed=seed, divergence="off")
    with pytest.raises(RefsimError, match=r"no bar\.warp\.sync") as caught:
        run(body.replace("MASK", "0xffff"), policy=policy, seed=seed, divergence="off")
    assert caught.value.code == "race"
