"""Sums of rows in numba: a block of 64 threads a row, each adds every 64th element; then halves, far ones first."""

from numba import cuda, float32

THREADS = 64


@cuda.jit
def row_sums(x, y, columns):
    partial = cuda.shared.array(THREADS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for column in range(thread, columns, THREADS):
        total += x[row, column]
    partial[thread] = total
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if thread < half:
            partial[thread] += partial[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        y[row] = partial[0]
