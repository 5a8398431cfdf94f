// What the kernels of a warpgroup have in common: m64n8k16 of bf16 with operands in shared memory, not swizzled.
#pragma once
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
using cuda::std::uint32_t;
using cuda::std::uint64_t;

// A (64 x 16) or B (8 x 16): core matrices of 8 rows x 16 bytes, those along K 128 bytes apart, those along rows 256.
inline __device__ uint32_t place(uint32_t row, uint32_t k) { return row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2; }

inline __device__ uint64_t descriptor(const void* tile) {
    const uint64_t at = __cvta_generic_to_shared(tile);
    return at >> 4 & 0x3fff | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
}

inline __device__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.fence.sync.aligned;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b)
                 : "memory");
}

inline __device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

inline __device__ void wait(float (&d)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
}

inline __device__ void fill(unsigned char* tile, const __nv_bfloat16* from, uint32_t rows) {
    for (uint32_t i = threadIdx.x; i < rows * 16; i += 128)
        *reinterpret_cast<__nv_bfloat16*>(tile + place(i / 16, i % 16)) = from[i];
}

inline __device__ void store(float* y, const float (&d)[4]) {
    for (uint32_t i = 0; i < 4; ++i)
        y[(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8) * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
}
