"""What CUDA's headers have for Hopper, as small kernels: right ones, and the same less one edge.

Each is a body with `const int* x, int* y` and a tensor map `tiles` over x, 64 rows of 32, where it is wanted. All are one
source, so that the libraries are read once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HEADS = """
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda/std/chrono>
#include <cuda/std/utility>
#include <cuda.h>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
namespace cde = cuda::device::experimental;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
"""
ROWS, COLUMNS = 64, 32
THREADS = 128


@dataclass(frozen=True)
class Right:
    """A kernel without a fault; `launch` is how it is launched, `expected` what y holds, from x."""

    name: str
    body: str
    expected: Callable[[Any], Any]
    launch: dict[str, Any] = field(default_factory=dict)
    tiles: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Wrong:
    """The right kernel `less_of` with `old` made `new`; every schedule says one of `codes`."""

    less_of: str
    missing: str
    old: str
    new: str
    codes: tuple[str, ...] = ("race",)

    @property
    def right(self) -> Right:
        return RIGHT_BY_NAME[self.less_of]

    @property
    def body(self) -> str:
        assert self.right.body.count(self.old) == 1, self
        return self.right.body.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.less_of}, less {self.missing}"


READY = """
    __shared__ alignas(128) int tile[128];
    #pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ Barrier ready;
    const int t = threadIdx.x;
    if (t == 0) { init(&ready, blockDim.x); cde::fence_proxy_async_shared_cta(); }
    __syncthreads();
"""
RAW = """
    __shared__ alignas(128) int tile[128];
    __shared__ uint64_t ready;
    const int t = threadIdx.x;
    if (t == 0) { ptx::mbarrier_init(&ready, 1); ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster); }
    __syncthreads();
"""
CLUSTER = """
    auto cluster = cg::this_cluster();
    const unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks(), t = threadIdx.x;
"""
AT = "blockIdx.x * 128 + t"


def _shifted(x: Any) -> Any:
    """Each of four blocks has what the next one wrote: its rank and x."""
    return np.concatenate([x[128 * rank : 128 * rank + 128] + 1000 * rank for rank in (1, 2, 3, 0)])


RIGHT = (
    Right("bytes that are announced", READY + """
    if (t == 0) cuda::device::memcpy_async_tx(tile, x, cuda::aligned_size_t<16>(512), ready);
    Barrier::arrival_token token;
    if (t == 0) token = cuda::device::barrier_arrive_tx(ready, 1, 512);
    else token = ready.arrive();
    ready.wait(cuda::std::move(token));
    y[t] = tile[127 - t];
""", lambda x: x[127::-1]),
    Right("waits with a limit", READY + """
    if (t == 0) cuda::device::memcpy_async_tx(tile, x, cuda::aligned_size_t<16>(512), ready);
    if (t == 0) cuda::device::barrier_expect_tx(ready, 512);
    (void)ready.arrive();
    while (!ready.try_wait_parity_for(false, cuda::std::chrono::nanoseconds(100))) {}
    int sum = tile[127 - t];
    auto token = ready.arrive();
    while (!ready.try_wait_for(cuda::std::move(token), cuda::std::chrono::nanoseconds(100))) {}
    tile[t] = sum;
    (void)ready.arrive();
    ready.wait_parity(false);
    y[t] = tile[127 - t];
""", lambda x: x[:128]),
    Right("runs there and back", READY + """
    Barrier::arrival_token token;
    if (t == 0) {
        cde::cp_async_bulk_global_to_shared(tile, x, 512, ready);
        token = cuda::device::barrier_arrive_tx(ready, 1, 512);
    } else token = ready.arrive();
    ready.wait(cuda::std::move(token));
    tile[t] += 7;
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    if (t == 0) {
        cde::cp_async_bulk_shared_to_global(y, tile, 512);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
""", lambda x: x[:128] + 7),
    Right("boxes of a tensor", READY + """
    Barrier::arrival_token token;
    if (t == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(tile, &tiles, 8, 16, ready);
        token = cuda::device::barrier_arrive_tx(ready, 1, 512);
    } else token = ready.arrive();
    ready.wait(cuda::std::move(token));
    y[t] = tile[t];
""", lambda x: x.reshape(ROWS, COLUMNS)[16:24, 8:24].ravel(), tiles=True),
    Right("mbarriers by ptx", RAW + """
    if (t == 0) {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile, x, 512, &ready);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &ready, 512);
    }
    while (!ptx::mbarrier_try_wait_parity(&ready, 0)) {}
    tile[t] *= 3;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (t == 0) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y, tile, 512);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
""", lambda x: x[:128] * 3),
    Right("boxes by ptx", RAW + """
    if (t == 0) {
        const int32_t at[2] = {8, 24};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &tiles, at, &ready);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &ready, 512);
    }
    while (!ptx::mbarrier_try_wait_parity(&ready, 0)) {}
    y[t] = tile[t];
""", lambda x: x.reshape(ROWS, COLUMNS)[24:32, 8:24].ravel(), tiles=True),
    Right("stores to a neighbour by ptx", CLUSTER + """
    __shared__ int tile[128];
    __shared__ uint64_t ready;
    if (t == 0) { ptx::mbarrier_init(&ready, 1); ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster); }
    cluster.sync();
    if (t == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cluster, ptx::space_shared, &ready, 512);
    const unsigned to = (rank + blocks - 1) % blocks;
    ptx::st_async(cluster.map_shared_rank(&tile[t], to), x[128 * rank + t] + 1000 * (int)rank,
                  cluster.map_shared_rank(&ready, to));
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &ready, 0)) {}
    y[128 * rank + t] = tile[t];
    cluster.sync();
""", _shifted, {"grid": 4, "cluster": 4}),
    Right("sums in a neighbour by ptx", CLUSTER + """
    __shared__ int sum;
    __shared__ uint64_t ready;
    if (t == 0) {
        sum = 5;
        ptx::mbarrier_init(&ready, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    cluster.sync();
    if (t == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cluster, ptx::space_shared, &ready, 512);
    const unsigned to = (rank + 1) % blocks;
    ptx::red_async(ptx::op_add, cluster.map_shared_rank(&sum, to), x[t], cluster.map_shared_rank(&ready, to));
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &ready, 0)) {}
    y[128 * rank + t] = sum + (int)t;
    cluster.sync();
""", lambda x: np.tile(x[:128].sum() + 5 + np.arange(128), 4), {"grid": 4, "cluster": 4}),
    Right("a cluster", CLUSTER + """
    __shared__ int tile[128];
    tile[t] = x[128 * rank + t] + 1000 * (int)rank;
    cluster.sync();
    y[128 * rank + t] = cluster.map_shared_rank(tile, (rank + 1) % blocks)[t];
    cluster.sync();
""", _shifted, {"grid": 4, "cluster": 4}),
    Right("a cluster in two halves", CLUSTER + """
    __shared__ int tile[128], kept[128];
    tile[t] = x[128 * rank + t] + 1000 * (int)rank;
    auto token = cluster.barrier_arrive();
    kept[t] = (int)cluster.thread_rank();
    cluster.barrier_wait(cuda::std::move(token));
    y[128 * rank + t] = cluster.map_shared_rank(tile, (rank + 1) % blocks)[t] + kept[t] - (int)(128 * rank + t);
    cluster.sync();
""", _shifted, {"grid": 4, "cluster": 4}),
    Right("a flag between blocks", """
    const unsigned t = threadIdx.x;
    cuda::atomic_ref<int, cuda::thread_scope_device> flag(y[256]);
    if (blockIdx.x == 0) {
        y[128 + t] = x[t] + 1;
        __syncthreads();
        if (t == 0) flag.store(1, cuda::memory_order_release);
    } else {
        if (t == 0) while (flag.load(cuda::memory_order_acquire) == 0) {}
        __syncthreads();
        y[t] = y[128 + t] * 2;
    }
""", lambda x: (x[:128] + 1) * 2, {"grid": 2}),
    Right("a whole grid", """
    const unsigned t = threadIdx.x;
    auto grid = cg::this_grid();
    y[512 + grid.thread_rank()] = x[grid.thread_rank()] * 5;
    grid.sync();
    y[grid.thread_rank()] = y[512 + grid.size() - 1 - grid.thread_rank()] + (int)t;
""", lambda x: x[511::-1] * 5 + np.tile(np.arange(128), 4), {"grid": 4, "cooperative": True}),
)  # fmt: skip
RIGHT_BY_NAME = {kernel.name: kernel for kernel in RIGHT}

EARLY = ("read-before-wait", "race", "unfinished-copy")
UNCOUNTED = ("deadlock", "mbarrier-transactions", "barrier-misuse", "race", "read-before-wait")
WRONG = (
    Wrong("bytes that are announced", "wait", "ready.wait(cuda::std::move(token));", "", EARLY),
    Wrong("bytes that are announced", "announcement", "cuda::device::barrier_arrive_tx(ready, 1, 512)", "ready.arrive()",
          UNCOUNTED),
    Wrong("bytes that are announced", "some of the bytes", "(ready, 1, 512)", "(ready, 1, 256)", UNCOUNTED),
    Wrong("bytes that are announced", "bytes that come", "(ready, 1, 512)", "(ready, 1, 528)", ("deadlock",)),
    Wrong("waits with a limit", "wait of the copy",
          "while (!ready.try_wait_parity_for(false, cuda::std::chrono::nanoseconds(100))) {}", "", EARLY),
    Wrong("waits with a limit", "wait by parity", "ready.wait_parity(false);", ""),
    Wrong("runs there and back", "proxy fence", "tile[t] += 7;\n    cde::fence_proxy_async_shared_cta();", "tile[t] += 7;",
          ("missing-proxy-fence",)),
    Wrong("runs there and back", "barrier before the store",
          "__syncthreads();\n    if (t == 0) {\n        cde::cp_async_bulk_shared",
          "if (t == 0) {\n        cde::cp_async_bulk_shared", ("missing-proxy-fence", "race")),
    Wrong("runs there and back", "wait for the store", "cde::cp_async_bulk_wait_group_read<0>();", "", ("unfinished-store",)),
    Wrong("boxes of a tensor", "wait", "ready.wait(cuda::std::move(token));", "", EARLY),
    Wrong("boxes of a tensor", "half of the bytes", "(ready, 1, 512)", "(ready, 1, 256)", UNCOUNTED),
    Wrong("mbarriers by ptx", "right parity", "(&ready, 0)", "(&ready, 1)", (*EARLY, "deadlock")),
    Wrong("mbarriers by ptx", "proxy fence", "ptx::fence_proxy_async(ptx::space_shared);", "", ("missing-proxy-fence",)),
    Wrong("boxes by ptx", "wait", "while (!ptx::mbarrier_try_wait_parity(&ready, 0)) {}", "", EARLY),
    Wrong("stores to a neighbour by ptx", "wait",
          "while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &ready, 0)) {}", "", EARLY),
    Wrong("stores to a neighbour by ptx", "meeting behind the initialisation",
          "cluster.sync();\n    if (t == 0) ptx::mbarrier_arr",
          "__syncthreads();\n    if (t == 0) ptx::mbarrier_arr", ("barrier-misuse", "race", "unfenced-init")),
    Wrong("sums in a neighbour by ptx", "wait",
          "while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &ready, 0)) {}", "", EARLY),
    Wrong("a cluster", "meeting before the read", "* (int)rank;\n    cluster.sync();", "* (int)rank;", ("race", "uninitialised")),
    Wrong("a cluster", "meeting of the cluster", "* (int)rank;\n    cluster.sync();", "* (int)rank;\n    __syncthreads();",
          ("race", "uninitialised")),
    Wrong("a cluster", "meeting before the exit", "% blocks)[t];\n    cluster.sync();", "% blocks)[t];",
          ("race", "out-of-bounds")),
    Wrong("a cluster in two halves", "second half", "cluster.barrier_wait(cuda::std::move(token));", "",
          ("race", "uninitialised", "barrier-misuse")),
    Wrong("a flag between blocks", "release", "memory_order_release", "memory_order_relaxed"),
    Wrong("a flag between blocks", "acquire", "memory_order_acquire", "memory_order_relaxed"),
    Wrong("a flag between blocks", "scope", "cuda::thread_scope_device", "cuda::thread_scope_block"),
    Wrong("a whole grid", "meeting", "grid.sync();", "", ("race", "uninitialised")),
    Wrong("a whole grid", "meeting of the grid", "grid.sync();", "__syncthreads();", ("race", "uninitialised")),
)  # fmt: skip


def source() -> str:
    """All of them as one file."""
    found = [
        *((f"right_{at}", kernel.body, kernel.tiles) for at, kernel in enumerate(RIGHT)),
        *((f"wrong_{at}", wrong.body, wrong.right.tiles) for at, wrong in enumerate(WRONG)),
    ]
    tiles = ", const __grid_constant__ CUtensorMap tiles"
    kernels = [
        f'extern "C" __global__ void {name}(const int* x, int* y{tiles if wants else ""}) {{{body}}}'
        for name, body, wants in found
    ]
    return HEADS + "\n".join(kernels)
