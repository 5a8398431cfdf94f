"""The stand-in for CuPy: arrays of the device that NumPy computes in, kernels as programs write them, what is refused."""

import gc
import re

import numpy as np
import pytest

from refsim.device import toolchain
from refsim.ptx.machine.arguments import raw_bytes
from refsim_run import cupy as cp
from refsim_run import session as sessions
from refsim_run.cupy import names
from refsim_run.cupy.raw import taken
from refsim_run.session import GpuSession, UnsupportedError
from tests.refsim_run.kernels import DOUBLE, RACE

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)
X = np.arange(40, dtype=np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    return sessions.current()


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "double.ptx"
    path.write_text(DOUBLE)
    return cp.RawModule(path=str(path))


def test_a_kernel_works_on_arrays_and_views(module, fresh):
    kernel, x, y = module.get_function("double"), cp.asarray(X), cp.zeros(40, cp.float32)
    kernel((1,), (64,), (y, x, np.uint32(40)))
    assert (y.get() == 2 * X).all()
    kernel((1,), (64,), (y.data + 4, x[1:], 39))
    assert (cp.asnumpy(y[1:]) == 2 * X[1:]).all()
    del x, y
    gc.collect()
    assert fresh.memory.held() == []


def test_variables_are_reached_by_name(module):
    factor = cp.ndarray((1,), cp.float32, module.get_global("factor"))
    factor[...] = 3
    y = cp.empty_like(cp.asarray(X))
    module.get_function("double")((1,), (64,), (y, cp.asarray(X), 40))
    assert (y.get() == 3 * X).all()


@pytest.mark.parametrize(("value", "size", "raw"), [
    (-2, 8, b"\xfe" + b"\xff" * 7), (-2, 4, b"\xfe" + b"\xff" * 3), (True, 1, b"\1"), (0.5, 8, np.float64(0.5).tobytes()),
    (1j, 16, np.complex128(1j).tobytes()), (None, 8, bytes(8)), (np.float16(1), 2, b"\0\x3c"),
    (np.array([3], np.int16), 2, b"\3\0"),
])  # fmt: skip
def test_arguments_are_packed_as_cupy_packs_them(value, size, raw):
    assert raw_bytes(taken(value))[:size] == raw


def test_arguments_that_are_none_of_cupys():
    with pytest.raises(TypeError, match=r"shape \(40,\).*cupy.ndarray instead"):
        taken(X)
    with pytest.raises(TypeError, match="Unsupported type <class 'str'>"):
        taken("x")


def test_views_share_memory_and_results_do_not():
    a = cp.asarray(X).reshape(4, 10)
    a[1:3, ::2] = -1
    a.T[0] += 100
    wanted = X.reshape(4, 10).copy()
    wanted[1:3, ::2] = -1
    wanted.T[0] += 100
    assert (a.get() == wanted).all()
    b = cp.ravel(a)
    b[0] = 7
    assert float(a[0, 0]) == 7
    c = a + 0
    c[...] = 0
    assert float(a[0, 0]) == 7
    assert a[:, 1].strides == (40,)
    assert a[:, 1].data.ptr == a.data.ptr + 4


def test_only_what_was_written_counts_as_written(fresh):
    a = cp.empty(8, cp.float32)
    a[::2] = 1
    assert fresh.memory.memory.written(a.data.ptr, 32).reshape(8, 4)[:, 0].tolist() == [True, False] * 4
    cp.multiply(a, 2, out=a)
    assert fresh.memory.memory.written(a.data.ptr, 32).reshape(8, 4)[:, 0].tolist() == [True, False] * 4
    cp.multiply(cp.ones(8, cp.float32), 2, out=a)
    assert fresh.memory.memory.written(a.data.ptr, 32).all()


def test_a_launch_is_checked(module, fresh):
    with pytest.raises(cp.cuda.driver.CUDADriverError, match=r"ILLEGAL_ADDRESS: \[out-of-bounds\]"):
        module.get_function("double")((1,), (64,), (cp.empty(1, cp.float32), cp.asarray(X), 40))
    module.get_function("double")((1,), (32,), (cp.zeros(32, cp.float32), cp.empty(32, cp.float32), 32))
    assert [said.code for said in fresh.record().kernels[0].findings] == ["out-of-bounds", "uninitialised"]


@pytest.mark.parametrize(("ours", "numpys"), [
    (lambda xp, a: a @ a.T, "d"), (lambda xp, a: xp.where(a > 3, a, -a), "f"), (lambda xp, a: a.sum(axis=0), "f"),
    (lambda xp, a: xp.concatenate([a, a], axis=1)[:, ::-1], "h"), (lambda xp, a: 2**a - a // 3 % 5, "i"),
    (lambda xp, a: a.astype(xp.float16) + xp.float32(1), "i"), (lambda xp, a: xp.argsort(-a, axis=None), "q"),
    (lambda xp, a: a[a > 4], "f"), (lambda xp, a: a[xp.array([0, 2]), 1:], "d"), (lambda xp, a: (a < 4) | (a == 7), "e"),
    (lambda xp, a: xp.stack([a, a + 1], axis=1).transpose(2, 0, 1), "B"), (lambda xp, a: xp.count_nonzero(a), "i"),
    (lambda xp, a: xp.linspace(0, 1, 7) + xp.arange(7) + xp.full(7, 2), "i"), (lambda xp, a: a.max() - xp.min(a), "f"),
    (lambda xp, a: xp.linalg.norm(a) + xp.fft.fft(a).real[0, 0], "d"), (lambda xp, a: xp.split(a, 2, axis=1)[1], "i"),
    (lambda xp, a: divmod(a, 3)[1], "i"), (lambda xp, a: xp.zeros_like(a) + xp.eye(3, 4), "f"),
])  # fmt: skip
def test_answers_are_numpys_with_their_types(ours, numpys):
    host = np.arange(12).astype(numpys).reshape(3, 4)
    found, wanted = ours(cp, cp.asarray(host)), np.asarray(ours(np, host))
    assert isinstance(found, cp.ndarray)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert (found.get() == wanted).all()


def test_numpy_hands_over_to_cupy_and_nothing_is_converted_silently():
    a = cp.asarray(X)
    assert isinstance(np.add(a, 1), cp.ndarray)
    assert isinstance(np.sum(a), cp.ndarray)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(a)
    with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
        a + X
    with pytest.raises(TypeError, match="Unsupported type"):
        a[:] = X
    with pytest.raises(TypeError, match="Only numpy"):
        a.set([1])
    assert cp.get_array_module(a) is cp
    assert cp.get_array_module(X) is np


def test_what_the_host_computes_to_other_bits_is_counted(fresh):
    a = cp.asarray(X)
    for _ in range(2):
        cp.exp(a * 2 + 1)
    cp.sum(a.astype(cp.int32))
    cp.random.rand(3)
    cp.random.RandomState(1).shuffle(a)
    assert fresh.record().by_host == {"cupy.exp": 2, "cupy.random.rand": 1, "cupy.random.shuffle": 1}
    assert sorted(a.tolist()) == X.tolist()


def test_types_that_have_no_place_on_the_device(fresh):
    with pytest.raises(UnsupportedError, match=r"cupy.ndarray of object"):
        cp.array([None])
    with pytest.raises(ValueError, match="Negative"):
        cp.empty(-1)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.empty(1 << 40)
    assert cp.get_default_memory_pool().used_bytes() == 0


def test_the_pool_counts_blocks():
    pool = cp.get_default_memory_pool()
    a = cp.zeros(100, cp.float32)
    assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (512, 512, 0)
    del a
    assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (0, 512, 1)
    b = cp.zeros(10, cp.float32)
    assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (512, 512, 0)  # the block that was free
    del b
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    pool.set_limit(size=0)
    pool.set_limit(size=1024)
    with pytest.raises(ValueError, match="out of range"):
        pool.set_limit(size=-1)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match="limit set to: 1,024"):
        cp.empty(2000, cp.int8)
    assert cp.get_default_pinned_memory_pool().n_free_blocks() == 0
    assert (made := cp.cuda.alloc(16)).ptr == made.mem.ptr


def test_the_device_says_what_the_target_has():
    assert cp.cuda.Device(0).compute_capability == "90"
    said = cp.cuda.runtime.getDeviceProperties(0)
    assert cp.cuda.Device().attributes["MultiProcessorCount"] == said["multiProcessorCount"]
    assert cp.cuda.runtime.getDeviceCount() == 1
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        cp.cuda.Device(1).use()
    with cp.cuda.Stream(non_blocking=True) as stream:
        assert cp.cuda.get_current_stream() == stream
        first, second = stream.record(), stream.record()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    ahead, back = cp.cuda.get_elapsed_time(first, second), cp.cuda.get_elapsed_time(second, first)
    assert ahead == -back >= 0
    assert cp.cuda.is_available()


@pytest.mark.parametrize("ask", [
    lambda: cp.kaiser_of, lambda: cp.cuda.malloc_managed, lambda: cp.zeros(1).toDlpack,
    lambda: cp.cuda.runtime.malloc3DArray, lambda: cp.linalg.expm, lambda: cp.random.XORWOW, lambda: cp.testing.for_all_dtypes,
    lambda: cp.add.reduceat,
    lambda: cp.RawKernel("x", "x", jitify=True), lambda: cp.cuda.Stream().begin_capture,
])  # fmt: skip
def test_what_is_not_simulated_is_named(ask, fresh):
    with pytest.raises(UnsupportedError, match=r"\[unsupported-feature\] cupy\."):
        ask()
    assert len(fresh.refused) == 1


def test_every_name_is_numpys():
    for name in names.UFUNCS | names.ARRAY_FUNCTIONS | names.CHANGING | names.FACTS | names.CONSTANTS:
        assert hasattr(cp, name)
    assert all(callable(getattr(cp.linalg, name)) for name in names.LINALG)
    assert all(callable(getattr(cp.fft, name)) for name in names.FFT)
    assert names.SAME_BITS <= names.UFUNCS | names.ARRAY_FUNCTIONS
    assert cp.concatenate(tup=[cp.ones(1), cp.zeros(1)]).tolist() == [1, 0]


def test_a_name_that_numpy_gave_up_is_what_it_was(monkeypatch):
    monkeypatch.delattr(np, "row_stack", raising=False)  # as NumPy 2.5 is
    monkeypatch.delattr(cp, "row_stack", raising=False)
    assert cp.row_stack([cp.ones(2), cp.zeros(2)]).tolist() == [[1, 1], [0, 0]]


def test_machine_code_and_other_names_are_refused(tmp_path, module):
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF....")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match=r"INVALID_IMAGE.*bad-file"):
        cp.RawModule(path=str(path)).get_function("k")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match=r"NOT_FOUND.*name_expressions"):
        module.get_function("halve")
    with pytest.raises(TypeError, match="Exactly one"):
        cp.RawModule()
    with pytest.raises(TypeError, match="expected tuple, got list"):
        module.get_function("double")([1], (1,), ())
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="bad-argument"):
        module.get_function("double")((1,), (1,), ())


def test_a_race_is_a_finding_and_no_error(tmp_path, fresh):
    path = tmp_path / "race.ptx"
    path.write_text(RACE)
    cp.RawModule(path=str(path)).get_function("race")((1,), (32,), (cp.empty(1, cp.int32),))
    assert [said.code for said in fresh.record().kernels[0].findings] == ["race"]


@needs_nvrtc
def test_sources_are_compiled_and_templates_found():
    code = """template <typename T, int N> __global__ void fill(T *y) { y[threadIdx.x] = N; }
    __global__ void plain(int *y) { extern __shared__ int held[]; held[0] = 5; y[0] = held[0]; }"""
    module = cp.RawModule(code=code, options=("-std=c++14",), name_expressions=["fill<float, 3>", "plain"])
    y = cp.zeros(4, cp.float32)
    module.get_function("fill<float, 3>")((1,), (4,), (y,))
    assert y.tolist() == [3] * 4
    z = cp.zeros(1, cp.int32)
    module.get_function("plain")((1,), (1,), (z,), shared_mem=4)
    assert z.item() == 5
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="NOT_FOUND"):
        cp.RawKernel(code, "plain")((1,), (1,), (z,))
    kernel = cp.RawKernel('extern "C" __global__ void k(int *y) {\n    y[0] = ;\n}', "k")
    with pytest.raises(cp.cuda.compiler.CompileException, match="expected an expression"):
        kernel.compile()


@needs_nvrtc
def test_a_kernel_tells_its_attributes():
    code = """extern "C" __global__ void k(int *y) {
        __shared__ int s[8]; s[threadIdx.x] = threadIdx.x; __syncthreads(); y[threadIdx.x] = s[7 - threadIdx.x]; }"""
    kernel = cp.RawKernel(code, "k")
    assert kernel.attributes["shared_size_bytes"] == 32
    assert kernel.max_dynamic_shared_size_bytes == (48 << 10) - 32
    kernel.max_dynamic_shared_size_bytes = 100_000
    with pytest.raises(cp.cuda.driver.CUDADriverError, match=r"INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = 1 << 20
    assert kernel.max_dynamic_shared_size_bytes == 100_000
    assert cp.testing.assert_array_equal(cp.zeros(2), [0, 0]) is None


@needs_nvrtc
def test_an_operation_is_done_for_each_element_of_arrays_and_numbers():
    squared = cp.ElementwiseKernel("T x, T y", "T z", "T t = x - y;\nz = t * t", "squared")
    rows, row = np.arange(10).reshape(2, 5), np.arange(5)
    for kind in (np.float16, np.float64, np.int8, np.uint64):
        x, y = cp.asarray(rows.astype(kind)), cp.asarray(row.astype(kind))
        found = squared(x, y)
        assert (found.dtype, found.get().tolist()) == (np.dtype(kind), ((rows - row) ** 2).tolist())
        assert squared(x.T, x[:, ::-1].T).get().tolist() == ((rows - rows[:, ::-1]) ** 2).T.tolist()
        assert squared(x[:, ::2], 1).get().tolist() == ((rows[:, ::2] - 1) ** 2).tolist()
    third = cp.zeros((5, 2), np.float32)[1:4]
    assert squared(cp.asarray(np.float32([[4], [3], [2]])), 1, third) is third
    assert third.get().tolist() == [[9, 9], [4, 4], [1, 1]]
    assert squared(cp.zeros(0), 1).shape == (0,)


@needs_nvrtc
def test_raw_arrays_are_indexed_by_the_operation():
    turned = cp.ElementwiseKernel("raw T x", "raw T y", "y[i] = x[n - i - 1] + x.shape()[0] + _ind.size()", "turned")
    x, y = cp.asarray(np.arange(12, dtype=np.int32).reshape(3, 4)).T, cp.zeros(12, np.int32)
    assert turned(x, y, size=12) is y
    assert y.get().tolist() == (x.get().ravel()[::-1] + 16).tolist()
    both = cp.ElementwiseKernel("float32 x", "float64 a, int8 b", "a = x / 2; b = x", "both", return_tuple=True)
    assert [(each.dtype.name, each.tolist()) for each in both(cp.asarray(np.float32([3])))] == [
        ("float64", [1.5]),
        ("int8", [3]),
    ]


@pytest.mark.parametrize(("params", "args", "more", "wanted"), [
    (("T x", "T y"), (1, 2, 3), {}, "Wrong number of arguments"),
    (("T x, T y", "T z"), ("f4", "f8"), {}, "Type is mismatched. y float64 float32"),
    (("float64 x", "T z"), ("f4",), {}, "Type is mismatched. x float32 float64"),
    (("T x", "U z"), ("f4",), {}, "Type of z is not known"),
    (("T x", "T z"), ("f4",), {"size": 3}, "only if all of the ndarray are 'raw'"),
    (("raw T x", "T z"), ("f4",), {}, "Loop size is undecided"),
    (("raw T x", "raw T z"), ("f4",), {"size": 3}, "Output array size is Undecided"),
    (("T x", "T z"), (np.zeros(3),), {}, "Unsupported type"),
    (("T x", "T z"), ("f4", "1f4"), {}, "Out shape is mismatched"),
])  # fmt: skip
def test_what_an_elementwise_kernel_is_not_given_is_said(params, args, more, wanted):
    kernel = cp.ElementwiseKernel(*params, "z = x")
    shapes = {"f4": 3, "f8": 3, "1f4": 1}
    given = [cp.zeros(shapes[each], each[-2:]) if isinstance(each, str) else each for each in args]
    with pytest.raises((TypeError, ValueError), match=re.escape(wanted)):
        kernel(*given, **more)


@pytest.mark.parametrize("params", ["T", "T _x", "T i", "odd T x", "no_type x"])
def test_parameters_that_are_none(params):
    with pytest.raises((TypeError, ValueError)):
        cp.ElementwiseKernel(params, "T y", "y = 1")


@needs_nvrtc
def test_a_finding_names_the_line_of_the_operation(fresh):
    x = cp.zeros(5, np.float32)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        cp.ElementwiseKernel("raw T x", "T y", "y = 1;\ny = x[i + 1]", "beyond")(x, cp.zeros_like(x))
    assert "(beyond:2)" in fresh.record().kernels[0].findings[0].where


@needs_nvrtc
def test_elements_are_reduced_along_axes(fresh):
    values = np.random.default_rng(3).integers(-99, 99, (3, 5, 300))
    x = cp.asarray(values)
    largest = cp.ReductionKernel("T x", "T y", "x", "max(a, b)", "y = a", None, "largest")
    for axis in (None, 0, 1, 2, (0, 2), -1):
        assert largest(x, axis=axis).get().tolist() == values.max(axis).tolist()
    assert largest(x.T, axis=0, keepdims=True).get().tolist() == values.T.max(0, keepdims=True).tolist()
    assert fresh.by_host == {}
    norm = cp.ReductionKernel(
        "T x, T w", "float64 y", "x * w", "a + b", "y = sqrt(a)", "0", "l2", reduce_type="float64"
    )
    y = cp.asarray(np.float32([[3, 4], [6, 8]]))
    assert norm(y, y, axis=1).get().tolist() == [5, 10]
    assert norm(y[:, 1:], cp.asarray(np.float32([[1], [2]])), out=(made := cp.zeros(()))) is made
    assert made.get() == 20**0.5
    assert norm(cp.zeros((2, 0)), 1.0, axis=1).get().tolist() == [0, 0]
    with pytest.raises(ValueError, match="no identity"):
        largest(cp.zeros(0))
    assert fresh.by_host == {"cupy.ReductionKernel l2, in an order of its own": 3}


def test_what_nobody_wrote_is_told_where_it_is_read(fresh):
    x = cp.empty(6, np.float32)
    x[:4] = 1
    assert (x[:4] + 1).get().tolist() == [2, 2, 2, 2]
    x.reshape(2, 3)
    assert fresh.warned == []
    x[1:] * 2
    x += 1
    cp.empty(2).get()
    said = [re.sub(r"allocation \d+ of cupy", "it", warning.what) for warning in fresh.warned]
    assert said == [
        "cupy.multiply reads 20 B of it, of which 8 were never written",
        "cupy.add reads 24 B of it, of which 8 were never written",
        "the host reads 16 B of it, of which 16 were never written",
    ]


def test_an_index_that_cupy_would_wrap_is_told_and_no_other():
    a = cp.zeros((2, 3))
    with pytest.raises(IndexError, match="from the other end"):
        a[5]
    with pytest.raises(IndexError, match="too many indices") as raised:
        a[0, 0, 0]
    assert "CuPy" not in str(raised.value)


def test_a_launch_has_three_extents_and_a_kernel_its_chip(module, monkeypatch):
    kernel, x = module.get_function("double"), cp.asarray(X)
    kernel((1, 1), (8, 4), (cp.zeros_like(x), x, 32))
    assert sessions.current().record().kernels[0].shapes == ["1x1x1 of 8x4x1"]
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession(sessions.Settings("sm_89"))])
    assert kernel.binary_version == 89


def test_a_comparison_of_lists_shows_values():
    with pytest.raises(AssertionError, match=r"\[0., 7.\]"):
        cp.testing.assert_array_list_equal([cp.zeros(2)], [cp.asarray([0.0, 7.0])])
