"""NVIDIA's headers and those of C++ in kernels that run on the simulated GPU: what each promises, with the bits it must give."""

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from refsim import device
from refsim.device import cache
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode


@pytest.fixture(scope="module", autouse=True)
def installed():
    """What is compiled here is kept for other runs."""
    try:
        metadata.version("nvidia-cuda-cccl")
    except metadata.PackageNotFoundError:
        pytest.skip("CUDA's headers are not installed: pip install 'refsim[sim]'")
    assert cache.cache_directory()


def ran(source, inputs, outputs, *, target="sm_80", block=64, grid=1, shared=0, name="k"):
    """The outputs of a kernel that takes pointers alone: (count, dtype) each."""
    with device.open("sim", target).launcher(KernelCode(source=source)) as gpu:
        given = [gpu.upload(array, name=f"x{place}") for place, array in enumerate(inputs)]
        made = [gpu.output(count, dtype, name=f"y{place}") for place, (count, dtype) in enumerate(outputs)]
        gpu.launch(name, grid, block, [*given, *made], shared)
        assert not gpu.findings().inexact
        return [gpu.read(each) for each in made]


X = np.arange(64, dtype=np.int32)

GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* y) {
    __shared__ int tile[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, sizeof(tile));
    cg::wait(block);
    auto warp = cg::tiled_partition<32>(block);
    int value = tile[63 - block.thread_rank()];
    y[block.thread_rank()] = cg::reduce(warp, value, cg::plus<int>());
    y[64 + block.thread_rank()] = cg::inclusive_scan(warp, value);
}
"""
PIPELINE = """
#include <cuda/pipeline>
#include <cooperative_groups.h>
__global__ void k(const int* x, int* y) {
    __shared__ int stages[2][32];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int step = 0; step < 3; ++step) {
        if (step < 2) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stages[step], x + 32 * step, cuda::aligned_size_t<16>(128), pipe);
            pipe.producer_commit();
        }
        if (step > 0) {
            pipe.consumer_wait();
            y[32 * (step - 1) + threadIdx.x] = stages[step - 1][31 - threadIdx.x];
            pipe.consumer_release();
        }
    }
}
"""
BARRIER = """
#include <cuda/barrier>
#include <cuda/atomic>
#include <cuda/std/array>
__global__ void k(const int* x, int* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int sum;
    if (threadIdx.x == 0) { init(&barrier, blockDim.x); sum = 0; }
    __syncthreads();
    cuda::atomic_ref<int, cuda::thread_scope_block>(sum).fetch_add(x[threadIdx.x], cuda::memory_order_relaxed);
    barrier.arrive_and_wait();
    cuda::std::array<int, 2> pair{sum, (int)threadIdx.x};
    y[threadIdx.x] = pair[0] + pair[1];
}
"""
CUB = """
#include <cub/cub.cuh>
__global__ void k(const int* x, int* y) {
    using Reduce = cub::BlockReduce<int, 64>;
    using Scan = cub::BlockScan<int, 64>;
    using Sort = cub::BlockRadixSort<int, 64, 1>;
    __shared__ union { Reduce::TempStorage reduce; Scan::TempStorage scan; Sort::TempStorage sort; } held;
    int value = x[threadIdx.x] ^ 37, sum = Reduce(held.reduce).Sum(value);
    if (threadIdx.x == 0) y[0] = sum;
    __syncthreads();
    int before;
    Scan(held.scan).ExclusiveSum(value, before);
    y[1 + threadIdx.x] = before;
    __syncthreads();
    int keys[1] = {value};
    Sort(held.sort).Sort(keys);
    y[65 + threadIdx.x] = keys[0];
}
"""
WMMA = """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ void k(const __half* a, const __half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
"""
STANDARD = """
#include <stdint.h>
#include <cassert>
#include <cstdio>
#include <cmath>
#include <limits>
#include <limits.h>
#include <float.h>
#include <type_traits>
#include <algorithm>
#include <utility>
#include <tuple>
#include <math_constants.h>
#include <cuda_fp8.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda.h>
static_assert(std::is_same_v<uint64_t, unsigned long long> && sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64);
constexpr float HIGHEST = -INFINITY;
__global__ void k(const int* x, uint32_t* y) {
    assert(x[0] == 0);
    y[0] = __float_as_uint(INFINITY);
    y[1] = __float_as_uint(HIGHEST);
    y[2] = __float_as_uint(NAN) & 0x7fc00000;
    y[3] = __float_as_uint(std::numeric_limits<float>::infinity());
    y[4] = __float_as_uint(FLT_MAX);
    y[5] = UINT32_MAX;
    y[6] = (uint32_t)INT_MIN;
    y[7] = __float_as_uint(std::fabs(-2.0f) + fmaxf(1.0f, 0.5f));
    y[8] = __float_as_uint(CUDART_INF_F);
    y[9] = std::max(3u, 5u) + std::get<1>(std::make_tuple(1, 2)) + std::min<uint32_t>(7, UINT16_MAX);
    y[10] = isnan(NAN) && isinf(INFINITY) && std::isfinite(1.0f);
    y[11] = __nv_fp8_e4m3(1.5f).__x | __bfloat16_as_ushort(__float2bfloat16(1.0f)) << 8;
    y[12] = (uint32_t)(M_PI * 1000);
    y[13] = __float_as_uint(FLT_EPSILON);
}
"""
PLAIN = "__global__ void k(const int* x, float* y) { y[threadIdx.x] = x[threadIdx.x] ? -INFINITY : NAN; }"


@pytest.mark.ci("compiles cooperative groups for seconds; headers of C and C++ are compiled in every run")
def test_cooperative_groups_reduce_scan_and_copy():
    (y,) = ran(GROUPS, [X], [(128, np.int32)])
    value = X[::-1].reshape(2, 32)
    assert y[:64].tolist() == value.sum(1).repeat(32).tolist()
    assert y[64:].tolist() == value.cumsum(1).ravel().tolist()


@pytest.mark.ci("tests/ptx/test_cuda_barriers.py has pipelines of every kind in every run")
def test_a_pipeline_of_two_stages():
    (y,) = ran(PIPELINE, [X], [(64, np.int32)], block=32)
    assert y.tolist() == X.reshape(2, 32)[:, ::-1].ravel().tolist()


@pytest.mark.ci("compiles libcu++ for seconds; headers of C and C++ are compiled in every run")
def test_barriers_atomics_and_containers_of_libcuxx():
    (y,) = ran(BARRIER, [X], [(64, np.int32)])
    assert y.tolist() == (X.sum() + X).tolist()


@pytest.mark.ci("compiles CUB for seconds; headers of C and C++ are compiled in every run")
def test_cub_reduces_scans_and_sorts_a_block():
    (y,) = ran(CUB, [X], [(129, np.int32)])
    value = X ^ 37
    assert y.tolist() == [value.sum(), *(np.cumsum(value) - value), *np.sort(value)]


def test_wmma_multiplies():
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-8, 9, (16, 16)).astype(np.float16) for _ in range(2))
    (c,) = ran(WMMA, [a, b], [(256, np.float32)], block=32)
    assert c.reshape(16, 16).tolist() == (a.astype(int) @ b.astype(int).T).tolist()


def test_the_headers_of_c_and_cxx_give_their_bits():
    (y,) = ran(STANDARD, [X], [(14, np.uint32)], block=1)
    infinity, one = 0x7F800000, np.float32(1).view(np.uint32)
    assert [hex(word) for word in y] == [
        hex(word)
        for word in (
            *(infinity, 0xFF800000, 0x7FC00000, infinity, 0x7F7FFFFF, 0xFFFFFFFF, 0x80000000),
            *(
                int(np.float32(3).view(np.uint32)),
                infinity,
                5 + 2 + 7,
                1,
                0x3C | 0x3F80 << 8,
                3141,
                int(one) - (23 << 23),
            ),
        )
    ]


def test_infinity_and_nan_need_no_header_as_under_nvcc():
    (y,) = ran(PLAIN, [X], [(64, np.float32)])
    assert np.isnan(y[0])
    assert (y[1:] == -np.inf).all()


@pytest.mark.ci("for sm_80 they are compiled and run in every run")
@pytest.mark.parametrize("target", ["sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_all_of_them_compile_for_every_target(target):
    for source in (STANDARD, WMMA, GROUPS) if target != "sm_90a" else (STANDARD, WMMA, GROUPS, PIPELINE, BARRIER, CUB):
        text = compiled(KernelCode(source=source), target).text
        assert f".target {target}" in text
        assert "site-packages" not in text


def test_names_of_yours_win_over_those_of_the_standard(tmp_path: Path):
    (tmp_path / "limits.h").write_text("#define MINE 41\n")
    (tmp_path / "k.cu").write_text('#include "limits.h"\n__global__ void k(int* y) { *y = MINE; }\n')
    assert "41;" in compiled(KernelCode(file=tmp_path / "k.cu"), "sm_80").text


def test_a_debug_build_and_a_release_build_of_an_assertion():
    source = "#include <cassert>\n__global__ void k(const int* x, int* y) { assert(x[0] == 1); *y = 1; }"
    with pytest.raises(RefsimError, match="x\\[0\\] == 1"):
        ran(source, [X], [(1, np.int32)], block=1)
    (y,) = ran(f"#define NDEBUG\n{source}", [X], [(1, np.int32)], block=1)
    assert y.tolist() == [1]


CUTE = """
#include <cute/tensor.hpp>
using namespace cute;
__global__ void k(const half_t* a, const half_t* b, float* c) {
    auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{});
    auto thread = mma.get_slice(threadIdx.x);
    auto A = make_tensor(make_gmem_ptr(a), make_layout(Shape<_16, _16>{}, GenRowMajor{}));
    auto B = make_tensor(make_gmem_ptr(b), make_layout(Shape<_8, _16>{}, GenRowMajor{}));
    auto C = thread.partition_C(make_tensor(make_gmem_ptr(c), make_layout(Shape<_16, _8>{}, GenRowMajor{})));
    auto left = thread.partition_fragment_A(A);
    auto right = thread.partition_fragment_B(B);
    auto sum = thread.make_fragment_C(C);
    copy(thread.partition_A(A), left);
    copy(thread.partition_B(B), right);
    clear(sum);
    gemm(mma, left, right, sum);
    copy(sum, C);
}
"""


def test_cute_multiplies():
    try:
        found = metadata.distribution("nvidia-cutlass")
    except metadata.PackageNotFoundError:
        pytest.skip("CUTLASS is not installed: pip install nvidia-cutlass")
    folder = Path(str(found.locate_file("cutlass_library/source/include")))
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-4, 5, (rows, 16)).astype(np.float16) for rows in (16, 8))
    with device.open("sim", "sm_80").launcher(KernelCode(source=CUTE, include=(folder,))) as gpu:
        x, y, z = gpu.upload(a, name="a"), gpu.upload(b, name="b"), gpu.output(128, np.float32, name="c")
        gpu.launch("k", 1, 32, [x, y, z])
        assert gpu.read(z).reshape(16, 8).tolist() == (a.astype(int) @ b.astype(int).T).tolist()
