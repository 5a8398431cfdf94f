// Bits that nobody wrote: where they may go, and where they matter. `A` marks where they come from, `B` where they arrive.
#include "suite.cuh"

constexpr unsigned ALL = 0xffffffff;

template <int LESS> __global__ void every_slot(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (LESS != 1 || t != 5) tile[t] = in[t];
  __syncwarp();
  out[t] = tile[31 - t];  // A1 B1
}
LESS_1(every_slot)

// The slot of a warp that has left the kernel early.
template <int LESS> __global__ void slots_of_warps(ARGS) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  if (LESS == 1 && t >= 32) return;
  tile[t] = in[t];
  __syncthreads();
  out[t] = tile[63 - t];  // A1 B1
}
LESS_1(slots_of_warps)

template <int LESS> __global__ void as_address(ARGS) {
  __shared__ unsigned indices[32];
  const unsigned t = threadIdx.x;
  if (LESS != 1 || t != 3) indices[t] = in[t] % 32;
  __syncwarp();
  const unsigned index = indices[31 - t];  // A1
  out[t] = in[index % 64];  // B1
}
LESS_1(as_address)

template <int LESS> __global__ void as_condition(ARGS) {
  __shared__ unsigned wanted[32];
  const unsigned t = threadIdx.x;
  if (LESS != 1 || t != 3) wanted[t] = in[t] % 4;
  __syncwarp();
  unsigned turns = 0;
  for (unsigned i = wanted[31 - t]; i > 0 && turns < 4; --i) {  // A1 B1
    atomicAdd(out + t, in[t] + i);
    ++turns;
  }
}
LESS_1(as_condition)

template <int LESS> __global__ void low_bytes(ARGS) {
  __shared__ __align__(4) unsigned char bytes[128];
  const unsigned t = threadIdx.x;
  bytes[4 * t] = in[t];
  unsigned word = *reinterpret_cast<unsigned *>(bytes + 4 * t);  // A1
  asm volatile("" : "+r"(word));
  out[t] = word & (LESS == 1 ? 0x1ff : 0xff);  // B1
}
LESS_1(low_bytes)

template <int LESS> __global__ void shifted_out(ARGS) {
  __shared__ __align__(4) unsigned short halves[64];
  const unsigned t = threadIdx.x;
  halves[2 * t] = in[t];
  const unsigned word = *reinterpret_cast<unsigned *>(halves + 2 * t);  // A1
  out[t] = word << (LESS == 1 ? 15 : 16);  // B1
}
LESS_1(shifted_out)

template <int LESS> __global__ void permuted(ARGS) {
  __shared__ __align__(4) unsigned char bytes[128];
  const unsigned t = threadIdx.x;
  bytes[4 * t] = in[t];
  bytes[4 * t + 2] = in[t] + 1;
  const unsigned word = *reinterpret_cast<unsigned *>(bytes + 4 * t);  // A1
  out[t] = __byte_perm(word, 0x55667788, LESS == 1 ? 0x4312 : 0x4502);  // B1
}
LESS_1(permuted)

template <int LESS> __global__ void forced_ones(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t < 16) tile[t] = in[t];
  unsigned mask = t < 16 ? 0 : LESS == 1 ? 0x7fffffff : ALL;
  asm volatile("" : "+r"(mask));
  out[t] = tile[t] | mask;  // A1 B1
}
LESS_1(forced_ones)

// Sixteen values are there, a warp wide load takes 32, and the sum takes what exists.
template <int LESS> __global__ void selected(ARGS) {
  __shared__ unsigned tile[32];
  const unsigned t = threadIdx.x;
  if (t < 16) tile[t] = in[t];
  __syncwarp();
  unsigned value = tile[31 - t];  // A1
  asm volatile("" : "+r"(value));
  out[t] = t >= (LESS == 1 ? 15 : 16) ? value : 0;  // B1
}
LESS_1(selected)

// The loop loads one element further than it uses.
template <int LESS> __global__ void prefetched(ARGS) {
  __shared__ unsigned tile[40];
  const unsigned t = threadIdx.x;
  tile[t] = in[t];
  __syncwarp();
  unsigned sum = 0, next, at = AT(tile) + 4 * (t & 24);
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(at) : "memory");
  for (unsigned i = 0; i < (LESS == 1 ? 9 : 8); ++i) {
    const unsigned value = next;
    at += 4;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(at) : "memory");  // A1
    sum += value * (i + 1);
  }
  out[t] = sum;  // B1
}
LESS_1(prefetched)

template <int LESS> __global__ void absent_lanes(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned value = in[t];
  if (t < 16) {
    value += __shfl_down_sync(0xffff, value, 8);  // A1
    if (LESS == 1 || t < 8) out[t] = value;  // B1
  }
}
LESS_1(absent_lanes)

template <int LESS> __global__ void reduced_halves(ARGS) {
  const unsigned t = threadIdx.x;
  unsigned value = in[t];
  if (t < 16) {
    for (unsigned step = 8; step; step /= 2) value += __shfl_down_sync(0xffff, value, step);
    if (t == 0) out[0] = value;
  }
}
LESS_0(reduced_halves)

template <int LESS> __global__ void lanes_that_left(ARGS) {
  const unsigned t = threadIdx.x;
  if (t >= 20) return;
  const unsigned value = __shfl_down_sync(ALL, in[t], 4);  // A1
  if (LESS == 1 || t < 16) out[t] = value;  // B1
}
LESS_1(lanes_that_left)

template <int LESS> __global__ void local_array(ARGS) {
  unsigned values[8];
  const unsigned t = threadIdx.x;
  for (unsigned i = 0; i < 8; i += LESS == 1 ? 2 : 1) values[(i + t) % 8] = in[t] + i;
  out[t] = values[in[t] % 8];  // A1 B1
}
LESS_1(local_array)

// `work` is memory that nobody has written.
template <int LESS> __global__ void global_words(ARGS) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (LESS != 1 || i != 40) work[i] = in[i];
  const unsigned value = work[i];  // A1
  out[i] = value * 2;  // B1
}
LESS_1(global_words)

template <int LESS> __global__ void global_counter(ARGS) {
  const unsigned t = threadIdx.x;
  if (LESS != 1 && t == 0) work[0] = 0;
  __syncthreads();
  atomicAdd(work, in[t]);  // A1
  __syncthreads();
  if (t == 0) out[0] = work[0];  // B1
}
LESS_1(global_counter)

// A tiny number would vanish in this sum: what nobody wrote must not.
template <int LESS> __global__ void float_partials(ARGS) {
  __shared__ float partials[32];
  const unsigned t = threadIdx.x;
  if (t < (LESS == 1 ? 4 : 32)) partials[t] = static_cast<float>(in[t]);
  __syncwarp();
  float sum = 0;
  for (unsigned i = 0; i < 32; ++i) sum += partials[i];  // A1
  out[t] = static_cast<unsigned>(sum);  // B1
}
LESS_1(float_partials)

// Unwritten words pass through other memory, and through registers that nobody looks at.
template <int LESS> __global__ void passed_through(ARGS) {
  __shared__ unsigned from[64], to[64];
  const unsigned t = threadIdx.x;
  if (t < 20) from[t] = in[t];
  __syncthreads();
  to[63 - t] = from[t];  // A1
  __syncthreads();
  if (t < (LESS == 1 ? 21 : 20)) out[t] = to[63 - t];  // B1
}
LESS_1(passed_through)

// Rows 8 to 15 of A are not there, and rows 8 to 15 of D are not stored; LESS 1 stores one of them, LESS 2 a column of B that
// is not there.
template <int LESS> __global__ void unwritten_rows(ARGS) {
  __shared__ unsigned a[16][8], b[8][8];  // pairs of bf16: 16 x 16 and 8 columns x 16
  const unsigned lane = threadIdx.x, row = lane / 4, quad = lane % 4;
  for (unsigned i = lane; i < 64; i += 32) {
    a[i / 8][i % 8] = 0x3f803f80;
    if (i / 8 < 6) b[i / 8][i % 8] = 0x40003f80;
  }
  __syncwarp();
  float d[4] = {};
  const unsigned a0 = a[row][quad], a1 = a[row + 8][quad], a2 = a[row][quad + 4], a3 = a[row + 8][quad + 4];  // A1
  const unsigned b0 = b[row][quad], b1 = b[row][quad + 4];  // A2
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  if (quad < 3) {
    out[row * 8 + 2 * quad] = static_cast<unsigned>(d[0]);
    out[row * 8 + 2 * quad + 1] = static_cast<unsigned>(d[1]);
  }
  if (LESS == 1 && row == 0 && quad == 0) out[6] = static_cast<unsigned>(d[2]);  // B1
  if (LESS == 2 && row == 0 && quad == 3) out[6] = static_cast<unsigned>(d[0]);  // B2
}
LESS_2(unwritten_rows)

// A stack of two: the second element is read where there is one.
template <int LESS> __global__ void short_lists(ARGS) {
  __shared__ unsigned lists[32][2];
  const unsigned t = threadIdx.x, length = 1 + in[t] % 2;
  for (unsigned i = 0; i < length; ++i) lists[t][i] = in[t] + i;
  unsigned sum = lists[t][0];
  if (LESS == 1 || length == 2) sum += lists[t][1];  // A1
  out[t] = sum;  // B1
}
LESS_1(short_lists)

// A row that is not there: a branch chooses between 1 and a quotient that is not stored. LESS 1 stores one, LESS 2 counts in an arm.
#define QUOTIENT(q, by)                                                                                      \
  asm volatile("{.reg .pred p; setp.eq.u32 p, %1, 0; mov.u32 %0, 1; @p bra E; div.u32 %0, 1000, %1; E: }"     \
               : "=r"(q) : "r"(by))
#define COUNTED(at, by)                                                                                      \
  asm volatile("{.reg .pred p; setp.eq.u32 p, %1, 0; @p bra E; red.global.add.u32 [%0], 1; E: }"              \
               ::"l"(at), "r"(by) : "memory")
template <int LESS> __global__ void branch_on_a_spare_row(ARGS) {
  __shared__ unsigned sums[32];
  const unsigned t = threadIdx.x;
  if (t < 31) sums[t] = in[t] % 4;
  __syncwarp();
  unsigned sum, quotient;
  LDS("volatile", sum, &sums[31 - t]);  // A1 A2
  QUOTIENT(quotient, sum);
  if (LESS == 2) COUNTED(work + t, sum);  // B2
  if (LESS == 1 || t > 0) out[t] = quotient;  // B1
}
LESS_2(branch_on_a_spare_row)
