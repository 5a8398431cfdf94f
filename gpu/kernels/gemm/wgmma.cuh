// wgmma m64nNk32 of E4M3: 64 rows of A by N rows of B, both in shared memory, K-major in swizzled rows of 128 bytes.

#pragma once

#include <stdint.h>

namespace gemm {

// Eight rows of 128 bytes are one swizzled piece of 1024 bytes; a step of 32 columns is 32 bytes further.
// The upper half is always the same, and to the lower one bytes / 16 are added: what shared memory there is does not carry.
constexpr uint64_t kDescriptor = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
inline __device__ uint32_t first_descriptor(uint32_t address) { return 1 << 16 | (address & 0x3ffff) >> 4; }
inline __device__ uint64_t descriptor(uint32_t address) { return kDescriptor | first_descriptor(address); }

inline __device__ void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int NEWEST>
__device__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWEST) : "memory");
}

// The compiler knows nothing of products in flight: it must not move their registers' uses over a wait or a fence.
template <uint32_t COUNT>
__device__ void hold(float (&registers)[COUNT]) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// d (float [N / 2], as a warpgroup holds it) = A B^T, + d with `add`.
template <int N>
struct Wgmma;

#define GEMM_D8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GEMM_WGMMA(N, A, B, ADD, NAMES, ...)                                                                       \
    template <>                                                                                                    \
    struct Wgmma<N> {                                                                                              \
        static __device__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, uint32_t add) {                 \
            asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, %" A ", %" B       \
                         ", add, 1, 1;\n\t}"                                                                       \
                         : __VA_ARGS__                                                                             \
                         : "l"(a), "l"(b), "r"(add));                                                              \
        }                                                                                                          \
    };
#define GEMM_R_HALF "%0, %1, %2, %3"
#define GEMM_V_HALF "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define GEMM_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GEMM_R1 GEMM_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GEMM_R2 GEMM_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define GEMM_R3 GEMM_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GEMM_R4 GEMM_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GEMM_R5 GEMM_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GEMM_R6 GEMM_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GEMM_R7 GEMM_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GEMM_R8 GEMM_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define GEMM_R9 GEMM_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define GEMM_R10 GEMM_R9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define GEMM_R11 GEMM_R10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define GEMM_V0 GEMM_D8(0)
#define GEMM_V1 GEMM_V0, GEMM_D8(8)
#define GEMM_V2 GEMM_V1, GEMM_D8(16)
#define GEMM_V3 GEMM_V2, GEMM_D8(24)
#define GEMM_V4 GEMM_V3, GEMM_D8(32)
#define GEMM_V5 GEMM_V4, GEMM_D8(40)
#define GEMM_V6 GEMM_V5, GEMM_D8(48)
#define GEMM_V7 GEMM_V6, GEMM_D8(56)
#define GEMM_V8 GEMM_V7, GEMM_D8(64)
#define GEMM_V9 GEMM_V8, GEMM_D8(72)
#define GEMM_V10 GEMM_V9, GEMM_D8(80)
#define GEMM_V11 GEMM_V10, GEMM_D8(88)

GEMM_WGMMA(8, "4", "5", "6", GEMM_R_HALF, GEMM_V_HALF)
GEMM_WGMMA(16, "8", "9", "10", GEMM_R0, GEMM_V0)
GEMM_WGMMA(32, "16", "17", "18", GEMM_R1, GEMM_V1)
GEMM_WGMMA(48, "24", "25", "26", GEMM_R2, GEMM_V2)
GEMM_WGMMA(64, "32", "33", "34", GEMM_R3, GEMM_V3)
GEMM_WGMMA(80, "40", "41", "42", GEMM_R4, GEMM_V4)
GEMM_WGMMA(96, "48", "49", "50", GEMM_R5, GEMM_V5)
GEMM_WGMMA(112, "56", "57", "58", GEMM_R6, GEMM_V6)
GEMM_WGMMA(128, "64", "65", "66", GEMM_R7, GEMM_V7)
GEMM_WGMMA(144, "72", "73", "74", GEMM_R8, GEMM_V8)
GEMM_WGMMA(160, "80", "81", "82", GEMM_R9, GEMM_V9)
GEMM_WGMMA(176, "88", "89", "90", GEMM_R10, GEMM_V10)
GEMM_WGMMA(192, "96", "97", "98", GEMM_R11, GEMM_V11)

}  // namespace gemm
