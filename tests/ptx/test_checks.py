"""The table of checks: every finding has a row, every row can be turned off by its name, and the verdict says so."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from refsim import ptx
from refsim.device.schedules import SeededPolicy, outcomes
from refsim.errors import RefsimError
from refsim.ptx.checks.race_reports import Reporter
from refsim.ptx.findings.table import NOTE, SCHEDULE_DEPENDENT, STOP, WARNING

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.extern .func (.param .b64 block) malloc (.param .b64 size);
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<8>; .reg .b64 %d<6>; .reg .pred %p<4>; .shared .align 16 .b8 tile[1024];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mad.lo.u32 %r3, %r1, 4, %r2;
    mad.wide.u32 %d2, %r1, 4, %d1;
"""
TAIL = "ret;\n}\n"


@dataclass(frozen=True)
class Defect:
    """A kernel that one check finds something in; `before` is one that is launched before it, and lets it begin early."""

    body: str
    threads: int = 64
    before: str = ""
    target: str = "sm_90a"


MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0,%f1,%f2,%f3}, %d3, %d3, %p1, 1, 1;"
# Zeros in shared memory, and a product of them.
PRODUCT = (
    ".reg .f32 %f<4>; mad.lo.u32 %r5, %r1, 8, %r2; mov.b64 %d4, 0; st.shared.u64 [%r5], %d4;"
    "fence.proxy.async; bar.sync 0;"
    "shr.u32 %r4, %r2, 4; cvt.u64.u32 %d3, %r4; or.b64 %d3, %d3, 0x100080000; setp.ne.u32 %p1, 0, 0;"
    f"wgmma.fence.sync.aligned; {MULTIPLY} wgmma.commit_group.sync.aligned;"
)
DEFECTS = {
    "race": Defect(
        "st.shared.u32 [%r3], %r1; xor.b32 %r4, %r3, 128; ld.shared.u32 %r5, [%r4]; st.global.u32 [%d2], %r5;"
    ),
    "ordered-by-convergence": Defect(
        "st.shared.u32 [%r3], %r1; shfl.sync.idx.b32 %r6, %r1, 0, 31, -1; xor.b32 %r4, %r3, 4; ld.shared.u32 %r5, [%r4];"
        "st.global.u32 [%d2], %r5;",
        32,
    ),
    "equal-stores": Defect(
        "st.shared.u32 [%r3], 7; fence.proxy.async; bar.sync 0; and.b32 %r4, %r1, 31; setp.ne.u32 %p1, %r4, 0; @%p1 bra $out;"
        "mad.lo.u32 %r5, %r1, 4, %r2; cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r5], 128;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; $out:"
    ),
    "shared-barrier": Defect("bar.sync 1, 64; st.global.u32 [%d2], %r1;", 128),
    "stale-read": Defect(
        "st.global.u32 [%d2], %r1; bar.sync 0; ld.global.nc.u32 %r5, [%d2]; st.global.u32 [%d2], %r5;"
    ),
    "read-before-wait": Defect(
        "mad.lo.u32 %r4, %r1, 16, %r2; mul.wide.u32 %d3, %r1, 16; add.u64 %d3, %d3, %d1;"
        "cp.async.ca.shared.global [%r4], [%d3], 16; ld.shared.u32 %r5, [%r4]; cp.async.wait_all; st.global.u32 [%d2], %r5;",
        16,
    ),
    "missing-proxy-fence": Defect(
        PRODUCT.replace("fence.proxy.async;", "") + "wgmma.wait_group.sync.aligned 0; st.global.f32 [%d2], %f0;", 128
    ),
    "unfenced-refill": Defect(
        "mov.u32 %r4, 64; setp.eq.u32 %p2, %r1, 0; setp.lt.u32 %p3, %r1, 32;"
        "@%p2 mbarrier.init.shared.b64 [%r2+512], 32; @%p2 mbarrier.init.shared.b64 [%r2+520], 1; bar.sync 0; @!%p3 bra $copy;"
        "st.shared.u32 [%r3], %r1; fence.proxy.async; ld.shared.u32 %r5, [%r3]; st.global.u32 [%d2+256], %r5;"
        "mbarrier.arrive.shared.b64 _, [%r2+512]; bra $seen;"
        "$copy: setp.ne.u32 %p2, %r1, 32; @%p2 bra $seen;"
        "$empty: mbarrier.try_wait.parity.shared.b64 %p1, [%r2+512], 0; @!%p1 bra $empty;"
        "mbarrier.arrive.expect_tx.shared.b64 _, [%r2+520], 128;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r2+520];"
        "$full: mbarrier.try_wait.parity.shared.b64 %p1, [%r2+520], 0; @!%p1 bra $full; $seen:",
    ),
    "map-beyond-rank": Defect(
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra $out; add.s64 %d3, %d1, 512;"
        "tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d3;"
        "tensormap.replace.tile.rank.global.b1024.b32 [%d1], 0; tensormap.replace.tile.elemtype.global.b1024.b32 [%d1], 2;"
        "tensormap.replace.tile.global_dim.global.b1024.b32 [%d1], 0, 16;"
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%d1], 0, 16;"
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%d1], 1, 16;"
        "tensormap.replace.tile.element_stride.global.b1024.b32 [%d1], 0, 1; mov.u32 %r4, 0;"
        "fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;"
        "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%d1, {%r4}]; $out: st.global.u32 [%d2+768], %r1;",
        32,
    ),
    "missing-grid-wait": Defect(
        "ld.global.u32 %r5, [%d2]; griddepcontrol.wait; st.global.u32 [%d2+256], %r5;",
        before="griddepcontrol.launch_dependents; st.global.u32 [%d2], %r1;",
    ),
    "register-in-flight": Defect(f"{PRODUCT} st.global.f32 [%d2], %f0; wgmma.wait_group.sync.aligned 0;", 128),
    "unfenced-register": Defect(
        f"{PRODUCT} wgmma.wait_group.sync.aligned 0; mov.f32 %f0, %f1; {MULTIPLY} wgmma.commit_group.sync.aligned;"
        "wgmma.wait_group.sync.aligned 0; st.global.f32 [%d2], %f0;",
        128,
    ),
    "tensor-memory-in-flight": Defect(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; bar.sync 0; ld.shared.b32 %r4, [%r2];"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r1}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];"
        "tcgen05.wait::st.sync.aligned; tcgen05.wait::ld.sync.aligned; st.global.u32 [%d2], %r5;"
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;",
        32,
        target="sm_100a",
    ),
    "tensor-memory-leak": Defect(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; st.global.u32 [%d2], %r1;",
        32,
        target="sm_100a",
    ),
    "unfinished-copy": Defect(
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra $out; mbarrier.init.shared.b64 [%r2], 1;"
        "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 16; add.u32 %r3, %r2, 128;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d1], 16, [%r2]; $out:",
        32,
    ),
    "unfinished-store": Defect(
        "st.shared.u32 [%r3], %r1; bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra $out;"
        "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 128; cp.async.bulk.commit_group; $out:",
        32,
    ),
    "uninitialised": Defect("ld.shared.u32 %r5, [%r3]; st.global.u32 [%d2], %r5;"),
    "uninitialised-unused": Defect("ld.shared.u32 %r5, [%r3]; st.global.u32 [%d2], %r1;"),
    "divergent-sync": Defect(
        "setp.lt.u32 %p1, %r1, 7; @%p1 bra $low; bar.sync 0; bra $end; $low: bar.sync 0; $end: st.global.u32 [%d2], %r1;",
        32,
    ),
    SCHEDULE_DEPENDENT: Defect("atom.global.add.u32 %r4, [%d1+512], 1; st.global.u32 [%d2], %r4;", 128),
    "phase-waited-twice": Defect(
        "mov.u32 %r4, tile; mbarrier.init.shared.b64 [%r4], 1; mbarrier.init.shared.b64 [%r4+8], 1;"
        "mbarrier.arrive.shared.b64 _, [%r4]; mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0;"
        "mbarrier.arrive.shared.b64 _, [%r4+8]; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 16;"
        "mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0; st.global.u32 [%d2], %r1;",
        1,
    ),
    "setmaxnreg-ignored": Defect("setmaxnreg.inc.sync.aligned.u32 64; st.global.u32 [%d2], %r1;", 128),
    "leak": Defect(
        "{ .param .b64 size; .param .b64 block; st.param.b64 [size], 8; call (block), malloc, (size);"
        "ld.param.b64 %d3, [block]; } st.global.u32 [%d3], %r1; st.global.u32 [%d2], %r1;"
    ),
    "bank-conflicts": Defect(
        "shl.b32 %r4, %r1, 7; and.b32 %r4, %r4, 1023; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];"
    ),
}


def found(name: str, *off: str) -> set[str]:
    """The names under which anything is found in the defect of a check, under all orders, with some checks off."""
    defect = DEFECTS[name]
    program = ptx.load(HEAD.replace("sm_90a", defect.target) + defect.body + TAIL)

    def run(order: SeededPolicy) -> tuple[ptx.Trace, ptx.GlobalMemory]:
        memory = ptx.GlobalMemory()
        checks = ptx.Checks("record", "record", "record", "record", banks=True, off=off)
        out = np.uint64(memory.allocate(1024, "out", initial=bytes(1024)))
        how = {"memory": memory, "policy": order.policy, "seed": order.seed, "checks": checks}
        if defect.before:
            ptx.load(HEAD + defect.before + TAIL).launch("k", (1,), (defect.threads,), [out], **how)
        trace = program.launch("k", (1,), (defect.threads,), [out], programmatic=bool(defect.before), **how)
        return trace, memory

    names: set[str] = set()
    for outcome in outcomes(run, "k", [SeededPolicy("eager"), SeededPolicy("random", 1), SeededPolicy("random", 2)]):
        trace = outcome.trace
        assert trace is not None, outcome.error
        names |= {each.code for each in (*trace.findings, *trace.warnings, *trace.notes)}
        names |= {outcome.error.code} if outcome.error else set()
        names |= {"bank-conflicts"} if any(use.ways > 1 for use in trace.banks) else set()
        assert set(off) <= set(trace.off)
    return names


def test_every_check_has_a_defect_that_it_finds() -> None:
    assert set(DEFECTS) == {row.name for row in ptx.CHECKS}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_check_finds_its_defect_until_it_is_turned_off(name: str) -> None:
    assert name in found(name)
    assert name not in found(name, name)


@pytest.mark.parametrize("row", ptx.CHECKS, ids=lambda row: row.name)
def test_off_says_all_that_is_off(row: ptx.Check) -> None:
    off = ptx.Checks(off=(row.name,)).off
    assert set(off) == {row.name} | {each.name for each in ptx.CHECKS if each.part_of == row.name}
    if row.level and row.level != "banks":
        assert ptx.Checks(**{row.level: "off"}).off == off
    assert ptx.Checks().off == ()


def test_every_fault_of_a_launch_has_a_row() -> None:
    rows = {row.name: row for row in (*ptx.CHECKS, *ptx.STOPS)}
    assert len(rows) == len(ptx.CHECKS) + len(ptx.STOPS)
    assert set(rows) - ptx.FAULT_CODES == {
        SCHEDULE_DEPENDENT,
        *(row.name for row in ptx.CHECKS if row.severity == NOTE),
    }
    assert {row.severity for row in ptx.STOPS} == {STOP}
    assert all(row.severity == WARNING for row in ptx.CHECKS if ptx.Checks().level(row.name) == "warning")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ptx.Checks(off=("trap",)), "stops a launch"),
        (lambda: ptx.Checks(off=("rase",)), "nearest: race"),
        (lambda: ptx.Checks(races="maybe"), "error, record or off"),
    ],
)
def test_other_names_are_refused(make: Callable[[], ptx.Checks], says: str) -> None:
    with pytest.raises(RefsimError, match=says) as caught:
        make()
    assert caught.value.code == "unknown-check"


@pytest.mark.parametrize(
    ("level", "is_known", "has_warned", "is_news"),
    [
        ("error", False, False, True),
        ("error", True, False, True),
        ("record", False, False, True),
        ("record", True, False, False),
        ("error", False, True, False),
        ("record", False, True, False),
    ],
)
def test_a_race_is_news_where_it_is_raised_or_recorded_for_the_first_time(level, is_known, has_warned, is_news) -> None:
    """A warning of this code is a defect of the compiler, told once."""
    findings = SimpleNamespace(
        is_known=lambda *_: is_known, has_warned=lambda *_: has_warned, has_waived=lambda *_: False
    )
    machine = SimpleNamespace(checks=SimpleNamespace(level=lambda code: level), findings=findings)
    assert Reporter(machine, None).is_news(None) is is_news
