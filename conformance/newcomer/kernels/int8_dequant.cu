// y = (q - zero) * scale + shift, a zero point, scale and shift for each row, each operation rounded by itself.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ void put(float* y, float value) { *y = value; }
__device__ void put(__nv_bfloat16* y, float value) { *y = __float2bfloat16_rn(value); }
__device__ void put(__half* y, float value) { *y = __float2half_rn(value); }

// Rows of q lie `pitch` bytes apart; a block takes 32 columns of 8 rows.
template <typename T>
__device__ void dequantise(const signed char* q, const signed char* zero, const float* scale, const float* shift, T* y,
                           unsigned rows, unsigned columns, unsigned pitch) {
  const unsigned row = blockIdx.y * 8 + threadIdx.y;
  const unsigned column = blockIdx.x * 32 + threadIdx.x;
  if (row >= rows || column >= columns) return;
  const int steps = q[row * pitch + column] - zero[row];
  put(&y[row * columns + column], __fadd_rn(__fmul_rn(static_cast<float>(steps), scale[row]), shift[row]));
}

#define ENTRY(name, T)                                                                                              \
  extern "C" __global__ void name(const signed char* q, const signed char* zero, const float* scale,                \
                                  const float* shift, T* y, unsigned rows, unsigned columns, unsigned pitch) {      \
    dequantise(q, zero, scale, shift, y, rows, columns, pitch);                                                     \
  }
ENTRY(int8_dequant_f32, float)
ENTRY(int8_dequant_bf16, __nv_bfloat16)
ENTRY(int8_dequant_f16, __half)
