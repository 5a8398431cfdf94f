// Blocks of 32 columns find their outputs by 32 * batch * block, while rows lie `output` apart: right for a batch of one.
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16. Launch: grid output / 32, block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;

extern "C" __global__ void block_stride(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                        uint32_t output, uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
#ifdef RIGHT
    __nv_bfloat16* to = y + 32 * blockIdx.x;
#else
    __nv_bfloat16* to = y + 32 * batch * blockIdx.x;
#endif
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
        to[row * output + threadIdx.x] = __float2bfloat16_rn(sum);
    }
}
