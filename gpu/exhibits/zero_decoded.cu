// Exhibit: E4M3 weights become bf16 by adding 120 to the exponent, as if every code had an implied one. Zero becomes
// 2^-7, the subnormals lie above it, and NaN is 480.
//
// Meant: Y[b, o] = the chain of fmaf over K in float32 on decoded weights, in bf16.
// Launch: grid ceil(output / 32), block 32.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;
using cuda::std::uint8_t;

inline __device__ float decode(uint32_t code) {
    const uint32_t magnitude = ((code & 0x7f) << 4) + (120 << 7);  // Defect: wrong where code & 0x78 is 0, and for 0x7f
    return __uint_as_float((code & 0x80) << 24 | magnitude << 16);
}

extern "C" __global__ void __launch_bounds__(32)
    zero_decoded(const __nv_bfloat16* x, const uint8_t* w, __nv_bfloat16* y, uint32_t batch, uint32_t output,
                 uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), decode(w[column * reduction + k]), sum);
        y[row * output + column] = __float2bfloat16_rn(sum);
    }
}
