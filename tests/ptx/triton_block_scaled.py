"""A block-scaled product of our own in Triton, as its users write one: tiles over K, masks where the matrices end."""

import triton
import triton.language as tl


@triton.jit
def product(
    a,
    sa,
    b,
    sb,
    c,
    M,
    N,
    K,
    A: tl.constexpr,
    B: tl.constexpr,
    IN_A: tl.constexpr,
    IN_B: tl.constexpr,
    BLOCK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """c [M, N] of a [M, K / IN_A] and b [N, K / IN_B] in formats A and B, IN of them to a byte, a scale for each BLOCK of K."""
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, tl.cdiv(K, BK)):
        ka, kb = start * (BK // IN_A) + tl.arange(0, BK // IN_A), start * (BK // IN_B) + tl.arange(0, BK // IN_B)
        ks = start * (BK // BLOCK) + tl.arange(0, BK // BLOCK)
        x = tl.load(
            a + rm[:, None] * (K // IN_A) + ka[None, :], (rm[:, None] < M) & (ka[None, :] < K // IN_A), other=0.0
        )
        y = tl.load(
            b + rn[None, :] * (K // IN_B) + kb[:, None], (rn[None, :] < N) & (kb[:, None] < K // IN_B), other=0.0
        )
        xs = tl.load(
            sa + rm[:, None] * (K // BLOCK) + ks[None, :], (rm[:, None] < M) & (ks[None, :] < K // BLOCK), other=0.0
        )
        ys = tl.load(
            sb + rn[:, None] * (K // BLOCK) + ks[None, :], (rn[:, None] < N) & (ks[None, :] < K // BLOCK), other=0.0
        )
        sums = tl.dot_scaled(x, xs, A, y, ys, B, sums)
    tl.store(c + rm[:, None] * N + rn[None, :], sums, (rm[:, None] < M) & (rn[None, :] < N))
