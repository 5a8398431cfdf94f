// D (M, N) = bf16((sum of A[m, k] B[n, k] - zero[m] total[n]) * scale_a[m] * scale_b[n]): mma.m16n8k32 of int8.
// A warp has 16 x 8 of D; registers are loaded from global memory, as the fragments of the PTX ISA say.
#include <cuda_bf16.h>

__device__ unsigned four(const signed char* from) { return *reinterpret_cast<const unsigned*>(from); }

extern "C" __global__ void int8_matmul(const signed char* a, const signed char* b, const int* zero, const int* total,
                                       const float* scale_a, const float* scale_b, __nv_bfloat16* d, unsigned n,
                                       unsigned k) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned top = blockIdx.y * 16, left = blockIdx.x * 32 + warp * 8;
  const signed char* row_a = a + (top + lane / 4) * k + lane % 4 * 4;
  const signed char* row_b = b + (left + lane / 4) * k + lane % 4 * 4;
  int sum[4] = {};
  for (unsigned k0 = 0; k0 < k; k0 += 32) {
    const unsigned a0 = four(row_a + k0), a1 = four(row_a + 8 * k + k0);
    const unsigned a2 = four(row_a + k0 + 16), a3 = four(row_a + 8 * k + k0 + 16);
    const unsigned b0 = four(row_b + k0), b1 = four(row_b + k0 + 16);
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = top + lane / 4 + i / 2 * 8, column = left + lane % 4 * 2 + i % 2;
    const float value = __int2float_rn(sum[i] - zero[row] * total[column]);
    d[row * n + column] = __float2bfloat16_rn(__fmul_rn(__fmul_rn(value, scale_a[row]), scale_b[column]));
  }
}
