// A block's columns are counted in whole tiles of 64, whatever its width: of 96 columns the last 32 are nobody's.
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16. Launch: grid 1, block 64.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;

extern "C" __global__ void odd_width(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                     uint32_t output, uint32_t reduction) {
#ifdef RIGHT
    const uint32_t tiles = (output + 63) / 64;
#else
    const uint32_t tiles = output / 64;
#endif
    for (uint32_t column = threadIdx.x; column < min(64 * tiles, output); column += 64)
        for (uint32_t row = 0; row < batch; ++row) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < reduction; ++k)
                sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
            y[row * output + column] = __float2bfloat16_rn(sum);
        }
}
