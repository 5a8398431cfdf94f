// Scales of a matrix are padded to 128 rows; the next matrix of the batch is looked for behind its rows alone.
// Meant: y = x * s of the matrix and its row, 32 numbers a row; scales (batch, rows padded to 128).
// Launch: grid (rows, batch), block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void padded_batch(const float* x, const float* scales, float* y, uint32_t rows) {
#ifdef RIGHT
    const uint32_t pitch = (rows + 127) / 128 * 128;
#else
    const uint32_t pitch = rows;
#endif
    const uint32_t at = (blockIdx.y * rows + blockIdx.x) * 32 + threadIdx.x;
    y[at] = __fmul_rn(x[at], scales[blockIdx.y * pitch + blockIdx.x]);
}
