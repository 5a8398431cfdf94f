"""Memory that a program never wrote, in programs of every kind: found by its kernels, and silent where it was written."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim_run import memory
from refsim_run.memory import HOST_POISON, DeviceMemory, left_poison, poison_host

CUDA = """extern "C" __global__ void rd(const float* s, float* o, int n, float pad) {
    float v = s[threadIdx.x]; o[threadIdx.x] = 2.f * (threadIdx.x < n ? v : pad); }"""
KERNELS = {
    "cupy": f"""
_rd = cp.RawKernel({CUDA!r}, "rd")
def rd(x, o, n=128): _rd((1,), (128,), (x, o, np.int32(n), np.float32(0)))
""",
    "pycuda": f"""
_rd = SourceModule({CUDA!r}, no_extern_c=True).get_function("rd")
def rd(x, o, n=128): _rd(x, o, np.int32(n), np.float32(0), block=(128, 1, 1))
""",
    "numba": """
@cuda.jit
def _rd(s, o, n):
    i = cuda.threadIdx.x
    v = s[i]
    o[i] = 2 * (v if i < n else 0)
def rd(x, o, n=128): _rd[1, 128](x, o, n)
""",
    "torch": """
@triton.jit
def _rd(s, o, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o + i, tl.where(i < n, tl.load(s + i), 0))
def rd(x, o, n=128): _rd[(1,)](x, o, n, 128)
""",
}
"""A kernel of each package: it loads 128 elements, and the first `n` of them decide what it writes."""
HEADS = {
    "cupy": "import cupy as cp, cupyx\nimport numpy as np\nnew = lambda kind='f': cp.empty(128, kind)",
    "pycuda": """import numpy as np
import pycuda.autoinit, pycuda.driver as drv
from pycuda import gpuarray
from pycuda.compiler import SourceModule
from pycuda.tools import DeviceMemoryPool
new = lambda kind='f': gpuarray.empty(128, np.dtype(kind))""",
    "numba": "import numpy as np\nfrom numba import cuda\nnew = lambda kind='f': cuda.device_array(128, kind)",
    "torch": """import numpy as np, torch, triton, triton.language as tl
new = lambda kind=torch.float32: torch.empty(128, dtype=kind, device='cuda')""",
}
WRONG = {
    "cupy": """
x = new(); x[:100] = 1; rd(x, new())
x = cp.ndarray(128, 'f'); x[:127] = 1; rd(x, new())
x = cp.empty_like(cp.zeros(128, 'f')); x[1:] = 1; rd(x, new())
x = cp.ndarray(128, 'f', cp.cuda.alloc(512)); x[:100] = 1; rd(x, new())
x = cp.ones(128, 'f'); del x; rd(new(), new())
h = np.empty(128, 'f'); h[:100] = 1; rd(cp.asarray(h), new())
h = np.empty(128, 'f'); h[:100] = 1; x = new(); x.set(h); rd(x, new())
h = cupyx.empty_pinned(1 << 20, 'f'); h[:100] = 1; rd(cp.asarray(h), new())
h = np.frombuffer(cp.cuda.alloc_pinned_memory(4 << 20), 'f'); h[:100] = 1; rd(cp.asarray(h), new())
x = new(); x[:100] = 1; rd(x.copy(), new())
x = new('i4'); x[:100] = 1; rd((x * 2 + 1).astype('f'), new())
x = new('f2'); x[:127] = 1; rd(x.astype('f'), new())
x = new(); x[:100] = 1; y = cp.zeros(128, 'f'); y[:] = x; rd(y, new())
x = new(); x[:100] = 1; y = new(); cp.multiply(x, 2, out=y); rd(y, new())
x = cp.empty((128, 2), 'f'); x[:100] = 1; rd(cp.ascontiguousarray(x[:, 0]), new())
rd(cp.concatenate([cp.ones(64, 'f'), cp.empty(64, 'f')]), new())
x = new(); x[:100] = 1; rd(cp.asarray(x.get()), new())
""",
    "pycuda": """
x = drv.mem_alloc(512); drv.memcpy_htod(x, np.ones(100, 'f')); rd(x, new())
x = new(); x[:100] = 1; rd(x, new())
x = gpuarray.empty_like(gpuarray.zeros(128, np.float32)); x[:127] = 1; rd(x, new())
x = drv.mem_alloc(512); drv.memset_d32(x, 0, 128); x.free(); rd(drv.mem_alloc(512), new())
p = DeviceMemoryPool(); x = p.allocate(512); drv.memset_d32(x, 0, 128); x.free(); rd(p.allocate(512), new())
x, y = drv.mem_alloc(512), drv.mem_alloc(512); drv.memset_d32(x, 0, 100); drv.memcpy_dtod(y, x, 512); rd(y, new())
x = np.empty(128, 'f'); x[:100] = 1; rd(drv.In(x), new())
x = np.empty_like(np.ones(128, 'f')); x[:127] = 1; rd(gpuarray.to_gpu(x), new())
x = drv.pagelocked_empty(1 << 20, 'f'); x[:100] = 1; d = drv.mem_alloc(4 << 20); drv.memcpy_htod_async(d, x); rd(d, new())
x = np.zeros(128, 'f'); rd(drv.In(np.ones(128, 'f')), drv.Out(x)); y = np.empty(128, 'f'); x[28:] = y[28:]; rd(drv.In(x), new())
""",
    "numba": """
x = new(); x[:100] = np.ones(100, 'f'); rd(x, new())
x = cuda.device_array_like(np.ones(128, 'f')); x[:127] = np.ones(127, 'f'); rd(x, new())
x = cuda.pinned_array(1 << 20, 'f'); x[:100] = 1; rd(cuda.to_device(x), new())
x = np.empty(128, 'f'); x[:100] = 1; rd(cuda.to_device(x), new())
x = np.empty(128, 'f'); x[:100] = 1; rd(x, new())
x = cuda.to_device(np.ones(128, 'f')); del x; rd(new(), new())
x, y = np.empty(128, 'f'), new(); y[:100] = np.ones(100, 'f'); y.copy_to_host(x); rd(x, new())
""",
    "torch": """
x = new(); x[:100] = 1; rd(x, new())
x = torch.empty_like(torch.zeros(128, device='cuda')); x[:127].fill_(1); rd(x, new())
x = torch.zeros(1, device='cuda').new_empty(128); x[1:].fill_(1); rd(x, new())
x = torch.empty_strided((64, 2), (2, 1), device='cuda'); x[:, 0] = 1; rd(x, new())
x = torch.ones(100, device='cuda').resize_(128); rd(x, new())
x = torch.empty(0, device='cuda').resize_(128); x[:100] = 1; rd(x, new())
x = torch.empty(128); x[:100] = 1; rd(x.cuda(), new())
x = torch.empty(128, pin_memory=True); x[:100] = 1; rd(x.to('cuda', non_blocking=True), new())
x, h = new(), torch.empty(128); h[:100] = 1; x.copy_(h); rd(x, new())
h = np.empty(128, np.float32); h[:100] = 1; rd(torch.from_numpy(h).cuda(), new())
x = torch.ones(128, device='cuda'); del x; rd(new(), new())
x = new(); x[:100] = 1; y = torch.ones(128, device='cuda'); y[28:] = x[28:].clone(); rd(y, new())
rd(torch.cat([torch.ones(64, device='cuda'), torch.empty(64, device='cuda')]), new())
x = new(); x[:100] = 1; rd(x * 2 + 1, new())
x = torch.empty(128, 2, device='cuda'); x[:100] = 1; rd(x.t().contiguous(), new())
x = new(torch.bfloat16); x[:127] = 1; rd(x, new(torch.bfloat16))
x = new(torch.int8); x[:125] = 1; rd(x, new(torch.int8))
x = new(torch.int8); x[:50] = 1; x[51:].copy_(torch.ones(77, dtype=torch.int8)); rd(x, new(torch.int8))
x = new(torch.uint8); x.view(torch.int32)[1:].fill_(1); x[:3].zero_(); x.data_ptr(); rd(x, new(torch.uint8))
""",
}
"""Programs, one a line, whose kernel writes what depends on memory that the program never wrote."""
RIGHT = {
    "cupy": """
x, o = new(), new(); x[:] = 1; rd(x, o); print(o)
x, o = new(), new(); x[:100] = 1; o.fill(0); rd(x, o, 100); print(o.get())
x, o = new(), new(); x[:100] = 1; rd(x, o, 100); print(o[:100].get())
x = new(); x.data.memset(0, 512); rd(x, new())
x = new(); cp.multiply(cp.ones(128, 'f'), 2, out=x); rd(x, new())
x, a = new(), cp.ones(128, 'f'); cp.add(a, a, x); rd(x, new())
x = new(); cp.copyto(x, cp.ones(128, 'f')); rd(x, new())
x = new(); x[...] = 1; x += 1; x *= 2; rd(x, new())
x, m = new(), cp.arange(128) % 2 == 0; x[m] = 1; x[~m] = 2; rd(x, new())
x = cp.empty((8, 16), 'f'); [x[i].fill(i) for i in range(8)]; rd(x, new())
x = new(); x.view('i1')[:] = 1; rd(x, new())
x = new(); x[:100] = 1; rd(cp.where(cp.arange(128) < 100, x, cp.float32(0)), new())
x = new(); x[:100] = 1; rd(cp.concatenate([x[:100], cp.zeros(28, 'f')]), new())
x = cp.asarray(np.full(128, 0xFFC3FDB7, np.uint32)); rd(x, new())
""",
    "pycuda": """
x, o = np.ones(128, 'f'), np.empty(128, 'f'); rd(drv.In(x), drv.Out(o)); print(o)
x, o = drv.mem_alloc(512), np.empty(128, 'f'); drv.memset_d32(x, 0, 128); rd(x, drv.Out(o)); print(o)
x, o = new(), new(); x.fill(1); rd(x, o); print(o.get())
x = new(); x[:64] = 1; x[64:] = 2; rd(x, new()); print((2 * x).get())
x = np.empty(128, 'f'); x[:100] = 1; rd(drv.In(x), new(), 100)
x = np.empty(128, 'f'); np.copyto(x, np.ones(128)); rd(drv.In(x), new())
x = np.empty(128, 'f'); np.add(np.ones(128, 'f'), 1, out=x); rd(drv.In(x), new())
x = np.empty((128, 2), 'f'); x[:, 0] = 1; rd(drv.In(np.ascontiguousarray(x[:, 0])), new())
x = np.empty(128, np.uint32); x[:] = 0xFFC3FDB7; rd(drv.In(x), new())
x = np.empty(512, np.uint8); x[:] = np.random.default_rng(0).integers(0, 256, 512); rd(drv.In(x.view('f')), new())
x = drv.pagelocked_empty(128, 'f'); x[:] = 1; d = drv.mem_alloc(512); drv.memcpy_htod_async(d, x); rd(d, new())
""",
    "numba": """
x, o = new(), new(); x[:128] = np.ones(128, 'f'); rd(x, o); print(o.copy_to_host())
x = new(); x.copy_to_device(np.ones(128, 'f')); rd(x, new())
x = cuda.pinned_array(128, 'f'); x[:] = 1; rd(cuda.to_device(x), new())
x, o = np.ones(128, 'f'), np.empty(128, 'f'); rd(x, o); print(o)
x, y = new(), new(); x[:100] = np.ones(100, 'f'); rd(x, y, 100); rd(y, new()); print(y[:100].copy_to_host())
""",
    "torch": """
x, o = new(), new(); x[:] = 1; rd(x, o); print(o.cpu())
x, o = new(), new(); x[:100] = 1; rd(x, o, 100); print(o.sum().item())
x = new(); x.copy_(torch.arange(128.)); rd(x, new())
x, a = new(), torch.ones(128, device='cuda'); torch.add(a, a, out=x); rd(x, new())
x = new(torch.int8); x.zero_(); rd(x, new(torch.int8))
x = new(); x.normal_(); rd(x, new()); x.uniform_(); rd(x, new())
x = new(torch.int32); x.random_(-2**31, 2**31); rd(x, new(torch.int32))
x = new(torch.int32); x.fill_(-0x3c0249); rd(x, new(torch.int32))
x = new(); x[:100] = 1; rd(torch.where(torch.arange(128, device='cuda') < 100, x, torch.zeros_like(x)), new())
x = torch.empty(128); x.numpy()[:] = 1; rd(x.cuda(), new())
x = new(); x.scatter_(0, torch.arange(128, device='cuda'), torch.ones(128, device='cuda')); rd(x, new())
x, m = new(), torch.arange(128, device='cuda') < 64; x[m] = 1; x[~m] = 2; rd(x, new())
x = torch.empty(8, 16, device='cuda'); [x[i].fill_(i) for i in range(8)]; rd(x, new())
x = new(torch.int32); x.view(torch.int8).fill_(1); rd(x, new(torch.int32))
x = torch.ones(256, device='cuda').resize_(128); rd(x, new())
x = torch.empty(8, 16, dtype=torch.int8, device='cuda'); x[:, ::2] = 1; x.t()[1::2] = 2; rd(x, new(torch.int8))
x, o, p = new(torch.int8), new(torch.int8), new(torch.int8); x.random_(-128, 128); rd(x, o); rd(o, p); print(p.cpu())
x = new(torch.int8); del x; x = torch.randint(-128, 128, (128,), dtype=torch.int8).cuda(); rd(x, new(torch.int8))
p = torch.nn.Parameter(new()); torch.nn.init.uniform_(p); rd(p.data, new())
x, o, p = torch.ones(128, device='cuda'), new(), new(); rd(x, o); rd(o, p); print(p.cpu())
""",
}
"""Programs, one a line, that write what they read: no finding and no warning."""
NEEDS = {"torch": [pytest.mark.peers("torch")], "numba": []}
PACKAGES = [pytest.param(name, marks=NEEDS.get(name, ())) for name in KERNELS]


def report_of(package: str, programs: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Run programs as one, each in a function with a kernel of its own; return the exit code and the report."""
    if package == "torch":
        pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.9.0")
    if package == "numba" and (find_spec("numba_cuda") is None or not hasattr(np, "row_stack")):
        pytest.skip("numba-cuda is not installed, or asks for numpy.row_stack, which NumPy 2.4 has not")
    lines = [HEADS[package]]
    for number, line in enumerate(programs.strip().splitlines()):
        lines.append(re.sub(r"\b(_?)rd\b", rf"\1rd{number}_", KERNELS[package]))
        own = re.sub(r"\brd\b", f"rd{number}_", line)
        lines.append(f"def program{number}():\n    {own}\nprogram{number}()")
    path = folder / "program.py"
    path.write_text("\n".join(lines))
    command = [sys.executable, "-m", "refsim", "run", "--as", "json", "--", "python", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert "Traceback" not in found.stderr, found.stderr
    return found.returncode, json.loads(found.stdout[found.stdout.index("{\n") :])


@pytest.mark.parametrize("package", PACKAGES)
def test_each_program_that_reads_what_it_never_wrote_is_found(package: str, tmp_path: Path) -> None:
    code, report = report_of(package, WRONG[package], tmp_path)
    named = [(re.search(r"rd(\d+)_", kernel["kernel"]), kernel["status"]) for kernel in report["kernels"]]
    status = {int(found[1]): status for found, status in named if found}
    lines = WRONG[package].strip().splitlines()
    missed = [line for number, line in enumerate(lines) if status.get(number) != "finding"]
    assert (code, missed) == (1, [])
    assert {row["code"] for row in report["findings"]} == {"uninitialised"}
    assert all("line" in row["where"] for row in report["findings"] if row["kind"] == "finding")


@pytest.mark.parametrize("package", PACKAGES)
def test_programs_that_write_what_they_read_are_silent(package: str, tmp_path: Path) -> None:
    code, report = report_of(package, RIGHT[package], tmp_path)
    assert report.get("findings", []) == []
    assert {kernel["status"] for kernel in report["kernels"]} == {"exact"}
    assert code == 0


TAILS = {
    "cupy": "x, o = cp.ones(128, 'f'), cp.empty(200, 'f'); rd(x, o); o.get()",
    "pycuda": "x, o = gpuarray.to_gpu(np.ones(128, 'f')), gpuarray.empty(200, np.float32); rd(x, o); o.get()",
    "numba": "x, o = cuda.to_device(np.ones(128, 'f')), cuda.device_array(200, 'f'); rd(x, o); o.copy_to_host()",
    "torch": "x, o = torch.ones(128, device='cuda'), torch.empty(200, device='cuda'); rd(x, o); o.cpu()",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_tail_that_no_thread_wrote_and_the_host_reads_is_a_warning(package: str, tmp_path: Path) -> None:
    code, report = report_of(package, TAILS[package], tmp_path)
    assert [(row["code"], row["kind"]) for row in report["findings"]] == [("uninitialised", "warning")]
    assert "288 were never written" in report["findings"][0]["what"]
    assert code == 0


def test_a_run_has_its_own_poison_which_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HOST_POISON", HOST_POISON.copy())
    chosen = set()
    for number in range(50):
        memory.vary_poison(f"/a/run/{number}")
        chosen.add(int(memory.HOST_POISON[0]))
        room = np.tile(memory.HOST_POISON, 2)
        assert all(np.isnan(room.view(kind)).all() for kind in ("f8", "f4", "f2", ml_dtypes.bfloat16))
        assert (room.view("f4") * np.float32(3)).view("u4").tolist() == room.tolist()
    assert len(chosen) > 40


def test_poison_is_found_word_by_word() -> None:
    room = np.zeros(64, np.uint8)
    assert left_poison(room) is None
    for begin in range(4):
        part = room[begin : begin + 40]
        part[:] = 0
        poison_host(part)
        part[12:17] = 7
        first = -part.ctypes.data % 4
        found = left_poison(part)
        assert found is not None
        words = [at for at in range(first, 37, 4) if not (set(range(at, at + 4)) & set(range(12, 17)))]
        assert np.flatnonzero(found).tolist() == [at + byte for at in words for byte in range(4)]


def test_a_copy_to_the_device_keeps_what_is_unwritten() -> None:
    told = []
    device = DeviceMemory(tell=lambda error, is_wrong=True: told.append((error.code, is_wrong)))
    content = np.zeros(64, np.uint8)
    poison_host(content)
    content[:32] = 5
    address = device.allocate(64, "test")
    device.write(address, content)
    assert device.memory.written(address, 64).tolist() == [True] * 32 + [False] * 32
    device.write(address, np.zeros(64, np.uint8))
    assert device.memory.written(address, 64).all()
    with device.mapped([(content.ctypes.data, content)], "test") as (mapped,):
        assert np.count_nonzero(device.memory.written(mapped, 64)) == 32
    device.read_by_host(content, "a tensor")
    assert told == [("uninitialised", False)]
    device.read_by_host(content[:32], "a tensor")
    assert len(told) == 1


def test_the_rest_of_an_input_is_no_output_until_a_kernel_stores_there() -> None:
    told = []
    device = DeviceMemory(tell=lambda error, is_wrong=True: told.append((error.code, is_wrong)))
    content = np.zeros(64, np.uint8)
    poison_host(content)
    whole, part, stored = (device.allocate(64, "test") for _ in range(3))
    device.write(whole, content)
    content[:32] = 5
    device.write(part, content)
    device.write(stored, content)
    device.memory.space.note_stored(device.memory.space.region_at(stored - device.memory.space.base))
    device.read(part, 64)
    assert told == []
    device.read(whole, 64)
    device.read(stored, 64)
    assert told == [("uninitialised", False)] * 2


def test_marks_of_host_memory_end_where_a_kernel_or_unseen_code_wrote() -> None:
    device, content = DeviceMemory(), np.zeros(64, np.uint8)
    poison_host(content)
    marks = np.ones(64, np.bool_)
    device.marks[content.ctypes.data] = (lambda: False, marks)
    with device.mapped([(content.ctypes.data, content)], "test") as (mapped,):
        assert not device.memory.written(mapped, 64).any()
        device.memory.write(mapped, np.full(16, 7, np.uint8))
        device.memory.space.note_stored(device.memory.space.region_at(mapped - device.memory.space.base))
    assert marks.tolist() == [False] * 16 + [True] * 48
    assert content[:16].tolist() == [7] * 16
    content[30] ^= 1  # no operation that refsim sees
    found = device.open_on_host(content)
    assert found is not None
    assert np.flatnonzero(~found).tolist() == [*range(16), *range(28, 32)]
    assert not marks.any()
