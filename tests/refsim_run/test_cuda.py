"""The stand-ins for cuda.bindings and cuda.core: calls with their status, images, launches, views; what is refused by name."""

import ctypes
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from refsim.device import toolchain
from refsim.errors import RefsimError
from refsim.ptx.machine.arguments import raw_bytes
from refsim.ptx.machine.assemblers import find_ptxas
from refsim_run import session as sessions
from refsim_run.cuda import bindings, core, images
from refsim_run.cuda.bindings import taken
from refsim_run.cuda.images import joined
from refsim_run.memory import host_bytes
from refsim_run.session import GpuSession, UnsupportedError
from tests.refsim_run.kernels import DOUBLE, RACE

needs_nvrtc = pytest.mark.skipif(
    toolchain.find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'"
)
X = np.arange(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    return sessions.current()


@pytest.fixture
def driver():
    """A module like cuda.bindings.driver, whose functions are replaced."""
    module = ModuleType("cuda.bindings.driver")
    status = SimpleNamespace(
        CUDA_SUCCESS=0,
        CUDA_ERROR_INVALID_VALUE=1,
        CUDA_ERROR_OUT_OF_MEMORY=2,
        CUDA_ERROR_INVALID_HANDLE=400,
        CUDA_ERROR_NOT_FOUND=500,
        CUDA_ERROR_ILLEGAL_ADDRESS=700,
        CUDA_ERROR_LAUNCH_FAILED=719,
    )
    kinds = dict.fromkeys(
        ("CUdevice", "CUcontext", "CUdeviceptr", "CUstream", "CUevent", "CUmodule", "CUfunction"), int
    )
    flags = {"CU_MEMHOSTALLOC_DEVICEMAP": 2, "CU_MEMHOSTREGISTER_DEVICEMAP": 2, "CUresult": status}
    attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_POINTER=3)
    real = [name for name in dir(bindings.DriverCalls) if name.startswith("cu")]
    theirs = dict.fromkeys(
        (*real, "cuMemAllocManaged", "cuGraphCreate"), lambda *args: pytest.fail("the driver is asked")
    )
    vars(module).update(theirs | kinds | flags, CUpointer_attribute=attribute)
    bindings.take_place(module)
    return module


def test_a_module_is_loaded_and_launched_with_arguments_by_their_addresses(driver, fresh):
    driver.cuCtxCreate(0, 0)
    text = ctypes.create_string_buffer(DOUBLE.encode())
    status, module = driver.cuModuleLoadData(ctypes.addressof(text))
    assert (status, driver.cuModuleLoadData(DOUBLE.encode())[0]) == (0, 0)
    status, function = driver.cuModuleGetFunction(module, b"double")
    assert (status, driver.cuModuleGetFunction(module, b"doubled"), driver.cuModuleGetFunction(7, b"double")) == (
        0, (500, None), (400, None),
    )  # fmt: skip
    address = fresh.memory.allocate(32, "test", X.view(np.uint8).copy())
    held = [ctypes.c_uint64(address), ctypes.c_uint64(address), ctypes.c_uint32(8)]
    places = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in held))
    shape = (1, 1, 1, 8, 1, 1, 0, 0)
    assert driver.cuLaunchKernel(function, *shape, ctypes.addressof(places), 0) == (0,)
    by_types = ((address, np.uint64(address), 8), (None, ctypes.c_uint64, ctypes.c_uint32))
    assert driver.cuLaunchKernel(function, *shape, by_types, 0) == (0,)
    assert fresh.memory.read(address, 32).view(np.float32).tolist() == (4 * X).tolist()
    assert driver.cuModuleGetGlobal(module, b"factor")[2] == 4
    if find_ptxas() is not None:
        assert driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024, 0) == (0, 2)
        kernel = images.Image.from_ptx(DOUBLE.encode()).get_kernel("double")
        assert driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.handle, 32, 100 << 10) == (0, 2)
    assert driver.cuModuleUnload(module) == (0,)
    beyond = ((address, address, 9), (None, None, ctypes.c_uint32))
    assert driver.cuLaunchKernel(function, 1, 1, 1, 9, 1, 1, 0, 0, beyond, 0) == (700, None)


CALLER = DOUBLE.replace(
    ".visible .entry", ".extern .func (.param .b32 r) thrice(.param .b32 v);\n.visible .entry"
).replace(
    "mul.rn.f32 %f1, %f1, %f2;",
    """{ .param .b32 a; .param .b32 b; st.param.f32 [a], %f1; call (b), thrice, (a); ld.param.f32 %f1, [b]; }""",
)
CALLED = """.version 8.1
.target sm_80
.address_size 64
.global .align 4 .f32 factor = 0f40400000;
.visible .func (.param .b32 r) thrice(.param .b32 v) {
    .reg .f32 %f<3>;
    ld.param.f32 %f1, [v];
    ld.global.f32 %f2, [factor];
    mul.rn.f32 %f1, %f1, %f2;
    st.param.f32 [r], %f1;
    ret;
}
"""


def test_modules_of_ptx_become_one_and_keep_their_own_variables(fresh):
    text = joined([CALLER, CALLED])
    assert text.count(".version 8.1") == 1
    assert text.splitlines()[len(CALLER.splitlines()) + 4].startswith(".global .align 4 .f32 factor_of_module_1")
    made = images.Linker(*(images.Image.from_ptx(each.encode()) for each in (CALLER, CALLED))).link("cubin")
    y = fresh.memory.allocate(32, "test", X.view(np.uint8).copy())
    core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 8), made.get_kernel("double"), y, y, np.uint32(8))
    assert fresh.memory.read(y, 32).view(np.float32).tolist() == (3 * X).tolist()
    with pytest.raises(RefsimError, match=r"compile-error.*thrice is defined by two modules"):
        joined([CALLER, CALLED, CALLED])


WAITING = """.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry waiting(.param .u64 y) {
    .reg .b64 %d<5>; .reg .b32 %r<5>;
    ld.param.u64 %d1, [y];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d2, %d1, %d2;
    st.global.u32 [%d2], 5;
    { .param .b32 a; .param .b64 b; st.param.b32 [a], 1; call (b), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %d3, [b]; }
    { .param .b64 a; .param .b32 b; .param .b32 c; st.param.b64 [a], %d3; st.param.b32 [b], 0;
      call (c), cudaCGSynchronize, (a, b); ld.param.b32 %r2, [c]; }
    xor.b32 %r1, %r1, 1;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d2, %d1, %d2;
    ld.global.u32 %r3, [%d2];
    add.u32 %r3, %r3, %r2;
    st.global.u32 [%d2+8], %r3;
    ret;
}
"""


@needs_nvrtc
def test_blocks_of_a_grid_wait_for_each_other(fresh):
    kernel = images.Linker(images.Image.from_ptx(WAITING.encode())).link("cubin").get_kernel("waiting")
    y = fresh.memory.allocate(16, "test", np.zeros(16, np.uint8))
    core.core_launch(core.CoreStream(), core.CoreLaunchConfig(2, 1, is_cooperative=True), kernel, y)
    assert fresh.memory.read(y, 16).view(np.uint32).tolist() == [5, 5, 5, 5]
    assert fresh.kernels["cuda.core", "waiting"].findings == []


def test_a_launch_that_is_none_is_the_packages_error(fresh):
    kernel = images.Image.from_ptx(DOUBLE.encode()).get_kernel("double")
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 2048), kernel, 0, 0, np.uint32(8))


@needs_nvrtc
def test_a_program_of_nothing_is_compiled():
    assert b".version" in images.CoreProgram("", "c++").compile("ptx").code


def test_properties_are_attributes_of_the_driver():
    assert core.CoreDevice().properties.multiprocessor_count == 132
    with pytest.raises(UnsupportedError, match=r"cuda\.core\.Device\.properties\.clock_rate"):
        _ = core.CoreDevice().properties.clock_rate


def test_memory_comes_and_goes_with_a_status(driver, fresh):
    status, address = driver.cuMemAlloc(32)
    assert status == 0
    assert driver.cuMemcpyHtoD(address, X.ctypes.data, 32) == (0,)
    assert driver.cuMemsetD8(address + 4, 0x41, 4) == (0,)
    back = np.zeros_like(X)
    assert driver.cuMemcpyDtoHAsync(back.ctypes.data, address, 32, 0) == (0,)
    assert back.tolist() == [0, np.float32(12.078431), *X[2:].tolist()]
    assert driver.cuMemGetAddressRange(address + 8) == (0, address, 32)
    assert driver.cuPointerGetAttribute(3, address) == (0, address)
    assert driver.cuMemFree(address) == (0,)
    assert driver.cuMemFree(address) == (1, None)
    assert driver.cuMemcpyDtoH(back.ctypes.data, address, 32) == (1, None)
    assert driver.cuMemAlloc(1 << 40) == (2, None)
    assert fresh.memory.held() == []


def test_contexts_are_a_stack(driver):
    assert driver.cuCtxGetCurrent() == (0, 0)
    driver.cuCtxPushCurrent(7)
    assert (driver.cuCtxGetCurrent(), driver.cuCtxPopCurrent()) == ((0, 7), (0, 7))
    assert driver.cuCtxPopCurrent() == (400, None)


def test_events_and_streams_have_handles(driver):
    (_, first), (_, second) = driver.cuEventCreate(0), driver.cuEventCreate(0)
    assert driver.cuEventElapsedTime(first, second) == (400, None)
    driver.cuEventRecord(first, 0)
    driver.cuEventRecord(second, 0)
    assert driver.cuEventElapsedTime(first, second)[1] >= 0
    assert driver.cuStreamCreate(0)[1] not in (first, second)


@pytest.mark.parametrize("name", ["cuMemAllocManaged", "cuGraphCreate"])
def test_other_functions_are_refused_by_name(driver, name, fresh):
    with pytest.raises(UnsupportedError, match=f"cuda.bindings.driver.{name} is not simulated"):
        getattr(driver, name)(8)
    assert fresh.refused == {f"cuda.bindings.driver.{name}": 1}


def test_a_kernel_of_an_image_is_launched(driver, fresh):
    image = images.Linker(images.Image.from_ptx(DOUBLE.encode(), name="k"), images.Image.from_library(b"")).link(
        "cubin"
    )
    kernel = image.get_kernel("double")
    buffer = core.CoreDevice().allocate(64)
    fresh.memory.write(buffer.handle, X.view(np.uint8))
    core.core_launch(
        core.CoreStream(), core.CoreLaunchConfig(1, 32), kernel, buffer.handle + 32, buffer, ctypes.c_uint32(8)
    )
    assert (fresh.memory.read(buffer.handle + 32, 32).view(np.float32) == 2 * X).all()
    _, address, size = driver.cuLibraryGetGlobal(image.handle, b"factor")
    assert (size, kernel.attributes.shared_size_bytes) == (4, 0)
    assert fresh.memory.memory.read(address, 4).view(np.float32) == 2
    assert driver.cuLibraryGetGlobal(image.handle, b"none") == (500, None)
    with pytest.raises(RuntimeError, match="takes 3 arguments, given: 1"):
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 32), kernel, 0)
    with pytest.raises(RuntimeError, match="out-of-bounds"):
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 32), kernel, 0, buffer, ctypes.c_uint32(8))
    buffer.close()
    assert fresh.memory.held() == []


@pytest.mark.parametrize(
    ("given", "size", "wanted"),
    [
        (-1, 8, b"\xff" * 8),
        (-2, 4, b"\xfe" + b"\xff" * 3),
        (ctypes.c_void_p(258), 8, b"\2\1" + bytes(6)),
        (True, 1, b"\1"),
        (ctypes.c_int16(-2), 2, b"\xfe\xff"),
        (np.float32(1), 4, b"\0\0\x80?"),
        (1.0, 8, b"\0\0\0\0\0\0\xf0?"),
    ],
)
def test_arguments_are_packed_as_they_are(given, size, wanted):
    assert raw_bytes(taken(given))[:size] == wanted


def test_options_of_a_program_are_flags_of_nvrtc():
    options = images.ProgramOptions(
        fma=False,
        use_fast_math=True,
        restrict=False,
        define_macro=["A", ("B", "2")],
        std="c++20",
        arch="compute_80",
        max_register_count=None,
        lineinfo=True,
    )
    wanted = ["--define-macro=A", "--define-macro=B=2", "--fmad=false", "--std=c++20", "--use_fast_math"]
    assert (options.flags, options.arch) == (wanted, "sm_80")
    assert images.ProgramOptions().arch == "sm_90"
    with pytest.raises(UnsupportedError, match=r"cuda\.core\.ProgramOptions of ofast_compile"):
        images.ProgramOptions(ofast_compile="max")


@needs_nvrtc
def test_instances_of_templates_are_found_by_their_expressions(fresh):
    source = "template<typename T> __global__ void put(T *x, T value) { x[threadIdx.x] = value; }"
    made = images.CoreProgram(source, "c++").compile("cubin", name_expressions=("put<float>", b"put<double>"))
    buffer = core.CoreDevice().allocate(16)
    for name, value, wanted in (("put<float>", np.float32(2), 2.0), ("put<double>", np.float64(3), 3.0)):
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 2), made.get_kernel(name), buffer, value)
        assert fresh.memory.read(buffer.handle, value.nbytes).view(value.dtype) == wanted


def test_buffers_are_copied_and_other_names_refused(fresh):
    one = core.CoreDevice().memory_resource.allocate(8)
    fresh.memory.write(one.handle, np.arange(8, dtype=np.uint8))
    two = one.copy_to(stream=core.CoreStream())
    assert (fresh.memory.read(two.handle, 8) == np.arange(8)).all()
    two.close()
    with pytest.raises(RefsimError, match=r"freed|allocation"):
        fresh.memory.read(two.handle, 8)
    assert core.CoreDevice().create_stream(core.CoreStream.from_handle(77)).handle == 77
    with pytest.raises(ValueError, match="sizes mismatch"):
        one.copy_from(core.CoreDevice().allocate(4))
    for thing, name in ((one, "fill"), (core.CoreDevice(), "resources"), (core.CoreStream(), "priority")):
        with pytest.raises(UnsupportedError, match=rf"cuda\.core\.\w+\.{name} is not simulated"):
            getattr(thing, name)


def test_a_cluster_is_asked_for_and_empty_views_are_dense(fresh):
    kernel, x = images.Image.from_ptx(RACE.encode()).get_kernel("race"), core.CoreDevice().allocate(4)
    with pytest.raises(RuntimeError, match="cluster"):
        core.core_launch(core.CoreStream(), core.CoreLaunchConfig(3, 1, cluster=2), kernel, x)
    core.core_launch(core.CoreStream(), core.CoreLaunchConfig(1, 1), kernel, x)
    assert core.StridedLayout((2, 0), (7, 7), 4).is_contiguous_c
    assert not core.StridedLayout((1, 1, 2), (7, 7, 7), 4).is_contiguous_c


@needs_nvrtc
def test_lto_ir_is_made_of_a_program():
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'refsim[gpu]'")
    made = images.CoreProgram("__device__ int one() { return 1; }", "c++").compile("ltoir")
    assert (made.code_type, len(made.code) > 100) == ("ltoir", True)
    with pytest.raises(RuntimeError, match="nvrtcCompileProgram"):
        images.CoreProgram("no C++", "c++").compile("ltoir")


@pytest.mark.parametrize("kinds", [("cubin",), ("ptx", "cubin"), ("ptx", "ltoir"), ()])
def test_what_is_no_one_module_is_not_linked(kinds):
    with pytest.raises(UnsupportedError, match=r"cuda\.core\.Linker"):
        images.Linker(*(images.Image(kind, RACE.encode()) for kind in kinds)).link("cubin")


def test_views_know_whether_they_are_dense():
    array = np.arange(24, dtype=np.int16).reshape(4, 6)
    for given, wanted in ((array, (True, False)), (array.T, (False, True)), (array[:, ::2], (False, False))):
        view = core.MemoryView.from_any_interface(given)
        assert (view.ptr, view.shape, view.size) == (given.ctypes.data, given.shape, given.size)
        assert (view._layout.is_contiguous_c, view._layout.is_contiguous_f) == wanted
        assert view.strides == (None if wanted[0] else tuple(step // 2 for step in given.strides))
    made = core.MemoryView.from_buffer(core.CoreBuffer(4096, 48), (6, 4), (1, 6), dtype=np.int16)
    assert (made.ptr, made._layout.strides_in_bytes, made.is_device_accessible) == (4096, (2, 12), True)
    assert host_bytes(array.ctypes.data, 4).view(np.int16).tolist() == [0, 1]


def test_names_of_the_package_are_replaced_or_refused():
    module = ModuleType("cuda.core")
    vars(module).update(__all__=["Device", "Host", "StreamOptions"], Device=object, Host=object, StreamOptions=object)
    core.take_place(module)
    assert (module.Device, module.StreamOptions) == (core.CoreDevice, object)
    assert module.Device().compute_capability == (9, 0)
    with pytest.raises(UnsupportedError, match=r"cuda\.core\.Host is not simulated"):
        module.Host()
