"""mbarrier objects instruction by instruction: counts, states, phases and bytes, and what the ISA leaves undefined."""

from types import SimpleNamespace

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.sync.commits import TransferCounts
from refsim.ptx.sync.mbarriers import MOST_ARRIVALS

HEAD = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<5>; .shared .align 8 .b64 bar[4];
    ld.param.u64 %d1, [out]; mov.u32 %r1, 0; setp.eq.u32 %p1, %r1, 0;
"""


def one_thread(body: str) -> int:
    out = np.zeros(1, np.uint32)
    ptx.load(f"{HEAD}{body}\nst.global.u32 [%d1], %r1; ret; }}").launch("k", 1, 1, [out])
    return int(out[0])


INIT = "mbarrier.init.shared.b64 [bar], 3;\n"
WAIT = "mbarrier.test_wait.parity.shared.b64 %p2, [bar], {}; selp.u32 %r1, 1, 0, %p2;"


ARRIVE = "mbarrier.arrive.shared.b64 %d2, [bar];\n"
SEEN = "mbarrier.test_wait.parity.shared.b64 %p2, [bar], {};\n"  # somebody must look before the next phase's arrivals


def test_counts_and_phases() -> None:
    assert one_thread(INIT + ARRIVE + ARRIVE + "mbarrier.pending_count.b64 %r1, %d2;") == 2
    assert one_thread(INIT + ARRIVE * 2 + WAIT.format(0)) == 0
    assert one_thread(INIT + ARRIVE * 3 + WAIT.format(0)) == 1
    assert one_thread(INIT + WAIT.format(1)) == 1, "the phase before the first counts as complete"
    assert one_thread(INIT + "mbarrier.arrive.release.cta.shared::cta.b64 _, [bar], 3;" + WAIT.format(0)) == 1
    drop = "mbarrier.arrive_drop.shared.b64 %d2, [bar];"
    turns = drop + ARRIVE * 2 + SEEN.format(0) + ARRIVE * 2
    assert one_thread(INIT + turns + WAIT.format(1)) == 1, "the next phase waits for one fewer"


def test_a_state_names_its_phase() -> None:
    wait = "mbarrier.test_wait.shared.b64 %p2, [bar], %d3; selp.u32 %r1, 1, 0, %p2;"
    first = INIT + "mbarrier.arrive.shared.b64 %d3, [bar];"
    assert one_thread(first + ARRIVE + wait) == 0
    assert one_thread(first + ARRIVE * 2 + wait) == 1
    assert one_thread(first + ARRIVE * 2 + SEEN.format(0) + ARRIVE * 2 + wait) == 1, "the next one is not complete yet"


def test_bytes_hold_a_phase_open() -> None:
    expect = "mbarrier.arrive.expect_tx.shared.b64 %d2, [bar], 32; mbarrier.arrive.shared.b64 %d2, [bar], 2;"
    come = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;"
    assert one_thread(INIT + expect + come + WAIT.format(0)) == 0
    assert one_thread(INIT + expect + come * 2 + WAIT.format(0)) == 1
    assert one_thread(INIT + come * 2 + expect + WAIT.format(0)) == 1, "bytes may come first"


def test_a_wait_may_say_how_long_and_the_time_may_be_anything() -> None:
    wait = "mbarrier.try_wait.shared.b64 %p2, [bar], %d2, {}; selp.u32 %r1, 1, 0, %p2;"
    assert one_thread(INIT + ARRIVE * 2 + wait.format(100)) == 0
    assert one_thread(INIT + ARRIVE * 3 + wait.format("%r7")) == 1, "nobody has written %r7"


TWICE = INIT + (ARRIVE * 3 + SEEN.format(0)) + (ARRIVE * 3 + SEEN.format(1))
MISUSE = {
    "not initialized": "mbarrier.arrive.shared.b64 %d2, [bar+8];",
    "arrival of 4, while 3 of 3 are pending in phase 0": INIT + "mbarrier.arrive.shared.b64 %d2, [bar], 4;",
    "arrival of 0, while": INIT + "mbarrier.arrive.shared.b64 %d2, [bar], 0;",
    "whose phase 0 no thread saw complete": INIT + ARRIVE * 4,
    "a plain access to a live": INIT + "ld.shared.u32 %r2, [bar+4];",
    "a plain access to a live mbarrier": INIT + "st.shared.u64 [bar], 0;",
    "a plain access": INIT + "cp.async.ca.shared.global [bar], [%d1], 4;",
    "object that is live": INIT * 2,
    "that mbarrier.inval ended": INIT + "mbarrier.inval.shared.b64 [bar];" + ARRIVE,
    "inval ended": INIT + "mbarrier.inval.shared.b64 [bar];" * 2,
    "for 0 arrivals": "mbarrier.init.shared.b64 [bar], 0;",
    "noComplete": INIT + "mbarrier.arrive.noComplete.shared.b64 %d2, [bar], 3;",
    "by the state of phase 0 of an mbarrier in phase 2, two phases off": TWICE.replace("%d2", "%d4", 1)
    + "mbarrier.test_wait.shared.b64 %p2, [bar], %d4;",
    "in global memory": "mbarrier.init.b64 [%d1], 1;",
    "a tx-count of 1048576": INIT + "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;"
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1;",
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_found(what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        one_thread(MISUSE[what])
    assert caught.value.code == "barrier-misuse"


def test_as_many_bytes_may_be_awaited_as_the_count_holds() -> None:
    most = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;"
    done = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;"
    one_thread(INIT + most + done)


def test_copies_may_bring_as_many_bytes_too_early_as_the_count_holds() -> None:
    barrier = SimpleNamespace(phase=0, transactions=16 - MOST_ARRIVALS, counted=[], complete=lambda: None)
    counts = TransferCounts(SimpleNamespace(live={0: barrier}, keep=lambda _: None))
    lanes = SimpleNamespace(fault=lambda code, lane, what, rule: RefsimError(code, what, rule=rule))
    counts.arrived(SimpleNamespace(barrier=0, phase=0, amount=16, lanes=lanes))
    assert barrier.transactions == -MOST_ARRIVALS
    with pytest.raises(RefsimError, match="a tx-count of -1048576, beyond 1048575"):
        counts.arrived(SimpleNamespace(barrier=0, phase=0, amount=1, lanes=lanes))


def test_an_object_has_eight_aligned_bytes() -> None:
    with pytest.raises(RefsimError, match="multiple of 8") as caught:
        one_thread("mbarrier.init.shared.b64 [bar+4], 1;")
    assert caught.value.code == "misaligned"


@pytest.mark.parametrize(("parity", "passes"), [(0, 0), (1, 1), (2, 0), (0xFFFFFFFF, 1)])
def test_of_a_parity_the_lowest_bit_counts(parity: int, passes: int) -> None:
    """The ISA has 0 and 1 alone; ptxas shifts the word to the left by 31, for sm_80 and for sm_90a."""
    assert one_thread(INIT + WAIT.format(parity)) == passes


def test_ended_objects_are_plain_bytes() -> None:
    assert one_thread(INIT + "mbarrier.inval.shared.b64 [bar]; st.shared.u32 [bar], 7; ld.shared.u32 %r1, [bar];") == 7


def test_an_object_that_ended_may_begin_again() -> None:
    assert one_thread(INIT + "mbarrier.inval.shared.b64 [bar];" + INIT + ARRIVE * 3 + WAIT.format(0)) == 1


TURN = "mbarrier.test_wait.parity.shared.b64 %p2, [bar], {};\n"
AWAY = "mbarrier.init.shared.b64 [bar+16], 9;\n"
GO = "mbarrier.arrive.shared.b64 %d2, [bar+16];\n"


def warned(body: str) -> list[str]:
    out = np.zeros(1, np.uint32)
    text = f"{HEAD}{AWAY}{INIT}{body}\nst.global.u32 [%d1], %r1; ret; }}"
    return [each.code for each in ptx.load(text).launch("k", 1, 1, [out]).warnings]


def test_a_parity_that_was_not_turned_passes_at_once() -> None:
    first = ARRIVE * 3 + TURN.format(0)
    assert warned(first + GO + ARRIVE + TURN.format(0)) == ["phase-waited-twice"]
    assert warned(TURN.format(1) + GO + ARRIVE + TURN.format(1)) == ["phase-waited-twice"], "of a new object as well"


def test_waits_that_come_again_with_reason_pass() -> None:
    first = ARRIVE * 3 + TURN.format(0)
    assert warned(first + ARRIVE + TURN.format(1)) == [], "the next phase"
    assert warned(first + TURN.format(0) + GO + TURN.format(0)) == [], "nobody has come to the next phase"
    assert warned(first + ARRIVE * 3 + TURN.format(1) + GO + ARRIVE + TURN.format(0)) == [], (
        "two phases on, not complete"
    )
    token = "mbarrier.test_wait.shared.b64 %p2, [bar], %d4;\n"
    assert warned((ARRIVE * 3).replace("%d2", "%d4") + token + GO + ARRIVE + token) == [], "a state names its phase"


def warp(body: str, *without: str) -> ptx.Trace:
    """The launch of one warp whose lanes all run the body."""
    out = np.zeros(1, np.uint32)
    return ptx.load(f"{HEAD}{body}\nret; }}").launch("k", 1, 32, [out], checks=ptx.Checks(off=without))


ALL_INIT = "mbarrier.init.shared.b64 [bar], {count};\nbar.warp.sync 0xffffffff;\n" + (
    "mbarrier.arrive.shared.b64 %d2, [bar];\nbar.warp.sync 0xffffffff;\n" + SEEN.format(0)
)


@pytest.mark.parametrize(
    "body", [ALL_INIT.format(count=32), INIT.replace(" [bar], 3", " [bar], 32") + ALL_INIT.format(count=32)]
)
def test_an_equal_init_by_several_lanes_can_be_waived(body: str) -> None:
    with pytest.raises(RefsimError, match="one object by 32 lanes"):
        warp(body)
    lines = [number for number, line in enumerate(f"{HEAD}{body}".splitlines(), 1) if "mbarrier.init" in line]
    waivers = tuple(f"barrier-misuse@k.ptx:{line}" for line in lines)
    done = warp(body, *waivers)
    assert [name for name, _ in done.waived] == list(waivers)
    assert not done.findings
    with pytest.raises(RefsimError, match="one object by 32 lanes"):
        warp(body, "barrier-misuse@k.ptx:1")


def test_a_waiver_allows_no_init_with_another_count_and_no_other_misuse() -> None:
    unequal = "mov.u32 %r2, %laneid; add.u32 %r2, %r2, 1;\nmbarrier.init.shared.b64 [bar], %r2;"
    with pytest.raises(RefsimError, match="one object by 32 lanes"):
        warp(unequal, "barrier-misuse@k.ptx:8")
    with pytest.raises(RefsimError, match="not initialized"):
        warp("mbarrier.arrive.shared.b64 %d2, [bar];", "barrier-misuse@k.ptx:7")
    with pytest.raises(RefsimError, match="barrier-misuse stops a launch"):
        warp(ALL_INIT, "barrier-misuse")
