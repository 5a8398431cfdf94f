"""Kernels of our own in Triton as its users write them for Hopper: tensor descriptors, persistent programs, clusters, matrices
of different sizes in one launch, scaled operands, the backward pass of attention.
"""

import triton
import triton.language as tl


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLAT: tl.constexpr):
    """a [M, K], b [N, K] and c [M, N] are descriptors; c is stored in two halves of its columns."""
    columns = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * columns
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLAT):
        row, column = tile // columns * BM, tile % columns * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            sums = tl.dot(a.load([row, k * BK]), b.load([column, k * BK]).T, sums)
        left, right = sums.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        c.store([row, column], left.to(c.dtype))
        c.store([row, column + BN // 2], right.to(c.dtype))


@triton.jit
def specialised(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One tile: loads by one warpgroup, products by another two, which Triton makes of the loop."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    rm, rn = row + tl.arange(0, BM), column + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=True):
        sums = tl.dot(a.load([row, k * BK]), b.load([column, k * BK]).T, sums)
    tl.store(c + rm[:, None] * N + rn[None, :], sums.to(c.dtype.element_ty))


@triton.jit
def grouped(pointers, sizes, groups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Products of many sizes: for each the addresses of a [m, k], b [n, k] and c [m, n], and m, n, k."""
    tile = tl.program_id(0)
    last = 0
    for group in range(groups):
        m, n, k = tl.load(sizes + group * 3), tl.load(sizes + group * 3 + 1), tl.load(sizes + group * 3 + 2)
        columns = tl.cdiv(n, BN)
        count = tl.cdiv(m, BM) * columns
        while tile >= last and tile < last + count:
            a = tl.load(pointers + group * 3).to(tl.pointer_type(tl.float16))
            b = tl.load(pointers + group * 3 + 1).to(tl.pointer_type(tl.float16))
            c = tl.load(pointers + group * 3 + 2).to(tl.pointer_type(tl.float16))
            rm = (tile - last) // columns * BM + tl.arange(0, BM)
            rn = (tile - last) % columns * BN + tl.arange(0, BN)
            sums = tl.zeros((BM, BN), tl.float32)
            for start in range(0, k, BK):
                at = start + tl.arange(0, BK)
                x = tl.load(a + rm[:, None] * k + at[None, :], (rm[:, None] < m) & (at[None, :] < k), other=0.0)
                y = tl.load(b + rn[None, :] * k + at[:, None], (rn[None, :] < n) & (at[:, None] < k), other=0.0)
                sums = tl.dot(x, y, sums)
            tl.store(c + rm[:, None] * n + rn[None, :], sums.to(tl.float16), (rm[:, None] < m) & (rn[None, :] < n))
            tile += tl.num_programs(0)
        last += count


@triton.jit
def scaled(
    a,
    sa,
    b,
    sb,
    c,
    N,
    K,
    A: tl.constexpr,
    B: tl.constexpr,
    PA: tl.constexpr,
    PB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Microscaling formats A and B, PA and PB elements a byte, a power of two for 32 of them."""
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ka, kb, ks = (
            k // PA + tl.arange(0, BK // PA),
            k // PB + tl.arange(0, BK // PB),
            k // 32 + tl.arange(0, BK // 32),
        )
        x = tl.load(a + rm[:, None] * (K // PA) + ka[None, :])
        y = tl.load(b + rn[None, :] * (K // PB) + kb[:, None])
        xs = tl.load(sa + rm[:, None] * (K // 32) + ks[None, :])
        ys = tl.load(sb + rn[:, None] * (K // 32) + ks[None, :])
        sums = tl.dot_scaled(x, xs, A, y, ys, B, sums)
    tl.store(c + rm[:, None] * N + rn[None, :], sums)


@triton.jit
def moved(x, out, BM: tl.constexpr):
    out.store([tl.program_id(0) * BM, 0], x.load([tl.program_id(0) * BM, 0]))


@triton.jit
def summed(x, out, BM: tl.constexpr):
    """Descriptors: the copy engine adds the block of every program to the first one."""
    out.atomic_add([0, 0], x.load([tl.program_id(0) * BM, 0]))


@triton.jit
def backward(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dk,
    dv,
    scale,
    T,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The gradients of keys and values, without the factor of the scores; T is a multiple of both blocks."""
    first, rd = tl.program_id(0) * BN, tl.arange(0, D)
    columns = first + tl.arange(0, BN)
    x, y = tl.load(k + columns[:, None] * D + rd[None, :]), tl.load(v + columns[:, None] * D + rd[None, :])
    keys, values = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    for start in range(first if CAUSAL else 0, T, BM):
        rows = start + tl.arange(0, BM)
        qt = tl.load(q + rows[None, :] * D + rd[:, None])
        pt = tl.exp2(tl.fma(tl.dot(x, qt), scale, -tl.load(lse + rows)[None, :]))
        if CAUSAL:
            pt = tl.where(rows[None, :] >= columns[:, None], pt, 0.0)
        g = tl.load(do + rows[:, None] * D + rd[None, :])
        values = tl.dot(pt.to(g.dtype), g, values)
        ds = pt * (tl.dot(y, tl.trans(g)) - tl.load(delta + rows)[None, :])
        keys = tl.dot(ds.to(qt.dtype), tl.trans(qt), keys)
    tl.store(dv + columns[:, None] * D + rd[None, :], values)
    tl.store(dk + columns[:, None] * D + rd[None, :], keys)
