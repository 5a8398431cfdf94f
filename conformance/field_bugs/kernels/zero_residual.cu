// A layer without a residual adds a residual of zeros: -0 becomes +0, and two versions of one layer differ.
// Meant: Y[b, o] = the chain of fmaf over K in float32 from -0, in bf16. Launch: grid ceil(output / 32), block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;

extern "C" __global__ void zero_residual(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                         uint32_t output, uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = -0.0f;
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
#ifdef RIGHT
        y[row * output + column] = __float2bfloat16_rn(sum);
#else
        y[row * output + column] = __float2bfloat16_rn(__fadd_rn(sum, 0.0f));
#endif
    }
}
