"""Triton kernels that make their tensor descriptors themselves."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A Bᵀ, tile by tile, A [M, K] and B [N, K]; every operand goes through a descriptor."""
    rows = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    columns = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    results = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    across = tl.cdiv(N, BN)
    m = tl.program_id(0) // across * BM
    n = tl.program_id(0) % across * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(rows.load([m, k]), columns.load([n, k]).T, sums)
    results.store([m, n], sums)


@triton.jit
def row_sums(x, out, COUNT, ROWS, COLUMNS, BLOCK: tl.constexpr):
    """Adds matrices of a batch up; a descriptor for each of them is made behind the one before."""
    column = tl.program_id(0) * BLOCK
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for number in range(COUNT):
        matrix = tl.make_tensor_descriptor(x + number * ROWS * COLUMNS, [ROWS, COLUMNS], [COLUMNS, 1], [BLOCK, BLOCK])
        sums += matrix.load([0, column])
    place = tl.make_tensor_descriptor(out, [ROWS, COLUMNS], [COLUMNS, 1], [BLOCK, BLOCK])
    place.store([0, column], sums)
