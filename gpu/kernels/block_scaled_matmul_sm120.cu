// D = (A scaled) (B scaled)^T: FP8, FP6, FP4 codes with a scale for 32 or 16 of K, by mma.sync with scales by block.
//
//   a    rows of M, dense codes along K, each row from a multiple of 16 bytes on; its scales shuffled as tiles of 128 x 4
//   b    rows of N, likewise
//   d    [M, N] float32, pitch_d elements from row to row
//
// F is the chain of the instructions in the order of K, from +0; D = fl(scale * F), `scale` the product of the per-tensor
// scales. K is a multiple of the elements that share a scale; codes beyond it are zero, with scales of one.
//
// Targets: sm_120a

#include "block_scaled/entries.cuh"
#include "block_scaled/warp_tiles.cuh"

namespace block_scaled {

#define BLOCK_SCALED(NAME, KIND, K, SCALES, A_TYPE, B_TYPE, STORED)                                                    \
    struct Entry_##NAME {                                                                                              \
        enum : uint32_t { kStep = K, kScales = SCALES, kBlock = STORED##_block, kOne = STORED##_one };                 \
        static_assert(kStep == kScales * kBlock, "an instruction has whole blocks");                                   \
        using A = Fetched<A_TYPE##_bits, K == 64>;                                                                     \
        using B = Fetched<B_TYPE##_bits, K == 64>;                                                                     \
        template <uint32_t BYTE, uint32_t ROWS, uint32_t COLUMNS>                                                      \
        static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t sfa, \
                                        uint32_t sfb) {                                                                \
            asm("mma.sync.aligned.m16n8k" #K ".row.col.kind::" #KIND ".block_scale.scale_vec::" #SCALES "X.f32"        \
                "." #A_TYPE "." #B_TYPE ".f32." #STORED " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "              \
                "{%0, %1, %2, %3}, %10, {%12, %13}, %11, {%12, %14};"                                                  \
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                       \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sfa), "r"(sfb), "n"(BYTE),         \
                  "n"(ROWS), "n"(COLUMNS));                                                                            \
        }                                                                                                              \
    };                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(kThreads) block_scaled_matmul_sm120_##NAME(                           \
        const Operand a, const Operand b, float* __restrict__ d, const float scale, const Problem problem) {           \
        multiply_tile<Entry_##NAME>(a, b, d, scale, problem);                                                          \
    }

BLOCK_SCALED_ENTRIES

}  // namespace block_scaled
