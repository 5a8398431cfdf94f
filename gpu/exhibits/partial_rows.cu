// Exhibit: a warp's row of partial sums is found by warp + row, which is warp * batch + row for a batch of one alone.
// With more rows the warps write into each other's.
//
// Meant: Y[b, o] = ((P0 + P1) + P2) + P3, P_w the chain of fmaf over the w-th quarter of K, in bf16.
// Launch: grid ceil(output / 32), block 128, 4 * batch * 32 floats of shared memory.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

enum : uint32_t { kWarps = 4, kColumns = 32 };

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    partial_rows(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch, uint32_t output,
                 uint32_t reduction) {
    extern __shared__ float partials[];  // [kWarps][batch][kColumns]
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * kColumns + lane;
    const uint32_t share = (reduction + kWarps - 1) / kWarps;
    const uint32_t begin = min(warp * share, reduction), end = min(begin + share, reduction);

    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t k = begin; k < end && column < output; ++k)
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), __bfloat162float(w[column * reduction + k]), sum);
        partials[(warp + row) * kColumns + lane] = sum;  // Defect: warp * batch + row
    }
    __syncthreads();
    for (uint32_t row = warp; row < batch && column < output; row += kWarps) {
        float sum = partials[row * kColumns + lane];
        for (uint32_t other = 1; other < kWarps; ++other)
            sum = __fadd_rn(sum, partials[(other * batch + row) * kColumns + lane]);
        y[row * output + column] = __float2bfloat16_rn(sum);
    }
}
