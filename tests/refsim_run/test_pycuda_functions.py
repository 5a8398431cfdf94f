"""The stand-in for PyCUDA's functions of arrays, copies of rows, pools and flags of nvcc."""

import numpy as np
import pytest

from refsim.device import toolchain
from refsim_run import session as sessions
from refsim_run.pycuda import compiler, cumath, curandom, driver, gpuarray, reduction, tools
from refsim_run.session import GpuSession, UnsupportedError

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)
X = np.float32([0.5, -2, 3, 1.25, -7, 11])


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    for kept in (gpuarray._kernel, gpuarray._reduction, gpuarray._elements, cumath._kernel):
        kept.cache_clear()
    driver.init()
    context = driver.Device(0).make_context()
    yield sessions.current()
    context.detach()


@needs_nvrtc
def test_all_elements_are_reduced(fresh):
    x = gpuarray.to_gpu(X)
    assert (gpuarray.sum(x).get(), gpuarray.max(x).get(), gpuarray.min(x).get()) == (6.75, 11, -7)
    assert gpuarray.dot(x, x, dtype=np.float64).get() == np.sum(X.astype(np.float64) ** 2)
    many = gpuarray.to_gpu(np.arange(1000, dtype=np.int32))
    largest = reduction.ReductionKernel(np.int32, "0", "a > b ? a : b", "x[i] % m", "int *x, int m")
    assert largest(many, 7).get() == 6
    assert {name.split(",")[0] for name in fresh.by_host} == {
        f"pycuda.reduction.ReductionKernel {each}_of_all" for each in ("sum", "max", "min", "dot")
    }


@needs_nvrtc
def test_functions_of_elements():
    x = gpuarray.to_gpu(X)
    assert (abs(x).get() == abs(X)).all()
    assert ((x**2).get() == X**2).all()
    assert ((x > 1).get() == (X > 1)).all()
    assert ((x == gpuarray.to_gpu(X)).get()).all()
    assert (gpuarray.maximum(x, 1).get() == np.maximum(X, 1)).all()
    assert (gpuarray.if_positive(x, x, -x).get() == abs(X)).all()
    assert (gpuarray.take(x, gpuarray.to_gpu(np.uint32([5, 0]))).get() == X[[5, 0]]).all()
    assert (x.reverse().get() == X[::-1]).all()
    assert (cumath.floor(x).get() == np.floor(X)).all()
    assert (cumath.fmod(x, x).get() == 0).all()
    with pytest.raises(UnsupportedError, match=r"pycuda\.cumath\.sin is not simulated: of int32"):
        cumath.sin(gpuarray.to_gpu(np.int32([1])))
    with pytest.raises(UnsupportedError, match=r"__pow__ is not simulated: of int32"):
        gpuarray.to_gpu(np.int32([1])) ** 2


@needs_nvrtc
def test_complex_arrays():
    z = np.complex64([1 + 2j, -3, 0.5j])
    x, y = gpuarray.to_gpu(z), gpuarray.to_gpu(np.float64([2, -1, 4]))
    assert ((x * y - 1j).get() == z * y.get() - 1j).all()
    assert (x + y).get().dtype == np.complex128
    assert gpuarray.sum(x).get() == z.sum()
    assert np.isinf((x / gpuarray.to_gpu(np.int32([0, 0, 0]))).get().view(np.float64)).sum() == 4  # 0 / 0 is NaN
    with pytest.raises(UnsupportedError, match=r"pycuda\.cumath\.sin is not simulated: of complex64"):
        cumath.sin(x)


@needs_nvrtc
def test_truths_and_rows():
    x = gpuarray.ones((3, 2), np.float32)
    x[1:2] = 0
    x[2:] = gpuarray.to_gpu(np.float32([[5, 6]]))
    assert x.get().tolist() == [[1, 1], [0, 0], [5, 6]]
    assert (x.any().get(), x.all().get(), x[:1].all().get()) == (True, False, True)
    assert x.any().dtype == np.bool_
    assert [bool(gpuarray.sum(each)) for each in (x, x[1:2])] == [True, False]
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    assert gpuarray.logical_and(x, 2 - x).get().tolist() == [[True, True], [False, False], [True, True]]
    assert (x.flags.c_contiguous, x.flags.f_contiguous, x.flags.forc) == (True, False, True)
    x[...] = 7
    assert (x.get() == 7).all()
    with pytest.raises(UnsupportedError, match=r"__setitem__ is not simulated: \(3, 2\) into \(1, 2\)"):
        x[:1] = x


@needs_nvrtc
def test_numbers_in_two_parts():
    x = gpuarray.to_gpu(X)
    (fraction, exponent), wanted = cumath.frexp(x), np.frexp(X)
    assert (fraction.get() == wanted[0]).all()
    assert (exponent.get() == wanted[1]).all()
    assert (cumath.ldexp(fraction, exponent).get() == X).all()
    assert [part.get().tolist() for part in cumath.modf(x)] == [part.tolist() for part in np.modf(X)]
    out = gpuarray.empty_like(x)
    assert cumath.exp(x, out) is out


def test_a_fixture_has_a_context_around_each_test():
    before = driver.Context.get_current()
    steps = tools.init_cuda_context_fixture()
    next(steps)
    assert driver.Context.get_current() is not before
    assert list(steps) == []
    assert driver.Context.get_current() is before


def test_numbers_are_drawn_by_the_host(fresh):
    drawn = curandom.rand((3, 5)).get()
    assert (drawn.shape, drawn.dtype, fresh.by_host) == ((3, 5), np.float32, {"pycuda.curandom.rand": 1})
    assert len(np.unique(drawn)) > 1


def test_rows_are_copied():
    whole, part = np.arange(30, dtype=np.uint8).reshape(5, 6), np.zeros((3, 2), np.uint8)
    device, pitch = driver.mem_alloc_pitch(6, 5, 1)
    copy = driver.Memcpy2D()
    copy.set_src_host(whole)
    copy.set_dst_device(device)
    copy.src_pitch, copy.dst_pitch, copy.width_in_bytes, copy.height = 6, pitch, 6, 5
    copy(aligned=True)
    back = driver.Memcpy2D()
    back.set_src_device(device)
    back.set_dst_host(part)
    back.src_pitch, back.dst_pitch, back.width_in_bytes, back.height = pitch, 2, 2, 3
    back.src_x_in_bytes, back.src_y = 3, 1
    back()
    assert (part == whole[1:4, 3:5]).all()
    back.height = 4
    with pytest.raises(driver.LogicError, match="bytes 6 to 8 of 6"):
        back()


def test_a_pool_gives_what_it_is_given_back():
    pool = tools.DeviceMemoryPool()
    one, other = pool.allocate(16), pool.allocate(32)
    assert (pool.active_blocks, pool.held_blocks) == (2, 0)
    one.free()
    assert pool.active_blocks == 1
    driver.memcpy_htod(other, X)


def test_flags_of_nvcc_that_change_no_ptx_are_left_out():
    given = ["-O3", "-Xcompiler", "-Wall", "--use_fast_math", "-Xptxas=-v", "--ptxas-options", "-v", "-m64", "-DN=-O3"]
    assert compiler.of_device(given) == ("--use_fast_math", "-DN=-O3")
