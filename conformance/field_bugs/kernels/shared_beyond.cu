// The host asks for a fixed 96 KiB of shared memory. Three stages of 128 x 128 weights fill it, and the tile of X behind
// them lies outside: the mistake stands in the launch, `shared_bytes` of conformance/field_bugs/linear.py.
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16; output and K at most 128. Launch: grid 1, block 128.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;
enum : uint32_t { kTile = 128, kStages = 3 };

extern "C" __global__ void shared_beyond(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                         uint32_t output, uint32_t reduction) {
    extern __shared__ __nv_bfloat16 weights[];  // [kStages][kTile][kTile]
    __nv_bfloat16* rows = weights + kStages * kTile * kTile;
    for (uint32_t i = threadIdx.x; i < batch * reduction; i += kTile) rows[i] = x[i];
    for (uint32_t i = threadIdx.x; i < output * reduction; i += kTile) weights[i] = w[i];
    __syncthreads();
    for (uint32_t row = 0; row < batch && threadIdx.x < output; ++row) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < reduction; ++k)
            sum = __fmaf_rn(__bfloat162float(rows[row * reduction + k]),
                            __bfloat162float(weights[threadIdx.x * reduction + k]), sum);
        y[row * output + threadIdx.x] = __float2bfloat16_rn(sum);
    }
}
