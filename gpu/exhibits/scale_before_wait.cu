// Exhibit: the scale of the first group is read from shared memory before its copy has been waited for.
//
// Meant: Y[b, o] = the chain over groups of 64 of K of sum = fmaf(S[o, g], G, sum), G the chain of fmaf of the group, in
// bf16. A lane copies its own scales. output is a multiple of 32, reduction of 64.
// Launch: grid output / 32, block 32, 128 * reduction / 64 bytes of shared memory.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

enum : uint32_t { kGroup = 64 };

extern "C" __global__ void __launch_bounds__(32)
    scale_before_wait(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* scales, __nv_bfloat16* y,
                      uint32_t batch, uint32_t output, uint32_t reduction) {
    extern __shared__ float copied[];  // [groups][32]
    const uint32_t column = blockIdx.x * 32 + threadIdx.x, groups = reduction / kGroup;
    for (uint32_t group = 0; group < groups; ++group) {
        const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(copied + group * 32 + threadIdx.x));
        const float* from = scales + column * groups + group;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    float scale = copied[threadIdx.x];  // Defect: this line belongs below the wait
    asm volatile("cp.async.wait_group 0;" ::: "memory");

    float sum[16] = {};
    for (uint32_t group = 0; group < groups; ++group) {
        for (uint32_t row = 0; row < 16; ++row) {
            if (row >= batch) break;
            const __nv_bfloat16 *a = x + row * reduction + group * kGroup, *b = w + column * reduction + group * kGroup;
            float part = 0.0f;
#pragma unroll 1
            for (uint32_t k = 0; k < kGroup; ++k) part = __fmaf_rn(__bfloat162float(a[k]), __bfloat162float(b[k]), part);
            sum[row] = __fmaf_rn(scale, part, sum[row]);
        }
        if (group + 1 < groups) scale = copied[(group + 1) * 32 + threadIdx.x];
    }
    for (uint32_t row = 0; row < 16; ++row)
        if (row < batch) y[row * output + column] = __float2bfloat16_rn(sum[row]);
}
