// Lanes of one warp: __syncwarp, its masks, locks and flags between lanes, and what only looks like order.
#include "suite.cuh"

constexpr unsigned ALL = 0xffffffff;

template <int LESS> __global__ void neighbour(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];  // A1
  if (LESS != 1) __syncwarp();
  out[t] = tile[t ^ 1];  // B1
}
LESS_1(neighbour)

template <int LESS> __global__ void rotate_in_place(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp();
  const unsigned next = tile[(t + 1) % 32];  // A1
  if (LESS != 1) __syncwarp();
  tile[t] = next + 5;  // B1
  __syncwarp();
  out[t] = tile[t];
}
LESS_1(rotate_in_place)

template <int LESS> __global__ void half_mask(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t < 16) {
    tile[t] = in[t];  // A1
    if (LESS == 1) {
      if (t < 15) __syncwarp(0x7fff);
    } else {
      __syncwarp(0xffff);
    }
    out[t] = tile[15 - t];  // B1
  } else {
    out[t] = 7;
  }
}
LESS_1(half_mask)

template <int LESS> __global__ void both_arms(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t % 2) {
    tile[t] = in[t] + 1;  // A1
    if (LESS != 1) __syncwarp();
    out[t] = tile[t - 1] * 3;
  } else {
    tile[t] = in[t] * 2;
    if (LESS != 1) __syncwarp();
    out[t] = tile[t + 1] - 4;  // B1
  }
}
LESS_1(both_arms)

template <int LESS> __global__ void across_quarters(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];  // A1
  if (LESS == 1) __syncwarp(0xffu << (t & 24));
  else __syncwarp(ALL);
  out[t] = tile[(t + 8) % 32];  // B1
}
LESS_1(across_quarters)

template <int LESS> __global__ void within_quarters(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp(0xffu << (t & 24));
  out[t] = tile[t ^ 7];
}
LESS_0(within_quarters)

template <int LESS> __global__ void one_writer(ARGS) {
  __shared__ unsigned slot;
  const unsigned t = threadIdx.x;
  if (LESS == 1 || t == 9) slot = in[t];  // A1 B1
  __syncwarp();
  out[t] = slot + t;
}
LESS_1(one_writer)

template <int LESS> __global__ void one_writer_global(ARGS) {
  const unsigned t = threadIdx.x;
  if (LESS == 1 || t == 9) work[0] = in[t];  // A1 B1
  __syncwarp();
  out[t] = work[0] + t;
}
LESS_1(one_writer_global)

template <int LESS> __global__ void one_value(ARGS) {
  __shared__ unsigned seen[2];
  const unsigned t = threadIdx.x;
  if (t < 2) seen[t] = 0;
  __syncwarp();
  if (in[t] > 40) seen[0] = 1;
  if (in[t] > 400) seen[1] = 1;
  __syncwarp();
  out[t] = seen[0] + 2 * seen[1];
}
LESS_0(one_value)

template <int LESS> __global__ void tree_sum(ARGS) {
  __shared__ unsigned sums[32];
  const unsigned t = threadIdx.x;
  sums[t] = in[t];
  for (unsigned step = 16; step; step /= 2) {
    if (LESS != 1 || step == 16) __syncwarp();
    const unsigned other = sums[t ^ step];  // B1
    __syncwarp();
    sums[t] += other;  // A1
  }
  __syncwarp();
  out[t] = sums[t];
}
LESS_1(tree_sum)

template <int LESS> __global__ void scan_two_buffers(ARGS) {
  __shared__ unsigned sums[2][32];
  const unsigned t = threadIdx.x;
  sums[0][t] = in[t];
  unsigned from = 0;
  for (unsigned step = 1; step < 32; step *= 2) {
    __syncwarp();
    const unsigned before = t >= step ? sums[from][t - step] : 0;  // A1
    const unsigned to = LESS == 1 ? from : from ^ 1;
    sums[to][t] = sums[from][t] + before;  // B1
    from = to;
  }
  out[t] = sums[from][t];
}
LESS_1(scan_two_buffers)

template <int LESS> __global__ void neighbour_global(ARGS) {
  const unsigned t = threadIdx.x;
  work[t] = in[t];  // A1
  if (LESS != 1) __syncwarp();
  out[t] = work[t ^ 1];  // B1
}
LESS_1(neighbour_global)

template <int LESS> __global__ void rotate_global(ARGS) {
  const unsigned t = threadIdx.x;
  work[t] = in[t];
  __syncwarp();
  const unsigned next = work[(t + 1) % 32];  // A1
  if (LESS != 1) __syncwarp();
  work[t] = next + 5;  // B1
  __syncwarp();
  out[t] = work[t];
}
LESS_1(rotate_global)

template <int LESS> __global__ void lane_bytes(ARGS) {
  __shared__ __align__(4) unsigned char bytes[32];
  const unsigned t = threadIdx.x, value = in[t];
  if (LESS == 1 && t % 2 == 0) *reinterpret_cast<unsigned short *>(bytes + t) = value;  // A1
  else bytes[t] = value;  // B1
  __syncwarp();
  out[t] = bytes[(t + 1) % 32];
}
LESS_1(lane_bytes)

template <int LESS> __global__ void lane_lock(ARGS) {
  __shared__ unsigned lock, count;
  const unsigned t = threadIdx.x;
  if (t == 0) lock = 0, count = in[0];
  __syncwarp();
  for (bool done = false; !done;) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      if (LESS != 1) __threadfence_block();
      const unsigned old = count;  // B1 B2
      count = old + 1;  // A1 A2
      if (LESS != 2) __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncwarp();
  out[t] = count;
}
LESS_2(lane_lock)

template <int LESS> __global__ void lane_flag(ARGS) {
  __shared__ unsigned data, flag;
  const unsigned t = threadIdx.x;
  if (t == 0) flag = 0;
  __syncwarp();
  if (t == 0) {
    data = in[5];  // A1 A2
    if (LESS == 1) STS("relaxed.cta", &flag, 1);
    else STS("release.cta", &flag, 1);
  } else if (t == 1) {
    unsigned seen = 0;
    while (!seen) {
      if (LESS == 2) LDS("relaxed.cta", seen, &flag);
      else LDS("acquire.cta", seen, &flag);
    }
    out[0] = data;  // B1 B2
  }
}
LESS_2(lane_flag)

template <int LESS> __global__ void lane_atomics(ARGS) {
  __shared__ unsigned total;
  const unsigned t = threadIdx.x;
  if (t == 0) total = 0;
  __syncwarp();
  atomicAdd(&total, in[t]);  // A1
  if (LESS != 1) __syncwarp();
  out[t] = total;  // B1
}
LESS_1(lane_atomics)

template <int LESS> __global__ void lane_atomics_global(ARGS) {
  const unsigned t = threadIdx.x;
  atomicAdd(work, in[t]);  // A1
  if (LESS != 1) __syncwarp();
  out[t] = work[0];  // B1
}
LESS_1(lane_atomics_global)

template <int LESS> __global__ void zeroed_by_one_lane(ARGS) {
  const unsigned t = threadIdx.x;
  if (t == 0) work[3] = 11;  // A1
  if (LESS != 1) __syncwarp();
  atomicMax(work + 3, in[t]);  // B1
  __syncwarp();
  out[t] = work[3];
}
LESS_1(zeroed_by_one_lane)

template <int LESS> __global__ void exited_lanes(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t >= 24) return;
  tile[t] = in[t];
  __syncwarp();
  const unsigned one = tile[23 - t];
  __syncwarp(0xffffff);
  tile[t] = one + 1;
  __syncwarp();
  out[t] = tile[(t + 5) % 24];
}
LESS_0(exited_lanes)

template <int LESS> __global__ void elected_lane(ARGS) {
  __shared__ unsigned slot;
  const unsigned t = threadIdx.x, wanting = __ballot_sync(ALL, in[t] % 7 == 0), leader = __ffs(wanting) - 1;
  if (t == leader) slot = in[t] + wanting % 11;
  __syncwarp();
  out[t] = slot;
}
LESS_0(elected_lane)

template <int LESS> __global__ void counted_mask(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x, mask = __ballot_sync(ALL, in[t] < 50);
  if (in[t] < 50) {
    tile[t] = in[t];
    __syncwarp(mask);
    out[t] = tile[__ffs(mask) - 1] + tile[31 - __clz(mask)];
  }
}
LESS_0(counted_mask)

template <int LESS> __global__ void nested_masks(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp();
  unsigned value = tile[t ^ 15];
  if (t < 16) {
    __syncwarp(0xffff);
    tile[t] = value * 2;  // A1
    if (t < 8) {
      if (LESS != 1) __syncwarp(0xff);
      value += tile[t ^ 1];  // B1
    }
    __syncwarp(0xffff);
    value += tile[15 - t];
  }
  out[t] = value;
}
LESS_1(nested_masks)

template <int LESS> __global__ void own_slots(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  for (unsigned i = 0; i < 2; ++i) tile[t + 32 * i] = in[t] + i;
  for (unsigned round = 0; round < 4; ++round)
    for (unsigned i = 0; i < 2; ++i) tile[t + 32 * i] += tile[t + 32 * (1 - i)] + round;
  out[t] = tile[t] ^ tile[t + 32];
}
LESS_0(own_slots)

// A rendezvous is no memory order: instances 1 to 4 keep one of them and lose the __syncwarp.
template <int LESS> __global__ void rendezvous(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  unsigned met = 0;
  tile[t] = in[t];  // A1 A2 A3 A4
  if (LESS == 0) __syncwarp();
  if (LESS == 0 || LESS == 1) met += __shfl_xor_sync(ALL, t, 1) ^ t;
  if (LESS == 0 || LESS == 2) met += __ballot_sync(ALL, t < 40) == ALL;
  if (LESS == 0 || LESS == 3) met += __match_any_sync(ALL, t / 32) == ALL;
  if (LESS == 0 || LESS == 4) met += __reduce_max_sync(ALL, t) == 31;
  out[t] = tile[t ^ 1] + met;  // B1 B2 B3 B4
}
LESS_4(rendezvous)

// A matrix instruction gathers the lanes of its warp for its own sake: what they stored is not ordered before it.
template <int LESS> __global__ void loaded_matrix(ARGS) {
  __shared__ __align__(16) unsigned tile[8][4];
  const unsigned t = threadIdx.x;
  tile[t / 4][t % 4] = in[t];  // A1
  if (LESS != 1) __syncwarp();
  unsigned word;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(word) : "r"(AT(tile[7 - t % 8])) : "memory");  // B1
  out[t] = word;
}
LESS_1(loaded_matrix)

template <int LESS> __global__ void shuffled_sum(ARGS) {
  unsigned sum = in[threadIdx.x];
  for (unsigned step = 16; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
  out[threadIdx.x] = sum;
}
LESS_0(shuffled_sum)

template <int LESS> __global__ void shuffled_halves(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned value = in[t];
  if (t < 16) value = __shfl_sync(0xffff, value, 15 - t);
  else value = __shfl_sync(0xffff0000, value, 47 - t) * 2;
  out[t] = value;
}
LESS_0(shuffled_halves)

// volatile keeps the compiler from holding a word back. It orders no lanes: each step of the sum needs its __syncwarp.
template <int LESS> __global__ void volatile_sum(ARGS) {
  __shared__ volatile unsigned sums[32];
  const unsigned t = threadIdx.x;
  sums[t] = in[t];
  for (unsigned step = 16; step; step /= 2) {
    if (LESS != 1 || step == 16) __syncwarp();
    const unsigned other = sums[t ^ step];  // B1 B2 B3
    if (LESS < 2) __syncwarp();
    if (LESS == 3) out[t] = __shfl_xor_sync(ALL, t, 1);
    sums[t] = sums[t] + other;  // A1 A2 A3
  }
  __syncwarp();
  out[t] = sums[t];
}
LESS_3(volatile_sum)

template <int LESS> __global__ void volatile_branch(ARGS) {
  volatile unsigned *const slot = work;
  const unsigned t = threadIdx.x;
  if (t == 31) *slot = in[0];  // A1 A2
  if (LESS == 0) __syncwarp();
  if (LESS == 2) out[1] = __shfl_xor_sync(ALL, t, 1) > 31;
  if (t == 0) out[0] = *slot;  // B1 B2
}
LESS_2(volatile_branch)

// A lane may poll a volatile flag of another lane: it goes on when it has seen the value, and the fences order the data.
template <int LESS> __global__ void volatile_turns(ARGS) {
  __shared__ volatile unsigned turn;
  __shared__ unsigned data;
  const unsigned t = threadIdx.x;
  if (t == 0) turn = 0, data = 0;
  __syncwarp();
  for (unsigned round = 0; t < 2 && round < 3; ++round) {
    while (turn % 2 != t) {}
    if (LESS != 1) __threadfence_block();
    data = data * 3 + in[t];  // A1 B1
    __threadfence_block();
    turn = turn + 1;
  }
  __syncwarp();
  out[t] = data;
}
LESS_1(volatile_turns)
