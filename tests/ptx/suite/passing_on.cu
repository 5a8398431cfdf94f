// Words handed on between blocks: wide and narrow flags, fences that stand too early or with somebody else, rings, turns.
#include "suite.cuh"

// One word of 64 bits says that 16 bytes are there.
template <int LESS> __global__ void wide_flag(ARGS) {
  unsigned long long *const flag = reinterpret_cast<unsigned long long *>(work);
  uint4 *const data = reinterpret_cast<uint4 *>(work + 16);
  if (threadIdx.x) return;
  unsigned long long seen = 0;
  if (blockIdx.x == 0) {
    *data = make_uint4(in[0], in[1], in[2], in[3]);  // A1 A2
    if (LESS == 1) ST64("relaxed.gpu.global", flag, 5ull); else ST64("release.gpu.global", flag, 5ull);
  } else {
    do { if (LESS == 2) LD64("relaxed.gpu.global", seen, flag); else LD64("acquire.gpu.global", seen, flag); } while (seen != 5);
    out[0] = work[18];  // B1 B2
  }
}
LESS_2(wide_flag)

// A flag of 16 bits, fences of the whole system.
template <int LESS> __global__ void short_flag(ARGS) {
  volatile unsigned short *const flag = reinterpret_cast<unsigned short *>(work);
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    work[8] = in[7];  // A1 A2
    if (LESS != 1) __threadfence_system();
    *flag = 3;
  } else {
    while (*flag != 3) {}
    if (LESS != 2) __threadfence_system();
    out[0] = work[8];  // B1 B2
  }
}
LESS_2(short_flag)

// Every thread fences before the barrier; one thread counts by a relaxed atomic, one polls by another.
template <int LESS> __global__ void polled_asleep(ARGS) {
  if (blockIdx.x == 0) {
    work[32 + threadIdx.x] = in[threadIdx.x];  // A1 A2 A3
    __threadfence();
    if (LESS != 1) __syncthreads();
    if (threadIdx.x == 0) atomicAdd(work, 1);
  } else {
    if (threadIdx.x == 0) {
      while (atomicOr(work, 0) == 0) __nanosleep(20);
      if (LESS != 2) __threadfence();
    }
    if (LESS != 3) __syncthreads();
    out[threadIdx.x] = work[32 + 63 - threadIdx.x];  // B1 B2 B3
  }
}
LESS_3(polled_asleep)

// Each block waits for the one before it by atomics that add nothing, adds to the sums and passes on (split-K).
template <int LESS> __global__ void added_in_turn(ARGS) {
  const unsigned t = threadIdx.x, b = blockIdx.x;
  if (t == 0 && b > 0) {
    while (atomicAdd(work, 0) != b) {}
    if (LESS != 1) __threadfence();
  }
  __syncthreads();
  const unsigned sum = (b ? work[32 + t] : 0) + in[t] + b;  // B1 B2
  work[32 + t] = sum;  // A1 A2
  if (LESS != 2) __threadfence();
  __syncthreads();
  if (t == 0) atomicAdd(work, 1);
  if (b == 2) out[t] = sum;
}
LESS_2(added_in_turn)

// A fence before the data, or before the poll, is none.
template <int LESS> __global__ void early_fence(ARGS) {
  unsigned seen = 0;
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    if (LESS == 1) __threadfence();
    work[8] = in[0];  // A1 A2
    if (LESS != 1) __threadfence();
    ST("relaxed.gpu.global", work, 1);
  } else {
    if (LESS == 2) __threadfence();
    while (!seen) LD("relaxed.gpu.global", seen, work);
    if (LESS != 2) __threadfence();
    out[0] = work[8];  // B1 B2
  }
}
LESS_2(early_fence)

// The thread that wrote fences, and another one of its block stores the flag behind a barrier.
template <int LESS> __global__ void foreign_fence(ARGS) {
  unsigned seen = 0;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) work[8] = in[0];  // A1
    if (LESS == 1) { if (threadIdx.x == 32) __threadfence(); }
    else if (threadIdx.x == 0) __threadfence();
    __syncthreads();
    if (threadIdx.x == (LESS == 1 ? 0 : 32)) ST("relaxed.gpu.global", work, 1);
  } else if (threadIdx.x == 0) {
    while (!seen) LD("relaxed.gpu.global", seen, work);
    __threadfence();
    out[0] = work[8];  // B1
  }
}
LESS_1(foreign_fence)

// Each thread of a warp fences for its block before the barrier; one of them stores the flag for another warp.
template <int LESS> __global__ void fenced_apart(ARGS) {
  __shared__ unsigned data[32], flag;
  const unsigned t = threadIdx.x, lane = t % 32;
  unsigned seen = 0;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t < 32) {
    data[lane] = in[lane];  // A1 A2 A3
    if (LESS == 1) FENCE("acq_rel.cta");
    else if (LESS != 2) FENCE("sc.cta");
    __syncwarp();
    if (t == 0) STS("relaxed.cta", &flag, 1);
  } else {
    while (!seen) LDS("relaxed.cta", seen, &flag);
    if (LESS != 3) __threadfence_block();
    out[lane] = data[31 - lane];  // B1 B2 B3
  }
}
LESS_3(fenced_apart)

// One of two paths forgets its fence.
template <int LESS> __global__ void two_paths(ARGS) {
  unsigned seen = 0;
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    work[8] = in[0];  // A1
    if (in[1] == 4) { if (LESS != 1) __threadfence(); }
    else __threadfence();
    atomicExch(work, 1);
  } else {
    while (!seen) LD("acquire.gpu.global", seen, work);
    out[0] = work[8];  // B1
  }
}
LESS_1(two_paths)

// Warps of a block hand on by named barriers, the last of them by a flag.
template <int LESS> __global__ void relay_out(ARGS) {
  __shared__ unsigned s[32];
  const unsigned w = threadIdx.x / 32, l = threadIdx.x % 32;
  unsigned seen = 0;
  if (blockIdx.x == 0) {
    if (w == 0) { work[32 + l] = in[l]; ARRIVE(1, 64); }  // A1 A2 A3
    if (w == 1) { if (LESS != 1) SYNC(1, 64); ARRIVE(2, 64); }
    if (w == 2) { SYNC(2, 64); if (l == 0) { if (LESS == 2) ST("relaxed.gpu.global", work, 1); else ST("release.gpu.global", work, 1); } }
    s[l] = 0;
  } else if (w == 0) {
    if (l == 0) do LD("acquire.gpu.global", seen, work); while (!seen);
    if (LESS != 3) __syncwarp();
    out[l] = work[32 + 31 - l];  // B1 B2 B3
  }
}
LESS_3(relay_out)

// One slot between two blocks: the reader gives it back, the writer waits for that.
template <int LESS> __global__ void one_slot(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *const head = work, *const tail = work + 1, *const slot = work + 64;
#pragma unroll 1
  for (unsigned i = 0, seen; i < 6; ++i) {
    if (blockIdx.x == 0) {
      if (t == 0) do {
        if (LESS == 1) LD("relaxed.gpu.global", seen, tail);
        else LD("acquire.gpu.global", seen, tail);
      } while (seen != i);
      __syncwarp();
      slot[t] = in[i * 32 + t];  // B1 A2 A3 B4 B5
      __syncwarp();
      if (t == 0) {
        if (LESS == 2) ST("relaxed.gpu.global", head, i + 1);
        else ST("release.gpu.global", head, i + 1);
      }
    } else {
      if (t == 0) do {
        if (LESS == 3) LD("relaxed.gpu.global", seen, head);
        else LD("acquire.gpu.global", seen, head);
      } while (seen <= i);
      __syncwarp();
      if (LESS == 5 && t == 0) ST("release.gpu.global", tail, i + 1);
      out[i * 32 + t] = slot[t ^ 1];  // A1 B2 B3 A4 A5
      __syncwarp();
      if (LESS != 5 && t == 0) {
        if (LESS == 4) ST("relaxed.gpu.global", tail, i + 1);
        else ST("release.gpu.global", tail, i + 1);
      }
    }
  }
}
LESS_5(one_slot)

// The semaphore of a serial reduction: blocks add to one row in turn, polling by all threads behind a barrier.
template <int LESS> __global__ void in_turn(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned turn = ~0u;
  while (__syncthreads_and(turn != blockIdx.x)) {
    if (t == 0) {
      if (LESS == 1) LD("relaxed.gpu.global", turn, work);
      else LD("acquire.gpu.global", turn, work);
    }
  }
  work[64 + t] = work[64 + t] * 2 + in[64 * blockIdx.x + t];  // A1 B1 A2 B2 A3 B3
  if (LESS != 2) __syncthreads();
  if (t == 0) {
    if (LESS == 3) ST("relaxed.gpu.global", work, blockIdx.x + 1);
    else ST("release.gpu.global", work, blockIdx.x + 1);
  }
  if (blockIdx.x == gridDim.x - 1) out[t] = work[64 + t];
}
LESS_3(in_turn)

// A queue of many writers and readers: every cell has a number that says whose turn it is.
template <int LESS> __global__ void cells(ARGS) {
  unsigned *const head = work, *const tail = work + 1, *const turns = work + 8, *const cell = work + 16;
  if (threadIdx.x != 0) return;
  for (unsigned i = 0, now; i < 4; ++i) {
    const unsigned at = atomicAdd(blockIdx.x % 2 ? tail : head, 1), wanted = at / 4 * 2 + blockIdx.x % 2;
    do {
      if ((LESS == 1 && blockIdx.x % 2) || (LESS == 3 && blockIdx.x % 2 == 0)) LD("relaxed.gpu.global", now, turns + at % 4);
      else LD("acquire.gpu.global", now, turns + at % 4);
    } while (now != wanted);
    if (blockIdx.x % 2) out[at] = cell[at % 4] > 0;  // B1 B2 A3 A4
    else cell[at % 4] = in[at];  // A1 A2 B3 B4
    if ((LESS == 2 && blockIdx.x % 2 == 0) || (LESS == 4 && blockIdx.x % 2)) ST("relaxed.gpu.global", turns + at % 4, now + 1);
    else ST("release.gpu.global", turns + at % 4, now + 1);
  }
}
LESS_4(cells)
