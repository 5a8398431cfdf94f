"""The stand-in for cupyx, CuPy's decorators and pinned memory, complex numbers in its kernels."""

import numpy as np
import pytest

from refsim.device import toolchain
from refsim_run import cupy as cp
from refsim_run import cupyx
from refsim_run import session as sessions
from refsim_run.complex_numbers import with_complex
from refsim_run.session import GpuSession

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)
Z = np.complex64([1 + 2j, -3 + 0.5j, 0.25j, 7])


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    return sessions.current()


def test_many_values_go_to_one_place():
    a = cp.zeros(3)
    cupyx.scatter_add(a, cp.array([0, 2, 2]), cp.array([1.0, 2.0, 3.0]))
    cupyx.scatter_max(a, (cp.array([0, 0]),), cp.array([4.0, 3.0]))
    cupyx.scatter_min(a, cp.array([1]), -1.0)
    assert a.tolist() == [4, -1, 5]
    assert cupyx.rsqrt(cp.array([4.0, 0.25])).tolist() == [0.5, 2]


def test_a_type_as_an_argument_is_no_array(fresh):
    assert cp.linspace(0, 1, 3, dtype=cp.float32).dtype == np.float32
    assert cp.sum(cp.ones(3, cp.int32), dtype=np.float64).get() == 3
    assert fresh.by_host == {"cupy.linspace": 1, "cupy.sum": 1}


def test_a_fused_function_is_computed_and_counted(fresh):
    @cp.fuse(kernel_name="squares")
    def squares(x, y):
        return (x - y) * (x - y)

    assert squares(cp.arange(4), cp.ones(4, int)).tolist() == [1, 0, 1, 4]
    assert cp.fuse(abs)(cp.array([-1])).tolist() == [1]
    assert fresh.by_host == {"cupy.fuse of squares": 1, "cupy.fuse of abs": 1}


def test_what_was_returned_is_kept():
    made = []
    kept = cp.memoize(for_each_device=True)(lambda number: made.append(number) or len(made))
    assert (kept(5), kept(6), kept(5)) == (1, 2, 1)


def test_pinned_memory_is_a_buffer_of_the_host():
    memory = cp.cuda.alloc_pinned_memory(16)
    array = np.frombuffer(memory, np.float32, 4)
    memory[:4] = np.frombuffer(np.float32(2), np.uint8)
    assert (array[0], memory.ptr) == (2, array.ctypes.data)
    assert cupyx.zeros_pinned((2, 3), np.int32).sum() == 0


def test_repeats_of_a_benchmark_end(monkeypatch):
    calls = []
    times = cupyx.profiler.benchmark(calls.append, (1,), n_repeat=3)
    assert (len(calls), times.gpu_times.shape, "append" in str(times)) == (3, (1, 3), True)


@needs_nvrtc
def test_complex_numbers_in_kernels(fresh):
    z = cp.asarray(Z)
    product = cp.ElementwiseKernel("T x, T y", "T z", "z = x * conj(y) + x / T(2, 2)", "product")(z, z + 1)
    assert (product.get() == Z * np.conj(Z + 1) + Z / (2 + 2j)).all()  # every step is exact
    total = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")(z)
    assert total.get() == Z.sum()
    raw = cp.RawKernel(
        """#include <cupy/complex.cuh>
extern "C" __global__ void scaled(const complex<float> *x, complex<float> *y, float a) {
    y[threadIdx.x] = a * x[threadIdx.x] - exp(complex<float>(0, x[threadIdx.x].imag()));
}""",
        "scaled",
    )
    y = cp.empty_like(z)
    raw((1,), (4,), (z, y, cp.float32(2)))
    apart = y.get() - (2 * Z - np.exp(1j * Z.imag.astype(float)))
    # cosf and sinf err by 2 ulp of numbers up to 1 (CUDA C++ Programming Guide), 2^-22; the difference, below 16, rounds by 2^-21
    assert max(abs(apart.real).max(), abs(apart.imag).max()) < 2.0**-20
    assert any("complex numbers in kernels" in name for name in fresh.by_host)


def test_lines_stay_what_they_were_around_the_header():
    text = with_complex("int a;\n#include <cupy/complex.cuh>\nint b;", "k.cu")
    assert text.endswith('#line 1 "k.cu"\nint a;\n\nint b;')
    assert with_complex("int a;") == "int a;"
