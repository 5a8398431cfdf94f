// What the exhibits on shared tiles have in common: one warp, mma.m16n8k16 on bf16, 16 x 8 outputs.

#pragma once

#include <cuda/std/cstdint>
#include <cuda_bf16.h>

using cuda::std::uint32_t;

enum : uint32_t { kRows = 16, kColumns = 8, kTile = 64, kRowBytes = 2 * kTile };

inline __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The B fragment of columns 0..7 at k, from global memory: lane 4g + t holds k + 2t, + 1, + 8, + 9 of column g.
inline __device__ void load_weights(uint32_t (&b)[2], const __nv_bfloat16* w, uint32_t output, uint32_t reduction,
                                    uint32_t k) {
    const uint32_t lane = threadIdx.x % 32, column = blockIdx.x * kColumns + lane / 4;
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(w + column * reduction + k) + lane % 4;
    for (uint32_t i = 0; i < 2; ++i) b[i] = column < output ? pairs[4 * i] : 0;
}

// Lane 4g + t holds columns 2t and 2t + 1 of rows g and g + 8.
inline __device__ void store(__nv_bfloat16* y, const float (&d)[4], uint32_t batch, uint32_t output) {
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t lane = threadIdx.x % 32, row = lane / 4 + i / 2 * 8;
        const uint32_t column = blockIdx.x * kColumns + lane % 4 * 2 + i % 2;
        if (row < batch && column < output) y[row * output + column] = __float2bfloat16_rn(d[i]);
    }
}
