// Scales of 32 rows lie together, and their groups are brought back into range by the number of rows, not of groups.
// Meant: y[row] = the scale of group row / 32, groups beyond the end wrapped. Launch: grid ceil(groups / 4), block 128.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void scale_rows_wrap(const float* scales, float* y, uint32_t rows) {
    const uint32_t row = 128 * blockIdx.x + threadIdx.x;
#ifdef RIGHT
    const float scale = scales[row / 32 % (rows / 32)];
#else
    const float scale = scales[row / 32 % rows];
#endif
    y[row] = scale;
}
