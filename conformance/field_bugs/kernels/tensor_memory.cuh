// What the kernels of tensor memory have in common: columns, a barrier for commits, a product of shared operands.
#pragma once
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
using cuda::std::uint64_t;

inline __device__ uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

inline __device__ void allocate(uint32_t* slot) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(shared_address(slot)) : "memory");
}

inline __device__ void release(uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(columns) : "memory");
}

inline __device__ void wait(uint64_t* barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Core matrices of 8 rows x 16 bytes, 128 bytes apart along K, 256 along rows.
inline __device__ uint64_t descriptor(const void* tile) {
    return shared_address(tile) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32 | uint64_t{1} << 46;
}

// D (128 x 8, f32) = A (128 x 32) B (8 x 32)^T of E4M3: bits 4-5 D, 17-22 N / 8, 24-28 M / 16 of the instruction descriptor.
inline __device__ void multiply(uint32_t columns, const void* a, const void* b) {
    const uint32_t instruction = 1 << 4 | 8 / 8 << 17 | 128 / 16 << 24;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, p; }" ::"r"(columns),
                 "l"(descriptor(a)), "l"(descriptor(b)), "r"(instruction) : "memory");
}

inline __device__ void commit(uint64_t* barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

inline __device__ void load(uint32_t (&d)[8], uint32_t columns) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
                 : "r"(columns + (threadIdx.x / 32 << 21)));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
