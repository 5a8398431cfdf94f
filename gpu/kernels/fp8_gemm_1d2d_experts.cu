// fp8_gemm_1d2d.cu for a mixture of experts: each row of A by the B of its expert.
//
//   b    [experts, N, K] codes, a tensor map of experts * N rows
//   sfb  [experts, ceil(N / 128), ceil(K / 128)] float32
//
// Contiguous: a [M, K] and d [M, N]; the expert of each row, -1 for none. The rows of a tile have one expert, that of its first
// row; a tile whose first row has none is left out.
// Masked: a [experts, M, K] and d [experts, M, N], tensor maps of experts * M rows, sfa [experts, ceil(K / 128), M]; of each
// expert the first rows[expert] rows count.
// Rows that do not count are never written. Swapped entries: fp8_gemm_1d2d_splits.cu.
//
// Targets: sm_90a

#include "gemm/block.cuh"
#include "gemm/experts.cuh"

namespace gemm {

#define FP8_GEMM(NAME, BYTES, GROUPS, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) fp8_gemm_1d2d_experts_##NAME(                 \
        const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap sfa,\
        const __grid_constant__ TensorMap d, const float* __restrict__ sfb, const Problem problem,                    \
        const __grid_constant__ Experts experts) {                                                                    \
        using Entry = Tile<GROUPS, __VA_ARGS__>;                                                                      \
        static_assert(Entry::kDynamic == BYTES, "a launch asks for the bytes of the table");                          \
        multiply_blocks<Entry, TilesOfExperts<Entry>>(a, b, sfa, d, sfb, problem, experts);                           \
    }

// gemm_1d2d.py reads these lines.
//   name               shared bytes  GROUPS BLOCK_M  BLOCK_N STAGES DOWN  ACROSS STAGED  SWAPPED
FP8_GEMM(64x128,            191344,      1,      64,     128,      7,    1,      1,    128,       0)
FP8_GEMM(128x128_1x2,       200272,      2,     128,     128,      5,    1,      2,    128,       0)
FP8_GEMM(128x192,           224848,      2,     128,     192,      5,    1,      1,     64,       0)
FP8_GEMM(256x128,           218176,      2,     256,     128,      4,    1,      1,     64,       0)
FP8_GEMM(256x128_1x2,       184368,      2,     256,     128,      3,    1,      2,    128,       0)
FP8_GEMM(128x8_swapped,     231248,      2,     128,       8,     13,    1,      1,      8,       1)
FP8_GEMM(128x16_swapped,    228032,      2,     128,      16,     12,    1,      1,     16,       1)
FP8_GEMM(128x32_swapped,    215456,      2,     128,      32,     10,    1,      1,     32,       1)
FP8_GEMM(128x64_swapped,    216192,      2,     128,      64,      8,    1,      1,     64,       1)

}  // namespace gemm
