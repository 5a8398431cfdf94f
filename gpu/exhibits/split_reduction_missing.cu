// Exhibit: four warps share the reduction, and nobody adds their sums. The epilogue reads memory that was never written.
//
// Meant: Y[b, o] = ((P0 + P1) + P2) + P3, P_w the chain of fmaf over the w-th quarter of K, in bf16.
// Launch: grid ceil(output / 32), block 128, (4 + 1) * batch * 32 floats of shared memory.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

enum : uint32_t { kWarps = 4, kColumns = 32 };

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    split_reduction_missing(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                            uint32_t output, uint32_t reduction) {
    extern __shared__ float memory[];
    float* partials = memory;                             // [kWarps][batch][kColumns]
    float* sums = memory + kWarps * batch * kColumns;     // [batch][kColumns]
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * kColumns + lane;
    const uint32_t share = (reduction + kWarps - 1) / kWarps;
    const uint32_t begin = min(warp * share, reduction), end = min(begin + share, reduction);

    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t k = begin; k < end && column < output; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
        partials[(warp * batch + row) * kColumns + lane] = sum;
    }
    __syncthreads();
    // Defect: here the partials of the four warps should be added up into `sums`, and a barrier should follow.
    for (uint32_t row = warp; row < batch && column < output; row += kWarps)
        y[row * output + column] = __float2bfloat16_rn(sums[row * kColumns + lane]);
}
