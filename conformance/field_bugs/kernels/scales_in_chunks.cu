// Scales are copied in whole chunks of 16 bytes: what is left of them never arrives, and of less than four nothing.
// Meant: y = x * s of the row, 32 numbers a row. Launch: grid 1, block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void scales_in_chunks(const float* x, const float* scales, float* y, uint32_t rows) {
    __shared__ __align__(16) float held[64];
    for (uint32_t i = threadIdx.x; i < rows / 4; i += 32)
        *reinterpret_cast<float4*>(held + 4 * i) = *reinterpret_cast<const float4*>(scales + 4 * i);
#ifdef RIGHT
    for (uint32_t i = rows / 4 * 4 + threadIdx.x; i < rows; i += 32) held[i] = scales[i];
#endif
    __syncthreads();
    for (uint32_t row = 0; row < rows; ++row) y[32 * row + threadIdx.x] = x[32 * row + threadIdx.x] * held[row];
}
