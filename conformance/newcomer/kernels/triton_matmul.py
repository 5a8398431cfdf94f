"""C = A B in bf16 with float32 sums, as a Triton tutorial writes it: edges wrap around, K in ascending tiles."""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1)
    rm = (row * BM + tl.arange(0, BM)) % M
    rn = (column * BN + tl.arange(0, BN)) % N
    sums = tl.zeros((BM, BN), tl.float32)
    steps = tl.cdiv(K, BK)
    for step in range(steps):
        rk = step * BK + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * sa + rk[None, :], mask=rk[None, :] < K, other=0.0)
        y = tl.load(b + rk[:, None] * sb + rn[None, :], mask=rk[:, None] < K, other=0.0)
        sums = tl.dot(x, y, sums)
    om = row * BM + tl.arange(0, BM)
    on = column * BN + tl.arange(0, BN)
    tl.store(c + om[:, None] * sc + on[None, :], sums, mask=(om[:, None] < M) & (on[None, :] < N))
