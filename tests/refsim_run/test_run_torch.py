"""refsim run of a program that has its tensors on cuda: what they say, where they go, what is refused."""

import json

import pytest

PROGRAM = """
import copy
import torch
import triton
import triton.language as tl


@triton.jit
def doubled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def filled(table_ptr, value, BLOCK: tl.constexpr):
    to = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(to + tl.arange(0, BLOCK), value)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        doubled[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, dy):
        assert dy.is_cuda and ctx.saved_tensors[0].is_cuda
        return 2 * dy


assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cuda", 0)
x = torch.randn(100, device="cuda", requires_grad=True)
assert x.device.type == "cuda" and x.is_cuda and x.get_device() == 0 and torch.zeros(3).cuda().is_cuda
y = Doubled.apply(x)
y.sum().backward()
assert torch.equal(x.grad, torch.full((100,), 2.0, device="cuda")) and x.grad.is_cuda
assert torch.equal(y, x + x) and not y.cpu().is_cuda and y.cpu().device == torch.device("cpu")
try:
    y.detach().numpy()
except TypeError as error:
    print(error)
assert (y.detach().cpu().numpy() == 2 * x.detach().cpu().numpy()).all()
copied = torch.ones(4)
copied.copy_(y.detach()[:4])
assert not copied.is_cuda and not torch.zeros_like(y, device="cpu").is_cuda and torch.zeros_like(y).is_cuda

parts = [torch.empty(32, device="cuda") for _ in range(2)]
table = torch.tensor([part.data_ptr() for part in parts], dtype=torch.int64, device="cuda")
filled[(2,)](table, 3.0, BLOCK=32)
assert all(torch.equal(part, torch.full_like(part, 3.0)) for part in parts)

net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.LayerNorm(2)).to("cuda")
assert net[0].weight.is_cuda and isinstance(net[0].weight, torch.nn.Parameter) and len(list(net.parameters())) == 4
assert net(torch.ones(3, 4, device="cuda")).is_cuda and copy.deepcopy(net)[0].weight.is_cuda
net.cpu()
assert not net[0].weight.is_cuda and isinstance(net[0].weight, torch.nn.Parameter)
with torch.device("cuda"):
    assert torch.zeros(2).is_cuda and not torch.zeros(2, device="cpu").is_cuda
assert not torch.zeros(2).is_cuda
kernel = doubled[(1,)](x.detach(), y.detach(), 64, BLOCK=64)
assert kernel.n_regs > 8 and kernel.n_spills == 0
assert triton.testing.do_bench(lambda: doubled[(1,)](x.detach(), y.detach(), 64, BLOCK=64), warmup=1, rep=1) > 0
for ask in (lambda: torch.autocast("cuda").__enter__(), torch.cuda.memory_allocated, lambda: x.__cuda_array_interface__):
    try:
        ask()
    except NotImplementedError as error:
        print(error)
"""


@pytest.mark.ci("seconds; addresses of tensors are looked at in every run")
def test_a_program_on_cuda_runs_unchanged(refsim, tmp_path, monkeypatch):
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = refsim("run", "-o", "report.json", "--", "python", "program.py")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.code == 0, done.err
    assert {row["name"] for row in report["refused"]} == {
        "torch.autocast of cuda",
        "torch.cuda.memory_allocated",
        "torch.Tensor.__cuda_array_interface__",
    }
    assert "can't convert cuda:0 device type tensor to numpy" in done.out
    assert {row["kernel"]: row["status"] for row in report["kernels"]} == {"doubled": "exact", "filled": "exact"}
    assert {"torch.linear", "torch.layer_norm"} <= {row["name"] for row in report["by_host"]}
