"""A product in Gluon, our own: warps with roles, a ring of stages in shared memory, barriers between them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def _load(a, b, xs, ys, full, empty, K, row, column, STAGES: gl.constexpr):
    BK: gl.constexpr = a.block_shape[1]
    for i in range(0, gl.cdiv(K, BK)):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES) & 1 ^ 1)
        mbarrier.expect(full.index(stage), a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, i * BK], full.index(stage), xs.index(stage))
        tma.async_load(b, [column, i * BK], full.index(stage), ys.index(stage))


@gluon.jit
def _multiply(
    c, xs, ys, full, empty, out, K, row, column, BK: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr
):
    sums = gl.zeros((c.block_shape[0], c.block_shape[1]), gl.float32, layout)
    for i in range(0, gl.cdiv(K, BK)):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        sums = warpgroup_mma(xs.index(stage), ys.index(stage).permute((1, 0)), sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(stage), count=1)
    out.store(sums.to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], out)
    tma.store_wait(0)


@gluon.jit
def roles(a, b, c, K, STAGES: gl.constexpr):
    """One warp loads a [M, K] and b [N, K] into a ring of stages, a warpgroup multiplies."""
    BM: gl.constexpr = c.block_shape[0]
    BN: gl.constexpr = c.block_shape[1]
    BK: gl.constexpr = a.block_shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    xs = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    ys = gl.allocate_shared_memory(b.dtype, [STAGES, BN, BK], b.layout)
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    gl.warp_specialize(
        [
            (_multiply, (c, xs, ys, full, empty, out, K, row, column, BK, STAGES, layout)),
            (_load, (a, b, xs, ys, full, empty, K, row, column, STAGES)),
        ],
        [1],
        [24],
    )
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(empty.index(i))
