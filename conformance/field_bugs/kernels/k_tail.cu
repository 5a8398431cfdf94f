// The loop over K takes whole steps of 16 and rounds their number down: what is left of K is never added.
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16. Launch: grid ceil(output / 32), block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;

extern "C" __global__ void k_tail(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                  uint32_t output, uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
#ifdef RIGHT
    const uint32_t steps = (reduction + 15) / 16;
#else
    const uint32_t steps = reduction / 16;
#endif
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
        for (uint32_t step = 0; step < steps; ++step)
            for (uint32_t k = 16 * step; k < min(16 * step + 16, reduction); ++k)
                sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
        y[row * output + column] = __float2bfloat16_rn(sum);
    }
}
