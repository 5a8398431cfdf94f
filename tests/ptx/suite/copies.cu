// cp.async: whose wait makes whose bytes visible, buffers filled again, sources and places that a copy must have alone.
#include "suite.cuh"

template <int LESS> __global__ void copied_own(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  COPY(&tile[t], in + t);  // A1 A2
  if (LESS != 2) COMMIT();
  if (LESS != 1) WAIT(0);
  out[t] = tile[t];  // B1 B2
}
LESS_2(copied_own)

template <int LESS> __global__ void copied_neighbour(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  COPY(&tile[t], in + t);  // A1
  WAIT_ALL();
  if (LESS != 1) __syncwarp();
  out[t] = tile[t ^ 1];  // B1
}
LESS_1(copied_neighbour)

template <int LESS> __global__ void copied_reverse(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  COPY(&tile[t], in + t);  // A1 A2 A3
  if (LESS == 3) __syncthreads();
  if (LESS != 2) WAIT_ALL();
  if (LESS != 1 && LESS != 3) __syncthreads();
  out[t] = tile[63 - t];  // B1 B2 B3
}
LESS_3(copied_reverse)

template <int LESS> __global__ void two_stages(ARGS) {
  __shared__ unsigned stages[2][64];
  const unsigned t = threadIdx.x;
  unsigned sum = 0;
  for (unsigned i = 0; i <= 4; ++i) {
    if (i < 4) COPY(&stages[i % 2][t], in + 64 * i + t);  // A1 B2 A3
    COMMIT();
    if (i == 0) continue;
    if (LESS == 1) WAIT(2);
    else WAIT(1);
    if (LESS != 3) __syncthreads();
    sum = sum * 3 + stages[(i - 1) % 2][63 - t];  // B1 A2 B3
    if (LESS != 2) __syncthreads();
  }
  out[t] = sum;
}
LESS_3(two_stages)

// With three stages one barrier a turn suffices: what is refilled behind it was read before it.
template <int LESS> __global__ void three_stages(ARGS) {
  constexpr unsigned STAGES = LESS == 1 ? 2 : 3;
  __shared__ unsigned stages[STAGES][64];
  const unsigned t = threadIdx.x;
  unsigned sum = 0;
  for (unsigned i = 0; i < 2; ++i) {
    COPY(&stages[i][t], in + 64 * i + t);
    COMMIT();
  }
  for (unsigned i = 0; i < 6; ++i) {
    WAIT(1);
    __syncthreads();
    if (i < 4) COPY(&stages[(i + 2) % STAGES][t], in + 64 * ((i + 2) % 4) + t);  // A1
    COMMIT();
    sum = sum * 3 + stages[i % STAGES][63 - t];  // B1
  }
  out[t] = sum;
}
LESS_1(three_stages)

template <int LESS> __global__ void refilled_by_lanes(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp();
  const unsigned first = tile[t ^ 1];  // A1
  if (LESS != 1) __syncwarp();
  COPY(&tile[t], in + 32 + t);  // B1
  WAIT_ALL();
  __syncwarp();
  out[t] = first + tile[31 - t];
}
LESS_1(refilled_by_lanes)

template <int LESS> __global__ void stored_after_wait(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  COPY(&tile[t], in + t);  // A1
  if (LESS != 1) WAIT_ALL();
  tile[t] = in[t] + 7;  // B1
  WAIT_ALL();
  __syncthreads();
  out[t] = tile[63 - t];
}
LESS_1(stored_after_wait)

template <int LESS> __global__ void source_of_another_warp(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  work[t] = in[t] + 1;  // A1
  if (LESS != 1) __syncthreads();
  COPY(&tile[t], work + 63 - t);  // B1
  WAIT_ALL();
  out[t] = tile[t];
}
LESS_1(source_of_another_warp)

template <int LESS> __global__ void source_of_another_lane(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  work[t] = in[t] + 1;  // A1
  if (LESS != 1) __syncwarp();
  COPY(&tile[t], work + 31 - t);  // B1
  WAIT_ALL();
  out[t] = tile[t];
}
LESS_1(source_of_another_lane)

template <int LESS> __global__ void source_of_another_block(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (blockIdx.x == 0) {
    work[32 + t] = in[t] + 1;  // A1
    __syncwarp();
    if (t == 0) {
      if (LESS == 1) ST("relaxed.gpu.global", work, 1);
      else ST("release.gpu.global", work, 1);
    }
  } else {
    unsigned seen = 0;
    while (!seen) LD("acquire.gpu.global", seen, work);
    COPY(&tile[t], work + 63 - t);  // B1
    WAIT_ALL();
    out[t] = tile[t];
  }
}
LESS_1(source_of_another_block)

template <int LESS> __global__ void own_places(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  COPY(&tile[LESS == 1 ? t % 32 : t], in + t);  // A1 B1
  WAIT_ALL();
  __syncthreads();
  out[t] = tile[63 - t];
}
LESS_1(own_places)

// Rows past the end are filled with zeros.
template <int LESS> __global__ void zero_filled(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x, bytes = t < 50 ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(AT(&tile[t])), "l"(in + t), "r"(bytes) : "memory");
  WAIT_ALL();
  __syncthreads();
  out[t] = tile[63 - t];
}
LESS_0(zero_filled)

// One warp copies for all: its wait, then a named barrier.
template <int LESS> __global__ void copying_warp(ARGS) {
  __shared__ unsigned tile[128];
  const unsigned t = threadIdx.x;
  if (t < 32) {
    for (unsigned i = 0; i < 4; ++i) COPY(&tile[32 * i + t], in + 32 * i + t);  // A1
    if (LESS != 1) WAIT_ALL();
    ARRIVE(1, 128);
    if (LESS == 1) WAIT_ALL();
  } else {
    SYNC(1, 128);
    out[t - 32] = tile[127 - t] + tile[t];  // B1
  }
}
LESS_1(copying_warp)

// A copy and the words of another warp lie side by side.
template <int LESS> __global__ void side_by_side(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x, place = 2 * (t % 32) + t / 32;
  if (t < 32) COPY(&tile[place], in + t);
  else tile[place] = in[t];
  WAIT_ALL();
  __syncthreads();
  out[t] = tile[63 - t];
}
LESS_0(side_by_side)
