// NVFP4 to bf16: two E2M1 a byte, the first in the low half, a UE4M3 scale for 16 columns, shuffled as 128 x 4, one float
// for the tensor: bf16(code * fl(scale * tensor)), in float32 rounded to nearest each time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

__device__ float of_e2m1(unsigned code) {
  const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}
__device__ float of_e4m3(unsigned char code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))); }

// Tiles of 128 rows by 4 blocks: rows 32 apart lie beside each other.
__device__ unsigned scale_place(unsigned row, unsigned block, unsigned blocks) {
  const unsigned tile = row / 128 * ((blocks + 3) / 4) + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

// A thread has the 8 bytes of a block.
extern "C" __global__ void nvfp4_dequantize(const unsigned char* q, const unsigned char* scales, const float* tensor,
                                            __nv_bfloat16* y, unsigned rows, unsigned columns) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x, blocks = columns / 16;
  if (at >= rows * blocks) return;
  const unsigned row = at / blocks, block = at % blocks;
  const float scale = __fmul_rn(of_e4m3(scales[scale_place(row, block, blocks)]), *tensor);
  for (unsigned j = 0; j < 8; ++j) {
    const unsigned byte = q[at * 8 + j], low = byte & 0xf, high = byte >> 4;
    const unsigned to = row * columns + block * 16 + 2 * j;
    y[to] = __float2bfloat16_rn(__fmul_rn(of_e2m1(low), scale));
    y[to + 1] = __float2bfloat16_rn(__fmul_rn(of_e2m1(high), scale));
  }
}
