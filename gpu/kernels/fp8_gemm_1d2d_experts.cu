// fp8_gemm_1d2d.cu for a mixture of experts: each row of A by the B of its expert.
//
//   b    [experts, N, K] codes, a tensor map of experts * N rows
//   sfb  [experts, ceil(N / 128), ceil(K / 128)] float32
//
// Contiguous: a [M, K] and d [M, N]; the expert of each row, -1 for none. The rows of a tile have one expert, that of its first
// row; a tile whose first row has none is left out.
// Masked: a [experts, M, K] and d [experts, M, N], tensor maps of experts * M rows, sfa [experts, ceil(K / 128), M]; of each
// expert the first rows[expert] rows count.
// Rows that do not count are never written. An entry has one layout, that of its name. Swapped entries: fp8_gemm_1d2d_splits.cu.
//
// Targets: sm_90a

#include "gemm/block.cuh"
#include "gemm/experts.cuh"

namespace gemm {

#define FP8_GEMM(NAME, BYTES, GROUPS, BLOCK_M, BLOCK_N, STAGES, DOWN, ACROSS, STAGED, SWAPPED, MASKED)               \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) fp8_gemm_1d2d_experts_##NAME(                 \
        const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap sfa,\
        const __grid_constant__ TensorMap d, const float* __restrict__ sfb, const Problem problem,                    \
        const __grid_constant__ Experts experts) {                                                                    \
        using Entry = Tile<GROUPS, BLOCK_M, BLOCK_N, STAGES, DOWN, ACROSS, STAGED, SWAPPED>;                          \
        using Job = TilesOfExperts<Entry, MASKED>;                                                                    \
        static_assert(Job::kDynamic == BYTES, "a launch asks for the bytes of the table");                            \
        multiply_blocks<Entry, Job>(a, b, sfa, d, sfb, problem, experts);                                             \
    }

// gemm_1d2d.py reads these lines.
//   name                        shared bytes  GROUPS BLOCK_M BLOCK_N STAGES DOWN  ACROSS STAGED SWAPPED MASKED
FP8_GEMM(contiguous_64x128,          191472,      1,      64,    128,      7,    1,      1,    128,       0,      0)
FP8_GEMM(contiguous_128x128_1x2,     200400,      2,     128,    128,      5,    1,      2,    128,       0,      0)
FP8_GEMM(contiguous_128x192,         224976,      2,     128,    192,      5,    1,      1,     64,       0,      0)
FP8_GEMM(contiguous_256x128,         218304,      2,     256,    128,      4,    1,      1,     64,       0,      0)
FP8_GEMM(contiguous_256x128_1x2,     184496,      2,     256,    128,      3,    1,      2,    128,       0,      0)
FP8_GEMM(contiguous_128x8_swapped,   231376,      2,     128,      8,     13,    1,      1,      8,       1,      0)
FP8_GEMM(contiguous_128x16_swapped,  228160,      2,     128,     16,     12,    1,      1,     16,       1,      0)
FP8_GEMM(contiguous_128x32_swapped,  215584,      2,     128,     32,     10,    1,      1,     32,       1,      0)
FP8_GEMM(contiguous_128x64_swapped,  216320,      2,     128,     64,      8,    1,      1,     64,       1,      0)
FP8_GEMM(masked_64x128,              191472,      1,      64,    128,      7,    1,      1,    128,       0,      1)
FP8_GEMM(masked_128x128_1x2,         200400,      2,     128,    128,      5,    1,      2,    128,       0,      1)
FP8_GEMM(masked_128x192,             224976,      2,     128,    192,      5,    1,      1,     64,       0,      1)
FP8_GEMM(masked_256x128,             218304,      2,     256,    128,      4,    1,      1,     64,       0,      1)
FP8_GEMM(masked_256x128_1x2,         184496,      2,     256,    128,      3,    1,      2,    128,       0,      1)
FP8_GEMM(masked_128x8_swapped,       231376,      2,     128,      8,     13,    1,      1,      8,       1,      1)
FP8_GEMM(masked_128x16_swapped,      228160,      2,     128,     16,     12,    1,      1,     16,       1,      1)
FP8_GEMM(masked_128x32_swapped,      215584,      2,     128,     32,     10,    1,      1,     32,       1,      1)
FP8_GEMM(masked_128x64_swapped,      216320,      2,     128,     64,      8,    1,      1,     64,       1,      1)

}  // namespace gemm
