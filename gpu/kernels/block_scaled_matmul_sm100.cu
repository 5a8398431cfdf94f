// D = (A scaled) (B scaled)^T: FP8, FP6, FP4 codes with a scale for 32 or 16 of K, by tcgen05.mma with scales by block.
//
//   a    rows of M, by tensor map: boxes of 128 rows of 128 bytes, 128-byte swizzle; FP6, and FP4 beside FP8, padded by the
//        copy to 16 bytes for 16 elements
//   sfa  its scales, shuffled as tiles of 128 x 4
//   b, sfb   rows of N, likewise
//   d    [M, N] float32, pitch_d elements from row to row
//
// F is the chain of the instructions in the order of K, from +0; D = fl(scale * F), `scale` the product of the per-tensor
// scales. K is a multiple of the elements that share a scale; codes of FP4 beyond it are zero, with scales of one.
//
// Targets: sm_100a

#include "block_scaled/entries.cuh"
#include "block_scaled/tensor_tiles.cuh"

namespace block_scaled {

#define BLOCK_SCALED(NAME, KIND, K, SCALES, A_TYPE, B_TYPE, STORED)                                                    \
    struct Entry_##NAME {                                                                                              \
        enum : uint32_t {                                                                                              \
            kStep = K,                                                                                                 \
            kStageElements = kSteps * K,                                                                               \
            kBoxElements = 128, /* of a map of bytes, or of padded elements */                                         \
            /* of a row of A and one of B, as a copy counts them: without what it pads */                              \
            kCountedBytes = K == 64 ? 256 : 128 / 8 * (A_TYPE##_bits + B_TYPE##_bits),                                 \
            kScales = SCALES,                                                                                          \
            kBlock = STORED##_block,                                                                                   \
            kOne = STORED##_one,                                                                                       \
            kTypes = K == 64 ? 1 << 7 | 1 << 10 : A_TYPE##_code << 7 | B_TYPE##_code << 10,                            \
            kDescriptor = kTypes | kTile / 8 << 17 | STORED##_code << 23 | kTile / 128 << 27,                          \
        };                                                                                                             \
        static_assert(kStep == kScales * kBlock, "an instruction has whole blocks");                                   \
        static __device__ void multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t word, uint32_t sfa, uint32_t sfb, \
                                        uint32_t add) {                                                                \
            asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %6, 0;\n\t"                                         \
                         "tcgen05.mma.cta_group::1.kind::" #KIND ".block_scale.scale_vec::" #SCALES "X "               \
                         "[%0], %1, %2, %3, [%4], [%5], add;\n\t}" ::"r"(d), "l"(a), "l"(b), "r"(word), "r"(sfa),      \
                         "r"(sfb), "r"(add)                                                                            \
                         : "memory");                                                                                  \
        }                                                                                                              \
    };                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) block_scaled_matmul_sm100_##NAME(                        \
        const __grid_constant__ gemm::TensorMap a, const __grid_constant__ gemm::TensorMap b,                          \
        const uint8_t* __restrict__ sfa, const uint8_t* __restrict__ sfb, float* __restrict__ d, const float scale,    \
        const Problem problem) {                                                                                       \
        multiply_tile<Entry_##NAME>(&a, &b, sfa, sfb, d, scale, problem);                                              \
    }

BLOCK_SCALED_ENTRIES

}  // namespace block_scaled
