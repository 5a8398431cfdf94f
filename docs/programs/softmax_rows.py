"""A program of Triton: softmax of each row, its block found by autotuning. It runs with a GPU as it does without one."""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 5, 50


@triton.autotune(
    [triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=4)], key=["columns"]
)
@triton.jit
def softmax_rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + at, e / tl.sum(e, axis=0), mask=at < columns)


device = triton.runtime.driver.active.get_active_torch_device()
torch.manual_seed(1)
x = torch.randn(ROWS, COLUMNS).to(device)
y = torch.empty_like(x)
softmax_rows[(ROWS,)](x, y, COLUMNS)
farthest = (y.double() - torch.softmax(x.double(), dim=1)).abs().max().item()
print(f"within 1e-7: {farthest < 1e-7}; rows sum to 1 within 1e-6: {bool(((y.sum(dim=1) - 1).abs() < 1e-6).all())}")
