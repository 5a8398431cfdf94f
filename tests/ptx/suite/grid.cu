// Blocks of a grid that run together: barriers of the grid, look-back, slots and elements of one's own.
#include "suite.cuh"

// The algorithm of cooperative groups: block 0 adds 2^31 - (blocks - 1), every other block 1, and all wait until the highest
// bit has changed. Without number 1 its release, 2 its acquire, 3 and 4 the barriers of the block, 5 its scope, 6 the barrier.
template <int LESS> static __device__ __forceinline__ void meet(unsigned *arrived) {
  if (LESS == 6) return;
  if (LESS != 3) __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
    unsigned before, now;
    if (LESS == 1) ATOM("relaxed.gpu.global.add", before, arrived, step);
    else if (LESS == 5) ATOM("release.cta.global.add", before, arrived, step);
    else ATOM("release.gpu.global.add", before, arrived, step);
    do {
      if (LESS == 2) LD("relaxed.gpu.global", now, arrived);
      else LD("acquire.gpu.global", now, arrived);
    } while (((before ^ now) & 0x80000000u) == 0);
  }
  if (LESS != 4) __syncthreads();
}

template <int LESS> __global__ void grid_barrier(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x;
  unsigned *const data = work + 16;
  data[i] = in[i];  // A1 A2 A3 A4 A5 A6
  meet<LESS>(work);
  out[i] = data[count - 1 - i];  // B1 B2 B3 B4 B5 B6
}
LESS_6(grid_barrier)

template <int LESS> __global__ void grid_rounds(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x;
  unsigned *const data = work + 16;
  data[i] = in[i];
  meet<0>(work);
  for (unsigned round = 0; round < 3; ++round) {
    const unsigned sum = data[i] + data[(i + blockDim.x) % count];  // A1
    if (LESS != 1) meet<0>(work);
    data[i] = sum;  // B1
    meet<0>(work);
  }
  out[i] = data[i];
}
LESS_1(grid_rounds)

template <int LESS> __global__ void fenced_grid_barrier(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x;
  unsigned *const data = work + 16;
  volatile unsigned *const arrived = work;
  data[i] = in[i] * 2;  // A1 A2
  __syncthreads();
  if (threadIdx.x == 0) {
    if (LESS != 1) __threadfence();
    atomicAdd(work, 1);  // A3
    unsigned seen = 0;
    while (seen < gridDim.x) {
      if (LESS == 3) asm volatile("ld.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");  // B3
      else seen = *arrived;
    }
    if (LESS != 2) __threadfence();
  }
  __syncthreads();
  out[i] = data[count - 1 - i];  // B1 B2
}
LESS_3(fenced_grid_barrier)

// Status and value in one word of 64 bits: the word is read as a whole, and nothing else is handed over.
template <int LESS> __global__ void look_back_word(ARGS) {
  unsigned long long *const words = reinterpret_cast<unsigned long long *>(work);
  const unsigned b = blockIdx.x;
  if (threadIdx.x != 0) return;
  unsigned long long own = in[b], word = 0;
  if (b > 0) {
    while ((word >> 32) == 0) {
      if (LESS == 1) asm volatile("ld.global.u64 %0, [%1];" : "=l"(word) : "l"(words + b - 1) : "memory");  // B1
      else LD64("relaxed.gpu.global", word, words + b - 1);
    }
    own += word & 0xffffffff;
  }
  ST64("relaxed.gpu.global", words + b, own | 1ull << 32);  // A1
  out[b] = own;
}
LESS_1(look_back_word)

template <int LESS> __global__ void look_back_released(ARGS) {
  unsigned *const status = work, *const sums = work + 16;
  const unsigned b = blockIdx.x;
  if (threadIdx.x != 0) return;
  unsigned sum = in[b], seen = 0;
  if (b > 0) {
    while (!seen) {
      if (LESS == 2) LD("relaxed.gpu.global", seen, status + b - 1);
      else LD("acquire.gpu.global", seen, status + b - 1);
    }
    sum += sums[b - 1];  // B1 B2
  }
  sums[b] = sum;  // A1 A2
  if (LESS == 1) ST("relaxed.gpu.global", status + b, 1);
  else ST("release.gpu.global", status + b, 1);
  out[b] = sum;
}
LESS_2(look_back_released)

// Aggregates first (status 1), then inclusive sums (status 2); block 0 gives its inclusive sum at once.
template <int LESS> __global__ void look_back_fenced(ARGS) {
  volatile unsigned *const status = work;
  unsigned *const aggregates = work + 16, *const inclusive = work + 32;
  const unsigned b = blockIdx.x;
  if (threadIdx.x != 0) return;
  unsigned sum = in[b];
  if (b > 0) {
    aggregates[b] = sum;
    __threadfence();
    status[b] = 1;
  }
  for (unsigned i = b; i-- > 0;) {
    unsigned seen;
    do seen = status[i];
    while (seen == 0);
    if (LESS != 2) __threadfence();
    if (seen == 2) {
      sum += inclusive[i];  // B1 B2
      break;
    }
    sum += aggregates[i];
  }
  inclusive[b] = sum;  // A1 A2
  if (LESS != 1) __threadfence();
  status[b] = 2;
  out[b] = sum;
}
LESS_2(look_back_fenced)

template <int LESS> __global__ void own_element(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  work[i] = in[i];
  work[i] = work[i] * 3 + 1;  // A2
  const unsigned j = LESS == 1 ? i % 32 : i;
  work[128 + j] = work[i] + blockIdx.x;  // A1 B1
  out[i] = work[LESS == 2 ? i ^ 32 : i];  // B2
}
LESS_2(own_element)

template <int LESS> __global__ void found_flag(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (in[i] % 2 == 0) work[0] = LESS == 1 ? blockIdx.x + 1 : 1;  // A1 B1
  out[i] = in[i] + 1;
}
LESS_1(found_flag)

template <int LESS> __global__ void in_place(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned round = 0; round < 3; ++round) {
    out[i] += in[i] + round;
    __syncthreads();
  }
}
LESS_0(in_place)

template <int LESS> __global__ void block_bytes(ARGS) {
  unsigned char *const bytes = reinterpret_cast<unsigned char *>(out);
  const unsigned t = threadIdx.x, b = blockIdx.x;
  if (LESS == 1 && b == 0) out[t] = in[t];  // A1
  else bytes[4 * t + b] = in[t] + b;  // B1
}
LESS_1(block_bytes)

// More blocks than run at once: each has a tile and a part of a histogram of its own.
template <int LESS> __global__ void many_blocks(ARGS) {
  __shared__ unsigned tile[128];
  const unsigned t = threadIdx.x, b = blockIdx.x;
  tile[t] = in[t] + b;
  __syncthreads();
  if (t == 0) work[b] = tile[127 - b % 128];  // A1
  if (LESS == 1 && t == 0 && b > 0) atomicAdd(out, work[b - 1]);  // B1
  if (LESS == 0 && t == 0) atomicAdd(out, tile[b % 128]);
}
LESS_1(many_blocks)
