// D (M, N) = A (M, K) B (K, N) in half, float32 sums: mma.m16n8k16, rows of B turned by ldmatrix.trans.
// A block has 64 x 32 of D and takes K 32 at a time. Rows of 64 bytes lie in shared memory, chunks of 16 bytes swizzled.
#include <cuda_fp16.h>

constexpr unsigned kRows = 64, kColumns = 32, kStep = 32, kRowBytes = 64;

__device__ unsigned shared_address(const void* of) { return static_cast<unsigned>(__cvta_generic_to_shared(of)); }
__device__ unsigned place(unsigned row, unsigned chunk) { return row * kRowBytes + (chunk ^ row / 2 % 4) * 16; }

extern "C" __global__ void matmul_f16(const __half* a, const __half* b, __half* d, unsigned n, unsigned k) {
  __shared__ __align__(128) unsigned char of_a[kRows * kRowBytes], of_b[kStep * kRowBytes];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned top = blockIdx.y * kRows, left = blockIdx.x * kColumns;
  float sum[4][4] = {};
  for (unsigned k0 = 0; k0 < k; k0 += kStep) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kRows * 4; i += 128)
      *reinterpret_cast<uint4*>(of_a + place(i / 4, i % 4)) =
          *reinterpret_cast<const uint4*>(a + (top + i / 4) * k + k0 + i % 4 * 8);
    *reinterpret_cast<uint4*>(of_b + place(threadIdx.x / 4, threadIdx.x % 4)) =
        *reinterpret_cast<const uint4*>(b + (k0 + threadIdx.x / 4) * n + left + threadIdx.x % 4 * 8);
    __syncthreads();
    for (unsigned step = 0; step < 2; ++step) {
      unsigned x[4], y[2][4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(shared_address(of_a) + place(warp * 16 + lane % 16, step * 2 + lane / 16)));
      for (unsigned half = 0; half < 2; ++half)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(y[half][0]), "=r"(y[half][1]), "=r"(y[half][2]), "=r"(y[half][3])
                     : "r"(shared_address(of_b) + place(step * 16 + lane % 16, half * 2 + lane / 16)));
      for (unsigned column = 0; column < 4; ++column)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[column][0]), "+f"(sum[column][1]), "+f"(sum[column][2]), "+f"(sum[column][3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[column / 2][column % 2 * 2]),
              "r"(y[column / 2][column % 2 * 2 + 1]));
    }
  }
  for (unsigned column = 0; column < 4; ++column)
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = top + warp * 16 + lane / 4 + i / 2 * 8;
      d[row * n + left + column * 8 + lane % 4 * 2 + i % 2] = __float2half_rn(sum[column][i]);
    }
}
