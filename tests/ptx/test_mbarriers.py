"""mbarrier objects: what cuda::barrier and cuda::pipeline compile to, right and wrong; counts, states, misuse."""

from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError

HEADS = """
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
"""
START = """
    __shared__ Barrier ready;
    __shared__ alignas(16) int tile[512];
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
"""
HALVES = f"""extern "C" __global__ void k(const int* x, int* y) {{{START}
    tile[threadIdx.x] = x[threadIdx.x];
    auto token = ready.arrive();
    ready.wait(std::move(token));
    y[threadIdx.x] = tile[127 - threadIdx.x];
}}"""
COPIES = f"""extern "C" __global__ void k(const int* x, int* y) {{{START}
    cuda::memcpy_async(tile + 4 * threadIdx.x, x + 4 * threadIdx.x, cuda::aligned_size_t<16>(16), ready);
    ready.arrive_and_wait();
    y[threadIdx.x] = tile[127 - threadIdx.x];
}}"""
PIPELINE = """extern "C" __global__ void k(const int* x, int* y) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ alignas(16) int tile[2][512];
    auto pipe = cuda::make_pipeline(cooperative_groups::this_thread_block(), &state);
    int last = 0;
    for (int fetch = 0, step = 0; step < 4; ++step) {
        for (; fetch < 4 && fetch < step + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[fetch % 2][4 * threadIdx.x], x + 512 * fetch + 4 * threadIdx.x,
                               cuda::aligned_size_t<16>(16), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        last = tile[step % 2][127 - threadIdx.x];
        pipe.consumer_release();
    }
    y[threadIdx.x] = last;
}"""
RIGHT = {"halves": (HALVES, 0), "copies": (COPIES, 0), "pipeline": (PIPELINE, 1536)}
# Each is a right kernel with one thing changed, and what may be said of it.
WRONG = {
    "no wait": (HALVES, "ready.wait(std::move(token));", "", {"race"}),
    "arrival before the write": (HALVES, "tile[threadIdx.x] = x[threadIdx.x];\n    auto token = ready.arrive();",
                                 "auto token = ready.arrive(); tile[threadIdx.x] = x[threadIdx.x];", {"race"}),
    "no wait for copies": (COPIES, "ready.arrive_and_wait();", "(void)ready.arrive();", {"race", "read-before-wait"}),
    "no wait of the consumer": (PIPELINE, "pipe.consumer_wait();", "", {"race", "read-before-wait"}),
    "no acquire of the producer": (PIPELINE, "pipe.producer_acquire();", "", {"race", "read-before-wait"}),
    "initialised by nobody": (HALVES, "if (threadIdx.x == 0) init(&ready, blockDim.x);", "", {"barrier-misuse"}),
    "one arrival too many": (HALVES, "init(&ready, blockDim.x);", "init(&ready, blockDim.x - 1);", {"barrier-misuse", "race"}),
}  # fmt: skip
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2), ("random", 3)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    folder, programs = tmp_path_factory.mktemp("mbarriers"), {}

    def program(body: str) -> ptx.Program:
        if body not in programs:
            path: Path = folder / f"k{len(programs)}.cu"
            path.write_text(HEADS + body, "utf-8")
            programs[body] = ptx.load(compile_ptx(path, "sm_80").text, "sm_80")
        return programs[body]

    return program


def run(program: ptx.Program, policy: str, seed: int) -> tuple[np.ndarray, ptx.Trace]:
    x, y = np.arange(2048, dtype=np.int32), np.zeros(128, np.int32)
    return y, program.launch("k", 1, 128, [x, y], policy=policy, seed=seed)


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right_and_silent(name: str, compiled) -> None:
    body, first = RIGHT[name]
    for schedule in SCHEDULES:
        y, trace = run(compiled(body), *schedule)
        np.testing.assert_array_equal(y, first + np.arange(127, -1, -1))
        assert (trace.findings, trace.warnings, trace.notes) == ((), (), ()), schedule


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_found_under_every_schedule(name: str, compiled) -> None:
    body, old, new, codes = WRONG[name]
    assert body.count(old) == 1
    for schedule in SCHEDULES:
        with pytest.raises(RefsimError) as caught:
            run(compiled(body.replace(old, new)), *schedule)
        assert caught.value.code in codes, schedule


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


def test_counts_and_phases() -> None:
    arrive = "mbarrier.arrive.shared.b64 %d2, [bar]; "
    assert (
        one_thread(INIT + arrive + "mbarrier.arrive.shared.b64 %d2, [bar]; mbarrier.pending_count.b64 %r1, %d2;") == 2
    )
    assert one_thread(INIT + arrive * 2 + WAIT.format(0)) == 0
    assert one_thread(INIT + arrive * 3 + WAIT.format(0)) == 1
    assert one_thread(INIT + WAIT.format(1)) == 1, "the phase before the first counts as complete"
    assert one_thread(INIT + "mbarrier.arrive.release.cta.shared::cta.b64 _, [bar], 3;" + WAIT.format(0)) == 1
    drop = "mbarrier.arrive_drop.shared.b64 %d2, [bar]; "
    assert one_thread(INIT + drop + arrive * 2 + arrive * 2 + WAIT.format(1)) == 1, "the next phase waits for one fewer"


def test_bytes_hold_a_phase_open() -> None:
    expect = "mbarrier.arrive.expect_tx.shared.b64 %d2, [bar], 32; mbarrier.arrive.shared.b64 %d2, [bar], 2;"
    come = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;"
    assert one_thread(INIT + expect + come + WAIT.format(0)) == 0
    assert one_thread(INIT + expect + come * 2 + WAIT.format(0)) == 1
    assert one_thread(INIT + come * 2 + expect + WAIT.format(0)) == 1, "bytes may come first"


MISUSE = {
    "not initialised": "mbarrier.arrive.shared.b64 %d2, [bar+8];",
    "arrival of 4, while 3 of 3": INIT + "mbarrier.arrive.shared.b64 %d2, [bar], 4;",
    "plain access": INIT + "ld.shared.u32 %r2, [bar+4];",
    "object that is live": INIT * 2,
    "for 0 arrivals": "mbarrier.init.shared.b64 [bar], 0;",
    "noComplete": INIT + "mbarrier.arrive.noComplete.shared.b64 %d2, [bar], 3;",
    "two phases off": INIT + "mbarrier.arrive.shared.b64 %d2, [bar]; mbarrier.arrive.shared.b64 %d3, [bar], 2;"
                      "mbarrier.arrive.shared.b64 %d3, [bar], 3; mbarrier.test_wait.shared.b64 %p2, [bar], %d2;",
    "in global memory": "mbarrier.init.b64 [%d1], 1;",
}  # fmt: skip


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_found(what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        one_thread(MISUSE[what])
    assert caught.value.code == "barrier-misuse"


def test_a_thread_that_falls_two_phases_behind_is_told() -> None:
    turn = "mbarrier.arrive.shared.b64 %d2, [bar], 3;"
    wait = "mbarrier.test_wait.parity.shared.b64 %p2, [bar], {};"
    inside = INIT + "".join(turn + wait.format(phase % 2) for phase in range(3))
    assert one_thread(inside + turn + WAIT.format(1)) == 1
    with pytest.raises(RefsimError, match="two phases off"):
        one_thread(inside + turn * 2 + WAIT.format(1))


def test_ended_objects_are_plain_bytes() -> None:
    assert one_thread(INIT + "mbarrier.inval.shared.b64 [bar]; st.shared.u32 [bar], 7; ld.shared.u32 %r1, [bar];") == 7
