"""PTX of before sm_70: votes and shuffles of the lanes that are converged, old targets, vectors in calls, eight bytes."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = """.version 6.3
.target {target}
.address_size 64
.visible .entry k(.param .u64 out) {{
    .reg .b64 %o, %t; .reg .b32 %i, %r, %s; .reg .pred %p, %q, %low;
    ld.param.u64 %o, [out]; mov.u32 %i, %tid.x; mul.wide.u32 %t, %i, 4; add.s64 %o, %o, %t; mov.u32 %r, 7;
    setp.lt.u32 %low, %i, 12; and.b32 %s, %i, 1; setp.eq.u32 %p, %s, 0;
"""
TAIL = "st.global.u32 [%o], %r; ret; }"
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]


def ran(body: str, schedule: tuple[str, int] = ("eager", 0), target: str = "sm_50", lanes: int = 32) -> list[int]:
    out = np.zeros(lanes, np.uint32)
    policy, seed = schedule
    ptx.load(HEAD.format(target=target) + body + TAIL).launch("k", 1, lanes, [out], policy=policy, seed=seed)
    return out.tolist()


VOTE = "vote.ballot.b32 %r, %p;"
LOW, EVEN = 0xFFF, 0x55555555


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", ["sm_10", "sm_20", "sm_30", "sm_35", "sm_50"])
def test_a_vote_counts_the_lanes_that_come_together(schedule: tuple[str, int], target: str) -> None:
    assert ran(VOTE, schedule, target) == [EVEN] * 32
    assert ran(f"@%low {VOTE}", schedule, target) == [EVEN & LOW] * 12 + [7] * 20
    arms = f"@!%low bra OTHER; {VOTE} bra END; OTHER: {VOTE} END:"
    assert ran(arms, schedule, target) == [EVEN & LOW] * 12 + [EVEN & ~LOW] * 20


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_converge_again_behind_a_branch(schedule: tuple[str, int]) -> None:
    """A loop of several turns, and votes in it and behind it, as hardware before sm_70 runs them."""
    body = f"mov.u32 %r, 0; @!%low bra END; {VOTE} END: {VOTE}"
    assert ran(body, schedule) == [EVEN] * 32
    loop = "mov.u32 %s, %i; mov.u32 %r, 0; L: vote.all.pred %q, 1; add.u32 %r, %r, 1; sub.u32 %s, %s, 8; setp.ge.s32 %q, %s, 0;"
    loop += " @%q bra L; vote.ballot.b32 %r, 1;"
    assert ran(loop, schedule) == [0xFFFFFFFF] * 32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_modes_of_votes_and_shuffles(schedule: tuple[str, int]) -> None:
    for mode, wanted in (("all", 0), ("any", 1), ("uni", 0)):
        assert ran(f"vote.{mode}.pred %q, %p; selp.u32 %r, 1, 0, %q;", schedule) == [wanted] * 32
    assert ran("shfl.idx.b32 %r, %i, 5, 31;", schedule) == [5] * 32
    assert ran("shfl.up.b32 %r|%q, %i, 1, 0;", schedule) == [0, *range(31)]
    assert ran("shfl.down.b32 %r, %i, 1, 31;", schedule) == [*range(1, 32), 31]
    assert ran("shfl.bfly.b32 %r, %i, 3, 31;", schedule) == [lane ^ 3 for lane in range(32)]
    assert ran("@%low shfl.bfly.b32 %r, %i, 1, 31;", schedule) == [*(lane ^ 1 for lane in range(12)), *[7] * 20]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_shuffle_from_a_lane_that_is_elsewhere_is_found(schedule: tuple[str, int]) -> None:
    with pytest.raises(RefsimError) as caught:
        ran("@%low shfl.idx.b32 %r, %i, 20, 31;", schedule)
    assert caught.value.code == "uninitialised"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_vote_of_all_does_not_wait_for_lanes_that_have_exited(schedule: tuple[str, int]) -> None:
    """PTX ISA, vote.sync: wait until all non-exited threads corresponding to membermask have executed it."""
    body = "@!%low bra END; vote.sync.ballot.b32 %r, %p, -1; END:"
    assert ran(body, schedule) == [EVEN & LOW] * 12 + [7] * 20
    with pytest.raises(RefsimError) as caught:
        ran("@!%low bra END; shfl.sync.idx.b32 %r, %i, 20, 31, -1; END:", schedule)
    assert caught.value.code == "uninitialised"


@pytest.mark.parametrize("target", ["sm_10", "sm_21", "compute_30", "sm_37"])
def test_an_old_text_is_a_text_for_sm_50(target: str) -> None:
    text = HEAD.format(target=target) + TAIL
    assert ptx.load(text).target == "sm_50"
    assert ptx.load(text, "sm_90a").target == "sm_90a"
    with pytest.raises(RefsimError) as caught:
        ran("match.any.sync.b32 %r, %i, -1;", target=target)
    assert caught.value.code == "wrong-target"


PAIRS = """.version 6.5
.target sm_60
.address_size 64
.func (.reg .v2 .u32 made) turned(.reg .v4 .u16 four, .reg .v2 .u32 two) {
    .reg .u32 %x, %y;
    cvt.u32.u16 %x, four.w; cvt.u32.u16 %y, four.x; add.u32 made.x, %x, two.y; add.u32 made.y, %y, two.x; ret;
}
.visible .entry k(.param .u64 in, .param .u64 out) {
    .reg .b64 %i, %o, %t; .reg .v4 .u16 %h; .reg .v2 .u32 %w; .reg .u32 %n;
    ld.param.u64 %i, [in]; ld.param.u64 %o, [out]; mov.u32 %n, %tid.x;
    mul.wide.u32 %t, %n, 16; add.s64 %i, %i, %t; mul.wide.u32 %t, %n, 8; add.s64 %o, %o, %t;
    ld.global.v4.u16 %h, [%i]; ld.global.v2.u32 %w, [%i+8];
    call (%w), turned, (%h, %w);
    st.global.v2.u32 [%o], %w; ret;
}
"""


def test_vectors_of_registers_are_arguments_and_results() -> None:
    words = np.arange(64, dtype=np.uint16).reshape(8, 8)
    words[:, [5, 7]] = 0
    out = np.zeros((8, 2), np.uint32)
    ptx.load(PAIRS).launch("k", 1, 8, [words, out])
    assert (out[:, 0] == words[:, 3] + words[:, 6]).all()
    assert (out[:, 1] == words[:, 0] + words[:, 4]).all()


@pytest.mark.parametrize(("given", "words"), [("(%n, %w)", "4 registers for"), ("(%w, %w)", "4 registers for")])
def test_an_argument_of_another_length_is_refused(given: str, words: str) -> None:
    with pytest.raises(RefsimError, match=words) as caught:
        ptx.load(PAIRS.replace("(%h, %w)", given)).code("k")
    assert caught.value.code == "unsupported-feature"


BYTES = """.version 9.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
    .reg .b64 %i, %o, %t; .reg .u32 %n; .reg .b16 %h<8>;
    ld.param.u64 %i, [in]; ld.param.u64 %o, [out]; mov.u32 %n, %tid.x; mul.wide.u32 %t, %n, 8;
    add.s64 %i, %i, %t; add.s64 %o, %o, %t;
    ld.global.v8.TYPE {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7}, [%i];
    add.u16 %h0, %h0, 1;
    st.global.v8.b8 [%o], {%h7, %h6, %h5, %h4, %h3, %h2, %h1, %h0}; ret;
}
"""


@pytest.mark.parametrize("type", ["u8", "s8", "b8"])
def test_eight_bytes_are_one_access(type: str) -> None:
    data = np.random.default_rng(3).integers(0, 256, (32, 8), np.uint8)
    out = np.zeros_like(data)
    ptx.load(BYTES.replace("TYPE", type)).launch("k", 1, 32, [data, out])
    assert (out[:, :7] == data[:, :0:-1]).all()
    assert (out[:, 7] == (data[:, 0] + np.uint8(1))).all()


def test_eight_bytes_are_aligned_to_eight() -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(BYTES.replace("TYPE", "u8").replace("[%i];", "[%i+4];")).launch(
            "k", 1, 1, [np.zeros(64, np.uint8), np.zeros(8, np.uint8)]
        )
    assert caught.value.code == "misaligned"


def test_eight_halves_are_refused() -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(BYTES.replace("TYPE", "u16")).code("k")
    assert caught.value.code == "unknown-instruction"
