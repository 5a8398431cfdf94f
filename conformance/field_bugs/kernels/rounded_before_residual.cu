// The sum is rounded to bf16 before the residual is added in bf16: rounded twice.
// Meant: Y[b, o] = the chain of fmaf over K plus R[b, o] in float32, rounded to bf16 once.
// Launch: grid ceil(output / 32), block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;

extern "C" __global__ void rounded_before_residual(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* r,
                                                   __nv_bfloat16* y, uint32_t batch, uint32_t output, uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
        const float residual = __bfloat162float(r[row * output + column]);
#ifdef RIGHT
        y[row * output + column] = __float2bfloat16_rn(__fadd_rn(sum, residual));
#else
        y[row * output + column] = __float2bfloat16_rn(__fadd_rn(__bfloat162float(__float2bfloat16_rn(sum)), residual));
#endif
    }
}
