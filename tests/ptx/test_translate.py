"""Blocks as Python functions: guards on every kind of result, registers that are the same for all lanes, odd launches."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.machine.launch import WAVE_LANES

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1), ("random", 2)])


def program(body: str) -> ptx.Program:
    """%r1 is the thread and %d3 its own 16 bytes of the result."""
    return ptx.load(f"""{HEAD}.visible .entry k(.param .u64 out, .param .u64 in) {{
    .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d4, [in]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 16;
    add.s64 %d3, %d1, %d2; add.s64 %d5, %d4, %d2;
    {body}\n}}\n""")


def run(body: str, threads: int = 45, *, policy: str = "eager", seed: int = 0, races: str = "error") -> np.ndarray:
    """The 16 bytes of every lane as four words; the input holds 4t, 4t + 1, 4t + 2, 4t + 3 for thread t."""
    out, given = np.zeros((threads, 4), np.uint32), np.arange(4 * threads, dtype=np.uint32)
    program(body).launch("k", (1,), (threads,), [out, given], policy=policy, seed=seed, checks=ptx.Checks(races=races))
    return out


THREAD = np.arange(45)
INPUT = 4 * THREAD[:, None] + np.arange(4)


def test_what_writes_no_register_may_be_guarded() -> None:
    run("setp.lt.u32 %p1, %r1, 9; @%p1 nanosleep.u32 20; @!%p1 pmevent 1; ret;")


@POLICIES
@pytest.mark.parametrize("below", [0, 1, 17, 32, 33, 45])
def test_a_guarded_vector_load_leaves_the_other_lanes_registers(below: int, policy: str, seed: int) -> None:
    body = f"""mov.u32 %r2, 100; mov.u32 %r3, 200; mov.u32 %r4, 300; mov.u32 %r5, 400; setp.lt.u32 %p1, %r1, {below};
        @%p1 ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d5]; st.global.v4.u32 [%d3], {{%r2, %r3, %r4, %r5}}; ret;"""
    want = np.where((below > THREAD)[:, None], INPUT, [100, 200, 300, 400])
    assert (run(body, policy=policy, seed=seed) == want).all()


def test_a_vector_load_may_drop_elements() -> None:
    body = "ld.global.v4.u32 {%r2, _, %r4, _}, [%d5]; st.global.v2.u32 [%d3], {%r2, %r4}; ret;"
    assert (run(body)[:, :2] == INPUT[:, [0, 2]]).all()


def test_a_load_may_overwrite_its_own_address() -> None:
    body = "ld.global.u64 %d5, [%d5]; st.global.u64 [%d3], %d5; ret;"
    assert (run(body)[:, :2] == INPUT[:, :2]).all()


@POLICIES
def test_a_guarded_store_writes_for_its_lanes_alone(policy: str, seed: int) -> None:
    body = """setp.lt.u32 %p1, %r1, 20; mov.u32 %r2, 7; @%p1 st.global.v2.u32 [%d3], {%r1, %r2};
        @!%p1 st.global.u32 [%d3+8], %r2; ret;"""
    first = THREAD < 20
    want = np.stack([np.where(first, THREAD, 0), np.where(first, 7, 0), np.where(first, 0, 7), 0 * THREAD], 1)
    assert (run(body, policy=policy, seed=seed) == want).all()


@POLICIES
def test_a_guarded_atomic_counts_its_lanes(policy: str, seed: int) -> None:
    body = """and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; mov.u32 %r3, 999; @%p1 atom.global.add.u32 %r3, [%d1+8], 2;
        @!%p1 red.global.max.u32 [%d1+12], %r1; st.global.u32 [%d3+4], %r3; ret;"""
    out = run(body, policy=policy, seed=seed)
    odd = THREAD % 2 == 1
    assert sorted(out[odd, 1]) == [2 * turn for turn in range(22)]
    assert (out[~odd, 1] == 999).all()
    assert out[0, 2:].tolist() == [44, 44]


def test_a_guarded_pair_of_results_and_a_guarded_carry() -> None:
    body = """setp.lt.u32 %p1, %r1, 9; setp.eq.u32 %p2|%p3, %r1, %r1; @%p1 setp.lt.u32 %p2|%p3, %r1, 4;
        selp.b32 %r2, 1, 0, %p2; selp.b32 %r3, 1, 0, %p3; mov.u32 %r4, -1; @%p1 add.cc.u32 %r4, %r4, 1;
        @!%p1 add.cc.u32 %r4, %r4, 0; addc.u32 %r5, 0, 0; st.global.v4.u32 [%d3], {%r2, %r3, %r4, %r5}; ret;"""
    low = THREAD < 9
    want = np.stack(
        [
            np.where(low, THREAD < 4, 1),
            np.where(low, THREAD >= 4, 0),
            np.where(low, 0, 0xFFFFFFFF),
            np.where(low, 1, 0),
        ],
        1,
    )
    assert (run(body) == want).all()


def test_registers_that_are_the_same_for_all_lanes_are_stored_for_each() -> None:
    """Constants, parameters and block numbers are one element in the simulator, addresses and values alike."""
    body = """mov.u32 %r2, 5; mov.u32 %r3, %ntid.x; add.s32 %r4, %r2, %r3; mov.u32 %r5, %ctaid.x;
        st.global.v4.u32 [%d3], {%r2, %r3, %r4, %r5}; ret;"""
    assert (run(body) == [5, 45, 50, 0]).all()
    body = "mov.u32 %r2, 5; st.global.u32 [%d1], %r2; st.global.v2.u32 [%d1+8], {%r2, %r1}; ret;"
    assert run(body, races="off")[0].tolist() == [5, 0, 5, 44], "when lanes hit one address the last one stays"


def test_uniform_loads_atomics_and_guards() -> None:
    body = """ld.global.u32 %r2, [%d4+8]; atom.global.add.u32 %r3, [%d1], 1; setp.eq.u32 %p1, %r2, 2;
        @%p1 mov.u32 %r4, 6; @!%p1 mov.u32 %r4, 7; st.global.u32 [%d3+4], %r4; st.global.u32 [%d3+8], %r3; ret;"""
    out = run(body)
    assert (out[:, 1] == 6).all()
    assert sorted(out[:, 2]) == list(range(45))
    assert out[0, 0] == 45


def test_a_guard_that_is_false_for_all_runs_nothing() -> None:
    body = "setp.eq.u32 %p1, %r1, 999; mov.u64 %d6, 0; @%p1 ld.global.u32 %r2, [%d6]; @%p1 trap; st.global.u32 [%d3], 3; ret;"
    assert (run(body)[:, 0] == 3).all()


NUMBERED = f"""{HEAD}.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %d<4>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;
    mov.u32 %r6, %ntid.z; mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z; mov.u32 %r10, %nctaid.x;
    mov.u32 %r11, %nctaid.y;
    mad.lo.u32 %r12, %r3, %r5, %r2; mad.lo.u32 %r12, %r12, %r4, %r1;
    mad.lo.u32 %r13, %r9, %r11, %r8; mad.lo.u32 %r13, %r13, %r10, %r7;
    mul.lo.u32 %r14, %r4, %r5; mul.lo.u32 %r14, %r14, %r6; mad.lo.u32 %r15, %r13, %r14, %r12;
    ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r15, 4; add.s64 %d1, %d1, %d2;
    mov.u32 %r16, %laneid; mov.u32 %r17, %warpid; mad.lo.u32 %r18, %r17, 32, %r16; sub.u32 %r18, %r18, %r12;
    add.u32 %r19, %r15, 1; mad.lo.u32 %r19, %r18, 1000000, %r19; atom.global.add.u32 %r1, [%d1], %r19; ret; }}
"""


@POLICIES
@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)),
        ((3,), (33,)),
        ((2, 3), (5, 7)),
        ((2, 1, 4), (3, 4, 5)),
        ((1, 5), (1, 1, 40)),
        ((4,), (1024,)),
        ((7, 2, 3), (31,)),
    ],
)
def test_every_thread_of_a_grid_runs_once(
    grid: tuple[int, ...], block: tuple[int, ...], policy: str, seed: int
) -> None:
    """Threads and blocks count with x fastest; lane and warp number follow the thread's number."""
    count = int(np.prod(grid) * np.prod(block))
    out = np.zeros(count, np.uint32)
    ptx.load(NUMBERED).launch("k", grid, block, [out], policy=policy, seed=seed)
    assert (out == np.arange(count) + 1).all()


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_more_lanes_than_a_wave_holds_run_in_waves(policy: str) -> None:
    """Blocks keep their numbers and their own shared memory from one wave to the next."""
    blocks = WAVE_LANES // 96 + 17
    out = np.zeros(blocks * 96, np.uint32)
    ptx.load(NUMBERED).launch("k", (blocks,), (96,), [out], policy=policy)
    assert (out == np.arange(len(out)) + 1).all()
    body = """.shared .align 4 .b8 mine[4]; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [mine], 0; bar.sync 0;
        atom.shared.add.u32 %r2, [mine], 1; bar.sync 0; ld.shared.u32 %r3, [mine]; mov.u32 %r4, %ctaid.x;
        mul.wide.u32 %d6, %r4, 4; add.s64 %d6, %d1, %d6; st.global.u32 [%d6], %r3; ret;"""
    counts = np.zeros(blocks, np.uint32)
    program(body).launch("k", (blocks,), (96,), [counts, counts.copy()], policy=policy)
    assert (counts == 96).all()


def test_a_report_from_a_later_wave_names_thread_and_block() -> None:
    blocks = WAVE_LANES // 64 + 3
    body = f"""mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, {blocks - 1}; setp.eq.and.u32 %p1, %r1, 40, %p1; mov.u64 %d6, 0;
        @%p1 st.global.u32 [%d6], %r1; ret;"""
    given = np.zeros(4, np.uint32)
    with pytest.raises(RefsimError) as caught:
        program(body).launch("k", (blocks,), (64,), [given, given.copy()])
    assert f"thread (40, 0, 0) of block ({blocks - 1}, 0, 0)" in str(caught.value)
