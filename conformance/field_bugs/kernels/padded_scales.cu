// Rows of scales are padded to a multiple of four; the kernel takes them to lie one behind the other.
// Meant: y = x * s of the row and the block of 32 columns; scales (rows, blocks padded to 4). Launch: grid rows, block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void padded_scales(const float* x, const float* scales, float* y, uint32_t blocks) {
#ifdef RIGHT
    const uint32_t pitch = (blocks + 3) / 4 * 4;
#else
    const uint32_t pitch = blocks;
#endif
    for (uint32_t block = 0; block < blocks; ++block) {
        const uint32_t at = (blockIdx.x * blocks + block) * 32 + threadIdx.x;
        y[at] = __fmul_rn(x[at], scales[blockIdx.x * pitch + block]);
    }
}
