"""Kernels of `cuda::barrier`, `cuda::pipeline` and their copies, as CUDA C++: right ones, and the same less one edge.

Every kernel is a body with `const int* x, int* y`, x = 0, 1, 2, ...; `expected` makes y of a block of 128 threads. All are
one source, so that the library is read once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADS = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/chrono>
namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
"""
READY = """
    __shared__ Barrier ready;
    __shared__ alignas(16) int tile[512];
    const int t = threadIdx.x;
    if (t == 0) init(&ready, blockDim.x);
    __syncthreads();
"""


@dataclass(frozen=True)
class Right:
    """A kernel without a fault. only: the target it is compiled for, where another one's code has bulk copies."""

    name: str
    body: str
    expected: Callable[[Any], Any]
    only: str = ""

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
    def body(self) -> str:
        right = RIGHT_BY_NAME[self.less_of].body
        assert right.count(self.old) == 1, self
        return right.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.less_of}: {self.missing}"


def source(bodies: dict[str, str]) -> str:
    """CUDA C++ with a kernel for each name."""
    return HEADS + "".join(
        f'extern "C" __global__ void {name}(const int* x, int* y) {{{body}}}\n' for name, body in bodies.items()
    )


EARLY = ("read-before-wait", "race")
T = np.arange(128)
FILL = "for (int j = t; j < 96; j += 32) stages[i % 2][j] = x[96 * i + j];"
GIVE = "(void)full[i % 2].arrive();"


def rolled(rounds: int) -> Callable[[Any], Any]:
    def expected(x: Any) -> Any:
        row = x[:128]
        for _ in range(rounds):
            row = np.roll(row, 1) + row
        return row

    return expected


def halving(_: Any) -> Any:
    """Thread t stays for the rounds in which t < 128 >> round, and adds what the one above it held."""
    row, gone = np.arange(128), np.zeros(128, int)
    for turn in range(1, 8):
        half = 128 >> turn
        gone[half : 2 * half] = row[half : 2 * half]
        row[:half] += row[half : 2 * half]
    gone[0] = row[0]
    return gone


# fmt: off
RIGHT = (
    Right("token", READY + """
    tile[t] = x[t];
    auto token = ready.arrive();
    ready.wait(std::move(token));
    y[t] = tile[127 - t];
    """, lambda x: x[127 - T]),
    Right("rounds", READY + """
    tile[t] = x[t];
    ready.arrive_and_wait();
    for (int i = 0; i < 6; ++i) {
        int sum = tile[128 * (i % 2) + (t + 127) % 128] + tile[128 * (i % 2) + t];
        tile[128 * (1 - i % 2) + t] = sum;
        ready.arrive_and_wait();
    }
    y[t] = tile[t];
    """, rolled(6)),
    Right("parity", READY + """
    bool parity = false;
    int sum = 0;
    for (int i = 0; i < 5; ++i) {
        tile[128 * (i % 2) + t] = x[128 * i + t];
        (void)ready.arrive();
        ready.wait_parity(parity);
        parity = !parity;
        sum += tile[128 * (i % 2) + 127 - t];
    }
    y[t] = sum;
    """, lambda x: sum(x[128 * i + 127 - T] for i in range(5))),
    Right("drop", READY + """
    tile[t] = x[t];
    ready.arrive_and_wait();
    for (int half = 64; half > 0; half /= 2) {
        if (t >= half) {
            y[t] = tile[t];
            ready.arrive_and_drop();
            return;
        }
        tile[t] += tile[t + half];
        ready.arrive_and_wait();
    }
    y[0] = tile[0];
    """, halving),
    Right("counted", """
    __shared__ Barrier ready;
    __shared__ int tile[128];
    const int t = threadIdx.x;
    if (t == 0) init(&ready, 2 * 96 + 32);
    __syncthreads();
    tile[t] = x[t];
    auto token = ready.arrive(t < 96 ? 2 : 1);
    ready.wait(std::move(token));
    y[t] = tile[127 - t];
    """, lambda x: x[127 - T]),
    Right("timed", READY + """
    if (t < 64) tile[t] = x[t];
    auto token = ready.arrive();
    while (!ready.try_wait_for(std::move(token), cuda::std::chrono::microseconds(10))) { }
    y[t] = tile[t % 64];
    """, lambda x: x[T % 64]),
    Right("reused", """
    __shared__ alignas(8) unsigned long long place[1];
    __shared__ int tile[128];
    const int t = threadIdx.x;
    Barrier& ready = *reinterpret_cast<Barrier*>(place);
    if (t == 0) init(&ready, blockDim.x);
    __syncthreads();
    tile[t] = x[t];
    ready.arrive_and_wait();
    y[t] = tile[127 - t];
    __syncthreads();
    if (t == 0) ready.~Barrier();
    if (t == 0) place[0] = 5;
    __syncthreads();
    y[t] += int(place[0]);
    """, lambda x: x[127 - T] + 5),
    Right("ring", """
    __shared__ Barrier full[2], empty[2];
    __shared__ int stages[2][96];
    const int t = threadIdx.x;
    if (t < 2) { init(full + t, 128); init(empty + t, 128); }
    __syncthreads();
    if (t < 32) {
        for (int i = 0; i < 5; ++i) {
            if (i > 1) empty[i % 2].arrive_and_wait();
            for (int j = t; j < 96; j += 32) stages[i % 2][j] = x[96 * i + j];
            (void)full[i % 2].arrive();
        }
        y[t] = 0;
    } else {
        int sum = 0;
        for (int i = 0; i < 5; ++i) {
            full[i % 2].arrive_and_wait();
            sum = sum * 3 + stages[i % 2][127 - t];
            if (i < 3) (void)empty[i % 2].arrive();
        }
        y[t] = sum;
    }
    """, lambda x: np.where(T < 32, 0, sum(3 ** (4 - i) * x[96 * i + 127 - T] for i in range(5)))),
    Right("copies of 16 bytes", READY + """
    cuda::memcpy_async(tile + 4 * t, x + 4 * t, cuda::aligned_size_t<16>(16), ready);
    ready.arrive_and_wait();
    y[t] = tile[511 - t];
    """, lambda x: x[511 - T], only="sm_80"),
    Right("copies of 4 bytes", READY + """
    cuda::memcpy_async(tile + t, x + t, cuda::aligned_size_t<4>(4), ready);
    ready.arrive_and_wait();
    y[t] = tile[127 - t];
    """, lambda x: x[127 - T]),
    Right("copies of 8 bytes", READY + """
    cuda::memcpy_async(tile + 2 * t, x + 2 * t, cuda::aligned_size_t<8>(8), ready);
    ready.arrive_and_wait();
    y[t] = tile[255 - t];
    """, lambda x: x[255 - T]),
    Right("copies of 3 bytes", READY + """
    char* bytes = reinterpret_cast<char*>(tile);
    cuda::memcpy_async(bytes + 3 * t, reinterpret_cast<const char*>(x) + 3 * t, 3, ready);
    ready.arrive_and_wait();
    y[t] = bytes[383 - t];
    """, lambda x: x[:128].astype(np.int32).view(np.int8)[383 - T], only="sm_80"),
    Right("copies of a block", READY + """
    auto block = cg::this_thread_block();
    cuda::memcpy_async(block, tile, x, sizeof(int) * 500, ready);
    ready.arrive_and_wait();
    y[t] = tile[499 - t];
    """, lambda x: x[499 - T], only="sm_80"),
    Right("cooperative copies", """
    __shared__ alignas(16) int tile[512];
    const int t = threadIdx.x;
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, cuda::aligned_size_t<16>(2048));
    cg::wait(block);
    y[t] = tile[511 - t];
    """, lambda x: x[511 - T], only="sm_80"),
    Right("pipeline of a thread", """
    __shared__ int stages[3][128];
    const int t = threadIdx.x;
    auto pipe = cuda::make_pipeline();
    int sum = 0;
    for (int fetch = 0, step = 0; step < 5; ++step) {
        for (; fetch < 5 && fetch < step + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(&stages[fetch % 3][t], x + 128 * fetch + t, cuda::aligned_size_t<4>(4), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        __syncthreads();
        sum = sum * 3 + stages[step % 3][127 - t];
        pipe.consumer_release();
    }
    y[t] = sum;
    """, lambda x: sum(3 ** (4 - i) * x[128 * i + 127 - T] for i in range(5))),
    Right("pipeline of a block", """
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ alignas(16) int stages[2][512];
    const int t = threadIdx.x;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    int sum = 0;
    for (int fetch = 0, step = 0; step < 4; ++step) {
        for (; fetch < 4 && fetch < step + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(&stages[fetch % 2][4 * t], x + 512 * fetch + 4 * t, cuda::aligned_size_t<16>(16), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = sum * 3 + stages[step % 2][511 - t];
        pipe.consumer_release();
    }
    y[t] = sum;
    """, lambda x: sum(3 ** (3 - i) * x[512 * i + 511 - T] for i in range(4)), only="sm_80"),
    # Stages without a copy are committed at the end: they wait for nothing, and nobody waits for them.
    Right("pipeline with empty stages", """
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int stages[2][128];
    const int t = threadIdx.x;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    int sum = 0;
    for (int i = 0; i < 2; ++i) {
        pipe.producer_acquire();
        cuda::memcpy_async(&stages[i][t], x + i * 128 + t, sizeof(int), pipe);
        pipe.producer_commit();
    }
    for (int i = 0; i < 4; ++i) {
        pipe.consumer_wait();
        sum = sum * 3 + stages[i % 2][127 - t];
        pipe.consumer_release();
        pipe.producer_acquire();
        if (i + 2 < 4) cuda::memcpy_async(&stages[i % 2][t], x + (i + 2) * 128 + t, sizeof(int), pipe);
        pipe.producer_commit();
    }
    y[t] = sum;
    """, lambda x: sum(3 ** (3 - i) * x[128 * i : 128 * i + 128][::-1] for i in range(4))),
    Right("pipeline of producers", """
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int stages[2][96];
    const int t = threadIdx.x;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state, t < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    if (t < 32) {
        for (int i = 0; i < 5; ++i) {
            pipe.producer_acquire();
            for (int j = t; j < 96; j += 32)
                cuda::memcpy_async(&stages[i % 2][j], x + 96 * i + j, cuda::aligned_size_t<4>(4), pipe);
            pipe.producer_commit();
        }
        y[t] = 0;
    } else {
        int sum = 0;
        for (int i = 0; i < 5; ++i) {
            pipe.consumer_wait();
            sum = sum * 3 + stages[i % 2][127 - t];
            pipe.consumer_release();
        }
        y[t] = sum;
    }
    """, lambda x: np.where(T < 32, 0, sum(3 ** (4 - i) * x[96 * i + 127 - T] for i in range(5)))),
)
# fmt: on
RIGHT_BY_NAME = {kernel.name: kernel for kernel in RIGHT}
NEVER = (
    READY
    + """
    y[t] = ready.try_wait_for(ready.arrive(), cuda::std::chrono::seconds(10)) ? 1 : 2;
"""
)  # with an arrival that is missing

# fmt: off
WRONG = (
    Wrong("token", "wait", "ready.wait(std::move(token));", ""),
    Wrong("token", "write before the arrival", "tile[t] = x[t];\n    auto token = ready.arrive();",
          "auto token = ready.arrive();\n    tile[t] = x[t];"),
    Wrong("token", "initialisation", "if (t == 0) init(&ready, blockDim.x);", "", ("barrier-misuse",)),
    Wrong("token", "barrier behind the initialisation", "__syncthreads();", "", ("race", "barrier-misuse")),
    Wrong("token", "one arrival", "init(&ready, blockDim.x)", "init(&ready, blockDim.x + 1)", ("deadlock",)),
    Wrong("token", "room for the last arrival", "init(&ready, blockDim.x)", "init(&ready, blockDim.x - 1)",
          ("barrier-misuse", "race")),
    Wrong("rounds", "second buffer", "tile[128 * (1 - i % 2) + t] = sum;", "tile[t] = sum;"),
    Wrong("rounds", "one round's barrier", "ready.arrive_and_wait();\n    }", "if (i != 3) ready.arrive_and_wait();\n    }"),
    Wrong("parity", "flip of the parity", "parity = !parity;", "", ("race", "barrier-misuse", "deadlock")),
    Wrong("parity", "right parity from the start", "bool parity = false;", "bool parity = true;", ("race", "deadlock")),
    Wrong("drop", "arrival of those that leave", "ready.arrive_and_drop();", "", ("deadlock",)),
    Wrong("drop", "read before the arrival", "y[t] = tile[t];\n            ready.arrive_and_drop();",
          "ready.arrive_and_drop();\n            y[t] = tile[t] + (tile[t - half] = 1);"),
    Wrong("counted", "counts that fit", "t < 96 ? 2 : 1", "2", ("barrier-misuse",)),
    Wrong("reused", "barrier before the end of the object", "__syncthreads();\n    if (t == 0) ready.~Barrier();",
          "if (t == 0) ready.~Barrier();", ("race", "barrier-misuse")),
    Wrong("reused", "end of the object", "if (t == 0) ready.~Barrier();", "", ("barrier-misuse",)),
    Wrong("ring", "wait of the producer", "if (i > 1) empty[i % 2].arrive_and_wait();",
          "if (i > 1) (void)empty[i % 2].arrive();", ("race", "barrier-misuse")),
    Wrong("ring", "wait of the consumers", "full[i % 2].arrive_and_wait();", "(void)full[i % 2].arrive();",
          ("race", "barrier-misuse")),
    Wrong("ring", "read before the slot is given back",
          "sum = sum * 3 + stages[i % 2][127 - t];\n            if (i < 3) (void)empty[i % 2].arrive();",
          "if (i < 3) (void)empty[i % 2].arrive();\n            sum = sum * 3 + stages[i % 2][127 - t];"),
    Wrong("ring", "fill before the arrival", FILL + "\n            " + GIVE, GIVE + "\n            " + FILL),
    Wrong("copies of 16 bytes", "wait", "ready.arrive_and_wait();", "(void)ready.arrive();", EARLY),
    Wrong("copies of 4 bytes", "wait", "ready.arrive_and_wait();", "(void)ready.arrive();", EARLY),
    Wrong("copies of 4 bytes", "a barrier that counts on the copies", "ready.arrive_and_wait();", "__syncthreads();", EARLY),
    Wrong("copies of 8 bytes", "copy before the arrival",
          "cuda::memcpy_async(tile + 2 * t, x + 2 * t, cuda::aligned_size_t<8>(8), ready);\n    ready.arrive_and_wait();",
          "ready.arrive_and_wait();\n    cuda::memcpy_async(tile + 2 * t, x + 2 * t, cuda::aligned_size_t<8>(8), ready);", EARLY),
    Wrong("copies of 3 bytes", "wait", "ready.arrive_and_wait();", "(void)ready.arrive();", EARLY),
    Wrong("copies of a block", "wait", "ready.arrive_and_wait();", "(void)ready.arrive();", EARLY),
    Wrong("cooperative copies", "wait", "cg::wait(block);", "__syncthreads();", EARLY),
    Wrong("pipeline of a thread", "wait of the consumer", "pipe.consumer_wait();", "", EARLY),
    Wrong("pipeline of a thread", "barrier behind the wait", "__syncthreads();", "", EARLY),
    Wrong("pipeline of a thread", "third stage", "stages[fetch % 3]", "stages[fetch % 2]", EARLY),
    Wrong("pipeline of a block", "wait of the consumer", "pipe.consumer_wait();", "", EARLY),
    Wrong("pipeline of a block", "acquire of the producer", "pipe.producer_acquire();", "", (*EARLY, "barrier-misuse")),
    Wrong("pipeline of a block", "release of the consumer", "pipe.consumer_release();", "", ("deadlock",)),
    Wrong("pipeline of a block", "commit of the producer", "pipe.producer_commit();", "", ("deadlock",)),
    Wrong("pipeline of a block", "read before the release",
          "sum = sum * 3 + stages[step % 2][511 - t];\n        pipe.consumer_release();",
          "pipe.consumer_release();\n        sum = sum * 3 + stages[step % 2][511 - t];", EARLY),
    Wrong("pipeline with empty stages", "read before the release",
          "sum = sum * 3 + stages[i % 2][127 - t];\n        pipe.consumer_release();",
          "pipe.consumer_release();\n        sum = sum * 3 + stages[i % 2][127 - t];"),
    Wrong("pipeline of producers", "wait of the consumers", "pipe.consumer_wait();", "", (*EARLY, "barrier-misuse")),
    Wrong("pipeline of producers", "acquire of the producers", "pipe.producer_acquire();", "", (*EARLY, "barrier-misuse")),
    Wrong("pipeline of producers", "release of the consumers", "pipe.consumer_release();", "", (*EARLY, "deadlock")),
)
# fmt: on
