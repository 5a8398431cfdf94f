// Warps of one block: __syncthreads, named barriers with counts, buffers used again, atomics before a barrier.
#include "suite.cuh"

constexpr unsigned ALL = 0xffffffff;

// A barrier of the block, or what is left of it where the warps do not wait for one another: the lanes of each still meet.
template <bool WHOLE> static __device__ __forceinline__ void meet() {
  if (WHOLE) __syncthreads();
  else __syncwarp();
}

template <int LESS> __global__ void reverse(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];  // A1 A2
  if (LESS == 0) __syncthreads();
  if (LESS == 2) __any_sync(ALL, t & 1);
  out[t] = tile[63 - t];  // B1 B2
}
LESS_2(reverse)

template <int LESS> __global__ void reverse_global(ARGS) {
  const unsigned t = threadIdx.x;
  work[t] = in[t];  // A1
  if (LESS != 1) __syncthreads();
  out[t] = work[63 - t];  // B1
}
LESS_1(reverse_global)

template <int LESS> __global__ void reverse_in_place(ARGS) {
  const unsigned t = threadIdx.x;
  work[t] = in[t];
  __syncthreads();
  const unsigned mirrored = work[63 - t];  // A1
  if (LESS != 1) __syncthreads();
  work[t] = mirrored + 1;  // B1
  __syncthreads();
  out[t] = work[63 - t];
}
LESS_1(reverse_in_place)

template <int LESS> __global__ void reuse(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  unsigned sum = 0;
  for (unsigned round = 0; round < 3; ++round) {
    tile[t] = in[t] * (round + 1);  // B1
    __syncthreads();
    sum += tile[63 - t];  // A1
    if (LESS != 1) __syncthreads();
  }
  out[t] = sum;
}
LESS_1(reuse)

template <int LESS> __global__ void block_sum(ARGS) {
  __shared__ unsigned sums[128];
  const unsigned t = threadIdx.x;
  sums[t] = in[t];  // A1
  meet<LESS != 1>();
  for (unsigned step = 64; step; step /= 2) {
    if (t < step) sums[t] += sums[t + step];  // B1 A2 B2 A3
    if (LESS == 2 ? step != 64 : LESS == 3 ? step != 1 : true) meet<true>();
    else meet<false>();
  }
  out[t] = sums[0];  // B3
}
LESS_3(block_sum)

template <int LESS> __global__ void handover(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t < 32) {
    if (LESS != 3) tile[t] = in[t];  // A1 A2
    ARRIVE(1, 64);
    if (LESS == 3) tile[t] = in[t];  // A3
  } else {
    if (LESS == 1) SYNC(2, 32);
    else if (LESS == 2) ARRIVE(1, 64);
    else SYNC(1, 64);
    out[t - 32] = tile[63 - t];  // B1 B2 B3
  }
}
LESS_3(handover)

template <int LESS> __global__ void two_producers(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t < 64) {
    tile[t] = in[t];  // A1
    if (LESS != 1 || t < 32) ARRIVE(3, LESS == 1 ? 64 : 96);
  } else {
    SYNC(3, LESS == 1 ? 64 : 96);
    out[t - 64] = tile[t - 64] + tile[t - 32];  // B1
  }
}
LESS_1(two_producers)

// Barriers 1 and 2: a buffer is full; 3 and 4: it is empty again.
template <int LESS> __global__ void ring(ARGS) {
  __shared__ unsigned buffer[2][32];
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (unsigned i = 0; i < 6; ++i) {
      if (i >= 2) SYNC(3 + i % 2, 64);
      buffer[LESS == 2 ? 0 : i % 2][lane] = in[lane] * (i + 1);  // B1 B2
      ARRIVE(1 + i % 2, 64);
    }
  } else {
    unsigned sum = 0;
    for (unsigned i = 0; i < 6; ++i) {
      SYNC(1 + i % 2, 64);
      if (LESS == 1 && i < 4) ARRIVE(3 + i % 2, 64);
      sum += buffer[LESS == 2 ? 0 : i % 2][31 - lane];  // A1 A2
      if (LESS != 1 && i < 4) ARRIVE(3 + i % 2, 64);
    }
    out[lane] = sum;
  }
}
LESS_2(ring)

template <int LESS> __global__ void relay(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    tile[lane] = in[lane];  // A1
    ARRIVE(1, 64);
  } else if (warp == 1) {
    if (LESS == 1) ARRIVE(1, 64);
    else SYNC(1, 64);
    ARRIVE(2, 64);
  } else {
    SYNC(2, 64);
    out[lane] = tile[31 - lane];  // B1
  }
}
LESS_1(relay)

template <int LESS> __global__ void relay_global(ARGS) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    work[lane] = in[lane];  // A1
    ARRIVE(1, 64);
  } else if (warp == 1) {
    SYNC(1, 64);
    if (LESS != 1) ARRIVE(2, 64);
  } else {
    SYNC(2, LESS == 1 ? 32 : 64);
    out[lane] = work[31 - lane];  // B1
  }
}
LESS_1(relay_global)

// Two pairs of warps, each with a barrier of its own.
template <int LESS> __global__ void pairs(ARGS) {
  __shared__ unsigned tile[128];
  const unsigned t = threadIdx.x, pair = t / 64;
  tile[t] = in[t];  // A1
  SYNC(5 + pair, 64);
  out[t] = tile[LESS == 1 ? 127 - t : t ^ 32];  // B1
}
LESS_1(pairs)

template <int LESS> __global__ void stencil_two_buffers(ARGS) {
  __shared__ unsigned row[2][64];
  const unsigned t = threadIdx.x;
  unsigned from = 0;
  row[0][t] = in[t];
  for (unsigned round = 0; round < 4; ++round) {
    if (LESS != 2 || round != 2) meet<true>();
    else meet<false>();
    const unsigned sum = row[from][(t + 63) % 64] + row[from][(t + 1) % 64];  // A1 B2
    const unsigned to = LESS == 1 ? from : from ^ 1;
    row[to][t] = sum;  // B1 A2
    from = to;
  }
  out[t] = row[from][t];
}
LESS_2(stencil_two_buffers)

template <int LESS> __global__ void stencil_global(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned *from = work, *to = work + 64;
  from[t] = in[t];
  for (unsigned round = 0; round < 3; ++round) {
    if (LESS != 1 || round != 1) meet<true>();
    else meet<false>();
    const unsigned sum = from[(t + 63) % 64] + from[(t + 1) % 64];  // B1
    to[t] = sum;  // A1
    unsigned *const other = from;
    from = to;
    to = other;
  }
  out[t] = from[t];
}
LESS_1(stencil_global)

template <int LESS> __global__ void transpose(ARGS) {
  __shared__ unsigned tile[8][33];
  const unsigned x = threadIdx.x, y = threadIdx.y, t = x + 32 * y;
  tile[y][x] = in[t];
  __syncthreads();
  out[t] = tile[t % 8][t / 8];
}
LESS_0(transpose)

template <int LESS> __global__ void voted(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  const unsigned some = __syncthreads_or(in[t] == 40), count = __syncthreads_count(in[t] > 40);
  out[t] = tile[63 - t] + some + count;
}
LESS_0(voted)

template <int LESS> __global__ void histogram(ARGS) {
  __shared__ unsigned bins[16];
  const unsigned t = threadIdx.x;
  if (t >= 32 && t < 48) bins[t - 32] = 100;  // A1
  meet<LESS != 1>();
  if (LESS == 3) bins[in[t] % 16] += 1;  // A3 B3
  else atomicAdd(&bins[in[t] % 16], 1);  // B1 A2
  meet<LESS != 2>();
  if (t < 16) out[t] = bins[t];  // B2
}
LESS_3(histogram)

template <int LESS> __global__ void counted_global(ARGS) {
  const unsigned t = threadIdx.x;
  atomicAdd(work + t % 4, in[t]);  // A1
  meet<LESS != 1>();
  out[t] = work[(t + 1) % 4];  // B1
}
LESS_1(counted_global)

template <int LESS> __global__ void any_seen(ARGS) {
  __shared__ unsigned seen;
  const unsigned t = threadIdx.x;
  if (t == 0) seen = 0;
  __syncthreads();
  if (in[t] % 3 == 1) seen = LESS == 1 ? 1 + t / 32 : 1;  // A1 B1
  __syncthreads();
  out[t] = seen;
}
LESS_1(any_seen)

template <int LESS> __global__ void warp_bytes(ARGS) {
  __shared__ unsigned words[32];
  const unsigned t = threadIdx.x, warp = t / 32, lane = t % 32;
  unsigned char *const bytes = reinterpret_cast<unsigned char *>(words);
  if (LESS == 1 && warp == 0) words[lane] = in[t];  // A1
  else bytes[4 * lane + warp] = in[t];  // B1
  __syncthreads();
  out[t] = words[t % 32];
}
LESS_1(warp_bytes)

template <int LESS> __global__ void exiting_warps(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t >= 64) return;
  tile[t] = in[t];
  __syncthreads();
  out[t] = tile[63 - t];
}
LESS_0(exiting_warps)

template <int LESS> __global__ void exiting_lanes(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t % 32 >= 20) return;
  tile[t] = in[t];
  __syncthreads();
  out[t] = tile[(t + 32) % 64] + tile[19 - t % 32];
}
LESS_0(exiting_lanes)

// Warp 2 arrives, and exits; what it wrote behind its arrival nobody waits for.
template <int LESS> __global__ void exit_after_arrival(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t >= 64) {
    if (LESS != 1) tile[lane] = in[lane];
    ARRIVE(1, 96);
    if (LESS == 1) tile[lane] = in[lane];  // A1
    return;
  }
  SYNC(1, 96);
  out[t] = tile[31 - lane];  // B1
}
LESS_1(exit_after_arrival)

template <int LESS> __global__ void volatile_between(ARGS) {
  __shared__ unsigned tile[64];
  __shared__ volatile unsigned unrelated[2];
  const unsigned t = threadIdx.x;
  unrelated[t / 32] = 0;
  __syncthreads();
  tile[t] = in[t];  // A1
  if (LESS != 1) __syncthreads();
  unrelated[t / 32] = 1;
  const unsigned zero = unrelated[1 - t / 32] >> 1;
  out[t] = tile[63 - t] + zero;  // B1
}
LESS_1(volatile_between)

template <int LESS> __global__ void scan(ARGS) {
  __shared__ unsigned warps[4];
  const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
  unsigned sum = in[t];
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned before = __shfl_up_sync(ALL, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (unsigned before = 0; before < warp; ++before) sum += warps[before];
  out[t] = sum;
}
LESS_0(scan)

// barrier.sync without .aligned: the halves of a warp may come to it at different instructions.
template <int LESS> __global__ void unaligned(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (t % 2) {
    tile[t] = in[t] + 1;
    asm volatile("barrier.sync 1;" ::: "memory");
    out[t] = tile[63 - t] * 3;
  } else {
    tile[t] = in[t] * 2;
    asm volatile("barrier.sync 1;" ::: "memory");
    out[t] = tile[63 - t] - 4;
  }
}
LESS_0(unaligned)

// A matrix of words per warp that the next warp uses: a pipeline of three warps over four tiles.
template <int LESS> __global__ void pipeline(ARGS) {
  __shared__ unsigned stage[2][2][32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned sum = 0;
  for (unsigned beat = 0; beat < 6; ++beat) {
    const unsigned now = beat % 2;
    if (warp == 0 && beat < 4) stage[0][now][lane] = in[32 * beat + lane];  // B1
    if (warp == 1 && beat >= 1 && beat < 5) stage[1][now][lane] = stage[0][LESS == 1 ? now : 1 - now][31 - lane] * 2;  // A1
    if (warp == 2 && beat >= 2) sum += stage[1][1 - now][31 - lane];
    __syncthreads();
  }
  if (warp == 2) out[lane] = sum;
}
LESS_1(pipeline)

// A store of 16 bytes, read word by word by four warps.
template <int LESS> __global__ void wide_store(ARGS) {
  __shared__ uint4 wide[32];
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t < 32) wide[lane] = make_uint4(in[lane], in[lane] + 1, in[lane] + 2, in[lane] + 3);  // A1
  meet<LESS != 1>();
  out[t] = reinterpret_cast<unsigned *>(wide)[127 - t];  // B1
}
LESS_1(wide_store)

// Every warp writes what is there already while the others read it.
template <int LESS> __global__ void rewritten(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x, lane = t % 32;
  if (t < 32) tile[lane] = in[lane];
  __syncthreads();
  if (LESS == 0 || t >= 32) tile[lane] = in[lane] + LESS;  // A1
  if (LESS == 1) __syncwarp();
  out[t] = tile[31 - lane];  // B1
}
LESS_1(rewritten)

template <int LESS> __global__ void matrices(ARGS) {
  __shared__ __align__(16) unsigned tile[64][4];
  const unsigned t = threadIdx.x, lane = t % 32;
  for (unsigned i = 0; i < 4; ++i) tile[t][i] = in[4 * t + i];  // A1
  if (LESS != 1) __syncthreads();
  unsigned d[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(AT(tile[63 - t])) : "memory");  // B1
  out[t] = d[0] + 2 * d[1] + 3 * d[2] + 4 * d[3];
}
LESS_1(matrices)

// The first warp makes a table that all use, over and over; the last use is over before it changes.
template <int LESS> __global__ void broadcast(ARGS) {
  __shared__ unsigned value;
  const unsigned t = threadIdx.x;
  unsigned sum = 0;
  for (unsigned round = 0; round < 3; ++round) {
    if (t == 0) value = in[round];
    __syncthreads();
    sum = sum * 2 + value;
    __syncthreads();
  }
  out[t] = sum + t;
}
LESS_0(broadcast)
