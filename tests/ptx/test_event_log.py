"""The log of a launch's events: what each record says, which events a log takes, and when it is full."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.events import LaunchEvent
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.machine import scheduler
from refsim.ptx.observers import log as logs

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
COPY = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<8>; .reg .b64 %d<6>; .shared .align 16 .b8 tile[1024];
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
    mad.wide.u32 %d3, %r1, 16, %d1; mad.lo.u32 %r3, %r1, 16, %r2;
    cp.async.cg.shared.global [%r3], [%d3], 16;
    cp.async.wait_all;
    bar.sync 0;
    ld.shared.u32 %r4, [tile+16];
    mad.wide.u32 %d4, %r1, 4, %d2;
    st.global.u32 [%d4], %r4;
    ret;
}
"""
)
BULK = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<3>;
    .shared .align 128 .b8 tile[128]; .shared .align 8 .b8 full[8];
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra LATER;
    mbarrier.init.shared.b64 [full], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d1], 128, [full];
LATER:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [full], 0;
    @!%p2 bra WAIT;
    mad.wide.u32 %d3, %r1, 4, %d2;
    ld.shared.u32 %r2, [tile+4];
    st.global.u32 [%d3], %r2;
    ret;
}
"""
)
NAMED = (
    HEAD
    + """.visible .entry k()
{
    .reg .b32 %r<3>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 64;
    @%p1 ret;
    bar.sync 3, 64;
    membar.gl;
    fence.proxy.async.shared::cta;
    ret;
}
"""
)
REMOTE = (
    HEAD
    + """.visible .entry k() .reqnctapercluster 2, 2
{
    .reg .b32 %r<4>; .shared .align 8 .b8 full[8];
    mbarrier.init.shared.b64 [full], 4;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r1, full; mapa.shared::cluster.u32 %r2, %r1, 1;
    mbarrier.arrive.shared::cluster.b64 _, [%r2];
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
}
"""
)


BLOCK = "first thread (0, 0, 0) of block (0, 0, 0)"
ARRIVE = "order release, scope cta, mbarrier"


def logged(text: str, *kinds: str, args: bool = True, most: int = 4096, grid=1, block=32, **more) -> ptx.Trace:
    values = [np.arange(4096, dtype=np.uint32), np.zeros(4096, np.uint32)] if args else []
    return ptx.load(text).launch("k", grid, block, values, events=ptx.EventLog(kinds, most), **more)


def said(trace: ptx.Trace) -> list[tuple[str, str, str]]:
    return [(each.verb, "" if each.statement is None else each.statement.opcode, each.what) for each in trace.events]


def test_a_copy_from_its_issue_to_the_use_of_its_bytes() -> None:
    copy = "cp.async.cg.shared.global"
    assert said(logged(COPY)) == [
        ("access", copy, "read, 512 B of global at 0x4000000200-0x40000003ff"),
        ("copy_begin", copy, "512 B of shared at 0x400-0x5ff"),
        ("copy_end", copy, "512 B of shared at 0x400-0x5ff"),
        ("meet_cta", "bar.sync", ""),
        ("access", "ld.shared.u32", "read, 4 B of shared at 0x410-0x413"),
        ("access", "st.global.u32", "write, 128 B of global at 0x4000004400-0x400000447f"),
        ("exit", "ret", ""),
        ("end", "", ""),
    ]


def test_a_record_has_threads_statement_addresses_and_a_text() -> None:
    *_, store = logged(COPY, "access", grid=2, block=48).events
    assert (store.kind, store.space, store.width, store.blocks, store.warps) == (
        "access",
        "global",
        4,
        (0, 1),
        (0, 1, 2, 3),
    )
    assert store.threads.tolist() == list(range(96))
    assert store.lanes == (*range(32), *range(16)) * 2
    assert store.addresses.tolist() == [0x4000004400 + 4 * (thread % 48) for thread in range(96)]
    text = f"access by st.global.u32 at PTX line 14, 96 threads, {BLOCK}, write, 192 B of global at 0x4000004400-0x40000044bf"
    assert str(store) == text
    assert repr(store) == "<RecordedEvent access: write, 192 B of global at 0x4000004400-0x40000044bf>"


def test_the_phase_of_an_mbarrier_and_the_copy_that_it_counts() -> None:
    copy, box = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "128 B of shared at 0x400-0x47f"
    trace = logged(BULK, "mbarrier", "transfer", policy="lazy")
    assert [each for each in said(trace) if each[0] != "mbarrier_touch"] == [
        ("mbarrier_init", "mbarrier.init.shared.b64", "mbarrier 0x480 phase 0"),
        ("mbarrier_arrive", "mbarrier.arrive.expect_tx.shared.b64", f"{ARRIVE} 0x480 phase 0"),
        ("copy_begin", copy, box),
        ("copy_end", copy, box),
        ("mbarrier_observe", "", "in block (0, 0, 0), mbarrier 0x480 phase 0"),
        ("mbarrier_pass", "mbarrier.try_wait.parity.shared.b64", "order acquire, scope cta, mbarrier 0x480 phase 0"),
    ]
    polls = [each for each in trace.events if each.verb == "mbarrier_touch" and each.statement.line == 17]
    assert [each.phase for each in polls] == [0, 1]


def test_named_barriers_and_fences_say_their_number_order_and_scope() -> None:
    trace = logged(NAMED, "synchronization", args=False, block=96)
    assert said(trace) == [
        ("passed", "bar.sync", "barrier 3"),
        ("fence", "membar.gl", "order sc, scope gpu"),
        ("proxy_fence", "fence.proxy.async.shared::cta", "proxy async, of shared::cta"),
    ]
    assert [(each.warps, len(each.threads)) for each in trace.events] == [((0, 1), 64)] * 3


def test_blocks_of_a_cluster_have_their_numbers_in_the_grid() -> None:
    first, second = logged(REMOTE, "mbarrier_arrive", args=False, grid=(4, 2), block=1).events
    assert (first.blocks, second.blocks) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert (first.what, second.what) == (
        f"in block (1, 0, 0), {ARRIVE} 0x400 phase 0",
        f"in block (3, 0, 0), {ARRIVE} 0x400 phase 0",
    )


def test_waves_count_threads_over_the_launch() -> None:
    exits = [each for each in logged(COPY, "exit", grid=1024).events if each.verb == "exit"]
    assert len(exits) > 1
    assert np.concatenate([each.threads for each in exits]).tolist() == list(range(32 * 1024))


def test_a_full_log_counts_what_it_leaves_out(monkeypatch) -> None:
    trace = logged(COPY, most=3)
    assert ([each.verb for each in trace.events], trace.events_left_out) == (["access", "copy_begin", "copy_end"], 5)
    monkeypatch.setattr(logs, "MOST_PLACES", 100)
    trace = logged(COPY)
    assert ([each.verb for each in trace.events], trace.events_left_out) == (["access", "copy_begin"], 6)


@pytest.mark.parametrize(
    ("kinds", "verbs"),
    [
        (("transfer",), ["copy_begin", "copy_end"]),
        ("transfer", ["copy_begin", "copy_end"]),
        (("copy_end", "launch"), ["copy_end", "exit", "end"]),
        (("synchronization",), ["meet_cta"]),
        (("fence",), []),
    ],
)
def test_a_log_takes_kinds_groups_and_single_verbs(kinds, verbs) -> None:
    log = ptx.EventLog(kinds)
    ptx.load(COPY).launch("k", 1, 32, [np.zeros(128, np.uint32), np.zeros(32, np.uint32)], events=log)
    assert [each.verb for each in log.events] == verbs


def test_an_unknown_kind_is_one_error_with_the_nearest() -> None:
    with pytest.raises(RefsimError, match="no kind of event is called 'transfers'") as caught:
        ptx.EventLog(("access", "transfers"))
    assert caught.value.exit_code == 2
    assert "transfer" in str(caught.value.help)


def test_every_verb_of_the_tables_is_an_event() -> None:
    assert {*logs._KINDS, *logs._PARTS} - set(logs.VERBS) == set()
    assert {logs.kind_of(verb) for verb in logs.VERBS} <= set(logs.EVENT_KINDS)


class NewPayload(NamedTuple):
    unit: str
    columns: np.ndarray
    mbarrier: int
    scope: int
    parts: list[object]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (
            NewPayload("tensor", np.arange(6), 64, 2, [object()]),
            "unit tensor, columns 0 1 2 3 and 2 more, scope gpu, mbarrier 0x40",
        ),
        ((7, "x", None, [np.zeros(2), np.zeros(3)]), "part 1 7, part 2 x"),
        (None, ""),
        (object(), ""),
    ],
    ids=["named", "tuple", "none", "object"],
)
def test_a_verb_that_the_log_does_not_know_is_shown_by_what_its_payload_says(payload, what) -> None:
    geometry, shared = Geometry((1, 1, 1), (32, 1, 1), 0, 1), SimpleNamespace(stride=1024)
    machine = SimpleNamespace(geometry=geometry, shared=shared, mbarriers=SimpleNamespace(live={}))
    log = ptx.EventLog()
    for verb in ("product_begin", "mbarrier_product"):
        log.note(machine, LaunchEvent(verb, np.array([3]), payload=payload))
    assert [(each.kind, each.what, each.lanes) for each in log.events] == [
        ("other", what, (3,)),
        ("mbarrier", what, (3,)),
    ]


def test_a_launch_without_subscribers_makes_no_event(monkeypatch) -> None:
    made: list[str] = []

    def counted(verb, *rest):
        made.append(verb)
        return LaunchEvent(verb, *rest)

    monkeypatch.setattr(scheduler, "LaunchEvent", counted)
    unchecked = ptx.Checks("off", "off", "off", "off")
    for text in (COPY, BULK):
        values = [np.zeros(128, np.uint32), np.zeros(32, np.uint32)]
        trace = ptx.load(text).launch("k", 1, 32, values, checks=unchecked)
        assert (made, trace.events, trace.events_left_out) == ([], (), 0)
        ptx.load(text).launch("k", 1, 32, values, checks=unchecked, events=ptx.EventLog())
        assert "copy_begin" in made
        made.clear()


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize("text", [COPY, BULK, BULK.replace("@!%p2 bra WAIT;", "")], ids=["async", "bulk", "no wait"])
def test_a_log_changes_nothing(text: str, policy: ptx.SchedulePolicy) -> None:
    found = []
    for log in (None, ptx.EventLog()):
        x, y = np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32)
        checks = ptx.Checks("record", "record", "record", "record")
        trace = ptx.load(text).launch("k", 1, 32, [x, y], policy=policy, seed=3, checks=checks, events=log)
        found.append((y.tolist(), trace.instructions, [str(each) for each in trace.findings]))
    assert found[0] == found[1]


def test_a_fault_leaves_the_events_on_the_way_to_it() -> None:
    log = ptx.EventLog()
    values = [np.arange(128, dtype=np.uint32), np.zeros(4, np.uint32)]
    with pytest.raises(RefsimError, match="out-of-bounds"):
        ptx.load(COPY).launch("k", 1, 32, values, events=log)
    assert [each.verb for each in log.events][-2:] == ["meet_cta", "access"]
    assert log.events[-1].statement.opcode == "ld.shared.u32"


def test_a_launch_that_begins_again_is_recorded_once() -> None:
    """The kernel reads uninitialized bytes, so that it runs a second time with undefined bits followed."""
    text = COPY.replace("[tile+16]", "[spare]").replace(
        ".shared .align 16", ".shared .align 4 .b8 spare[4]; .shared .align 16"
    )
    trace = logged(text, "launch", checks=ptx.Checks("record"))
    assert [each.code for each in trace.findings] == ["uninitialised"]
    assert [each.verb for each in trace.events] == ["exit", "end"]


def test_a_log_holds_the_events_of_its_last_launch_alone() -> None:
    log = ptx.EventLog()
    first, second = (ptx.load(NAMED).launch("k", 1, 96, [], events=log) for _ in range(2))
    assert len(first.events) == len(second.events) > 0


@pytest.mark.parametrize("most", [-1, 1.5, "x", None])
def test_a_limit_that_is_no_count_is_refused(most: Any) -> None:
    with pytest.raises(RefsimError, match="a whole number of events") as caught:
        ptx.EventLog(most=most)
    assert caught.value.code == "bad-value"


@pytest.mark.parametrize("kinds", [5, None, [1], "", [""], ["access", ""]])
def test_a_kind_that_is_no_name_is_refused(kinds: Any) -> None:
    with pytest.raises(RefsimError, match="no kind of event"):
        ptx.EventLog(kinds)
