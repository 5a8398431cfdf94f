// The prologue fetches two tiles of W, also where K has only one: the last row's second tile lies behind the matrix.
// Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16; K a multiple of 64. Launch: grid output / 32, block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;
enum : uint32_t { kTile = 64, kStages = 3 };

extern "C" __global__ void prefetch_beyond(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, uint32_t batch,
                                           uint32_t output, uint32_t reduction) {
    __shared__ __align__(16) __nv_bfloat16 stages[kStages][32][kTile];
    const uint32_t column = blockIdx.x * 32 + threadIdx.x, tiles = reduction / kTile;
    const auto fetch = [&](uint32_t tile) {
        for (uint32_t i = 0; i < kTile; i += 8) {
            const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(&stages[tile % kStages][threadIdx.x][i]));
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(w + column * reduction + tile * kTile + i));
        }
    };
    fetch(0);
    asm volatile("cp.async.commit_group;");
#ifdef RIGHT
    if (tiles > 1) fetch(1);
#else
    fetch(1);
#endif
    asm volatile("cp.async.commit_group;");
    float sum[4] = {};
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        if (tile + 2 < tiles) fetch(tile + 2);
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        for (uint32_t k = 0; k < kTile; ++k)
            for (uint32_t row = 0; row < batch; ++row)
                sum[row] = __fmaf_rn(__bfloat162float(x[row * reduction + tile * kTile + k]),
                                     __bfloat162float(stages[tile % kStages][threadIdx.x][k]), sum[row]);
    }
    for (uint32_t row = 0; row < batch; ++row) y[row * output + column] = __float2bfloat16_rn(sum[row]);
}
