"""Our own block-scaled product in Triton for CDNA4, its scales as they lie or as `cdna4_16` and `cdna4_32` shuffle them."""

import triton
import triton.language as tl


@triton.jit
def product(
    a,
    b,
    sa,
    sb,
    c,
    M,
    N,
    K,
    format: tl.constexpr,
    in_byte: tl.constexpr,
    shuffled: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """c [M, N] of a [M, K / in_byte] and b [N, K / in_byte]; whole tiles. `shuffled`: 0, or the rows of the MFMA, 16 or 32."""
    rows, columns = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = rows * BM + tl.arange(0, BM), columns * BN + tl.arange(0, BN), tl.arange(0, BK // in_byte)
    blocks: tl.constexpr = BK // 32
    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(0, K // BK):
        x = tl.load(a + rm[:, None] * (K // in_byte) + step * (BK // in_byte) + rk[None, :])
        y = tl.load(b + rn[None, :] * (K // in_byte) + step * (BK // in_byte) + rk[:, None])
        if shuffled == 0:
            rs = step * blocks + tl.arange(0, blocks)
            xs = tl.load(sa + rm[:, None] * (K // 32) + rs[None, :])
            ys = tl.load(sb + rn[:, None] * (K // 32) + rs[None, :])
        else:
            rs = step * blocks * 32 + tl.arange(0, blocks * 32)
            xs = tl.load(sa + (rows * (BM // 32) + tl.arange(0, BM // 32))[:, None] * K + rs[None, :])
            ys = tl.load(sb + (columns * (BN // 32) + tl.arange(0, BN // 32))[:, None] * K + rs[None, :])
        if shuffled == 32:
            xs = xs.reshape(BM // 32, blocks // 8, 2, 32, 4).permute(0, 3, 1, 4, 2).reshape(BM, blocks)
            ys = ys.reshape(BN // 32, blocks // 8, 2, 32, 4).permute(0, 3, 1, 4, 2).reshape(BN, blocks)
        if shuffled == 16:
            xs = xs.reshape(BM // 32, blocks // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2).reshape(BM, blocks)
            ys = ys.reshape(BN // 32, blocks // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2).reshape(BN, blocks)
        sums = tl.dot_scaled(x, xs, format, y, ys, format, sums)
    tl.store(c + rm[:, None] * N + rn[None, :], sums)
