// Exhibit: rows of X are found by x + row. Row 0 is right, so a batch of one never shows it.
//
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16.
// Launch: grid ceil(output / 32), block 32.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

extern "C" __global__ void __launch_bounds__(32)
    row_offset(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch, uint32_t output,
               uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
    for (uint32_t row = 0; row < batch; ++row) {
        const __nv_bfloat16* from = x + row;  // Defect: x + row * reduction
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(from[k]), __bfloat162float(w[column * reduction + k]), sum);
        y[row * output + column] = __float2bfloat16_rn(sum);
    }
}
