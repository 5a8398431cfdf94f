"""The stand-in for PyCUDA: memory, modules, launches as programs write them; what it refuses, and what the driver would."""

import gc
import struct

import numpy as np
import pytest

from refsim.device import toolchain
from refsim.ptx.machine.arguments import raw_bytes
from refsim_run import session as sessions
from refsim_run.pycuda import compiler, driver, elementwise, gpuarray, tools
from refsim_run.session import GpuSession, UnsupportedError
from tests.refsim_run.kernels import DOUBLE, RACE

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A GPU of its own, with a context."""
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    driver.init()
    context = driver.Device(0).make_context()
    yield sessions.current()
    context.detach()


X = np.arange(40, dtype=np.float32)


def double():
    return driver.module_from_buffer(DOUBLE.encode()).get_function("double")


def test_host_arrays_are_copied_around_a_launch(fresh):
    y = np.zeros_like(X)
    double()(driver.Out(y), driver.In(X), np.uint32(X.size), grid=(1, 1), block=(64, 1, 1))
    assert (y == 2 * X).all()
    gc.collect()
    assert fresh.memory.held() == []


def test_prepared_calls_take_addresses_and_offsets():
    kernel, x, y = double(), driver.to_device(X), driver.mem_alloc(X.nbytes)
    kernel.prepare("PPI").prepared_call((1, 1), (64, 1, 1), y, int(x) + 4, 39)
    assert (driver.from_device(y, 39, np.float32) == 2 * X[1:]).all()
    assert kernel.prepare([np.intp, "P", np.uint32]).prepared_timed_call((1, 1), (64, 1, 1), int(y), x, 40)() >= 0
    assert (driver.from_device_like(y, X) == 2 * X).all()
    with pytest.raises(driver.LogicError, match="prepared"):
        kernel.prepared_call((1, 1), (64, 1, 1), y)


@pytest.mark.parametrize(
    ("letters", "value", "raw"),
    [
        ("i", -2, struct.pack("i", -2)),
        ("d", 0.1, struct.pack("d", 0.1)),
        ("F", 1j, np.complex64(1j).tobytes()),
        ("12s", np.arange(3, dtype=np.float32), np.arange(3, dtype=np.float32).tobytes()),
        ("P", None, bytes(8)),
    ],
)
def test_prepared_arguments_are_packed_by_their_letters(letters, value, raw):
    from refsim_run.pycuda.driver import _by_format

    assert list(map(raw_bytes, _by_format(letters, [value]))) == [raw]


def test_variables_are_reached_by_name():
    module = driver.module_from_buffer(DOUBLE)
    address, size = module.get_global("factor")
    driver.memcpy_htod(address, np.float32([3]))
    y = np.zeros_like(X)
    module.get_function("double")(driver.InOut(y), driver.In(X), np.uint32(40), block=(64, 1, 1))
    assert size == 4
    assert (y == 3 * X).all()
    with pytest.raises(driver.LogicError, match="cuModuleGetGlobal failed"):
        module.get_global("none")


def test_copies_and_fills():
    a = driver.mem_alloc(16)
    driver.memset_d32(a, 0xDEADBEEF, 4)
    b = driver.mem_alloc(16)
    driver.memcpy_dtod(b, a, 16)
    driver.memset_d8(b, 1, 2)
    assert driver.from_device(b, 4, np.uint32).tolist() == [0xDEAD0101, *[0xDEADBEEF] * 3]
    fortran = np.asfortranarray(X.reshape(4, 10))
    held = driver.to_device(np.zeros(40, np.float32))
    driver.memcpy_htod(held, fortran)
    assert (driver.from_device(held, 40, np.float32) == fortran.ravel(order="K")).all()
    with pytest.raises(driver.LogicError, match="not contiguous"):
        driver.memcpy_htod(held, X[::2])
    with pytest.raises(driver.LogicError, match="bad-address"):
        driver.memcpy_dtoh(np.zeros(5, np.float32), a)


def test_what_a_driver_refuses_is_refused():
    with pytest.raises(driver.LogicError, match="at least one byte"):
        driver.mem_alloc(0)
    with pytest.raises(driver.MemoryError):
        driver.mem_alloc(1 << 40)
    allocation = driver.mem_alloc(4)
    allocation.free()
    with pytest.raises(driver.LogicError, match="freed already"):
        allocation.free()
    with pytest.raises(driver.LaunchError, match="out-of-bounds"):
        double()(np.uint64(8), driver.to_device(X), np.uint32(1), block=(1, 1, 1))
    with pytest.raises(TypeError, match="invalid type on parameter #0"):
        double()("x", block=(1, 1, 1))
    with pytest.raises(ValueError, match="block size"):
        double()()
    driver.Context.pop()
    with pytest.raises(driver.LogicError, match="no currently active context"):
        driver.mem_alloc(4)
    with pytest.raises(driver.LogicError, match="cuCtxSynchronize failed"):
        driver.Context.synchronize()
    driver.Device(0).make_context()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: driver.matrix_to_array,
        lambda: driver.Device(0).clock_rate,
        lambda: gpuarray.subset_sum,
        lambda: gpuarray.to_gpu(X)[::2],
        lambda: tools.PageLockedMemoryPool,
        lambda: compiler.DynamicModule,
        lambda: driver.Context.get_current().set_cache_config,
        lambda: gpuarray.to_gpu(X).fill(0).dot,
    ],
)
def test_what_is_not_simulated_is_named(ask, fresh):
    with pytest.raises(UnsupportedError, match=r"\[unsupported-feature\] pycuda\."):
        ask()
    assert len(fresh.refused) == 1


def test_the_device_says_what_the_target_has():
    device = driver.Context.get_device()
    assert device.compute_capability() == (9, 0)
    assert device.get_attribute(driver.device_attribute.WARP_SIZE) == 32
    assert device.max_threads_per_block == 1024
    assert device.get_attributes()[driver.device_attribute.MULTIPROCESSOR_COUNT] == device.multiprocessor_count
    assert driver.mem_get_info()[0] <= driver.mem_get_info()[1]


def test_a_race_is_a_finding_and_no_error(fresh):
    driver.module_from_buffer(RACE).get_function("race")(driver.mem_alloc(4), block=(32, 1, 1))
    assert [said.code for said in fresh.record().kernels[0].findings] == ["race"]


@needs_nvrtc
def test_arrays_compute_by_kernels():
    a, b = gpuarray.to_gpu(X), gpuarray.to_gpu(X + 17)
    assert ((a - 3 * b + (-a)).get() == X - 3 * (X + 17) - X).all()
    assert ((a * b) / b).get().dtype == np.float32
    a += 1
    assert (a.reshape(4, -1)[1:3].get() == (X + 1).reshape(4, 10)[1:3]).all()
    assert (gpuarray.arange(5, dtype=np.int32).astype(np.float64).get() == np.arange(5)).all()
    assert a.__cuda_array_interface__["data"][0] == a.ptr


@needs_nvrtc
def test_sources_are_compiled_with_their_own_lines():
    module = compiler.SourceModule("__global__ void k(int *y) {\n    y[threadIdx.x / 2] = threadIdx.x;\n}")
    module.get_function("k")(driver.mem_alloc(64), block=(32, 1, 1))
    assert "source.cu:2" in sessions.current().record().kernels[0].findings[0].where
    with pytest.raises(driver.CompileError, match="expected"):
        compiler.SourceModule("__global__ void k(int *y) { y = ; }")


def test_a_slice_of_nothing_is_empty():
    assert [gpuarray.to_gpu(X)[first:last].shape for first, last in ((5, 3), (3, 3), (3, 4))] == [(0,), (0,), (1,)]


@needs_nvrtc
def test_an_operation_is_done_for_each_element(fresh):
    x, y = gpuarray.to_gpu(X), gpuarray.to_gpu(X[::-1].copy())
    z = gpuarray.empty_like(x)
    combined = elementwise.ElementwiseKernel(
        "float a, const float *x, unsigned int b, float *y, float *z",
        "z[i] = a * x[i] + b * y[i] + n - f(i)",
        "combined",
        preamble="__device__ float f(int i) { return i; }",
    )
    combined(2, x, np.uint32(3), y, z)
    assert (z.get() == 2 * X + 3 * X[::-1] + 40 - X).all()
    with pytest.raises(driver.LaunchError, match=r"\(beyond:2\)"):
        elementwise.ElementwiseKernel("float *x", "x[i] = 1;\nx[i + 1] = 2", "beyond")(x)
    with pytest.raises(UnsupportedError, match="with range or slice"):
        combined(2, x, 3, y, z, range=slice(3))
    with pytest.raises(driver.LogicError, match="2 arguments where 5 were declared"):
        combined(2, x)
    with pytest.raises(UnsupportedError, match="with an argument 'float4 v'"):
        elementwise.ElementwiseKernel("float4 v, float *x", "x[i] = v.x")
    with pytest.raises(RuntimeError, match="at least one vector argument"):
        elementwise.ElementwiseKernel("float v", "v")
