// y = x / rms(x) * weight, times a static scale, as E4M3; and 1 / rms of each row. Every operation is rounded by itself.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

// A warp a row: lane l adds the squares of columns l, l + 32, ... in ascending order; then a butterfly, far lanes first.
extern "C" __global__ void rmsnorm_fp8(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_fp8_storage_t* q,
                                       float* rstd, unsigned rows, unsigned columns, float eps, float scale) {
  const unsigned row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (row >= rows) return;
  const __nv_bfloat16* mine = x + row * columns;
  float sum = 0.0f;
  for (unsigned column = lane; column < columns; column += 32) {
    const float value = __bfloat162float(mine[column]);
    sum = fmaf(value, value, sum);
  }
  for (unsigned offset = 16; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
  const float mean = __fdiv_rn(sum, static_cast<float>(columns));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  if (lane == 0) rstd[row] = inverse;
  for (unsigned column = lane; column < columns; column += 32) {
    const float normed = __fmul_rn(__bfloat162float(mine[column]), inverse);
    const float y = __fmul_rn(__fmul_rn(normed, __bfloat162float(weight[column])), scale);
    q[row * columns + column] = __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
  }
}
