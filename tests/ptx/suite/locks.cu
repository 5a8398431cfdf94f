// Locks between warps and blocks: exchange and compare-and-swap, tickets, what they protect in shared and global memory.
#include "suite.cuh"

// One lane of each warp takes a lock in shared memory that protects a word of shared memory.
template <int LESS> __global__ void shared_lock(ARGS) {
  __shared__ unsigned lock, count;
  if (threadIdx.x == 0) lock = 0, count = in[0];
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (LESS != 1) __threadfence_block();
    const unsigned old = count;  // B1 B2
    count = old + 1;  // A1 A2
    if (LESS != 2) __threadfence_block();
    atomicExch(&lock, 0);
  }
  __syncthreads();
  out[threadIdx.x] = count;
}
LESS_2(shared_lock)

template <int LESS> __global__ void shared_lock_global_data(ARGS) {
  __shared__ unsigned lock;
  unsigned *const count = work + blockIdx.x;
  if (threadIdx.x == 0) lock = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (LESS != 1) __threadfence_block();
    const unsigned old = *count;  // B1 B2
    *count = old + in[3];  // A1 A2
    if (LESS != 2) __threadfence_block();
    atomicExch(&lock, 0);
  }
  __syncthreads();
  out[2 * blockIdx.x] = *count;
}
LESS_2(shared_lock_global_data)

template <int LESS> __global__ void global_lock_shared_data(ARGS) {
  __shared__ unsigned count;
  unsigned *const lock = work + blockIdx.x;
  if (threadIdx.x == 0) count = in[1];
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    unsigned taken = 1, found;
    while (taken) {
      if (LESS == 1) SWAP("relaxed.gpu.global", taken, lock, 0, 1);
      else SWAP("acquire.gpu.global", taken, lock, 0, 1);
    }
    const unsigned old = count;  // B1 B2
    count = old + 2;  // A1 A2
    if (LESS == 2) EXCHANGE("relaxed.gpu.global", found, lock, 0);
    else EXCHANGE("release.gpu.global", found, lock, 0);
  }
  __syncthreads();
  out[64 * blockIdx.x + threadIdx.x] = count;
}
LESS_2(global_lock_shared_data)

template <int LESS> __global__ void block_lock(ARGS) {
  unsigned *const lock = work, *const count = work + 1;
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    if (LESS != 1) __threadfence();
    const unsigned old = *count;  // B1 B2
    *count = old + in[2];  // A1 A2
    if (old == 3 * in[2]) out[0] = old;
    if (LESS != 2) __threadfence();
    atomicExch(lock, 0);
  }
}
LESS_2(block_lock)

template <int LESS> __global__ void acquired_lock(ARGS) {
  unsigned *const lock = work + (LESS == 3 ? blockIdx.x % 2 : 0), *const count = work + 2;
  if (threadIdx.x == 0) {
    unsigned taken = 1;
    while (taken) {
      if (LESS == 1) SWAP("relaxed.gpu.global", taken, lock, 0, 1);
      else if (LESS == 4) SWAP("acquire.cta.global", taken, lock, 0, 1);
      else SWAP("acquire.gpu.global", taken, lock, 0, 1);
    }
    const unsigned old = *count;  // B1 B2 B3 B4
    *count = old + in[2];  // A1 A2 A3 A4
    if (old == 3 * in[2]) out[0] = old;
    if (LESS == 2) ST("relaxed.gpu.global", lock, 0);
    else ST("release.gpu.global", lock, 0);
  }
}
LESS_4(acquired_lock)

template <int LESS> __global__ void ticket_lock(ARGS) {
  unsigned *const next = work, *const serving = work + 1, *const count = work + 2;
  if (threadIdx.x == 0) {
    const unsigned mine = atomicAdd(next, 1);
    unsigned now;
    do {
      if (LESS == 1) LD("relaxed.gpu.global", now, serving);
      else LD("acquire.gpu.global", now, serving);
    } while (now != mine);
    const unsigned old = *count;  // B1 B2
    *count = old * 2 + in[mine];  // A1 A2
    if (mine == 3) out[0] = *count;
    if (LESS == 2) ST("relaxed.gpu.global", serving, mine + 1);
    else ST("release.gpu.global", serving, mine + 1);
  }
}
LESS_2(ticket_lock)

template <int LESS> __global__ void warp_tickets(ARGS) {
  __shared__ unsigned next, serving, line[32];
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x < 32) line[lane] = 1;
  if (threadIdx.x == 0) next = 0, serving = 0;
  __syncthreads();
  unsigned mine = 0, now;
  if (lane == 0) {
    mine = atomicAdd(&next, 1);
    do LDS("acquire.cta", now, &serving);
    while (now != mine);
  }
  __syncwarp();
  const unsigned value = line[31 - lane];
  __syncwarp();
  line[lane] = value * 2 + lane;
  __syncwarp();
  if (lane == 0) STS("release.cta", &serving, mine + 1);
  __syncthreads();
  if (threadIdx.x < 32) out[lane] = line[lane];
}
LESS_0(warp_tickets)
