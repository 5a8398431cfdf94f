"""Blocks that take over the work of clusters which have not started: both outcomes of a request, under every schedule."""

from collections import Counter

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.memory.global_memory import GlobalMemory

SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(8))]
TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%box], [%bar];"
QUERY = "clusterlaunchcontrol.query_cancel"
GUARD = f"{QUERY}.is_canceled.pred.b128 %got, %answer; @!%got bra DONE;"
FIRST = f"{QUERY}.get_first_ctaid.v4.b32.b128 {{%x, %y, %z, _}}, %answer;"
ONE_BY_ONE = "".join(f"{QUERY}.get_first_ctaid::{axis}.b32.b128 %{axis}, %answer;" for axis in "xyz")
AWAIT = "AWAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %done, [%bar], %phase; @!%done bra AWAIT;"
GIVE_BACK = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
TAKE = "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"
# Each block adds one to its tile, and to the tiles of the blocks whose work it takes over.
KERNEL = f""".version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %at; .reg .b32 %t, %box, %bar, %x, %y, %z, %phase, %n; .reg .b128 %answer;
    .reg .pred %one, %got, %done;
    .shared .align 16 .b8 box[16]; .shared .align 8 .b64 bar;
    ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; setp.eq.u32 %one, %t, 0; mov.u32 %box, box; mov.u32 %bar, bar;
    mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z; mov.u32 %phase, 0;
    @%one mbarrier.init.shared::cta.b64 [%bar], 1;
    NEXT: bar.sync 0;
    @!%one bra WORK;
    {TAKE} {TRY}
    mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%bar], 16;
    WORK: mov.u32 %n, %nctaid.y; mad.lo.u32 %y, %z, %n, %y; mov.u32 %n, %nctaid.x; mad.lo.u32 %x, %y, %n, %x;
    mad.lo.u32 %x, %x, 32, %t; mad.wide.u32 %at, %x, 4, %out; red.global.add.u32 [%at], 1;
    {AWAIT} xor.b32 %phase, %phase, 1;
    ld.shared.b128 %answer, [%box];
    {GUARD} {FIRST}
    {GIVE_BACK}
    bra NEXT;
    DONE: ret;
}}
"""


def ran(
    text: str, grid: tuple[int, ...], policy: str = "eager", seed: int = 0, **more: object
) -> tuple[np.ndarray, ptx.Trace]:
    out = np.zeros(int(np.prod(grid)) * 32, np.uint32)
    trace = ptx.load(text).launch("k", grid, 32, [out], policy=policy, seed=seed, **more)
    return out, trace


def taken_over(text: str, grid: tuple[int, ...], policy: str, seed: int) -> int:
    """How many blocks did not start: those that never came to the first instruction."""
    counted = text.replace("NEXT: bar", "@%one red.global.add.u32 [%out], 0x10000; NEXT: bar")
    out, _ = ran(counted, grid, policy, seed)
    return int(np.prod(grid)) - int(out[0] >> 16)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("grid", [(1,), (5,), (7, 3), (3, 2, 4)])
@pytest.mark.parametrize("first", [FIRST, ONE_BY_ONE], ids=["vector", "by axis"])
def test_every_tile_is_done_once(schedule: tuple[str, int], grid: tuple[int, ...], first: str) -> None:
    out, trace = ran(KERNEL.replace(FIRST, first), grid, *schedule)
    assert (out == 1).all()
    assert not trace.findings
    assert not trace.warnings
    assert not trace.notes


def test_both_outcomes_are_schedules() -> None:
    assert taken_over(KERNEL, (8,), "eager", 0) == 4
    assert taken_over(KERNEL, (8,), "lazy", 0) == 0
    found = Counter(taken_over(KERNEL, (8,), "random", seed) for seed in range(24))
    assert len(found) >= 4
    assert found[0] < 12


def test_a_request_takes_generic_addresses_too() -> None:
    generic = TRY.replace("shared::cta.", "").replace("[%box], [%bar]", "[%g], [%h]")
    text = KERNEL.replace(
        TRY, f"cvt.u64.u32 %g, %box; cvta.shared.u64 %g, %g; cvt.u64.u32 %h, %bar; cvta.shared.u64 %h, %h; {generic}"
    )
    assert (ran(text.replace(".reg .b64 %out,", ".reg .b64 %g, %h, %out,"), (6,))[0] == 1).all()
    with pytest.raises(RefsimError) as caught:
        ran(text.replace(".reg .b64 %out,", ".reg .b64 %g, %h, %out,").replace("[%g], [%h]", "[%out], [%h]"), (6,))
    assert caught.value.code == "invalid-operand"


MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RANK = "mov.u32 %rank, %cluster_ctarank; setp.eq.and.u32 %asks, %rank, 0, %one;"
ANNOUNCE = "mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%bar], 16;"
# The first block of a cluster asks for all of its blocks.
CLUSTER = KERNEL
for _old, _new in (
    (".target sm_100", ".target sm_100a"),
    ("(.param .u64 out) {", "(.param .u64 out) .reqnctapercluster 2, 1, 1 { .reg .b32 %rank; .reg .pred %asks;"),
    ("@%one mbarrier.init", f"{RANK} @%one mbarrier.init"),
    ("NEXT: bar.sync 0;", f"fence.mbarrier_init.release.cluster; NEXT: {MEET}"),
    (f"{TRY}\n    {ANNOUNCE}", f"{ANNOUNCE}\n    @%asks {TRY.replace('.b128', '.multicast::cluster::all.b128')}"),
    (FIRST, f"{FIRST} add.u32 %x, %x, %rank;"),
    ("DONE: ret;", f"DONE: {MEET} ret;"),
):
    assert _old in CLUSTER
    CLUSTER = CLUSTER.replace(_old, _new)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("grid", [(2,), (10,), (4, 3)])
def test_a_response_goes_to_every_block_of_a_cluster(schedule: tuple[str, int], grid: tuple[int, ...]) -> None:
    out, trace = ran(CLUSTER, grid, *schedule)
    assert (out == 1).all()
    assert not trace.findings


# The right kernel, what of it changes, and the finding.
WRONG = {
    "a response that is read before it came": (AWAIT, "", "read-before-wait"),
    "a request after one that failed": ("@!%got bra DONE;", "@!%got bra NEXT;", "invalid-operand"),
    "coordinates of a request that failed": ("@!%got bra DONE;", "@!%got bra NEXT2;", "uninitialised"),
    "no meeting before the next request": ("bra NEXT;", "bra AGAIN;", "race"),
    "no fences between a response that is read and the next request": (TAKE, "", "missing-proxy-fence"),
    "a response at eight bytes": ("[%box], [%bar];", "[%box+8], [%bar];", "misaligned"),
    "twelve bytes announced": ("_, [%bar], 16;", "_, [%bar], 12;", "deadlock"),
    "sixteen other bytes": ("ld.shared.b128 %answer, [%box];", "mov.b128 %answer, {%at, %at};", "invalid-operand"),
    "sixteen other bytes in all threads but one": (
        GUARD,
        "@!%one mov.b128 %answer, {%at, %at}; " + GUARD,
        "invalid-operand",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misuse_is_found(name: str) -> None:
    old, new, code = WRONG[name]
    text = KERNEL
    if "no meeting" in name:
        text = text.replace("NEXT: bar.sync 0;", "bar.sync 0; AGAIN:")
    if "no fences" in name:
        text = text.replace(GIVE_BACK, "")
    if "NEXT2" in new:  # it takes over what the failed response names
        old, new = GUARD, f"{QUERY}.is_canceled.pred.b128 %got, %answer;"
        text = text.replace("bra NEXT;", "@%got bra NEXT; red.global.add.u32 [%out], %x;")
    assert old in text
    found = []
    for policy, seed in SCHEDULES:
        try:
            ran(text.replace(old, new), (6,), policy, seed)
        except RefsimError as error:
            found.append(error.code)
    assert code in found, found
    assert set(found) <= {code, "deadlock", "race", "out-of-bounds", "invalid-operand"}, found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("again", "blocks"), [("@%got bra NEXT;", 6), ("", 3)], ids=["until it fails", "once"])
def test_the_finding_names_the_request_that_failed(again: str, blocks: int, schedule: tuple[str, int]) -> None:
    """Also where the requests of other blocks, whose lanes run at the same time, succeeded."""
    text = KERNEL.replace(GUARD, f"{QUERY}.is_canceled.pred.b128 %got, %answer;")
    text = text.replace("bra NEXT;", f"{again} red.global.add.u32 [%out], %x;")
    with pytest.raises(RefsimError, match="the request to cancel a cluster failed") as caught:
        ran(text, (blocks,), *schedule)
    assert caught.value.code == "uninitialised"


@pytest.mark.parametrize("space", [".shared::cta", ""])
def test_one_fence_of_the_reader_is_enough_before_the_next_request(space: str) -> None:
    """What CUTLASS does: fence.proxy.async behind the read, and none before the request."""
    text = KERNEL.replace(TAKE, "").replace(GIVE_BACK, f"fence.proxy.async{space};")
    for policy, seed in SCHEDULES:
        out, trace = ran(text, (6,), policy, seed)
        assert (out == 1).all()
        assert not (*trace.findings, *trace.warnings, *trace.notes)


def test_coordinates_that_are_read_and_not_used_are_no_finding() -> None:
    """Code that asks for the coordinates first, and looks at the outcome then."""
    text = KERNEL.replace(f"{GUARD} {FIRST}", f"{FIRST} {GUARD}")
    for policy, seed in SCHEDULES:
        assert (ran(text, (6,), policy, seed)[0] == 1).all()


def test_work_that_is_taken_over_and_not_done_is_missing() -> None:
    text = KERNEL.replace(GUARD, f"{QUERY}.is_canceled.pred.b128 %got, %answer; bra DONE;")
    assert (ran(text, (6,), "lazy")[0] == 1).all()
    assert (ran(text, (6,))[0] == 1).sum() < 6 * 32


@pytest.mark.parametrize("target", ["sm_90a", "sm_89"])
def test_targets_before_sm_100_have_none(target: str) -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(KERNEL.replace("sm_100\n", f"{target}\n")).code("k")
    assert caught.value.code == "wrong-target"


def test_the_response_is_for_blocks_of_this_launch_only() -> None:
    """Two launches in one memory: the second starts with all of its blocks pending."""
    device, out = GlobalMemory(), np.zeros(6 * 32, np.uint32)
    for turn in (1, 2):
        ptx.load(KERNEL).launch("k", 6, 32, [out], memory=device)
        assert (out == turn).all()
