// Read-modify-write between warps and blocks: the last block, counters as barriers, words that hand over other words.
#include "suite.cuh"

// Every block leaves a partial sum; the last one to arrive adds them up.
template <int LESS> __global__ void last_block(ARGS) {
  __shared__ unsigned is_last;
  const unsigned t = threadIdx.x;
  unsigned *const arrived = work, *const partials = work + 64;
  partials[64 * blockIdx.x + t] = in[t] + blockIdx.x;  // A1 A2 A3
  if (LESS != 3) __syncthreads();
  if (t == 0) {
    if (LESS != 1) __threadfence();
    is_last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;  // A4
    if (LESS != 2) __threadfence();
  }
  if (LESS == 4) __syncwarp();
  else __syncthreads();
  if (is_last) {  // B4
    unsigned sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partials[64 * b + 63 - t];  // B1 B2 B3
    out[t] = sum;
  }
}
LESS_4(last_block)

// __threadfence is a fence.sc: here every thread fences for itself, on this side and on that side of the barriers.
template <int LESS> __global__ void fenced_by_all(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const arrived = work, *const partials = work + 64;
  partials[64 * blockIdx.x + t] = in[t] + blockIdx.x;
  __threadfence();
  __syncthreads();
  const bool is_last = __syncthreads_or(t == 0 && atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1);
  __threadfence();
  if (is_last) {
    unsigned sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partials[64 * b + 63 - t];
    out[t] = sum;
  }
}
LESS_0(fenced_by_all)

template <int LESS> __global__ void last_block_acq_rel(ARGS) {
  unsigned *const arrived = work, *const partials = work + 8;
  const unsigned t = threadIdx.x, b = blockIdx.x;
  if (t == 0) {
    unsigned before;
    partials[b] = in[b];  // A1 A2 A3 A4
    if (LESS == 1) ATOM("relaxed.gpu.global.add", before, arrived, 1);
    else if (LESS == 2) ATOM("release.gpu.global.add", before, arrived, 1);
    else if (LESS == 3) ATOM("acquire.gpu.global.add", before, arrived, 1);
    else if (LESS == 4) ATOM("acq_rel.cta.global.add", before, arrived, 1);
    else ATOM("acq_rel.gpu.global.add", before, arrived, 1);
    if (before == gridDim.x - 1) {
      unsigned sum = 0;
      for (unsigned i = 0; i < gridDim.x; ++i) sum += partials[i] * (i + 1);  // B1 B2 B3 B4
      out[0] = sum;
    }
  }
}
LESS_4(last_block_acq_rel)

// Block 1 reads the total when all have added to it.
template <int LESS> __global__ void total_of_blocks(ARGS) {
  if (threadIdx.x == 0) {
    unsigned before, seen = 0;
    if (LESS == 1) ATOM("relaxed.cta.global.add", before, work, in[blockIdx.x]);  // A1 B1
    else if (LESS == 2) work[0] += in[blockIdx.x];  // A2 B2
    else ATOM("relaxed.gpu.global.add", before, work, in[blockIdx.x]);  // A3
    RED("relaxed.gpu.global.add", work + 1, 1);
    if (blockIdx.x == 1) {
      while (seen != gridDim.x) LD("relaxed.gpu.global", seen, work + 1);
      if (LESS == 3) seen = work[0];  // B3
      else LD("relaxed.gpu.global", seen, work);
      out[0] = seen < 1000;
    }
  }
}
LESS_3(total_of_blocks)

// Warps of a block meet at a counter in shared memory.
template <int LESS> __global__ void counter_barrier(ARGS) {
  __shared__ unsigned tile[128], arrived;
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t == 0) arrived = 0;
  __syncthreads();
  tile[t] = in[t];  // A1 A2 A3
  __syncwarp();
  if (lane == 0) {
    unsigned seen;
    if (LESS == 1 || LESS == 3) REDS("relaxed.cta.shared.add", &arrived, 1);
    else REDS("release.cta.shared.add", &arrived, 1);
    do {
      if (LESS == 2 || LESS == 3) LDS("relaxed.cta", seen, &arrived);
      else LDS("acquire.cta", seen, &arrived);
    } while (seen != 4);
  }
  __syncwarp();
  out[t] = tile[127 - t];  // B1 B2 B3
}
LESS_3(counter_barrier)

// The same with atomics of both orders in one instruction, and the data in global memory.
template <int LESS> __global__ void polled_by_atomics(ARGS) {
  __shared__ unsigned arrived;
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t == 0) arrived = 0;
  __syncthreads();
  work[t] = in[t];  // A1
  __syncwarp();
  if (lane == 0) {
    if (LESS != 1) __threadfence_block();
    atomicAdd(&arrived, 1);
    while (atomicAdd(&arrived, 0) != 2) {}
    if (LESS != 1) __threadfence_block();
  }
  __syncwarp();
  out[t] = work[63 - t];  // B1
}
LESS_1(polled_by_atomics)

// A node is filled and its index exchanged into a mailbox.
template <int LESS> __global__ void mailbox(ARGS) {
  unsigned *const box = work, *const nodes = work + 8;
  if (threadIdx.x != 0) return;
  unsigned node = 0;
  if (blockIdx.x == 0) {
    nodes[3] = in[9];  // A1 A2
    if (LESS == 1) EXCHANGE("relaxed.gpu.global", node, box, 3);
    else EXCHANGE("release.gpu.global", node, box, 3);
  } else {
    while (!node) {
      if (LESS == 2) EXCHANGE("relaxed.gpu.global", node, box, 0);
      else EXCHANGE("acquire.gpu.global", node, box, 0);
    }
    out[0] = nodes[node];  // B1 B2
  }
}
LESS_2(mailbox)

template <int LESS> __global__ void work_queue(ARGS) {
  const unsigned lane = threadIdx.x % 32;
  for (;;) {
    unsigned item = 0;
    if (lane == 0) item = atomicAdd(work, 1);
    item = __shfl_sync(0xffffffff, item, 0);
    if (item >= 8) break;
    out[32 * item + lane] = in[lane] + item;
  }
}
LESS_0(work_queue)

template <int LESS> __global__ void extremes(ARGS) {
  __shared__ unsigned low, high;
  const unsigned t = threadIdx.x;
  if (t == 0) low = ~0u;
  if (t == 40) high = 0;
  __syncthreads();
  atomicMin(&low, in[t]);
  atomicMax(&high, in[t]);
  atomicMax(work, in[t]);
  __syncthreads();
  out[t] = high - low + work[0];
}
LESS_0(extremes)

// The last of the warps to arrive reads what all have left in shared memory.
template <int LESS> __global__ void last_warp(ARGS) {
  __shared__ unsigned partials[4], arrived;
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t == 0) arrived = 0;
  __syncthreads();
  if (lane == 0) {
    partials[t / 32] = in[t];  // A1 A2
    if (LESS != 1) __threadfence_block();
    const unsigned before = atomicAdd(&arrived, 1);
    if (LESS != 2) __threadfence_block();
    if (before == 3) out[0] = partials[0] + 2 * partials[1] + 3 * partials[2] + 4 * partials[3];  // B1 B2
  }
}
LESS_2(last_warp)

// Compare-and-swap in a loop; what the first turn expects is read by a strong load.
template <int LESS> __global__ void swapped_sum(ARGS) {
  unsigned expected, found, sum = in[blockIdx.x];
  if (threadIdx.x != 0) return;
  if (LESS == 1) expected = work[0];  // B1
  else LD("relaxed.gpu.global", expected, work);
  while ((found = atomicCAS(work, expected, expected + sum)) != expected) expected = found;  // A1
  if (found == 0) out[0] = 5;
}
LESS_1(swapped_sum)

template <int LESS> __global__ void swapped_sum_shared(ARGS) {
  __shared__ unsigned total;
  const unsigned t = threadIdx.x;
  if (t == 0) total = 0;
  __syncthreads();
  if (t % 32 == 0) {
    unsigned expected = LESS == 1 ? total : atomicAdd(&total, 0);  // B1
    for (;;) {
      const unsigned found = atomicCAS(&total, expected, expected + in[t]);  // A1
      if (found == expected) break;
      expected = found;
    }
  }
  __syncthreads();
  out[t] = total;
}
LESS_1(swapped_sum_shared)

// The lanes that happen to run together take their places by one atomic of a leader.
template <int LESS> __global__ void places_taken(ARGS) {
  const unsigned t = threadIdx.x, lane = t % 32;
  if (in[t] % 2 == 0) {
    const unsigned together = __activemask(), leader = __ffs(together) - 1;
    unsigned first = 0;
    if (lane == leader) first = atomicAdd(work, __popc(together));
    first = __shfl_sync(together, first, leader);
    out[first + __popc(together & ((1u << lane) - 1))] = 1;
  }
}
LESS_0(places_taken)

// The last block sets the counter back by a plain store: its own atomic saw all the others, and the barrier passes that on.
template <int LESS> __global__ void counter_set_back(ARGS) {
  __shared__ bool is_last;
  const unsigned t = threadIdx.x;
  unsigned *const partials = work + 64;
  partials[64 * blockIdx.x + t] = in[t] + blockIdx.x;
  __syncthreads();
  if (t == 0) {
    __threadfence();
    is_last = atomicInc(work, gridDim.x) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last) {
    unsigned sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partials[64 * b + 63 - t];
    out[t] = sum;
    if (t == 5) *work = 0;
  }
}
LESS_0(counter_set_back)
