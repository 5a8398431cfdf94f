// The same promises in the words of the standard library: what libcu++ makes of memory orders and scopes.
#include <cuda/atomic>

#include "suite.cuh"

using cuda::memory_order_acq_rel;
using cuda::memory_order_acquire;
using cuda::memory_order_relaxed;
using cuda::memory_order_release;
using DeviceWord = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;
using BlockWord = cuda::atomic_ref<unsigned, cuda::thread_scope_block>;

template <int LESS> __global__ void standard_flag(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const data = work + 32;
  DeviceWord flag(*work);
  if (blockIdx.x == 0) {
    data[t] = in[t];
    __syncwarp();
    if (t == 0) flag.store(1, memory_order_release);
  } else {
    while (flag.load(memory_order_acquire) == 0) {}
    out[t] = data[31 - t];
  }
}
LESS_0(standard_flag)

template <int LESS> __global__ void sequential_flag(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const data = work + 32;
  DeviceWord flag(*work);
  if (blockIdx.x == 0) {
    data[t] = in[t] + 2;
    __syncwarp();
    if (t == 0) flag.store(1);
  } else {
    while (flag.load() == 0) {}
    out[t] = data[31 - t];
  }
}
LESS_0(sequential_flag)

template <int LESS> __global__ void standard_fences(ARGS) {
  __shared__ unsigned data[32], word;
  const unsigned lane = threadIdx.x % 32;
  BlockWord flag(word);
  if (threadIdx.x == 0) word = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = in[lane];
    __syncwarp();
    cuda::atomic_thread_fence(memory_order_release, cuda::thread_scope_block);
    if (lane == 0) flag.store(1, memory_order_relaxed);
  } else {
    while (flag.load(memory_order_relaxed) == 0) {}
    cuda::atomic_thread_fence(memory_order_acquire, cuda::thread_scope_block);
    out[lane] = data[31 - lane];
  }
}
LESS_0(standard_fences)

template <int LESS> __global__ void standard_lock(ARGS) {
  DeviceWord lock(work[0]);
  if (threadIdx.x == 0) {
    while (lock.exchange(1, memory_order_acquire) != 0) {}
    const unsigned old = work[1];
    work[1] = old + in[2];
    if (old == 3 * in[2]) out[0] = old;
    lock.store(0, memory_order_release);
  }
}
LESS_0(standard_lock)

template <int LESS> __global__ void standard_counter(ARGS) {
  DeviceWord arrived(work[0]);
  unsigned *const partials = work + 8;
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = in[blockIdx.x];
    if (arrived.fetch_add(1, memory_order_acq_rel) == gridDim.x - 1) {
      unsigned sum = 0;
      for (unsigned i = 0; i < gridDim.x; ++i) sum += partials[i] * (i + 1);
      out[0] = sum;
    }
  }
}
LESS_0(standard_counter)

// wait and notify of the library: a poll that backs off.
template <int LESS> __global__ void standard_wait(ARGS) {
  const unsigned t = threadIdx.x;
  DeviceWord flag(*work);
  if (blockIdx.x == 0) {
    if (t == 0) {
      work[40] = in[7];
      flag.store(1, memory_order_release);
      flag.notify_all();
    }
  } else {
    flag.wait(0, memory_order_acquire);
    out[t] = work[40] + t;
  }
}
LESS_0(standard_wait)
