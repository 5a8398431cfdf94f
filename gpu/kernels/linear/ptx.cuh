// The instructions that the linear layers write themselves, one function each. An address of 64 bits is one of global
// memory, an address of 32 bits one of shared memory.

#pragma once

#include <cuda/std/cstdint>

namespace linear {

using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : uint32_t {
    kWarp = 32,
    kMmaRows = 16,  // of X that one mma.m16n8k16 holds
    kMmaStep = 16,  // elements of K that it adds
    kChunk = 16,    // bytes: the widest cp.async, and a row of an ldmatrix matrix
    kBanks = 128,   // bytes that shared memory serves at a time
};

inline __device__ uint64_t global_address(const void* pointer) { return __cvta_generic_to_global(pointer); }

// Copies `valid` of kBytes bytes and fills the rest with zeros. With `valid` 0 nothing is read; `from` is an address
// that exists all the same.
template <uint32_t kBytes>
__device__ void copy_async(uint32_t to, uint64_t from, uint32_t valid) {
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(static_cast<int>(kBytes)), "r"(valid)
                     : "memory");
    }
}
inline __device__ void copy_async(uint32_t to, uint64_t from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are on their way. What other threads copied is there only behind
// a barrier after this.
template <uint32_t kPending>
__device__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(static_cast<int>(kPending)) : "memory");
}

inline __device__ void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
inline __device__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lane l gives the address of row l % 8 of matrix l / 8.
inline __device__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

inline __device__ void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline __device__ void store_word(uint32_t to, uint32_t word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

}  // namespace linear
