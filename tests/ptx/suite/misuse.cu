// Barriers and masks used against their rules. `A` and `B` mark the instructions that do not meet.
#include "suite.cuh"

constexpr unsigned ALL = 0xffffffff;

template <int LESS> __global__ void barrier_in_both_arms(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (LESS == 1) {
    if (t % 2) {
      tile[t] = in[t] + 1;
      __syncthreads();  // A1
      out[t] = tile[63 - t] * 3;
    } else {
      tile[t] = in[t] * 2;
      __syncthreads();  // B1
      out[t] = tile[63 - t] - 4;
    }
  } else {
    tile[t] = t % 2 ? in[t] + 1 : in[t] * 2;
    __syncthreads();
    out[t] = t % 2 ? tile[63 - t] * 3 : tile[63 - t] - 4;
  }
}
LESS_1(barrier_in_both_arms)

template <int LESS> __global__ void barrier_for_all_lanes(ARGS) {
  const unsigned t = threadIdx.x;
  work[t] = in[t];
  if (LESS != 1 || t % 32 < 16) __syncthreads();  // A1 B1
  out[t] = LESS == 1 ? in[t] : work[63 - t];
}
LESS_1(barrier_for_all_lanes)

template <int LESS> __global__ void barrier_in_uniform_loop(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x, turns = LESS == 1 ? 2 + t % 2 : 3;
  tile[t] = in[t];
  for (unsigned i = 0; i < turns; ++i) {
    __syncthreads();  // A1 B1
    const unsigned next = tile[(t + 1) % 64];
    __syncthreads();
    tile[t] = next;
  }
  out[t] = tile[t];
}
LESS_1(barrier_in_uniform_loop)

template <int LESS> __global__ void named_lane_shuffle(ARGS) {
  const unsigned t = threadIdx.x;
  out[t] = __shfl_xor_sync(LESS == 1 && t >= 16 ? 0xffff : ALL, in[t], 1);  // A1 B1
}
LESS_1(named_lane_shuffle)

template <int LESS> __global__ void named_lane_vote(ARGS) {
  const unsigned t = threadIdx.x;
  out[t] = __ballot_sync(LESS == 1 && t >= 16 ? 0xffff : ALL, in[t] % 2);  // A1 B1
}
LESS_1(named_lane_vote)

template <int LESS> __global__ void named_lane_barrier(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp(LESS == 1 && t >= 16 ? 0xffff : ALL);  // A1 B1
  out[t] = tile[t ^ 1];
}
LESS_1(named_lane_barrier)

template <int LESS> __global__ void named_lane_match(ARGS) {
  const unsigned t = threadIdx.x;
  out[t] = __match_any_sync(LESS == 1 && t >= 16 ? 0xffff : ALL, in[t] % 4);  // A1 B1
}
LESS_1(named_lane_match)

template <int LESS> __global__ void named_lane_reduction(ARGS) {
  const unsigned t = threadIdx.x;
  out[t] = __reduce_add_sync(LESS == 1 && t >= 16 ? 0xffff : ALL, in[t]);  // A1 B1
}
LESS_1(named_lane_reduction)

template <int LESS> __global__ void all_named_lanes_come(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned value = in[t];
  if (t < 16) value = __shfl_xor_sync(LESS == 1 ? ALL : 0xffff, value, 1);  // A1 B1
  __syncwarp();
  out[t] = value;
}
LESS_1(all_named_lanes_come)

template <int LESS> __global__ void masks_agree(ARGS) {
  const unsigned t = threadIdx.x;
  const unsigned mask = t < 16 ? (LESS == 1 ? 0x1ffff : 0xffff) : 0xffff0000;
  out[t] = __shfl_xor_sync(mask, in[t], 1);  // A1 B1
}
LESS_1(masks_agree)

template <int LESS> __global__ void whole_warp_multiplies(ARGS) {
  const unsigned lane = threadIdx.x;
  float d[4] = {};
  if (LESS != 1 || lane < 16)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4}, {%4}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(0x3f803f80));  // A1 B1
  __syncwarp();
  out[lane] = static_cast<unsigned>(d[0] + d[3]);
}
LESS_1(whole_warp_multiplies)

template <int LESS> __global__ void whole_warps_counted(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  SYNC(1, LESS == 1 ? 48 : 64);  // A1 B1
  out[t] = tile[63 - t];
}
LESS_1(whole_warps_counted)

template <int LESS> __global__ void counts_agree(ARGS) {
  __shared__ unsigned tile[96];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  if (t < 64) SYNC(1, 96);  // A1
  else SYNC(1, LESS == 1 ? 64 : 96);  // B1
  out[t] = tile[95 - t];
}
LESS_1(counts_agree)

template <int LESS> __global__ void all_counted_warps_come(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  if (LESS == 1 && t >= 32) return;
  SYNC(1, 64);  // A1 B1
  out[t] = tile[63 - t];
}
LESS_1(all_counted_warps_come)
