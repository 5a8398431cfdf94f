"""An entry run one statement at a time, and what an observer of one warp sees."""

from pathlib import Path

import numpy as np
import pytest

from refsim import device, ptx
from refsim.ptx.lowering.blocks import single_stepped

PTX = """.version 9.0
.target sm_90a
.address_size 64
.file 1 "steps.cu"
.visible .entry steps(.param .u64 out)
{
    .reg .b32 %r<8>; .reg .b64 %d<3>; .reg .pred %p<2>; .shared .align 4 .b8 tile[256];
    .loc 1 3 1
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x;
    add.u32 %r7, %r1, 77;
    .loc 1 4 1
    setp.lt.u32 %p1, %r1, 40;
    @%p1 add.u32 %r2, %r1, 100;
    @%p1 setp.lt.u32 %p1, %r1, 36;
    .loc 1 5 1
    @!%p1 bra $skip;
    mov.u32 %r3, 5;
    add.u32 %r2, %r2, %r3;
$skip:
    .loc 1 6 1
    bar.sync 0;
    shfl.sync.idx.b32 %r4, %r1, 3, 31, -1;
    mad.wide.u32 %d2, %r1, 4, %d1;
    st.global.u32 [%d2], %r4; ret;
}
"""


def traced(warp: int, first: int = 0, last: int = 1 << 30, most: int = 100) -> ptx.WarpTrace:
    program = ptx.load(PTX)
    seen = ptx.WarpTrace(program.code("steps"), warp, first, last, most)
    program.launch("steps", (2,), (64,), [np.zeros(64, np.uint32)], observer=seen)
    return seen


def test_registers_that_nobody_reads_are_seen_too() -> None:
    (dead,) = [ran for ran in traced(1, 3, 3).ran if ran.statement.opcode == "add.u32"]
    assert dead.registers[0].register == "%r7"
    assert dead.registers[0].bits == tuple(range(32 + 77, 64 + 77))


def test_a_guard_that_its_statement_overwrites_chooses_the_lanes() -> None:
    """Of warp 1 (threads 32 to 63) 40 and below run the guarded addition, and the comparison that clears the guard."""
    ran = traced(1, 4, 4).ran
    assert [step.lanes for step in ran] == [tuple(range(32)), tuple(range(8)), tuple(range(8))]
    assert ran[2].registers[0].bits == (1,) * 4 + (0,) * 4


def test_a_branch_is_shown_with_the_lanes_that_take_it() -> None:
    taken, *others = traced(1, 5, 5).ran
    assert (taken.statement.opcode, taken.lanes, taken.registers) == ("bra", tuple(range(4, 32)), ())
    assert [step.lanes for step in others] == [(0, 1, 2, 3)] * 2


@pytest.mark.parametrize("warp", [0, 3])
def test_warps_count_over_the_launch(warp: int) -> None:
    (shuffled,) = [step for step in traced(warp, 6, 6).ran if step.statement.opcode.startswith("shfl")]
    assert shuffled.registers[0].bits == (warp % 2 * 32 + 3,) * 32


def test_a_store_shows_what_it_reads() -> None:
    (stored,) = [step for step in traced(0, 6, 6).ran if step.statement.opcode.startswith("st.")]
    assert [(held.register, held.is_written, held.type.name) for held in stored.registers] == [
        ("%d2", False, "b64"),
        ("%r4", False, "u32"),
    ]


def test_statements_beyond_the_most_are_counted() -> None:
    whole = traced(0)
    short = traced(0, most=5)
    assert (len(short.ran), short.left_out) == (5, len(whole.ran) - 5)
    assert [step.statement.opcode for step in whole.ran][-1] == "ret"


def test_every_statement_is_a_block_and_no_registers_share_a_place() -> None:
    code = ptx.load(PTX).code("steps")
    stepped = single_stepped(code)
    assert sorted(stepped.blocks) == list(range(len(code.steps)))
    assert all(len(block.steps) + (block.terminator is not None) == 1 for block in stepped.blocks.values())
    assert len(set(stepped.slots)) == len(code.register_bits)


KERNEL = """
extern "C" __global__ void mixed(const float* x, float* y, int n) {
    __shared__ float tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    tile[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x % 3 == 0) v = tile[127 - threadIdx.x] * 0.5f; else v -= tile[threadIdx.x ^ 32];
    if (i < n) y[i] = v;
}
"""


def test_results_are_those_of_whole_blocks(tmp_path: Path) -> None:
    (tmp_path / "mixed.cu").write_text(KERNEL)
    program = device.open("sim").program(tmp_path / "mixed.cu")
    x = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    results = []
    for warp in (None, 5):
        y = np.zeros(300, np.float32)
        seen = None if warp is None else ptx.WarpTrace(program.code("mixed"), warp)
        trace = program.launch("mixed", (3,), (128,), [x.copy(), y, np.int32(300)], observer=seen)
        results.append((y.tobytes(), trace.instructions))
    assert results[0] == results[1]
