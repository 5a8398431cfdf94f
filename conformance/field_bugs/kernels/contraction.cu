// The same lines under another default of the compiler: a product and a sum become one fmaf, or no longer do.
// Meant: F = F + s * P with both roundings. Launch: grid 1, block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;

extern "C" __global__ void contraction(const float* partials, const float* scales, float* y, uint32_t blocks) {
    float sum = 0.0f;
    for (uint32_t block = 0; block < blocks; ++block) {
#ifdef RIGHT
        sum = __fadd_rn(sum, __fmul_rn(scales[block], partials[32 * block + threadIdx.x]));
#else
        sum += scales[block] * partials[32 * block + threadIdx.x];
#endif
    }
    y[threadIdx.x] = sum;
}
