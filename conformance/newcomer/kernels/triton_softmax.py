"""Softmax of rows in Triton: a program a row, which fits into one block."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * n + at, exponentials / tl.sum(exponentials, axis=0), mask=at < n)
