// Columns of a block have the scale of their 128 columns. A block of 160 columns has those before the first boundary and
// those behind it; begun at column 160 n its columns may lie in three.
// Meant: y = x * s[column / 128]. Launch: grid ceil(columns / width), block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void straddled_scale(const float* x, const float* scales, float* y, uint32_t columns, uint32_t width) {
    const uint32_t first = blockIdx.x * width, boundary = (first / 128 + 1) * 128;
    for (uint32_t column = first + threadIdx.x; column < min(first + width, columns); column += 32) {
#ifdef RIGHT
        y[column] = x[column] * scales[column / 128];
#else
        y[column] = x[column] * scales[first / 128 + (column >= boundary)];
#endif
    }
}
