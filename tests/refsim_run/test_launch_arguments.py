"""Arguments against the parameters of a kernel: sizes, counts, pointers and numbers, and the elements of arrays."""

import ctypes
import struct
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from refsim.device import toolchain
from refsim.errors import RefsimError
from refsim.kernels import Struct
from refsim.ptx import load
from refsim.ptx.machine.arguments import PointerTo
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.ptx.text.source_names import declared_types, differs
from refsim_run import cupy as cp
from refsim_run import session as sessions
from refsim_run.cuda import bindings, core, images
from refsim_run.pycuda import compiler, driver, gpuarray
from refsim_run.session import GpuSession
from tests.refsim_run.kernels import DOUBLE

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)
SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { int a; float b; };
template <typename T> struct Box { T *at; };
typedef double real;
#define REAL float
extern "C" {
__global__ void axpy(const float *x, float* __restrict__ y, float a, int n) {}
__global__ void ints(const int *x) {}
__global__ void twice(double a, double *y) {}
__global__ void sized(long long n, size_t m) {}
__global__ void small(bool a, char b, short c, unsigned char d) {}
__global__ void half_(__half a, const __half *x, __half2 b, const __nv_bfloat16 *z) {}
__global__ void pair(Pair p, float2 q, const Pair *r) {}
__global__ void any(void *a, const char *b, unsigned char *c, real *d, REAL *e, Box<int> f, Box<int> *g) {}
__global__ __launch_bounds__(256) void wide(const float2 *a, const float4 *b, int4 *c, unsigned *d, unsigned long long *e,
    const int a_default /* float *f, */, long *g, bool *h, float **i /* the last */) {}
__global__ void call(void (*f)(int), int *x) {}
#define MANY int *a, float *b
__global__ void macro(MANY, float c) {}
}
template <typename T> __global__ void typed(const T *x, T a) {}
__global__ void plain(const int *x, float *y) {}
namespace own { struct Map { int a; }; }
__global__ void taking(const own::Map *m, const int *x, own::Map *n) {}
"""
F, N, D, L, H = "f4", "i4", "f8", "i8", "f2"
A = np.arange(8)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    return sessions.current()


def found(session):
    """Return the codes of findings and of notes of all kernels."""
    kernels = session.record().kernels
    return [each.code for one in kernels for each in one.findings], [
        each.code for one in kernels for each in one.warnings
    ]


def given(value):
    """Return an array of the device for a type of elements, and any other value as it is."""
    if isinstance(value, str):
        return cp.asarray(A.astype(value))
    return cp.asarray(A).data.ptr if value is int else value


def launched(kernel, *args, names=("typed<float>", "plain", "taking")):
    """Launch a kernel of the source by CuPy; an error of the launch is only recorded."""
    module = cp.RawModule(code=SOURCE, name_expressions=names, options=("-std=c++17",))
    try:
        module.get_function(kernel)((1,), (1,), tuple(map(given, args)))
    except cp.cuda.driver.CUDADriverError as error:
        assert "[bad-argument]" in str(error)
    return found(sessions.current())


WRONG = [
    ("axpy", F, F, 2.5, 8),
    ("axpy", F, F, np.float64(2.5), 8),
    ("axpy", F, F, np.int32(2), 8),
    ("axpy", F, F, 2, 8),
    ("axpy", F, F, np.float16(2), 8),
    ("axpy", F, F, np.float32(2), 2.5),
    ("axpy", F, F, np.float32(2), np.float32(2.5)),
    ("axpy", F, F, np.float32(2), 1 << 40),
    ("axpy", F, F, np.float32(2), np.int64(-1 << 33)),
    ("axpy", F, F, np.float32(2), np.int16(8)),
    ("axpy", F, F, np.float32(2), True),
    ("axpy", F, F, np.float32(2), F),
    ("axpy", F, F, F, np.int32(8)),
    ("axpy", F, F, np.float32(2)),
    ("axpy", F, F),
    ("axpy",),
    ("axpy", F, F, np.float32(2), 8, 8),
    ("axpy", F, 8, np.float32(2), 8),
    ("axpy", F, 1.5, np.float32(2), 8),
    ("axpy", F, -1.5, np.float32(2), 8),
    ("axpy", F, F, np.array([2], np.int32), 8),
    ("axpy", F, F, np.float32(2), -(1 << 31) - 1),
    ("axpy", F, np.float64(1), np.float32(2), 8),
    ("axpy", np.zeros(1), F, np.float32(2), 8),
    ("axpy", F, np.int32(0), np.float32(2), 8),
    ("axpy", 8, F, F, np.float32(2)),
    ("twice", np.float32(1), D),
    ("twice", 1, D),
    ("twice", D, D),
    ("sized", np.int32(8), 8),
    ("sized", 2.5, 8),
    ("sized", 8, np.float64(8)),
    ("small", True, 300, 1, 1),
    ("small", True, 1, 1 << 16, 1),
    ("half_", 1.5, H, np.float32(0), None),
    ("half_", np.float32(1.5), H, np.float32(0), None),
    ("half_", np.float16(1), H, np.float16(0), None),
    ("pair", np.zeros(1, "i4,f4,f4")[0], np.complex64(1), None),
    ("pair", np.int32(1), np.complex64(1), None),
    ("pair", np.int64(1), np.complex128(1), None),
    ("typed<float>", F, 2.5),
    ("typed<float>", F, F),
    ("plain", 7, F),
]


@needs_nvrtc
@pytest.mark.parametrize("launch", WRONG, ids=str)
def test_a_launch_with_wrong_arguments_is_a_finding(launch):
    wrong, _ = launched(*launch)
    assert set(wrong) == {"bad-argument"}


NOTED = [
    ("ints", L),
    ("ints", F),
    ("ints", "i2"),
    ("ints", "?"),
    ("ints", "c8"),
    ("axpy", D, F, np.float32(1), 8),
    ("axpy", F, D, np.float32(1), 8),
    ("axpy", "i4", F, np.float32(1), 8),
    ("axpy", H, F, np.float32(1), 8),
    ("axpy", "c16", F, np.float32(1), 8),
    ("axpy", F, F, np.uint32(1), 8),
    ("axpy", F, F, np.float32(1), np.int64(8)),
    ("axpy", F, F, np.float32(1), np.array([8])),
    ("twice", 1.0, F),
    ("twice", 1.0, L),
    ("sized", F, 8),
    ("half_", np.float16(1), F, np.float32(0), None),
    ("half_", np.float16(1), H, np.float32(0), H),
    ("half_", np.float16(1), "u4", np.float32(0), None),
    ("wide", D, F, N, N, L, 1, L, "?", "u8"),
    ("wide", F, "c16", N, N, L, 1, L, "?", "u8"),
    ("wide", F, F, N, L, L, 1, L, "?", "u8"),
    ("wide", F, F, N, N, N, 1, L, "?", "u8"),
    ("wide", F, F, N, N, L, 1, N, "?", "u8"),
    ("wide", F, F, N, N, L, 1, L, N, "u8"),
    ("wide", F, F, N, N, L, 1, L, "?", N),
    ("typed<float>", D, np.float32(1)),
    ("plain", L, F),
    ("taking", None, L, None),
    ("plain", N, D),
]


@needs_nvrtc
@pytest.mark.parametrize("launch", NOTED, ids=str)
def test_an_array_of_another_type_is_a_note(launch):
    assert launched(*launch) == ([], ["bad-dtype"])


RIGHT = [
    ("axpy", F, F, np.float32(2.5), np.int32(8)),
    ("axpy", F, F, np.float32(2.5), 8),
    ("axpy", F, F, np.float32(2.5), -8),
    ("axpy", F, F, np.float32(np.nan), np.uint32(8)),
    ("axpy", F, F, np.array([2.5], np.float32), np.array(8, np.int32)),
    ("axpy", "c8", F, np.float32(2.5), 0xFFFFFFFF),
    ("axpy", "u1", "i1", np.float32(2.5), 8),
    ("axpy", "u4", None, np.float32(2.5), 8),
    ("axpy", int, int, np.float32(2.5), 8),
    ("ints", "u4"),
    ("ints", "i1"),
    ("twice", 1.5, "c16"),
    ("twice", np.float64(1), "u8"),
    ("sized", 8, np.uint64(8)),
    ("sized", -1, F),
    ("sized", np.int64(8), int),
    ("small", True, 1, -2, 255),
    ("small", np.bool_(False), np.int8(-1), np.int16(2), np.uint8(255)),
    ("half_", np.float16(1), H, np.float32(0), "u2"),
    ("half_", np.float16(1), "u2", np.uint32(0), "i2"),
    ("pair", np.zeros(1, "i4,f4")[0], np.complex64(1j), F),
    ("pair", np.int64(0), np.float64(0), L),
    ("any", F, D, N, D, F, N, N),
    ("any", "c8", H, L, F, D, int, None),
    ("wide", F, F, N, N, L, 1, L, "?", "u8"),
    ("wide", "c8", H, F, F, D, 1, "u8", "u1", L),
    ("wide", N, N, "u4", H, "u8", 1, L, "i1", int),
    ("wide", H, L, H, "u2", "u2", 1, L, "?", int),
    ("call", 3, N),
    ("typed<float>", F, np.float32(1)),
    ("plain", N, F),
    ("macro", F, D, np.float32(1)),
]


@needs_nvrtc
@pytest.mark.parametrize("launch", RIGHT, ids=str)
def test_a_right_launch_is_silent(launch):
    assert launched(*launch) == ([], [])


@needs_nvrtc
def test_a_finding_has_its_place_and_two_of_one_launch_stand_apart(fresh):
    launched("axpy", F, D, 2.5, 1.5)
    (kernel,), (test,) = fresh.record().kernels, fresh.record().tests.values()
    assert len(test.findings) == 2
    assert [each.what for each in kernel.findings] == [
        "argument 2 of axpy is 2.5, its parameter is f32 of 4 B",
        "argument 3 of axpy is 1.5, its parameter is u32 of 4 B",
    ]
    assert [each.what for each in kernel.warnings] == [
        "argument 1 of axpy is an array of float64, its parameter is float*"
    ]
    for each in (*kernel.findings, *kernel.warnings):
        assert each.where.startswith("test_launch_arguments.py:")
        assert "size and the type" in each.rule
        assert each.help


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "args", "wanted"),
    [
        ("ints", lambda: [driver.In(A)], ([], ["bad-dtype"])),
        ("ints", lambda: [gpuarray.to_gpu(A)], ([], ["bad-dtype"])),
        ("ints", lambda: [gpuarray.to_gpu(A.astype(np.int32))], ([], [])),
        ("ints", lambda: [driver.mem_alloc(32)], ([], [])),
        ("ints", lambda: [A.astype(np.int32)], (["bad-argument"], [])),
        ("ints", lambda: [np.zeros(2, np.int32)], (["bad-argument"], [])),
        ("ints", lambda: [np.float64(3)], (["bad-argument"], [])),
        ("twice", lambda: [np.float64(3), driver.In(A)], ([], ["bad-dtype"])),
        ("twice", lambda: [np.int64(3), driver.In(A * 1.0)], (["bad-argument"], [])),
        ("twice", lambda: [np.float32(3), driver.In(A * 1.0)], (["bad-argument"], [])),
        ("sized", lambda: [np.int64(3), np.int32(3)], (["bad-argument"], [])),
        ("sized", lambda: [np.int64(3)], (["bad-argument"], [])),
        ("sized", lambda: [np.int64(3), np.int64(3), np.int64(3)], (["bad-argument"], [])),
        ("small", lambda: [np.bool_(1), np.int8(1), np.int16(1), np.int64(1)], (["bad-argument"], [])),
        ("pair", lambda: [np.zeros(1, "i4,f4")[0], np.zeros(2, np.float32), np.intp(0)], ([], [])),
    ],
)
def test_pycuda(kernel, args, wanted, fresh):
    driver.init()
    context = driver.Device(0).make_context()
    function = compiler.SourceModule(SOURCE, no_extern_c=True).get_function(kernel)
    try:
        function(*args(), block=(1, 1, 1))
        assert kernel not in ("sized", "small")
    except driver.LogicError as error:
        assert "[bad-argument]" in str(error)
    assert found(fresh) == wanted
    context.detach()


@needs_nvrtc
@pytest.mark.parametrize(
    ("format", "args", "wanted"),
    [
        ("PPfi", (F, F, 2.5, 8), ([], [])),
        ("PPdi", (F, F, 2.5, 8), (["bad-argument"], [])),
        ("PPfq", (F, F, 2.5, 8), (["bad-argument"], [])),
        ("PPif", (F, F, 2, 8.0), (["bad-argument"] * 2, [])),
        ("PPf", (F, F, 2.5), (["bad-argument"], [])),
        ("PPfi", (F, D, 2.5, 8), ([], ["bad-dtype"])),
        ("PdfI", (F, 2.0, 2.5, 8), (["bad-argument"], [])),
    ],
)
def test_prepared_calls(format, args, wanted, fresh):
    driver.init()
    context = driver.Device(0).make_context()
    function = compiler.SourceModule(SOURCE, no_extern_c=True).get_function("axpy").prepare(format)
    args = [gpuarray.to_gpu(A.astype(each)) if isinstance(each, str) else each for each in args]
    try:
        function.prepared_call((1, 1), (1, 1, 1), *args)
    except driver.LogicError as error:
        assert "[bad-argument]" in str(error)
    assert found(fresh) == wanted
    context.detach()


@needs_nvrtc
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((0, 0, np.float32(2), 8), ([], [])),
        ((0, 0, ctypes.c_float(2), ctypes.c_int(8)), ([], [])),
        ((0, 0, 2.5, 8), (["bad-argument"], [])),
        ((0, 0, ctypes.c_double(2), 8), (["bad-argument"], [])),
        ((0, 0, ctypes.c_float(2), ctypes.c_longlong(1 << 35)), (["bad-argument"], [])),
        ((0, 0, ctypes.c_float(2), ctypes.c_short(1)), (["bad-argument"], [])),
        ((0, 0, ctypes.c_int(2), 8), (["bad-argument"], [])),
        ((0, 5, ctypes.c_float(2), 8), (["bad-argument"], [])),
        ((0, 0, ctypes.c_void_p(1 << 40), 8), (["bad-argument"], [])),
        ((0, 0, ctypes.c_float(2)), (["bad-argument"], [])),
        ((0, 0, ctypes.c_float(2), 8, 8), (["bad-argument"], [])),
    ],
)
def test_cuda_core(values, wanted, fresh):
    kernel = images.CoreProgram(SOURCE, "c++").compile("ptx").get_kernel("axpy")
    try:
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 1), kernel, *values)
    except RuntimeError as error:
        assert "[bad-argument]" in str(error)
    assert found(fresh) == wanted


@needs_nvrtc
@pytest.mark.parametrize(
    ("values", "kinds", "status", "wanted"),
    [
        ((0, 0, 2.5, 8), (None, None, ctypes.c_float, ctypes.c_int), 0, ([], [])),
        ((0, 0, 2.5, 8), (None, None, ctypes.c_double, ctypes.c_int), 0, (["bad-argument"], [])),
        ((0, 0, 2.5, 8), (None, None, ctypes.c_float, ctypes.c_longlong), 0, ([], ["bad-dtype"])),
        ((0, 0, 2.5), (None, None, ctypes.c_float), 1, (["bad-argument"], [])),
        ((0, 0, 2.5, 8), (None, ctypes.c_int, ctypes.c_float, ctypes.c_int), 1, (["bad-argument"], [])),
        ((0, 0, 2, 8), (None, None, ctypes.c_int, ctypes.c_int), 0, (["bad-argument"], [])),
    ],
)
def test_cuda_bindings(values, kinds, status, wanted, fresh):
    calls = bindings.ModuleCalls()
    calls.types = SimpleNamespace(CUfunction=int, CUmodule=int)
    module = calls.cuModuleLoadData(fresh.compiled(SOURCE, target="sm_90").encode())
    function = calls.cuModuleGetFunction(module, b"axpy")
    try:
        calls.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, (values, kinds), 0)
        said = 0
    except RefsimError as error:
        said = int(error.code == "bad-argument")
    assert (said, found(fresh)) == (status, wanted)


@needs_nvrtc
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_wrong_number_of_arguments_has_a_place(count, fresh):
    launched("axpy", *(F,) * count)
    (one,) = fresh.record().kernels
    assert [each.where.partition(".py:")[0] for each in one.findings if "takes 4" in each.what] == [
        "test_launch_arguments"
    ]


def test_addresses_of_arguments_that_end_early(fresh):
    calls = bindings.ModuleCalls()
    calls.types = SimpleNamespace(CUfunction=int, CUmodule=int)
    function = calls.cuModuleGetFunction(calls.cuModuleLoadData(DOUBLE.encode()), b"double")
    held = ctypes.c_uint64(fresh.memory.allocate(32, "test"))
    places = (ctypes.c_void_p * 3)(ctypes.addressof(held), None, None)
    for arguments in (0, ctypes.addressof(places)):
        with pytest.raises(RefsimError, match=r"takes 3 arguments, given: [01]"):
            calls.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0)


@needs_nvrtc
@pytest.mark.parametrize(
    ("layout", "values", "wanted"),
    [
        ("<QQfi", (0, 0, 2.5, 0), ([], [])),
        ("<QQfi4x", (0, 0, 2.5, 0), ([], [])),
        ("<QQf", (0, 0, 2.5), (["bad-argument"], [])),
        ("<QQ", (0, 0), (["bad-argument"], [])),
        ("<QQfq", (0, 0, 2.5, 8), ([], [])),
        ("<QQfiQ", (0, 0, 2.5, 8, 8), (["bad-argument"], [])),
    ],
)
def test_arguments_in_one_buffer(layout, values, wanted, fresh):
    calls = bindings.ModuleCalls()
    calls.types = SimpleNamespace(CUfunction=int, CUmodule=int)
    module = calls.cuModuleLoadData(fresh.compiled(SOURCE, target="sm_90").encode())
    function = calls.cuModuleGetFunction(module, b"axpy")
    content = ctypes.create_string_buffer(struct.pack(layout, *values), struct.calcsize(layout))
    size = ctypes.c_size_t(struct.calcsize(layout))
    extra = (ctypes.c_void_p * 5)(2, ctypes.addressof(size), 1, ctypes.addressof(content), None)
    try:
        calls.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra))
    except RefsimError as error:
        assert error.code == "bad-argument"
    assert found(fresh) == wanted


PTX = DOUBLE.replace(
    ".param .u64 y, .param .u64 x, .param .u32 n", ".param .u64 .ptr .global .align 4 y, .param .u64 x, .param .u32 n"
)
SCALARS = (
    DOUBLE.partition(".visible")[0]
    + ".visible .entry k(.param .f32 a, .param .f64 b, .param .b32 c, .param .s64 d) { ret; }"
)


@pytest.mark.parametrize(
    ("text", "entry", "args", "what"),
    [
        (PTX, "double", (np.float64(1), np.uint64(0), np.uint32(0)), "its parameter is a pointer"),
        (PTX, "double", (np.uint64(64), np.uint64(0), np.uint32(0)), "its parameter is a pointer"),
        (PTX, "double", (A, A, np.float32(1)), "argument 2 of double is np.float32"),
        (PTX, "double", (A, A, A), "is a host array of 64 B"),
        (PTX, "double", (A, A, np.uint64(1)), "is u32"),
        (PTX, "double", (A, np.float64(3), np.uint32(0)), "argument 1 of double is np.float64"),
        (PTX, "double", (A, A), "takes 3 arguments"),
        (SCALARS, "k", (np.int32(1), np.float64(1), np.float32(1), np.int64(1)), "is f32"),
        (SCALARS, "k", (np.float32(1), A, np.float32(1), np.int64(1)), "is a host array"),
        (SCALARS, "k", (np.float32(1), np.int64(1), np.float32(1), np.int64(1)), "is f64"),
        (SCALARS, "k", (np.float32(1), PointerTo(1 << 40), np.float32(1), np.int64(1)), "is a pointer"),
        (SCALARS, "k", (np.float32(1), np.float64(1), np.float32(1), np.float64(1)), "is s64"),
    ],
)
def test_a_launch_of_a_program_is_refused(text, entry, args, what):
    with pytest.raises(RefsimError, match=what) as caught:
        load(text, "sm_80").launch(entry, 1, 1, list(args))
    assert caught.value.code == "bad-argument"


@pytest.mark.parametrize(
    ("text", "entry", "args"),
    [
        (PTX, "double", (A, np.zeros(8), np.int32(1))),
        (PTX, "double", (np.uint64(0), np.uint64(0), np.uint32(0))),
        (SCALARS, "k", (np.uint32(0x3F800000), np.float64(1), np.int32(1), np.int64(1))),
        (SCALARS, "k", (np.float32(1), np.uint64(1), np.float32(1), PointerTo(1 << 40))),
        (SCALARS, "k", (np.int32(0), np.float64(1), b"1234", np.uint64(1))),
    ],
)
def test_a_right_launch_of_a_program_runs(text, entry, args):
    load(text, "sm_80").launch(entry, 1, 1, list(args))


def test_a_struct_keeps_its_alignment(fresh):
    text = DOUBLE.partition(".visible")[0] + ".visible .entry k(.param .align 8 .b8 s[16]) { ret; }"
    module = fresh.load(text, "test")
    module.launch(LaunchRequest("k", 1, 1, [Struct(bytes(16), 8)]))
    with pytest.raises(RefsimError, match="is aligned to 16 B"):
        module.launch(LaunchRequest("k", 1, 1, [Struct(bytes(16), 16)]))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("_Z3addPKiPfS1_S0_PS1_PvPKvS5_", "int* float* float* int* float** void* void* void*"),
        (
            "_Z2sccbsilxmfd6__half7__half2",
            "char|bool|short|int|long|long long|unsigned long|float|double|__half|__half2",
        ),
        ("_Z2tfIfEvPKT_PS0_S0_S3_", "float* float* float float*"),
        ("_Z2tfI6__halfEvPKT_PS1_S1_S4_", "__half* __half* __half __half*"),
        ("_Z2tfIPiEvPKT_PS1_S1_S4_", "int** int** int* int**"),
        ("_ZN2ns3innEPKNS_1QEPS0_PKfPf", ""),
        ("_ZN2ns2ttIfLi3EEEvPKT_PS1_PKfPfS1_S4_", "float* float* float* float* float float*"),
        ("_ZN41_GLOBAL__N__00000000_9_source_cu_aed3dd374anonEPKiPi", "int* int*"),
        ("_ZL4statPKiPVKf", "int* float*"),
        ("_Z1fPVKfS0_i", "float* float* int"),
        ("_Z1fP3BoxIiEPfS1_", ""),
        ("_Z1fv", ""),
        ("_Z1fRKfPi", "? int*"),
        ("_Z1fPFviEPi", ""),
        ("_Z1fDv4_fPi", ""),
        ("_Z1fIJifEEvPi", "int*"),
        ("_Z1fPi.part", ""),
        ("_Z", ""),
        ("_Z1fS9_", ""),
        ("_ZN6cudapy8__main__3addB2v1E5ArrayIfLi1E1C7mutable7alignedE", ""),
    ],
)
def test_types_of_a_mangled_name(name, wanted):
    assert declared_types(name) == tuple(wanted.split("|" if "|" in wanted else None))


@pytest.mark.parametrize(
    ("list", "wanted"),
    [
        ("const int *x, float* __restrict__ y", "int* float*"),
        ("int n, const float*const*p, unsigned m", "int|float**|unsigned"),
        ("float x[], double y[4], unsigned long long int *z", "float*|double*|unsigned long long int*"),
        ("/* int *a, */ float *b // , int *c\n, char c = 2 * 3", "float* char"),
        ("unsigned char, const float, long long *", "unsigned char|float|long long*"),
        ("std::int32_t *a, const __grid_constant__ Map m, T *t, T u", "int32_t* ? ?* ?"),
        ("Box<int, 3> a, Box<float> *b, float *c = nullptr", "? ?* float*"),
        ("void (*f)(int, float), int (&g)[4], float *c", "? ? float*"),
        ("own *a, taken *b, float4 *c, uint *d", "?* ?* float4* ?*"),
        ("int *a\n#ifdef X\n, int *b\n#endif\n", "? ?"),
    ],
)
def test_types_of_a_source(list, wanted):
    head = "typedef float own; #define taken int\ntypedef unsigned int uint;\n"
    source = f'{head}extern "C" __global__ void __launch_bounds__(64) k({list}) {{}}'
    assert declared_types("k", source) == tuple(wanted.split("|" if "|" in wanted else None))
    twice = declared_types("k", f"{source} __global__ void k(int *other) {{}}")
    assert twice == ()
    assert declared_types("k", f"/* {source.replace('*/', '')} */") == ()
    assert declared_types("kernel", source) == ()


@pytest.mark.parametrize(
    ("element", "type", "wanted"),
    [
        (ml_dtypes.bfloat16, "__nv_bfloat16", False),
        (ml_dtypes.bfloat16, "__half", True),
        (np.float16, "__nv_bfloat16", True),
        (np.float16, "half", False),
        (np.int16, "short", False),
        (np.float16, "short", False),
        (np.uint16, "__nv_bfloat16", False),
        (np.int8, "__nv_fp8_e4m3", False),
        (np.float32, "__nv_fp8_e4m3", True),
        (np.uint32, "__nv_fp8_e4m3", False),
        (np.int32, "__nv_fp8_e5m2", True),
        (np.uint32, "bool", True),
        (ml_dtypes.float8_e4m3fn, "__nv_fp8_e4m3", False),
        ("f4,f4", "int", False),
        ("M8[s]", "int", False),
        (np.float64, "thing", False),
        (np.float64, "void", False),
        (np.float64, "cuFloatComplex", True),
        (np.complex128, "cuFloatComplex", True),
        (np.complex64, "cuDoubleComplex", False),
    ],
)
def test_which_elements_differ_from_a_type(element, type, wanted):
    assert differs(np.dtype(element), type) is wanted
