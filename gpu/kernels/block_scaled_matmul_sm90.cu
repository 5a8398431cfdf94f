// D = (A scaled) (B scaled)^T on a chip without block scales: codes times scales rounded to bf16, products of bf16 by wgmma.
//
//   a    rows of M, dense codes along K, each row from a multiple of 16 bytes on; its scales shuffled as tiles of 128 x 4
//   b    rows of N, likewise
//   d    [M, N] float32, pitch_d elements from row to row
//
// F is the chain of m64n64k16 in the order of K, from +0; D = fl(scale * F), `scale` the product of the per-tensor scales. E8M0's
// code 0 is 2^-127; E5M2 has no infinities and no NaN here. K is a multiple of the elements that share a scale.
//
// Targets: sm_90a

#include "block_scaled/entries.cuh"
#include "block_scaled/warpgroup_tiles.cuh"

namespace block_scaled {

// KIND, K and SCALES are of the instructions that this chip has not.
#define BLOCK_SCALED(NAME, KIND, K, SCALES, A_TYPE, B_TYPE, STORED)                                                    \
    struct Entry_##NAME {                                                                                              \
        enum : uint32_t { kBlock = STORED##_block, kOne = STORED##_one };                                              \
        using A = A_TYPE##_type;                                                                                       \
        using B = B_TYPE##_type;                                                                                       \
        using Stored = STORED##_type;                                                                                  \
        using FetchedA = Fetched<A_TYPE##_bits, false>;                                                                \
        using FetchedB = Fetched<B_TYPE##_bits, false>;                                                                \
    };                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(kThreads) block_scaled_matmul_sm90_##NAME(                            \
        const Operand a, const Operand b, float* __restrict__ d, const float scale, const Problem problem) {           \
        multiply_tile<Entry_##NAME>(a, b, d, scale, problem);                                                          \
    }

BLOCK_SCALED_ENTRIES

}  // namespace block_scaled
