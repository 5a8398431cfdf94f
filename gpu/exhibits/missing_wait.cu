// Exhibit: the pipeline waits where it fetches the next tile and before the last of several, so a reduction of one tile
// is multiplied while its copy is still on the way.
//
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16. A lane copies and reads its own row of W, so that no
// barrier is needed. output is a multiple of 32, reduction of 64, W lies at a multiple of 16 bytes.
// Launch: grid output / 32, block 32, 8192 bytes of shared memory.

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

enum : uint32_t { kStages = 2, kTile = 64, kChunk = 8 };  // elements

extern "C" __global__ void __launch_bounds__(32)
    missing_wait(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch, uint32_t output,
                 uint32_t reduction) {
    extern __shared__ __nv_bfloat16 stages[];  // [kStages][32][kTile]
    const uint32_t column = blockIdx.x * 32 + threadIdx.x, tiles = reduction / kTile;
    const auto stage = [&](uint32_t tile) { return stages + (tile % kStages * 32 + threadIdx.x) * kTile; };
    const auto fetch = [&](uint32_t tile) {
        for (uint32_t i = 0; i < kTile; i += kChunk) {
            const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage(tile) + i));
            const __nv_bfloat16* from = w + column * reduction + tile * kTile + i;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    float sum[16] = {};
    fetch(0);
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            fetch(tile + 1);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else if (tile > 0) {  // Defect: the last tile may also be the first
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
#pragma unroll 1
        for (uint32_t k = 0; k < kTile; ++k) {
            const float weight = __bfloat162float(stage(tile)[k]);
            const __nv_bfloat16* from = x + tile * kTile + k;
            for (uint32_t row = 0; row < 16; ++row)
                if (row < batch) sum[row] = __fmaf_rn(__bfloat162float(from[row * reduction]), weight, sum[row]);
        }
    }
    for (uint32_t row = 0; row < 16; ++row)
        if (row < batch) y[row * output + column] = __float2bfloat16_rn(sum[row]);
}
