// The transpose of X (rows, columns) as MXFP8: E4M3 codes (columns, rows), an E8M0 scale for 32 rows of X.
// scale = 2^ceil(log2(amax / 448)), q = code * 2^-scale. A block has 32 x 32 of X, through shared memory, chunks swizzled.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

constexpr unsigned kTile = 32;

extern "C" __global__ void transpose_quantize(const __nv_bfloat16* x, unsigned char* q, unsigned char* scales,
                                              unsigned rows, unsigned columns) {
  __shared__ float tile[kTile][kTile];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned top = blockIdx.y * kTile, left = blockIdx.x * kTile;
  for (unsigned row = warp; row < kTile; row += 4)
    tile[row][lane ^ row] = __bfloat162float(x[(top + row) * columns + left + lane]);
  __syncthreads();
  for (unsigned column = warp; column < kTile; column += 4) {
    const float value = tile[lane][column ^ lane];
    float amax = fabsf(value);
    for (unsigned distance = 16; distance > 0; distance /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, distance));
    const unsigned bits = __float_as_uint(__fdiv_rn(amax, 448.0f));
    const unsigned code = max((bits >> 23) + ((bits & 0x7fffff) != 0), 1u);
    const float factor = __uint_as_float((254 - code) << 23);
    const unsigned to = (left + column) * rows + top + lane;
    q[to] = __nv_cvt_float_to_fp8(__fmul_rn(value, factor), __NV_SATFINITE, __NV_E4M3);
    if (lane == 0) scales[(left + column) * (rows / kTile) + blockIdx.y] = code;
  }
}
