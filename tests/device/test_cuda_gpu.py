"""refsim.device.cuda on a real GPU, through each library."""

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim.device import cuda
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode

KERNEL = """
extern "C" __global__ void add(const unsigned* x, unsigned* y, unsigned short step, double scale, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + step + (unsigned)scale;
}
extern "C" __global__ void overrun(const unsigned* x, unsigned* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = 0x01020304;
}
extern "C" __global__ void scribble(unsigned* x) { x[3] = 9; }
extern "C" __global__ void shared(unsigned* y) {
    extern __shared__ unsigned words[];
    words[16383 + threadIdx.x] = 41 + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = words[16384];
}
"""


@pytest.fixture(scope="module", params=list(cuda.BACKENDS))
def device(request):
    try:
        return cuda.open_device(backend=request.param)
    except RefsimError as reason:
        pytest.skip(f"needs a GPU and {request.param}: {reason.what}")


@pytest.fixture
def real(device, tmp_path):
    source = Path(tmp_path) / "small.cu"
    source.write_text(KERNEL)
    with device.launcher(source) as gpu:
        yield gpu


def test_gpu_runs_the_kernel(real, device):
    x = real.upload(np.arange(1000, dtype=np.uint32), name="x")
    y = real.output(1000, np.uint32, name="y", misalign_bytes=4)
    real.launch("add", (4,), (256,), [x, y, np.uint16(5), np.float64(100.5), np.uint32(999)])
    assert real.read(y)[:999].tolist() == list(range(105, 1104))
    assert hex(real.read(y)[999]) == "0xe50ddcba"
    described = device.describe()
    assert len(described["ptx_sha256"]) == len(described["cubin_sha256"]) == 64
    assert described["target"] == device.target
    print(described)


def test_gpu_guard_catches_one_element_too_many(real):
    x = real.upload(np.zeros(1000, np.uint32), name="x")
    y = real.output(1000, np.uint32, name="y")
    with pytest.raises(RefsimError) as caught:
        real.launch("overrun", (4,), (256,), [x, y, np.uint32(1000)])
    assert caught.value.code == "guard-violated"
    assert "'y': 4 bytes, nearest 0 bytes past its end" in caught.value.what
    assert "after the buffer, bytes there now: 04 03 02 01" in caught.value.where


def test_gpu_changed_upload_is_an_error(real):
    with pytest.raises(RefsimError, match="scribble changed 1 bytes of upload 'x'"):
        real.launch("scribble", (1,), (1,), [real.upload(np.zeros(4, np.uint32), name="x")])


def test_gpu_large_shared_memory(real):
    y = real.output(1, np.uint32, name="y")
    real.launch("shared", (1,), (2,), [y], shared_bytes=16385 * 4)
    assert real.read(y).tolist() == [42]


def test_gpu_refusals_are_named(real):
    y = real.output(1, np.uint32, name="y")
    with pytest.raises(RefsimError, match="no entry is called 'missing'"):
        real.launch("missing", (1,), (1,), [y])
    with pytest.raises(RefsimError) as caught:
        real.launch("shared", (1,), (1,), [y], shared_bytes=1 << 20)
    assert caught.value.code == "launch-limit"


WILD_STORE = """
import pathlib, sys
import numpy as np
from refsim.device import cuda
from refsim.errors import RefsimError
with cuda.open_device(backend=sys.argv[2]).launcher(pathlib.Path(sys.argv[1])) as gpu:
    try:
        gpu.launch("add", (1,), (32,), [np.uint64(64), np.uint64(64), np.uint16(0), np.float64(0), np.uint32(1)])
    except RefsimError as fault:
        print(fault.code, fault.what)
"""


def test_gpu_fault_of_a_kernel_is_named(device, tmp_path):
    """In a process of its own, because the fault takes the context with it."""
    source = Path(tmp_path) / "small.cu"
    source.write_text(KERNEL)
    backend = "pycuda" if "PyCUDA" in device.describe()["backend"] else "bindings"
    command = [sys.executable, "-c", WILD_STORE, str(source), backend]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("launch-failed the kernel did not come to its end"), ran.stderr
    assert "illegal memory access" in ran.stdout


def double(x, y):
    """A function over device arrays that any library may launch: here torch."""
    import torch

    torch.mul(torch.from_dlpack(x), 2, out=torch.from_dlpack(y))


def too_far(x, y):
    import torch

    beyond = type(y)(y.address, (y.shape[0] + 1,), y.dtype, y.device)
    torch.from_dlpack(beyond).fill_(1)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16", "float16"])
def test_gpu_runs_a_python_function_over_torch(device, dtype):
    pytest.importorskip("torch", reason="needs torch with CUDA: pip install torch")
    values = np.arange(100).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    with device.launcher(KernelCode(call=double)) as gpu:
        x, y = gpu.upload(values, name="x"), gpu.output(100, values.dtype, name="y")
        gpu.call(x, y)
        assert gpu.read(y).tobytes() == (values * 2).astype(values.dtype).tobytes()
    assert device.describe()["kernel_file"].endswith(".double")
    with device.launcher(KernelCode(call=too_far)) as gpu:
        x, y = gpu.upload(values, name="x"), gpu.output(100, values.dtype, name="y")
        with pytest.raises(RefsimError, match="past its end"):
            gpu.call(x, y)
