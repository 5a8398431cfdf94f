"""Which blocks run at once: a grid barrier needs all of them, and a grid that is cut says so when it does not end."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.record import is_fault
from refsim.ptx.machine import launch
from refsim.ptx.machine.launch import WAVE_LANES, co_resident, few_ctas, may_wait_for_others
from refsim.ptx.machine.launch_rules import LaunchRequest, launch_shape

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<12>; .reg .b64 %d<8>; .reg .pred %p<4>; ld.param.u64 %d1, [out];"
# Every thread 0 counts itself and waits for all blocks; then each block writes what it saw of its neighbour.
BARRIER = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %d2, %r2, 4; add.s64 %d3, %d1, %d2;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra MEET;
    add.u32 %r4, %r2, 100; st.global.u32 [%d3+4], %r4;
    atom.release.gpu.global.add.u32 %r5, [%d1], 1;
    POLL: ld.acquire.gpu.global.u32 %r6, [%d1];
    setp.lt.u32 %p2, %r6, %r3;
    @%p2 bra POLL;
    MEET: bar.sync 0;
    @%p1 bra DONE;
    add.u32 %r7, %r2, 1; rem.u32 %r7, %r7, %r3; mul.wide.u32 %d4, %r7, 4; add.s64 %d5, %d1, %d4;
    ld.global.u32 %r8, [%d5+4];
    mul.wide.u32 %d6, %r3, 4; add.s64 %d7, %d3, %d6; st.global.u32 [%d7+4], %r8;
    DONE: ret;"""


def program(body: str, directives: str = "") -> ptx.Program:
    return ptx.load(f"{HEAD}.visible .entry k(.param .u64 out) {directives}\n{{ {REGISTERS} {body} }}\n")


def meet(blocks: int, threads: int, **options) -> np.ndarray:
    out = np.zeros(1 + 2 * blocks, np.uint32)
    program(BARRIER, ".maxntid 1024").launch("k", blocks, threads, [out], **options)
    return out[1 + blocks :]


@pytest.mark.parametrize(("blocks", "threads"), [(132, 128), (132, 1024), (264, 1024), (600, 32)])
def test_a_grid_barrier_of_resident_blocks_ends(blocks, threads):
    assert (meet(blocks, threads) == 100 + (np.arange(blocks) + 1) % blocks).all()


def test_a_grid_barrier_beyond_residency_is_inconclusive(monkeypatch):
    monkeypatch.setattr(launch, "registers_used", lambda *_: 64)
    with pytest.raises(RefsimError) as caught:
        meet(133, 1024, checks=ptx.Checks(seconds=0.5))
    assert (caught.value.code, caught.value.kind) == ("timeout", Kind.INCONCLUSIVE)
    assert not is_fault(caught.value)
    assert "132 at a time" in caught.value.rule


def test_a_grid_that_runs_at_once_and_does_not_end_is_a_fault():
    with pytest.raises(RefsimError) as caught:
        program("AGAIN: bra AGAIN;").launch("k", 4, 32, [np.zeros(1, np.uint32)], checks=ptx.Checks(seconds=0.2))
    assert (caught.value.code, caught.value.kind) == ("timeout", Kind.FAULT)
    assert is_fault(caught.value)


def test_the_time_limit_is_one_launch_s(monkeypatch):
    """A hundred waves that each stay within the limit are stopped when they exceed it together."""
    moments = iter(range(10**6))
    for module in (launch, ptx.machine.scheduler):
        monkeypatch.setattr(module, "monotonic", lambda: float(next(moments)))
    body = "mov.u32 %r1, 0; NEXT: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra NEXT; ret;"
    blocks = 100 * WAVE_LANES // 32
    with pytest.raises(RefsimError, match="timeout"):
        program(body).launch("k", blocks, 32, [np.zeros(1, np.uint32)], checks=ptx.Checks(seconds=500))
    program(body).launch("k", 10 * WAVE_LANES // 32, 32, [np.zeros(1, np.uint32)], checks=ptx.Checks(seconds=500))


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (BARRIER, True),
        ("L: atom.cas.b32 %r1, [%d1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L; ret;", True),
        ("L: ld.volatile.global.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra L; ret;", True),
        ("L: bra M; N: ret; M: ld.relaxed.gpu.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra N; bra L;", True),
        ("L: ld.global.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra L; ret;", False),
        ("L: red.global.add.u32 [%d1], 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L; ret;", False),
        ("L: ld.volatile.shared.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra L; ret;", False),
        ("atom.global.add.u32 %r1, [%d1], 1; ld.acquire.gpu.u32 %r2, [%d1]; @%p1 bra L; L: ret;", False),
    ],
)
def test_who_may_wait_for_another_block(body, waits):
    assert may_wait_for_others(program(body).code("k").function) == waits


def test_residency_counts_whole_clusters():
    function = program("ret;").code("k").function
    shape = launch_shape(function, "sm_90a", LaunchRequest("k", 160, 1024, cluster=5))
    assert co_resident("sm_90a", shape, 0, 64) == 130
    assert co_resident("sm_90a", shape, 0, None) == 130
    assert co_resident("sm_90a", shape, 0, 32) == 260
    assert few_ctas(shape, 0, 0) == 15
    wide = launch_shape(function, "sm_90a", LaunchRequest("k", 160, 1024, cluster=16))
    assert few_ctas(wide, 200_000, 0) == 16
