"""Kernels of other compilers: what their host code would add to a launch is added, and what cannot be is said."""

from dataclasses import replace
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from refsim import device
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Buffer
from refsim.layouts import tensor_map
from refsim.testing.adapters import NumbaKernel, TritonDescriptor, TritonKernel, from_cupy, from_numba, from_triton
from refsim.testing.adapters.numba_kernels import _parameter

KERNELS = Path(__file__).parents[1] / "ptx/triton_kernels.py"


class Recorder:
    """A launcher that notes what it is asked for."""

    target = "sm_90a"

    def __init__(self):
        self.launches = []
        self.uploads = []

    def upload(self, array, *, name, misalign_bytes=0, writable=False):
        self.uploads.append((name, array.nbytes, writable))
        return Buffer(name, 4096 * len(self.uploads), array.size, array.dtype)

    def launch(self, entry, grid, block, args, shared_bytes=0, **options):
        self.launches.append((entry, grid, block, args, shared_bytes, options))


# ---- Triton ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triton_kernels(tmp_path_factory):
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    specification = spec_from_file_location("adapted_triton_kernels", KERNELS)
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield module


MATMUL = {"a": "*fp16", "b": "*fp16", "c": "*fp16"} | dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32")


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_a_matmul_of_triton_runs_with_the_shared_memory_that_it_says(triton_kernels, target):
    constants = {"BM": 32, "BN": 32, "BK": 32, "GROUP": 2}
    kernel = from_triton(triton_kernels.matmul, MATMUL, constants, target, aligned=("a", "b", "c", "sa", "sb", "sc"))
    assert (kernel.threads, kernel.ctas, kernel.version) == (128, 1, version("triton"))
    assert kernel.shared_bytes > 0
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-4, 5, (64, 64)).astype(np.float16) for _ in range(2))
    with device.open("sim", target).launcher(KernelCode(ptx=kernel.ptx)) as gpu:
        given = [gpu.upload(each, name=name) for name, each in (("a", a), ("b", b))]
        c = gpu.output(64 * 64, np.float16, name="c")
        kernel.launch(gpu, 4, *given, c, 64, 64, 64, 64, 64, 64)
        assert gpu.read(c).reshape(64, 64).tolist() == (a.astype(np.int64) @ b.astype(np.int64)).tolist()


@pytest.mark.parametrize("waits", [True, False])
def test_kernels_of_triton_that_begin_early(triton_kernels, waits):
    signature, options = {"x": "*fp32", "y": "*fp32"}, {"num_warps": 1, "launch_pdl": True}
    kernel = from_triton(triton_kernels.early, signature, {"BLOCK": 32, "WAITS": waits}, "sm_90a", **options)
    assert kernel.programmatic
    with device.open("sim", "sm_90a").launcher(KernelCode(ptx=kernel.ptx)) as gpu:
        x = gpu.upload(np.arange(64, dtype=np.float32), name="x")
        y, z = (gpu.output(64, np.float32, name=name) for name in "yz")
        kernel.launch(gpu, 2, x, y)
        if waits:
            kernel.launch(gpu, 2, y, z)
            assert gpu.read(z).tolist() == list(range(2, 66))
        else:
            with pytest.raises(RefsimError, match="missing-grid-wait"):
                kernel.launch(gpu, 2, y, z)


def test_signatures_by_order_and_wrong_ones(triton_kernels):
    softmax = triton_kernels.softmax
    by_order = from_triton(softmax, ("*fp32", "*fp32", "i32", "i32"), {"BLOCK": 64}, "sm_80", num_warps=1)
    assert by_order.parameters == ("*fp32", "*fp32", "i32", "i32")
    assert by_order.threads == 32
    assert [size for size, _ in by_order.scratch] == [0, 0]
    with pytest.raises(RefsimError, match="bad-kernel"):
        from_triton(softmax, {"x": "*fp32"}, {"BLOCK": 64}, "sm_80")
    with pytest.raises(RefsimError, match="compile-error"):
        from_triton(softmax, ("*fp32", "*fp32", "i32", "i32"), {"BLOCK": 63}, "sm_80")
    with pytest.raises(RefsimError, match="unknown-target"):
        from_triton(softmax, ("*fp32", "*fp32", "i32", "i32"), {"BLOCK": 64}, "ampere")


def test_hidden_parameters_clusters_and_scalars_of_a_launch():
    kernel = TritonKernel(
        ".", "k", ("*fp32", "i64", "fp32", "*fp32"), 256, 5000, 2, True, ((128, 64), (0, 1)), "3.9.0", programmatic=True
    )
    gpu = Recorder()
    x = Buffer("x", 64, 3, np.dtype("f4"))
    kernel.launch(gpu, (3, 5), x, 7, 1.5, None)
    ((entry, grid, block, args, shared, options),) = gpu.launches
    assert (entry, grid, block, shared) == ("k", (6, 5, 1), 256, 5000)
    assert options == {"cluster": 2, "cooperative": True, "programmatic": True}
    assert [args[0], *args[1:4], args[5]] == [x, 7, 1.5, 0, 0]
    assert [value.dtype for value in args[1:4]] == [np.dtype("i8"), np.dtype("f4"), np.dtype("u8")]
    assert gpu.uploads == [("k global_scratch", 128 * 30, True)]
    with pytest.raises(RefsimError, match="bad-argument"):
        kernel.launch(gpu, 1, x)


BOXED = {
    "block_size": [1, 64, 32],
    "swizzle": 2,
    "elem_size": 2,
    "elem_type": 10,
    "fp4_padded": False,
    "is_im2col": False,
}


def test_a_descriptor_becomes_a_tensor_map_with_extents_and_strides():
    kind = "tensordesc<bf16[1,64,32]>"
    kernel = TritonKernel(".", "k", (kind, "i32"), 128, 0, 1, False, (), "3.9.0", (), (BOXED,))
    gpu = Recorder()
    x = Buffer("x", 4096, 2 * 70 * 32, np.dtype("u2"))
    kernel.launch(gpu, 1, TritonDescriptor(x, (2, 70, 32), (70 * 40, 40, 1), "nan"), 5)
    ((_, _, _, (made, *others), _, _),) = gpu.launches
    assert made == tensor_map(
        "bfloat16",
        (32, 70, 2),
        (32, 64, 1),
        strides=(80, 70 * 80),
        address=4096,
        swizzle="64B",
        l2_promotion="128B",
        oob_fill="nan_request_zero_fma",
    )
    assert others == [2, 70, 32, 70 * 40, 40, 1, 5]
    assert [value.dtype for value in others] == [np.dtype("i4")] * 3 + [np.dtype("i8")] * 3 + [np.dtype("i4")]


@pytest.mark.parametrize(
    ("said", "descriptor", "element", "inner"),
    [
        ({"elem_type": 7, "elem_size": 4}, {"round_f32_to_tf32": True}, "tfloat32", 32),
        ({"elem_type": 9, "elem_size": 8, "block_size": [1, 64, 8]}, {}, "float64", 32),
        ({"elem_type": 14, "elem_size": 1, "block_size": [1, 64, 128], "fp4_padded": True}, {}, "16u4_align16b", 256),
    ],
)
def test_elements_of_a_descriptor_are_those_that_triton_says(said, descriptor, element, inner):
    kernel = TritonKernel(
        ".", "k", ("tensordesc<x[1,64,32]>",), 128, 0, 1, False, (), "", (), (BOXED | said | {"swizzle": 0},)
    )
    gpu = Recorder()
    extents = (2, 70, inner // (1 + said.get("fp4_padded", False)))
    kernel.launch(gpu, 1, TritonDescriptor(Buffer("x", 4096, 1 << 20, np.dtype("u1")), extents, **descriptor))
    made = gpu.launches[0][3][0]
    assert (made.data_type.name, made.dims, made.strides[0]) == (
        element,
        (inner, 70, 2),
        said["elem_size"] * extents[-1],
    )


X = Buffer("x", 4096, 70 * 32, np.dtype("f2"))


@pytest.mark.parametrize(
    "given",
    [
        *((wrong, (70, 32)) for wrong in (4096, "x", None)),
        *(
            (X, wrong)
            for wrong in (70, None, "ab", (), (70, 0), (70, 1.0), (1 << 31, 32), (True, 1), np.int64([[1]]), {1})
        ),
        *((X, (70, 32), wrong) for wrong in (1, (1,), (32, 2), (-32, 1), (1 << 63, 1), ("32", 1), np.array(5))),
        *((X, (70, 32), None, wrong) for wrong in ("nans", 5, None, np.array(["nan", "zero"]))),
        *((X, (70, 32), None, "nan", wrong) for wrong in (1, None, "no", np.array([True, False]))),
    ],
    ids=repr,
)
def test_a_descriptor_that_is_none_is_refused(given):
    with pytest.raises(RefsimError) as caught:
        TritonDescriptor(*given)
    assert caught.value.code == "bad-descriptor"


def test_a_descriptor_takes_numbers_of_any_width():
    assert TritonDescriptor(X, np.int8([70, 32]), (np.uint64(32), np.int8(1))).steps == (32, 1)
    assert TritonDescriptor(X, np.int8([100, 100, 7])).steps == (700, 7, 1)


def test_a_descriptor_is_taken_apart_for_a_target_without_tensor_maps():
    kernel = TritonKernel(".", "k", ("tensordesc<fp16[64,32]>",), 128, 0, 1, False, (), "3.9.0")
    gpu = Recorder()
    x = Buffer("x", 4096, 70 * 32, np.dtype("f2"))
    kernel.launch(gpu, 1, TritonDescriptor(x, (70, 32), padding="nan"))
    ((_, _, _, args, _, _),) = gpu.launches
    assert args == [x, 70, 32, 32, 1, True, False, 70, 32, 32, 1]
    assert "".join(value.dtype.char for value in args[1:]) == "llll??iill"


def test_descriptors_and_aligned_arguments_that_cannot_be_meant():
    kinds = ("tensordesc<bf16[1,64,32]>", "*bf16", "i32")
    kernel = TritonKernel(".", "k", kinds, 128, 0, 1, False, (), "3.9.0", (1, 2), (BOXED,))
    gpu = Recorder()
    x = Buffer("x", 4096, 70 * 32, np.dtype("u2"))
    kernel.launch(gpu, 1, TritonDescriptor(x, (1, 70, 32)), None, 32)
    for arguments, code in (
        ((x, x, 32), "bad-descriptor"),
        ((TritonDescriptor(x, (70, 32)), x, 32), "bad-argument"),
        ((TritonDescriptor(x, (1, 70, 32)), x, 30), "bad-argument"),
        ((TritonDescriptor(x, (1, 70, 32)), Buffer("y", 4104, 1, np.dtype("u2")), 32), "bad-argument"),
    ):
        with pytest.raises(RefsimError) as caught:
            kernel.launch(gpu, 1, *arguments)
        assert caught.value.code == code
    boxes_of_pixels = replace(kernel, descriptors=({**BOXED, "is_im2col": True},))
    with pytest.raises(RefsimError, match="im2col"):
        boxes_of_pixels.launch(gpu, 1, TritonDescriptor(x, (1, 70, 32)), x, 32)
    for wrong in (((70, 0),), ((70, 32), (32, 2)), ((70, 32), (1,)), ((),), ((70, 32), None, "zeros")):
        with pytest.raises(RefsimError, match="bad-descriptor"):
            TritonDescriptor(x, *wrong)


# ---- numba-cuda ------------------------------------------------------------------------------------------------------


class NumbaType(SimpleNamespace):
    def __str__(self):
        return self.name


FLOAT32, INT32, COMPLEX = (NumbaType(name=name) for name in ("float32", "int32", "complex64"))


def array(dtype, ndim, layout="C"):
    return NumbaType(name="array", dtype=dtype, ndim=ndim, layout=layout)


def test_numba_types_become_parameters():
    assert _parameter(array(FLOAT32, 2)) == ("<f4", 2)
    assert _parameter(INT32) == ("<i4", 0)
    assert _parameter(NumbaType(name="tuple", types=(INT32, array(FLOAT32, 1)))) == (("<i4", 0), ("<f4", 1))
    for wrong in (array(FLOAT32, 2, "F"), NumbaType(name="unicode_type")):
        with pytest.raises(RefsimError, match="bad-argument"):
            _parameter(wrong)


def test_arrays_complex_numbers_and_tuples_flatten_as_numba_flattens_them():
    kernel = NumbaKernel(".", "k", (("<f4", 2), ("<c8", 0), (("<i4", 0), ("<f8", 0)), ("|b1", 0)), "0.30.4")
    gpu = Recorder()
    x = Buffer("x", 64, 6, np.dtype("f4"))
    kernel.launch(gpu, 2, 32, (x, (2, 3)), 1 + 2j, (3, 4.5), True, shared_bytes=8)
    ((_, _, _, args, shared, options),) = gpu.launches
    assert args == [0, 0, 6, 4, x, 2, 3, 12, 4, 1.0, 2.0, 3, 4.5, True]
    assert [value.dtype.str for value in args if value is not x] == [
        *(["<u8"] * 8),
        *("<f4", "<f4", "<i4", "<f8", "|b1"),
    ]
    assert (shared, options) == (8, {})
    larger = Buffer("larger", 64, 8, np.dtype("f4"))
    kernel.launch(gpu, 2, 32, (larger, (2, 3)), 0, (0, 0), False, cooperative=True)
    assert gpu.launches[-1][3][2:7] == [6, 4, larger, 2, 3]
    assert gpu.launches[-1][5] == {"cooperative": True}
    halves = Buffer("halves", 64, 6, np.dtype("f2"))
    for wrong in (
        ((halves, (2, 3)), 1j, (3, 4.5), True),
        (x, 1j, (3, 4.5), True),
        (7, 1j, (3, 4.5), True),
        ((x, (2, 4)), 1j, (3, 4.5), True),
    ):
        with pytest.raises(RefsimError, match="bad-argument"):
            kernel.launch(gpu, 1, 1, *wrong)
    with pytest.raises(RefsimError, match="bad-argument"):
        kernel.launch(gpu, 1, 1, (x, (2, 3)), 1j, (3,), True)


def test_a_reduction_by_numba_adds_up():
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install 'numba-cuda[cu13]'")
    if not hasattr(np, "row_stack"):
        pytest.skip(f"numba-cuda up to 0.30.4 asks for numpy.row_stack, which NumPy {np.__version__} has not")

    def total(x, out):
        tile = cuda.shared.array(64, np.float32)
        thread = cuda.threadIdx.x
        tile[thread] = x[thread]
        cuda.syncthreads()
        half = 32
        while half:
            if thread < half:
                tile[thread] += tile[thread + half]
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            out[0] = tile[0]

    kernel = from_numba(cuda.jit(total), "void(float32[::1], float32[::1])", "sm_80")
    with device.open("sim").launcher(KernelCode(ptx=kernel.ptx)) as gpu:
        x, out = gpu.upload(np.arange(64, dtype=np.float32), name="x"), gpu.output(1, np.float32, name="out")
        kernel.launch(gpu, 1, 64, x, out)
        assert gpu.read(out).tolist() == [2016]


def test_a_numba_that_asks_a_driver_says_what_to_install(monkeypatch):
    class CudaSupportError(RuntimeError):
        pass

    def compile_ptx(*_, **__):
        raise CudaSupportError("Error at driver init:\n\nCUDA driver library cannot be found.\n:")

    numba = SimpleNamespace(compile_ptx=compile_ptx)
    monkeypatch.setattr("refsim.testing.adapters.numba_kernels._imported", lambda: numba)
    monkeypatch.setattr(
        "refsim.testing.adapters.numba_kernels._signatures",
        lambda: SimpleNamespace(normalize_signature=lambda signature: ((), None)),
    )
    with pytest.raises(RefsimError, match="missing-extra") as caught:
        from_numba(lambda x: None, "void()", "sm_80")
    assert (caught.value.exit_code, caught.value.help) == (4, "pip install 'numba-cuda[cu13]'")


# ---- CuPy ------------------------------------------------------------------------------------------------------------

ADD = 'extern "C" __global__ void add(const float* x, float* y, long long n) { y[threadIdx.x] = x[threadIdx.x] + n; }'


def test_what_a_raw_kernel_holds_is_taken_over():
    raw = SimpleNamespace(
        code=ADD, name="add", options=("-std=c++11", "-DX=1"), backend="nvrtc", enable_cooperative_groups=True
    )
    kernel = from_cupy(raw, options=("--use_fast_math",))
    assert kernel.options == ("--device-as-default-execution-space", "-DX=1", "--use_fast_math")
    assert (kernel.name, kernel.entries, kernel.compiler, kernel.cooperative) == ("add", ("add",), "nvrtc", True)
    module = SimpleNamespace(
        code=None, file_path=__file__, options=(), backend="nvcc", name_expressions=["k<1>", "k<2>"]
    )
    kernel = from_cupy(module)
    assert kernel.source == Path(__file__).read_text()
    assert (kernel.entries, kernel.compiler, kernel.options) == (("k<1>", "k<2>"), "nvcc", ())
    gpu = Recorder()
    with pytest.raises(RefsimError, match="ambiguous-name"):
        kernel.launch(gpu, 1, 1, ())
    kernel.launch(gpu, 1, 1, (), name="k<2>")
    from_cupy(raw).launch(gpu, 1, 1, ())
    from_cupy(raw).launch(gpu, 1, 1, (), name="other")
    assert [(entry, options) for entry, *_, options in gpu.launches] == [
        ("k<2>", {}),
        ("add", {"cooperative": True}),
        ("other", {"cooperative": True}),
    ]
    with pytest.raises(RefsimError, match="bad-kernel"):
        from_cupy(7)


def test_python_numbers_are_as_wide_as_cupy_makes_them():
    gpu = Recorder()
    from_cupy(ADD, "add").launch(gpu, (1,), (32,), (None, 7, 1.5, True, 1j, np.float16(2)), shared_mem=16)
    ((entry, _, _, args, shared, _),) = gpu.launches
    assert (entry, shared) == ("add", 16)
    assert [value.dtype.str for value in args] == ["<u8", "<i8", "<f8", "|b1", "<c16", "<f2"]


def test_a_text_for_cupy_runs():
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'refsim[sim]'")
    helper = "float twice(float x) { return 2 * x; }\n"  # without __device__, as CuPy takes it
    kernel = from_cupy(helper + ADD.replace("+ n", "+ twice(n)"), "add")
    with device.open("sim").launcher(kernel.code) as gpu:
        x, y = gpu.upload(np.arange(32, dtype=np.float32), name="x"), gpu.output(32, np.float32, name="y")
        kernel.launch(gpu, (1,), (32,), (x, y, 4))
        assert gpu.read(y).tolist() == list(range(8, 40))
