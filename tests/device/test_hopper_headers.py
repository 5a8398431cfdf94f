"""CUDA's headers for Hopper on the simulated GPU: right kernels are right and silent in every order, the same less one edge are
found in every order."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).with_name("hopper_headers.py"))
RIGHT, WRONG, THREADS = kernels.RIGHT, kernels.WRONG, kernels.THREADS
pytestmark = pytest.mark.ci("compiles some forty kernels with libcu++: 6 s")


@pytest.fixture(scope="module")
def code() -> KernelCode:
    try:
        metadata.version("nvidia-cuda-cccl")
    except metadata.PackageNotFoundError:
        pytest.skip("CUDA's headers are not installed: pip install 'refsim[sim]'")
    return KernelCode(source=kernels.source())


@pytest.fixture(params=["eager", "lazy", "random"])
def gpu(code: KernelCode, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with device.open(f"sim:{request.param}", "sm_90a").launcher(code) as launcher:
        yield launcher


def run(gpu: Launcher, name: str, kernel: Any) -> tuple[np.ndarray, np.ndarray]:
    """x, and what y holds afterwards; zeros are there before."""
    x = np.arange(kernels.ROWS * kernels.COLUMNS, dtype=np.int32)
    given = gpu.upload(x, name=f"x of {name}")
    y = gpu.upload(np.zeros(1024, np.int32), name=f"y of {name}", writable=True)
    tiles = layouts.tensor_map("int32", (kernels.COLUMNS, kernels.ROWS), (16, 8), address=given.address)
    options = dict(kernel.launch)
    gpu.launch(name, options.pop("grid", 1), THREADS, [given, y, *([tiles] if kernel.tiles else [])], **options)
    return x, gpu.read(y)


def test_right_kernels_are_right_and_nothing_is_said(gpu: Launcher) -> None:
    for at, kernel in enumerate(RIGHT):
        x, y = run(gpu, f"right_{at}", kernel)
        expected = kernel.expected(x)
        np.testing.assert_array_equal(y[: len(expected)], expected, str(kernel))
        seen = gpu.findings()
        assert (seen.inexact, seen.notes) == ((), ()), str(kernel)


def test_missing_edges_are_found_in_every_order(gpu: Launcher) -> None:
    missed = []
    for at, wrong in enumerate(WRONG):
        known = len(gpu.findings().notes)
        try:
            run(gpu, f"wrong_{at}", wrong.right)
            said = " ".join(gpu.findings().notes[known:]) or "nothing"
        except RefsimError as error:
            said = f"[{error.code}] {error.what}"
        if not any(f"[{code}]" in said for code in wrong.codes):
            missed.append((str(wrong), said))
    assert not missed


CUTE = """
extern "C" __global__ void NAME(const half_t* a, const half_t* b, float* c) {
    auto layout = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64, _64>{});
    __shared__ alignas(1024) half_t left[64 * 64], right[64 * 64];
    auto A = make_tensor(make_smem_ptr(left), layout), B = make_tensor(make_smem_ptr(right), layout);
    for (int i = threadIdx.x; i < 64 * 64; i += 128) { A(i / 64, i % 64) = a[i]; B(i / 64, i % 64) = b[i]; }
    FENCE
    __syncthreads();
    auto mma = make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
    auto thread = mma.get_slice(threadIdx.x);
    auto C = thread.partition_C(make_tensor(make_gmem_ptr(c), make_layout(Shape<_64, _64>{}, GenRowMajor{})));
    auto x = thread.make_fragment_A(thread.partition_A(A));
    auto y = thread.make_fragment_B(thread.partition_B(B));
    auto sum = thread.make_fragment_C(C);
    clear(sum);
    warpgroup_fence_operand(sum);
    warpgroup_arrive();
    gemm(mma, x, y, sum);
    warpgroup_commit_batch();
    WAIT
    warpgroup_fence_operand(sum);
    copy(sum, C);
}
"""
EDGES = {"right": "", "unfenced": "FENCE", "early": "WAIT"}


@pytest.fixture(scope="module")
def cute() -> KernelCode:
    try:
        found = metadata.distribution("nvidia-cutlass")
    except metadata.PackageNotFoundError:
        pytest.skip("CUTLASS is not installed: pip install nvidia-cutlass")
    edges = {"FENCE": "cutlass::arch::fence_view_async_shared();", "WAIT": "warpgroup_wait<0>();"}
    text = "#include <cute/tensor.hpp>\n#include <cutlass/arch/barrier.h>\nusing namespace cute;\n"
    for name, without in EDGES.items():
        made = CUTE.replace("NAME", name)
        for edge, code in edges.items():
            made = made.replace(edge, "" if edge == without else code)
        text += made
    return KernelCode(source=text, include=(Path(str(found.locate_file("cutlass_library/source/include"))),))


def test_cute_multiplies_by_warpgroups(cute: KernelCode) -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-4, 5, (64, 64)).astype(np.float16) for _ in range(2))
    with device.open("sim", "sm_90a").launcher(cute) as gpu:
        x, y, z = gpu.upload(a, name="a"), gpu.upload(b, name="b"), gpu.output(64 * 64, np.float32, name="c")
        gpu.launch("right", 1, 128, [x, y, z])
        assert gpu.read(z).reshape(64, 64).tolist() == (a.astype(int) @ b.astype(int).T).tolist()
        assert (gpu.findings().inexact, gpu.findings().notes) == ((), ())
        for entry, code in (("unfenced", "missing-proxy-fence"), ("early", "register-in-flight")):
            with pytest.raises(RefsimError, match=code):
                gpu.launch(entry, 1, 128, [x, y, z])
